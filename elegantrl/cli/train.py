"""``elegantrl train AGENT ENV``."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from ..agents.on_policy import OnPolicyConfig
from ..config.fields import Section, used_fields
from ..config.resolve import Sections, resolve_sections
from ..config.run import RunConfig
from ..config.sections import CheckpointConfig, EnvConfig, EvalConfig, ExecuteConfig, TrainConfig
from ..errors import ConfigError
from ..imports import is_foreign_code
from ..registry import find_agent
from ..runtime.display import SIGNALS
from ..runtime.train import prepare
from ..store.untrusted import CONFIG_FILE
from .parse import parse, parse_kwargs

RunDir = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Switch = FlagCreatePairsOff[bool]
ImportPaths = Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODULE:NAME ...")]
Changes = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")]
ASYNC = (
    "Run learner and workers at their own speed: a lag of 1; PPO and A2C wait for half of the workers and use V-trace."
)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Train an agent, and write the trained policy, curves and commits into a run folder."""

    run_dir: RunDir = None
    """Folder of the run; by default a fresh one under runs/."""
    resume: Switch = False
    """Continue the newest valid commit of --run-dir, bit for bit."""
    allow: Changes = ()
    """With --resume: settings of the agent to change, for example lr=1e-4. The run is bit-exact up to there; commits,
    summary and metrics record the change."""
    callback: ImportPaths = ()
    """Callbacks of your own, called at the events of the run: elegantrl.Callback classes, objects, or functions."""
    restartable: Switch = False
    """Start the run in --run-dir, or continue it if the folder holds one: for jobs that a cluster starts again."""
    envs_per_worker: int | None = None
    """Instead of --num-envs and --num-groups: each worker gets one group of this many environments."""
    go_async: Annotated[Switch, tyro.conf.arg(name="async", help=ASYNC)] = False
    env: OmitArgPrefixes[EnvConfig]
    train: OmitArgPrefixes[TrainConfig]
    execute: OmitArgPrefixes[ExecuteConfig]
    eval: EvalConfig
    checkpoint: CheckpointConfig


@dataclass(frozen=True, kw_only=True)
class ConfigFlags:
    """Train from a config file, e.g. the config.yaml of an earlier run."""

    config: Path
    """A YAML file like config.yaml of a run folder."""
    run_dir: RunDir = None
    """Folder of the run; by default a fresh one under runs/."""
    resume: Switch = False
    """Continue the newest valid commit of --run-dir, bit for bit."""
    allow: Changes = ()
    """With --resume: settings of the agent to change, for example lr=1e-4."""
    callback: ImportPaths = ()
    """Callbacks of your own, called at the events of the run: elegantrl.Callback classes, objects, or functions."""
    allow_import: Switch = False
    """Import the agent and the environment that the file names by import path, which runs their code."""


def main(argv: list[str]) -> int:
    no_pair = len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-")
    from_file = any(word.split("=")[0] == "--config" for word in argv)
    if argv[0].startswith("-"):
        if not from_file:
            raise ConfigError("agent and environment are missing; for example: elegantrl train ppo CartPole-v1")
        return train_from_file(parse(ConfigFlags, argv, "elegantrl train"))
    if no_pair:
        find_agent(argv[0])
        raise ConfigError(f"the environment is missing; for example: elegantrl train {argv[0]} CartPole-v1")
    if from_file:
        raise ConfigError("a config file names agent and environment itself; use elegantrl train --config FILE")
    agent, env = argv[:2]
    flags, overrides = parse_run(agent, env, argv[2:])
    resume = flags.resume or continues(flags)
    allow = parse_changes(flags.allow)
    plan = prepare(agent, env, overrides, resumed=flags.run_dir if resume else None, allow=allow)
    result = plan.run(flags.run_dir, resume, callback=flags.callback)
    return SIGNALS.get(result.summary["stop_reason"], 0)


def continues(flags: Flags) -> bool:
    """Whether a restartable run was begun earlier."""
    if flags.restartable and flags.run_dir is None:
        raise ConfigError("--restartable finds an earlier run by its folder; name it with --run-dir")
    return flags.restartable and flags.run_dir is not None and (flags.run_dir / CONFIG_FILE).exists()


def parse_changes(pairs: tuple[str, ...]) -> dict[str, Any]:
    """The values of --allow."""
    try:
        return parse_kwargs(list(pairs), "--allow")
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse_run(agent: str, env: str, argv: list[str]) -> tuple[Flags, dict[str, dict[str, Any]]]:
    """The flags, and by section the settings that differ from the tuned ones of this pair."""
    base = resolve_sections(agent, env)
    kind = make_dataclass("Flags", [("agent", type(base.agent))], bases=(Flags,), frozen=True, kw_only=True)
    kind.__doc__ = Flags.__doc__
    default = kind(agent=base.agent, **base.others)
    flags: Any = parse(kind, argv, f"elegantrl train {agent} {env}", default)
    overrides = differences(flags, base)
    if flags.go_async:
        make_asynchronous(overrides, base)
    if flags.envs_per_worker is not None:
        divide_envs(overrides, flags.envs_per_worker)
    return flags, overrides


def differences(flags: Any, base: Sections) -> dict[str, dict[str, Any]]:
    """By section, the settings whose flags have another value than the default."""

    def changed(section: Section, before: Section) -> dict[str, Any]:
        values = ((f.name, getattr(section, f.name), getattr(before, f.name)) for f in used_fields(section))
        return {name: value for name, value, was in values if value != was}

    sections = {"agent": base.agent, **base.others}
    return {name: changed(getattr(flags, name), before) for name, before in sections.items()}


def make_asynchronous(overrides: dict[str, dict[str, Any]], base: Sections) -> None:
    """Add the settings of --async to ``overrides``."""
    execute = overrides["execute"]
    execute["max_lag"] = max(1, execute.get("max_lag", 0))
    if isinstance(base.agent, OnPolicyConfig):
        execute["sync_frac"] = min(0.5, execute.get("sync_frac", 1.0))
        overrides["agent"]["vtrace"] = True


def divide_envs(overrides: dict[str, dict[str, Any]], each: int) -> None:
    """Add the settings of --envs-per-worker to ``overrides``."""
    if each < 1:
        raise ConfigError(f"--envs-per-worker {each} is too few; a worker has at least 1 environment")
    if {"num_envs", "num_groups"} & overrides["env"].keys():
        raise ConfigError(
            "--envs-per-worker determines the number of environments; leave --num-envs and --num-groups out"
        )
    workers = overrides["execute"].get("num_workers", 1)
    overrides["env"] |= {"num_envs": each * workers, "num_groups": workers}


def train_from_file(flags: ConfigFlags) -> int:
    config = read_config(flags.config, flags.allow_import)
    allow = parse_changes(flags.allow)
    plan = prepare(config, None, {}, resumed=flags.run_dir if flags.resume else None, allow=allow)
    plan = plan._replace(notes=f"settings of {flags.config}")
    result = plan.run(flags.run_dir, flags.resume, callback=flags.callback)
    return SIGNALS.get(result.summary["stop_reason"], 0)


def read_config(path: Path, allow_import: bool = False) -> RunConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"--config {path} is not a text file; expected YAML like config.yaml of a run folder"
        ) from None
    if not allow_import:
        refuse_imports(path, RunConfig.from_yaml(text, agent_needed=False))
    return RunConfig.from_yaml(text)


def refuse_imports(path: Path, config: RunConfig) -> None:
    """Refuse a file that names code to import, because a config file may come from an untrusted source."""
    named = (config.agent_name, config.env.id, config.eval.env_id, config.execute.executor)
    for name in (*named, *config.agent.net().imports(), *config.train.loggers):
        if name is not None and is_foreign_code(name):
            raise ConfigError(
                f"--config {path} names {name}, whose import runs code; add --allow-import if you trust it"
            )
    if config.execute.address is not None:
        raise ConfigError(
            f"--config {path} names the Ray cluster {config.execute.address}, whose nodes may run code here; add"
            f" --allow-import if you trust it"
        )

"""``elegantrl train AGENT ENV``."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..agents.base import AgentConfig
from ..agents.on_policy import OnPolicyConfig
from ..config.resolve import resolve_config, tuned_groups
from ..config.run import CheckpointConfig, EnvConfig, EvalConfig, ExecuteConfig, RunConfig, TrainConfig
from ..errors import ConfigError
from ..registry import find_agent
from ..runtime.layout import pick_layout
from ..runtime.run import RunResult, run_training
from ..store.untrusted import load_config
from .display import RunDisplay, Stdout
from .parse import parse

USAGE = """\
usage: elegantrl train AGENT ENV [OPTIONS]
       elegantrl train --config FILE [--run-dir D] [--resume]

  AGENT   one of `elegantrl agents`
  ENV     a Gymnasium id, a tensor environment (`elegantrl envs`), envpool:ID, or module:attribute of your own

`elegantrl train AGENT ENV --help` lists all settings with the defaults for that pair."""

RunDir = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Switch = tyro.conf.FlagCreatePairsOff[bool]
ASYNC = (
    "Let learner and workers go at their own speed: a lag of 1; PPO and A2C wait for half of the workers, with V-trace."
)

SIGNALS = {"interrupted": 130, "terminated": 143}
"""Exit codes of runs that a signal ended."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Train an agent; a run folder with the trained policy, curves and commits is left behind."""

    num_envs: int
    """Environments of the run."""
    num_groups: int | None
    """Groups of environments that are acted for together; None: one per worker."""
    executor: Literal["auto", "inline", "process"]
    """Where to act and evaluate: in this process or in others; `auto` picks what suits environment and machine."""
    num_workers: int
    """Workers that share the groups of environments."""
    num_learners: int
    """0: learn in this process; R: in R processes of their own, which average their gradients."""
    max_lag: int
    """Updates by which acting may be behind learning; above 0 workers act while the learner learns."""
    sync_frac: float
    """Share of the workers that the learner waits for; below 1 results depend on timing."""
    go_async: Annotated[Switch, tyro.conf.arg(name="async", help=ASYNC)] = False
    role_timeout: float | None
    """Seconds that a worker process may take for a fragment, or an evaluator for a score, before it is replaced; None:
    for a fragment a minute or 20 times the longest so far, for anything else half an hour."""
    max_worker_memory: float | None
    """Megabytes; a worker process that has grown beyond them is replaced, which changes no result."""
    max_restarts: int
    """Restarts of processes, and likewise faults of environments, within 10 minutes before the run gives up."""
    on_nonfinite: Literal["reject", "stop"]
    """At a NaN or infinity from an environment, take other steps in place of the fragment, or stop the run."""
    max_steps: int
    """Stop after this many environment steps, counted over all environments."""
    max_seconds: float | None
    """Stop after this many seconds of training."""
    target_return: float | None
    """Stop once evaluation shows this return with 95 % confidence; None: the environment's own goal; inf: never."""
    patience: int | None
    """Stop when this many evaluations in a row fall clearly below the best one."""
    seed: int
    """One number fixes everything random."""
    device: str
    """Where to learn: cpu, cuda, cuda:1."""
    num_threads: int | None
    """Torch threads of each process; for a plain SAC above 1 a process that helps to learn instead; None: as the layout
    asks."""
    run_dir: RunDir = None
    """Folder of the run; by default a fresh one under runs/."""
    resume: Switch = False
    """Continue the newest valid commit of --run-dir, bit for bit."""
    envs_per_worker: int | None = None
    """Another way to say --num-envs and --num-groups: a group of this many environments for each worker."""
    env_kwargs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Arguments of the environment."""


@dataclass(frozen=True, kw_only=True)
class ConfigFlags:
    """Train from a config file, e.g. the config.yaml of an earlier run."""

    config: Path
    """A YAML file as a run folder holds it."""
    run_dir: RunDir = None
    """Folder of the run; by default a fresh one under runs/."""
    resume: Switch = False
    """Continue the newest valid commit of --run-dir, bit for bit."""


def main(argv: list[str]) -> int:
    no_pair = len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-")
    if not argv or (no_pair and {"-h", "--help"} & {*argv}):
        print(USAGE)
        return 0 if argv else 2
    from_file = any(word.split("=")[0] == "--config" for word in argv)
    if argv[0].startswith("-"):
        if not from_file:
            raise ConfigError("which agent and environment? say for example: elegantrl train ppo CartPole-v1")
        flags = parse(ConfigFlags, argv, "elegantrl train")
        return run(read_config(flags.config), f"settings of {flags.config}", flags.run_dir, flags.resume)
    if no_pair:
        find_agent(argv[0])
        raise ConfigError(f"which environment? say for example: elegantrl train {argv[0]} CartPole-v1")
    if from_file:
        raise ConfigError("a config file names agent and environment itself; say elegantrl train --config FILE")
    config, notes, run_dir, resume = parse_run(argv[0], argv[1], argv[2:])
    return run(config, notes, run_dir, resume)


def read_config(path: Path) -> RunConfig:
    try:
        return RunConfig.from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is not a text file; expected YAML as a run folder holds it") from None


def parse_run(agent: str, env: str, argv: list[str]) -> tuple[RunConfig, str, Path | None, bool]:
    """The config that the flags describe, on top of the tuned settings for this pair."""
    base, recipe = resolve_config(agent, env)
    sections: list[tuple[str, type, Any]] = [
        ("agent", type(base.agent), base.agent),
        ("eval", EvalConfig, base.eval),
        ("checkpoint", CheckpointConfig, base.checkpoint),
    ]
    kind = make_dataclass("Flags", sections, bases=(Flags,), frozen=True, kw_only=True)
    kind.__doc__ = Flags.__doc__
    short: dict[str, Any] = {"num_envs": base.env.num_envs, "num_groups": base.env.num_groups}
    short |= {f.name: getattr(section, f.name) for section in (base.train, base.execute) for f in fields(section)}
    short |= {"executor": "auto", "num_threads": None}
    default = kind(**short, **{name: value for name, _, value in sections})
    flags: Any = parse(kind, argv, f"elegantrl train {agent} {env}", default)
    assert isinstance(flags.agent, AgentConfig)
    kwargs = base.env.kwargs | parse_kwargs(flags.env_kwargs)
    execute = {f.name: getattr(flags, f.name) for f in fields(ExecuteConfig)}
    agent_config = flags.agent
    if flags.go_async:
        execute, agent_config = make_asynchronous(execute, agent_config)
    unsaid = {f.name: getattr(base.execute, f.name) for f in fields(ExecuteConfig)} | {"executor": "auto"}
    nothing_said = flags.num_threads is None and all(execute[name] == unsaid[name] for name in LAYOUT)
    if execute["executor"] == "auto":
        execute["executor"] = "inline" if nothing_said else "process"
    threads = base.train.num_threads if flags.num_threads is None else flags.num_threads
    config = RunConfig(
        agent_name=base.agent_name,
        agent=agent_config,
        env=EnvConfig(id=env, kwargs=kwargs, **share_envs(flags, base)),
        train=TrainConfig(**{f.name: getattr(flags, f.name) for f in fields(TrainConfig)} | {"num_threads": threads}),
        execute=ExecuteConfig(**execute),
        eval=flags.eval,
        checkpoint=flags.checkpoint,
    )
    notes = recipe.name
    if nothing_said:
        config, why = with_layout(config, flags.run_dir if flags.resume else None)
        notes += f"; {why}"
    return config, notes, flags.run_dir, flags.resume


LAYOUT = ("executor", "num_workers", "num_learners", "max_lag", "sync_frac")
"""Settings by which somebody who runs an agent says where it runs."""


def with_layout(config: RunConfig, resumed: Path | None) -> tuple[RunConfig, str]:
    """The layout that nobody asked for: that of the run which is resumed, or the best one for this environment."""
    if resumed is not None and (resumed / "config.yaml").exists():
        had = load_config(resumed)
        return place(config, had.execute, had.train.num_threads), "in the layout it had"
    execute, why, num_threads = pick_layout(config, config.env.id)
    return place(config, replace(config.execute, **execute), num_threads), why


def place(config: RunConfig, execute: ExecuteConfig, num_threads: int) -> RunConfig:
    return replace(config, execute=execute, train=replace(config.train, num_threads=num_threads))


def make_asynchronous(execute: dict[str, Any], agent: AgentConfig) -> tuple[dict[str, Any], AgentConfig]:
    """What --async stands for."""
    execute = execute | {"max_lag": max(1, execute["max_lag"])}
    if isinstance(agent, OnPolicyConfig):
        return execute | {"sync_frac": min(0.5, execute["sync_frac"])}, replace(agent, vtrace=True)
    return execute, agent


def share_envs(flags: Any, base: RunConfig) -> dict[str, Any]:
    """How many environments there are, in how many groups."""
    each = flags.envs_per_worker
    if each is None:
        groups = flags.num_groups
        if groups == base.env.num_groups:  # nobody said otherwise
            groups = tuned_groups(groups, flags.num_envs, flags.num_workers, flags.num_learners)
        return {"num_envs": flags.num_envs, "num_groups": groups}
    if each < 1:
        raise ConfigError(f"--envs-per-worker {each} is too few; a worker has at least 1 environment")
    if (flags.num_envs, flags.num_groups) != (base.env.num_envs, base.env.num_groups):
        raise ConfigError(
            "--envs-per-worker says how many environments there are; leave --num-envs and --num-groups out"
        )
    return {"num_envs": each * flags.num_workers, "num_groups": flags.num_workers}


def parse_kwargs(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``("gravity=-5",)`` -> ``{"gravity": -5}``; values are read as YAML."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--env-kwargs {pair!r} is not name=value")
        if name in ("num_envs", "device"):
            raise ConfigError(f"--env-kwargs {pair!r} is a setting of the run; say --{name.replace('_', '-')} {value}")
        try:
            result[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--env-kwargs {pair!r} has a value that is not YAML; put text into quotes") from None
    return result


def run(config: RunConfig, notes: str, run_dir: Path | None, resume: bool) -> int:
    """Train with a display, then say what came out and where it is."""
    console = Stdout()
    lanes = "1 environment" if config.env.num_envs == 1 else f"{config.env.num_envs:,} environments"
    if config.execute.executor == "process":
        workers = config.execute.num_workers
        lanes += f" in {workers} worker process{'es' if workers > 1 else ''}"
    else:
        lanes += " in this process"
    if config.execute.num_learners:
        lanes += f", {config.execute.num_learners} learner process{'es' if config.execute.num_learners > 1 else ''}"
    console.print(
        f"[bold]{config.agent_name}[/bold] on [bold]{escape(config.env.id)}[/bold], seed {config.train.seed},"
        f" {lanes}; {escape(notes)}",
        soft_wrap=not console.is_terminal,
    )
    with RunDisplay(config.train.max_steps, console) as display:
        result = run_training(config, config.env.id, run_dir, resume, display)
    report(console, result)
    return SIGNALS.get(result.summary["stop_reason"], 0)


def report(console: Console, result: RunResult) -> None:
    summary = result.summary
    table = Table(title=escape(f"{summary['agent']} on {summary['env']}"), title_justify="left", show_header=False)
    for name in (
        "stop_reason",
        "env_steps",
        "updates",
        "wall_seconds",
        "steps_per_second",
        "best_return",
        "final_return",
    ):
        table.add_row(name.replace("_", " "), in_words(summary[name]))
    console.print(table)
    rows = [
        ("run folder", f"{result.run_dir}"),
        ("learning curve", f"{result.run_dir / 'plot_learning_curve.jpg'}"),
        ("score it", f"elegantrl eval {result.run_dir}"),
    ]
    if summary["stop_reason"] in SIGNALS:
        rows.append(("continue it", f"the same command with --run-dir {result.run_dir} --resume"))
    for name, text in rows:
        console.print(f"{name:<15} {text}", markup=False, soft_wrap=True)


def in_words(value: Any) -> str:
    if value is None:
        return "none yet"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

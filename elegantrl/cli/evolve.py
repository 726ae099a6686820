"""``elegantrl evolve ENV``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from ..config.yaml_text import parse_yaml
from ..errors import ConfigError
from ..imports import is_foreign_code
from ..population.config import PopulationConfig
from ..population.evolve import run_population
from ..population.log import has_population
from ..population.results import PopulationResult
from ..population.stacked.show import evolve_stacked
from ..runtime.display import SIGNALS
from ..store.storage import open_storage
from .parse import parse

RunDir = Annotated[str | None, tyro.conf.arg(metavar="FOLDER")]
Switch = FlagCreatePairsOff[bool]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Train a population of agents, and write the best of them, an ensemble and the leaderboard into a folder."""

    run_dir: RunDir = None
    """Folder of the population, or an address such as s3://bucket/name; by default a fresh folder under runs/."""
    resume: Switch = False
    """Continue the population in --run-dir."""
    restartable: Switch = False
    """Start the population in --run-dir, or continue it if there is one: for jobs that a cluster starts again."""
    stacked: Switch = False
    """Train all members as one program on one device: one agent, a tensor environment, generations without a log."""
    settings: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SECTION.NAME=VALUE ...")] = ()
    """Settings of all runs, on top of the tuned ones: env.num_envs=8 train.device=cuda agent.hidden=[64,64]; an agent
    takes those that it has. `elegantrl train AGENT ENV --help` lists them."""
    population: OmitArgPrefixes[PopulationConfig]


@dataclass(frozen=True, kw_only=True)
class ConfigFlags:
    """Train a population from a config file, e.g. the population.yaml of an earlier one."""

    config: Path
    """A YAML file like population.yaml of a population folder."""
    run_dir: RunDir = None
    """Folder of the population, or an address such as s3://bucket/name; by default a fresh folder under runs/."""
    resume: Switch = False
    """Continue the population in --run-dir."""
    allow_import: Switch = False
    """Import agents, environment and executor that the file names by import path, which runs their code."""


def main(argv: list[str]) -> int:
    if not argv or (argv[0].startswith("-") and not any(word.split("=")[0] == "--config" for word in argv)):
        if {"-h", "--help"} & {*argv}:
            argv = ["ENV", *argv]
        else:
            raise ConfigError("the environment is missing; for example: elegantrl evolve CartPole-v1")
    if argv[0].startswith("-"):
        file_flags = parse(ConfigFlags, argv, "elegantrl evolve")
        config = read_population_config(file_flags.config, file_flags.allow_import)
        return exit_code(run_population(config, config.env, file_flags.run_dir, file_flags.resume))
    env = argv[0]
    flags = parse(Flags, argv[1:], f"elegantrl evolve {env}", Flags(population=PopulationConfig(env=env)))
    population = flags.population
    if flags.settings:
        population = replace(population, settings=parse_settings(flags.settings))
    if flags.stacked:
        if flags.resume or flags.restartable:
            raise ConfigError("--stacked keeps no commits, so there is nothing to resume; leave --resume out")
        return evolve_stacked(population, flags.run_dir)
    resume = flags.resume or continues(flags)
    return exit_code(run_population(population, env, flags.run_dir, resume))


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """``["env.num_envs=8"]`` -> ``{"env": {"num_envs": 8}}``; values are read as YAML."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        section, dot, setting = name.partition(".")
        if not (equals and dot and setting):
            raise ConfigError(f"--settings {word!r} is not section.name=value; for example env.num_envs=8")
        try:
            found.setdefault(section, {})[setting] = parse_yaml(value)
        except ConfigError:
            raise ConfigError(f"--settings {word!r} has a value that is not YAML; put text into quotes") from None
    return found


def continues(flags: Flags) -> bool:
    """Whether a restartable population was begun earlier."""
    if flags.restartable and flags.run_dir is None:
        raise ConfigError("--restartable finds an earlier population by its folder; name it with --run-dir")
    if not flags.restartable or flags.run_dir is None:
        return False
    with contextlib.closing(open_storage(flags.run_dir)) as storage:
        return has_population(storage)


def exit_code(result: PopulationResult) -> int:
    return SIGNALS.get(result.summary["stop_reason"], 0)


def read_population_config(path: Path, allow_import: bool) -> PopulationConfig:
    """The config in a file; import paths in it only if the user allows them."""
    try:
        config = PopulationConfig.from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is not a text file; expected YAML like population.yaml") from None
    for name in (config.env, *config.agents, config.executor, *texts(config.settings)):
        if is_foreign_code(name) and not allow_import:
            raise ConfigError(
                f"--config {path} names {name}, whose import runs code; add --allow-import if you trust it"
            )
    return config


def texts(value: object) -> list[str]:
    """Every text in nested data."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in items for text in texts(item)]

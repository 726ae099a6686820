"""Run folders as curves: reads their files, groups runs with equal settings, and combines seeds into one curve."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..config.run import RunConfig
from ..config.yaml_text import MAX_CHARACTERS, parse_yaml
from ..errors import CheckpointError, ConfigError
from ..store.changes import Change, changes_of
from ..store.files import JSON_LIMIT, parse_json, read_regular
from ..store.runlog import read_metrics
from ..store.untrusted import CONFIG_FILE
from .statistics import Array, bootstrap_interval, interquartile_mean

GRID_POINTS = 200
MAX_NAME = 60
NOT_COMPARED = ("train.seed", "train.device", "train.num_threads")
"""Settings in which runs of one group may differ: the seed, the device and the number of threads."""


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run, or of several as one; ``low`` and ``high`` bound the mean with 95 % confidence."""

    steps: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    name: str
    agent: str | None
    env: str | None
    seed: int | None
    target: float | None
    seconds: float
    evaluation: Curve
    train_steps: Array
    train_return: Array
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that determine the numbers of the run, without the seed, as ``section.name``."""
    timed: Curve | None = None
    """The evaluations over seconds instead of steps; None if these are not known."""
    changes: tuple[Change, ...] = ()
    """Settings that a resume changed."""

    @property
    def title(self) -> str:
        return f"{self.label} on {self.env}" if self.agent and self.env else self.name

    @property
    def label(self) -> str:
        """The name of the agent in its usual spelling."""
        return (self.agent or self.name).upper().replace("_", " ")


# ---- reading


def read_run(run_dir: str | Path) -> Run:
    """The contents of ``metrics.jsonl``, ``summary.json`` and ``config.yaml``; missing values stay empty."""
    folder = Path(run_dir).resolve()
    if not folder.is_dir():
        raise ConfigError(f"{run_dir} is not a run folder")
    rows = read_metrics(folder)
    config, summary = _read_config(folder), read_summary(folder)
    agent, env, train = (_section(config, name) for name in ("agent", "env", "train"))
    steps, mean, ci95, seconds = _columns(rows, "eval/mean", "eval/ci95", "wall_seconds")
    train_steps, train_return = _columns(rows, "train/return")
    band = np.nan_to_num(ci95)  # no interval known: no band
    changes = tuple(changes_of(rows))
    seed = summary.get("seed", train.get("seed"))
    target = _number(summary.get("target_return", train.get("target_return")))
    return Run(
        name=_text(folder.name) or "run",
        agent=_text(summary.get("agent", agent.get("name"))),
        env=_text(summary.get("env", env.get("id"))),
        seed=seed if isinstance(seed, int) else None,
        target=target if math.isfinite(target) else None,
        seconds=max(_columns(rows, "wall_seconds")[1], default=0.0),
        evaluation=Curve(steps, mean, mean - band, mean + band),
        train_steps=train_steps,
        train_return=train_return,
        settings=_settings(config) | ({"run.changes": "; ".join(map(str, changes))} if changes else {}),
        timed=Curve(seconds, mean, mean - band, mean + band) if np.isfinite(seconds).all() else None,
        changes=changes,
    )


def _columns(rows: Sequence[Mapping[str, Any]], key: str, *more: str) -> Array:
    """Steps, ``key`` and ``more`` [1 + keys, rows] of the rows where ``key`` is a number, by ascending step."""
    names = ("env_steps", key, *more)
    found = [[_number(row.get(name)) for name in names] for row in rows if math.isfinite(_number(row.get(key)))]
    table = np.array(found, np.float64).reshape(-1, len(names))
    return table[np.argsort(table[:, 0], kind="stable")].T


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _text(value: Any) -> str | None:
    """A name as a label: short, printable, and without dollar signs, which mark formulas in matplotlib."""
    if not isinstance(value, str):
        return None
    return "".join(c if c.isprintable() else "?" for c in value[:MAX_NAME]).replace("$", r"\$")


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    return section if isinstance(section, Mapping) else {}


def _read_config(folder: Path) -> Mapping[str, Any]:
    if not (folder / CONFIG_FILE).exists():
        return {}
    try:
        data = parse_yaml(read_regular(folder / CONFIG_FILE, 4 * MAX_CHARACTERS).decode("utf-8"))
    except (CheckpointError, ValueError) as error:
        raise ConfigError(f"{folder / CONFIG_FILE} is not the config of a run: {error}") from None
    if not _section(data if isinstance(data, Mapping) else {}, "agent"):
        raise ConfigError(f"{folder / CONFIG_FILE} is not the config of a run: it names no agent")
    return dict(data)


def read_summary(folder: Path) -> Mapping[str, Any]:
    path = folder / "summary.json"
    if not path.exists():
        return {}
    try:
        data = parse_json(read_regular(path, JSON_LIMIT), "it")
    except CheckpointError as error:
        raise ConfigError(f"{path} is not the summary of a run: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not the summary of a run")
    return data


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that determine the numbers, flat; for an unknown agent all settings of agent and environment."""
    sections: Mapping[str, Any] = {name: _section(config, name) for name in ("agent", "env")}
    if ":" not in str(sections["agent"].get("name")):  # nothing that a folder names is imported
        with contextlib.suppress(Exception):  # a config that this version does not accept is compared unchanged
            sections = RunConfig.from_dict(config).identity()
    flat = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    return {name: value for name, value in flat.items() if name not in NOT_COMPARED}


# ---- groups of runs


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    runs: tuple[Run, ...]
    label: str
    """Agent, environment if there are several, and the settings in which this group differs from others."""


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs grouped by settings, in the order of their first run; only runs that differ only in the seed are pooled."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        # A folder without a config may belong to any group of its agent and environment.
        key = repr((run.title, sorted(run.settings.items(), key=lambda item: item[0])))
        found.setdefault(key, []).append(run)
    groups = list(found.values())
    several_envs = len({run.env for run in runs}) > 1
    return [Group(tuple(group), _label(group[0], groups, several_envs)) for group in groups]


def _label(run: Run, groups: Sequence[Sequence[Run]], several_envs: bool) -> str:
    alike = [group[0].settings for group in groups if group[0].title == run.title]
    names = sorted(set().union(*alike))
    differing = [name for name in names if len({repr(settings.get(name)) for settings in alike}) > 1]
    shown = [f"{name.partition('.')[2]}={_value(run.settings.get(name))}" for name in differing[:3]]
    more = [f"{len(differing) - 3} more"] if len(differing) > 3 else []
    return ", ".join([run.title if several_envs else run.label, *shown, *more])


def _value(value: Any) -> str:
    return _text(f"{value:g}" if isinstance(value, float) else str(value)) or ""


# ---- several runs as one curve


def combine(curves: Sequence[Curve]) -> Curve:
    """The interquartile mean over seeds with a bootstrap band; a run that has ended keeps its last score.

    Truncation at the shortest run would hide the ends of all others if runs stop at their target.
    """
    curves = [curve for curve in curves if curve.steps.size]
    if len(curves) < 2:
        return curves[0] if curves else Curve(*np.empty((4, 0)))
    start, end = max(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[start <= steps]
    if steps.size > GRID_POINTS:
        steps = np.linspace(start, end, GRID_POINTS)
    values = np.stack([np.interp(steps, curve.steps, curve.mean) for curve in curves])  # [seeds, steps]
    return Curve(steps, interquartile_mean(values), *bootstrap_interval(values))

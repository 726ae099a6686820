"""``elegantrl bench AGENT ENV``."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.table import Table

from ..agents.off_policy import ReplayConfig
from ..config.resolve import resolve_config
from ..config.run import RunConfig
from ..config.sections import CheckpointConfig, EvalConfig
from ..errors import ElegantRLError
from ..runtime.display import Stdout
from ..runtime.layout import can_use_helper, largest_divisor
from ..runtime.progress import Silent
from ..runtime.run import run_training
from ..store.loggers import Row
from ..store.runlog import read_metrics
from .parse import parse

NEVER = 10**12


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Measure the speed of layouts of processes for an agent and an environment, and print the fastest one."""

    agent: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="AGENT")]
    """One of `elegantrl agents`."""
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """An environment as for `elegantrl train`."""
    num_envs: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Environments of the run; by default the tuned number for this pair."""
    seconds: float = 60.0
    """Seconds of measurement for all layouts together."""


class Candidate(NamedTuple):
    """Flags of `elegantrl train`, and the settings of these flags."""

    flags: str
    execute: dict[str, Any]
    num_threads: int = 1


class Speed(NamedTuple):
    """Environment steps per second, and the fractions of time that roles have waited."""

    steps: float
    workers_wait: float
    learner_waits: float


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl bench")
    env = {"num_groups": None}  # as many as there are workers
    config, _ = resolve_config(
        flags.agent, flags.env, {"env": env if flags.num_envs is None else env | {"num_envs": flags.num_envs}}
    )
    console = Stdout()
    layouts = list(candidates(config, len(os.sched_getaffinity(0))))
    table = Table(title=f"{config.agent_name} on {config.env.id}, learning included", title_justify="left")
    for name in ("options", "steps/s", "ratio", "workers wait", "learner waits"):
        table.add_column(name, justify="left" if name == "options" else "right")
    speeds: dict[str, float] = {}
    for layout in layouts:
        console.print(f"trying {layout.flags}", markup=False)
        try:
            speed = measure(config, layout, flags.seconds / len(layouts))
        except ElegantRLError as error:
            if not speeds:  # not even the simplest layout works
                raise
            console.print(f"  {error}", markup=False)
            continue
        speeds[layout.flags] = speed.steps
        ratio = speed.steps / next(iter(speeds.values()))
        shares = (f"{speed.workers_wait:.0%}", f"{speed.learner_waits:.0%}")
        table.add_row(layout.flags, f"{speed.steps:,.0f}", f"{ratio:.2f}", *shares)
    console.print(table)
    best = max(speeds, key=lambda flags: speeds[flags])
    console.print("--max-lag above 0 learns from slightly older data: faster steps need not mean faster learning.")
    console.print(f"fastest: elegantrl train {flags.agent} {flags.env} {best}", markup=False, soft_wrap=True)
    return 0


def candidates(config: RunConfig, cores: int) -> Iterator[Candidate]:
    """The layouts to measure, the simplest first."""
    yield Candidate("--executor inline", {"executor": "inline"})
    if cores > 1:
        yield Candidate(f"--executor inline --num-threads {cores}", {"executor": "inline"}, cores)
    if cores > 1 and can_use_helper(config):
        yield Candidate("--executor inline --core-helper on", {"executor": "inline", "core_helper": "on"})
    tried = {1, largest_divisor(config.env.num_envs, cores), largest_divisor(config.env.num_envs, 4 * cores)}
    for workers in sorted(tried):
        for lag in (0, 1):
            flags = f"--executor process --num-workers {workers}" + (f" --max-lag {lag}" if lag else "")
            yield Candidate(flags, {"executor": "process", "num_workers": workers, "max_lag": lag})


def measure(config: RunConfig, layout: Candidate, seconds: float) -> Speed:
    """The speed of training without its start."""
    agent = config.agent
    agent = replace(agent, lr_schedule="constant")
    if isinstance(agent, ReplayConfig):  # learning is measured too
        agent = replace(agent, learning_starts=min(agent.learning_starts, agent.batch_size))
    train = replace(
        config.train, max_steps=NEVER, max_seconds=seconds, target_return=float("inf"), num_threads=layout.num_threads
    )
    trial = replace(
        config,
        agent=agent,
        train=train,
        execute=replace(config.execute, **layout.execute),
        eval=EvalConfig(interval=NEVER, episodes=1, max_episode_steps=1),
        checkpoint=CheckpointConfig(interval=NEVER),
    )
    with tempfile.TemporaryDirectory() as folder:
        run_training(trial, trial.env.id, Path(folder) / "run", False, Silent())
        rows = [row for row in read_metrics(Path(folder) / "run") if row["kind"] == "train"]
    late = rows[len(rows) // 3 :]
    return Speed(*(middle(late, name) for name in ("time/steps_per_second", "waiting/workers", "waiting/learner")))


def middle(rows: list[Row], name: str) -> float:
    """The median of a metric over rows; a row without it counts as 0."""
    return statistics.median(float(row.get(name) or 0.0) for row in rows)

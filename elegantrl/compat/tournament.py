"""``learner_gpus = [[0], [1], ...]``: the documented form of a tournament, one member for each group."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ..config.fields import used_fields
from ..config.resolve import resolve_config
from ..config.run import RunConfig
from ..population.config import PopulationConfig
from ..population.evolve import run_population
from ..population.log import has_population
from ..population.results import CHAMPION, PopulationResult
from ..store.storage import open_storage
from .config import Config

PERIODS = 4
"""Periods in which every member trains ``break_step`` steps in total."""
SETTINGS = {
    "agent": None,
    "env": ("num_envs", "frame_stack", "masks", "kwargs"),
    "train": ("device", "num_threads", "gradients"),
    "eval": ("max_episode_steps", "env_id", "env_kwargs"),
}
"""Settings of a documented run that its members keep, by section; None: all of them."""


def train_tournament(args: Config, members: int) -> PopulationResult:
    """Train a tournament of the run of ``args``; ``args.cwd`` holds the population, and the champion as its run."""
    run = args.run_config()
    config = PopulationConfig(
        env=run.env.id,
        agents=(run.agent_name,),
        mode="tournament",
        members=members,
        periods=PERIODS,
        period_steps=max(1, run.train.max_steps // PERIODS),
        seed=run.train.seed,
        episodes=run.eval.episodes,
        settings=changed_settings(run),
    )
    folder = Path(args.cwd)
    resume = bool(args.continue_train) and has_population(open_storage(folder))
    result = run_population(config, args.sources()[0], folder, resume)
    if result.summary["stop_reason"] == "complete":
        shutil.copytree(folder / CHAMPION, folder, dirs_exist_ok=True)
    return result


def changed_settings(run: RunConfig) -> dict[str, Any]:
    """The settings of a run that are not the tuned ones, by section."""
    tuned, _ = resolve_config(run.agent_name, run.env.id)
    changed: dict[str, dict[str, Any]] = {}
    for section, names in SETTINGS.items():
        mine, theirs = getattr(run, section), getattr(tuned, section)
        known = [f.name for f in used_fields(mine)] if names is None else names
        values = {name: getattr(mine, name) for name in known if getattr(mine, name) != getattr(theirs, name)}
        changed[section] = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return changed

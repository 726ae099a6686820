"""The trainings of an experiment: runs of agents, or a tournament of them, each scored on its validation period."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..config.resolve import split_overrides
from ..population.evolve import evolve
from ..population.results import CHAMPION, LEADERBOARD
from ..report.runs import read_run
from ..runtime.train import prepare, train
from ..types import EnvSpec
from .config import ENVS, TOURNAMENT, ExperimentConfig
from .periods import Fold

SINGLE_ENVS = {"stock": "elegantrl.finance:StockTradingEnv", "portfolio": "elegantrl.finance:PortfolioEnv"}
"""The same accounts in NumPy: one of them, as in a validation, is several times as fast as one lane of tensors."""


class Trained(NamedTuple):
    """A policy that a training on one fold gave."""

    agent: str
    """The agent, or ``tournament``."""
    seed: int
    fold: int
    folder: str  # relative to that of the experiment
    validation: float
    """Sum of the rewards on the validation period: 100 * log growth unless the reward is adjusted for risk."""
    snapshots: int
    """Snapshots that were scored to choose this policy."""
    members: int = 1
    """Runs that were trained for it, each member of a tournament with hyper-parameters of its own."""
    winner: str = ""
    """The agent that won a tournament."""


def train_strategy(
    config: ExperimentConfig,
    folder: Path,
    number: int,
    fold: Fold,
    strategy: str,
    num_folds: int,
    say: Callable[[str], None],
) -> list[Trained]:
    """The policies of an agent, or of tournaments, on one fold: one for each seed."""
    label = re.sub(r"[^\w.+-]", "-", strategy)
    place = Path("runs") / (f"fold{number}" if num_folds > 1 else "")
    trained = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        where = place / f"{label}_seed{seed}"
        if strategy == TOURNAMENT:
            run = train_tournament(config, folder, where, fold, seed)
        else:
            run = train_run(config, folder, where, fold, strategy, seed)
        trained.append(run._replace(fold=number))
        fold_text = f"fold {number + 1} of {num_folds}, " if num_folds > 1 else ""
        won = f" won by {run.winner}" if run.winner else ""
        what = f"validation {run.validation:+.1f} (100 * log growth), snapshots: {run.snapshots}"
        say(f"{fold_text}{strategy} seed {seed}{won}: {what}")
    return trained


def market_settings(config: ExperimentConfig, folder: Path, fold: Fold) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of the environment of training, and settings of the evaluation on the validation period."""
    data = {"data": str(folder / "features"), **config.env}
    episodes = {"period": str(fold.train), "episode_steps": config.episode_steps, "random_start": True}
    whole = {**data, "period": str(fold.validate), "random_cash": 0.0}
    scoring = {"env_id": SINGLE_ENVS.get(config.kind, ENVS[config.kind]), "env_kwargs": whole}
    return {**data, **episodes}, scoring


def run_settings(config: ExperimentConfig, folder: Path, fold: Fold) -> dict[str, Any]:
    """What the runs of all agents and seeds on a fold have in common."""
    env_kwargs, scoring = market_settings(config, folder, fold)
    return {
        **({} if config.num_envs is None else {"num_envs": config.num_envs}),
        "max_steps": config.max_steps,
        "target_return": math.inf,
        "executor": "inline",
        "loggers": (),
        "env_kwargs": env_kwargs,
        "eval": {"episodes": 1, "interval": max(1, config.max_steps // config.snapshots), **scoring},
        "checkpoint": {"interval": config.max_steps},
        **config.agent,
    }


def check_agents(config: ExperimentConfig, folds: Sequence[Fold], spec: EnvSpec) -> None:
    """Refuse agents and settings of theirs that do not fit the environment ``spec``."""
    for agent in config.agents:
        overrides = split_overrides(agent, run_settings(config, Path(), folds[0]))
        plan = prepare(agent, ENVS[config.kind], overrides)
        plan.entry.agent(spec, plan.config.agent, torch.device("cpu"), 0)


def train_run(config: ExperimentConfig, folder: Path, where: Path, fold: Fold, agent: str, seed: int) -> Trained:
    """Train one run unless it is there."""
    run_dir = folder / where
    summary = run_dir / "summary.json"
    if not summary.exists():
        resume = (run_dir / "config.yaml").exists()
        settings = run_settings(config, folder, fold)
        train(agent, ENVS[config.kind], run_dir=run_dir, resume=resume, verbose=False, seed=seed, **settings)
    found: Mapping[str, Any] = json.loads(summary.read_text())
    snapshots = int(read_run(run_dir).evaluation.steps.size)
    return Trained(agent, seed, 0, str(where), float(found["selected_return"]), snapshots)


def train_tournament(config: ExperimentConfig, folder: Path, where: Path, fold: Fold, seed: int) -> Trained:
    """A tournament of all agents unless it is there; the validation period decides who has descendants and who wins.

    Its members train one after another in this process, so that the same seed gives the same winner.
    """
    run_dir = folder / where
    if not (run_dir / CHAMPION).exists():
        env_kwargs, scoring = market_settings(config, folder, fold)
        settings: dict[str, dict[str, Any]] = {"eval": scoring, "agent": dict(config.agent)}
        if config.num_envs is not None:
            settings["env"] = {"num_envs": config.num_envs}
        evolve(
            ENVS[config.kind],
            run_dir=run_dir,
            resume=(run_dir / "population.yaml").exists(),
            verbose=False,
            agents=config.agents,
            mode="tournament",
            members=config.tournament,
            periods=config.snapshots,
            period_steps=max(1, config.max_steps // config.snapshots),
            seed=seed,
            episodes=1,
            executor="inline",
            env_kwargs=env_kwargs,
            settings=settings,
        )
    found: Mapping[str, Any] = json.loads((run_dir / LEADERBOARD).read_text())
    best = found["leaderboard"][0]
    place = str(where / CHAMPION)
    return Trained(TOURNAMENT, seed, 0, place, best["score"], found["periods"], found["members"], best["agent"])

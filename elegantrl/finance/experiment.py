"""``elegantrl finance train``: agents and seeds on one training period, chosen on a validation period alone.

Every training is an ordinary run of ``elegantrl.train``, or a population of ``elegantrl.evolve``. Its evaluations play
the validation period; the best of these snapshots is its policy. Nothing here reads a price of the test period.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..envs import make_env
from ..errors import ConfigError, SpecError
from ..store.files import write_atomic
from .config import ENVS, ExperimentConfig
from .features import with_features
from .loaders import load_prices
from .periods import Fold, make_folds
from .prices import PriceTable
from .training import Trained, check_agents, train_strategy

__all__ = ["Experiment", "ExperimentConfig", "load_experiment", "run_experiment"]

CONFIG_FILE, CHOICE_FILE = "finance.yaml", "choice.json"


class Tried(NamedTuple):
    """What a choice was made from: the more there is of it, the more of a good validation score is luck."""

    runs: int
    configurations: int
    """Combinations of an agent and its hyper-parameters."""
    policies: int


@dataclass(frozen=True)
class Experiment:
    """A finished ``elegantrl finance train``."""

    folder: Path
    config: ExperimentConfig
    folds: list[Fold]
    trained: list[Trained]

    @property
    def candidates(self) -> dict[str, list[tuple[str, int]]]:
        """Name -> (agent, seed) of the runs that form a strategy, the winner of the validation first.

        Several runs are an ensemble, in which each run manages an equal part of the cash. The winner is the ensemble,
        or the only run, of the agent with the highest mean validation score over seeds and folds.
        """
        agents = self.config.strategies
        scores = {agent: math.fsum(run.validation for run in self.trained if run.agent == agent) for agent in agents}
        best = max(scores, key=lambda agent: scores[agent])
        seeds = range(self.config.first_seed, self.config.first_seed + self.config.seeds)
        found: dict[str, list[tuple[str, int]]] = {}
        for agent in sorted(agents, key=lambda agent: agent != best):
            runs = [(agent, seed) for seed in seeds]
            if len(runs) > 1:
                found[f"{agent} ensemble"] = runs
            found |= {agent if len(runs) == 1 else f"{agent} seed {run[1]}": [run] for run in runs}
        if len(agents) > 1:
            found["ensemble of all agents"] = [(agent, seed) for agent in agents for seed in seeds]
        return found

    @property
    def winner(self) -> str:
        return next(iter(self.candidates))

    @property
    def tried(self) -> Tried:
        """Among how many policies, of how many configurations, validation has chosen."""
        if self.config.tournament is None:
            runs, configurations = len(self.trained), len(self.config.agents)
        else:  # every member has hyper-parameters of its own
            runs = configurations = sum(run.members for run in self.trained)
        return Tried(runs, configurations, sum(run.snapshots for run in self.trained))


def run_experiment(
    config: ExperimentConfig,
    run_dir: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Experiment:
    """Train everything that ``config`` asks for, and choose; a run that a resumed experiment has finished is kept."""
    table = load_prices(config.data)
    folds = make_folds(config.train, config.validate, config.test, table, config.walk_forward)
    seen = prepared(config, table, folds)
    folder = claim(config, run_dir, resume)
    table.save(folder / "prices")
    seen.save(folder / "features")
    write_atomic(folder / CONFIG_FILE, config.to_yaml().encode())
    trained: list[Trained] = []
    for number, fold in enumerate(folds):
        for strategy in config.strategies:
            trained += train_strategy(config, folder, number, fold, strategy, len(folds), say)
    done = Experiment(folder, config, folds, trained)
    choice = {"winner": done.winner, "trained": [run._asdict() for run in trained]}
    write_atomic(folder / CHOICE_FILE, (json.dumps(choice, indent=2) + "\n").encode())
    return done


def load_experiment(folder: Path) -> Experiment:
    """A finished experiment from its folder."""
    if not (folder / CHOICE_FILE).exists():
        raise ConfigError(f"{folder} holds no finished experiment; run or resume elegantrl finance train first")
    config = ExperimentConfig.from_yaml((folder / CONFIG_FILE).read_text())
    choice = json.loads((folder / CHOICE_FILE).read_text())
    table = load_prices(folder / "prices")
    folds = make_folds(config.train, config.validate, config.test, table, config.walk_forward)
    return Experiment(folder, config, folds, [Trained(**run) for run in choice["trained"]])


def prepared(config: ExperimentConfig, table: PriceTable, folds: Sequence[Fold]) -> PriceTable:
    """The prices with features, of the assets that are traded; refuses settings before anything is written."""
    assets = config.env.get("assets")
    seen = with_features(table.select(assets) if assets else table, "turbulence_limit" in config.env)
    kwargs = {**config.env, "period": config.train, "episode_steps": config.episode_steps, "random_start": True}
    try:
        env = make_env(ENVS[config.kind], 1, data=seen, **kwargs)
        env.close()
        check_agents(config, folds, env.spec)
    except SpecError as error:
        raise ConfigError(str(error)) from None
    return seen


def claim(config: ExperimentConfig, run_dir: str | Path | None, resume: bool) -> Path:
    """The folder of an experiment; a folder of another one is refused."""
    if run_dir is None:
        if resume:
            raise ConfigError("there is nothing to resume without a folder; name it with --run-dir")
        name = re.sub(r"[^\w.+-]", "-", f"finance_{config.kind}_{'-'.join(config.agents)}")[:150]
        number = 1
        while (folder := Path("runs") / (name if number == 1 else f"{name}_{number}")).exists():
            number += 1
        return folder
    folder = Path(run_dir)
    if (folder / CONFIG_FILE).exists():
        if not resume:
            raise ConfigError(f"{folder} already holds an experiment; add --resume or choose another --run-dir")
        if (folder / CONFIG_FILE).read_text() != config.to_yaml():
            raise ConfigError(f"{folder} holds an experiment with other settings; choose another --run-dir")
    return folder

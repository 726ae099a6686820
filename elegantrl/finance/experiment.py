"""``elegantrl finance train``: agents and seeds on one training period, chosen on a validation period alone.

Every training is an ordinary run of ``elegantrl.train``. Its evaluations play the validation period; the best of these
snapshots is the policy of the run. Nothing here reads a price of the test period.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import tyro
import yaml

from ..config.fields import Section, setting
from ..config.sections import NamedValues
from ..config.structure import build_section, expect_mapping, plain_section
from ..config.yaml_text import parse_yaml
from ..envs import make_env
from ..errors import ConfigError, SpecError
from ..registry import find_agent
from ..report.runs import read_run
from ..runtime.train import train
from ..store.files import write_atomic
from .features import with_features
from .loaders import load_prices
from .periods import Fold, make_folds
from .prices import PriceTable

CONFIG_FILE, CHOICE_FILE = "finance.yaml", "choice.json"
ENVS = {"stock": "StockTrading", "portfolio": "Portfolio", "team": "PortfolioTeam"}
SINGLE_ENVS = {"stock": "elegantrl.finance:StockTradingEnv", "portfolio": "elegantrl.finance:PortfolioEnv"}
"""The same accounts in NumPy: one of them, as in a validation, is several times as fast as one lane of tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentConfig(Section):
    """Train trading agents on one period, choose their snapshots on the next, and leave the last for the back-test."""

    section: ClassVar[str] = "finance"

    agents: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="AGENT...", help_behavior_hint="")]
    """Agents to train; with several, validation also decides between them."""
    kind: Literal["stock", "portfolio", "team"] = "stock"
    """`stock`: cash and whole shares; `portfolio`: weights of assets; `team`: weights, with an agent for each group."""
    data: str = "sp500"
    """Prices: `sp500`, `sp500-index` or `factors` of skfolio, a CSV or Parquet file, an .npz file of arrays, or the
    folder of a saved table."""
    train: str = "1990:2012"
    """Period of training, START:END, both included."""
    validate: str = "2013:2016"
    """Period on which snapshots and agents are chosen."""
    test: str = "2017:2022"
    """Period of the back-test, which nothing before it reads."""
    walk_forward: int | None = setting(None, ge=1)
    """Train again for every so many years of the test period, on everything before them."""
    seeds: int = setting(1, ge=1)
    """Runs of each agent; several also form an ensemble."""
    first_seed: int = setting(0, ge=0)
    """Seed of the first of these runs."""
    max_steps: int = setting(200_000, ge=1)
    """Environment steps of each run."""
    snapshots: int = setting(20, ge=1)
    """Snapshots of each run that are scored on the validation period."""
    num_envs: int | None = setting(None, ge=1)
    """Accounts that each run trades at once; None: the agent's tuned number."""
    episode_steps: int = setting(252, ge=1)
    """Steps of a training episode, which begins at a random date."""
    env: Annotated[NamedValues, tyro.conf.arg(name="env-kwargs")] = field(default_factory=dict)
    """Further settings of the environment, e.g. cost=0.002 cash=100000 turbulence_limit=60."""
    agent: Annotated[NamedValues, tyro.conf.arg(name="agent-kwargs")] = field(default_factory=dict)
    """Further settings of all agents, e.g. lr=1e-4 gamma=0.95."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.agents:
            raise ConfigError("no agent is named; for example: elegantrl finance train ppo")
        fixed = {"period", "episode_steps", "random_start"} & self.env.keys()
        for name in sorted(fixed):
            raise ConfigError(f"env.{name} follows from the periods and episode-steps; leave it out")

    def to_yaml(self) -> str:
        return yaml.safe_dump(plain_section(self), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> ExperimentConfig:
        return build_section(cls, expect_mapping(parse_yaml(text), "the config"))


class Trained(NamedTuple):
    """A run on one fold."""

    agent: str
    seed: int
    fold: int
    folder: str  # relative to that of the experiment
    validation: float
    """Sum of the rewards on the validation period: 100 * log growth unless the reward is adjusted for risk."""
    snapshots: int
    """Snapshots that were scored to choose this policy."""


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
        agents = self.config.agents
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
    def num_tried(self) -> int:
        """Policies among which validation has chosen."""
        return sum(run.snapshots for run in self.trained)


def run_experiment(
    config: ExperimentConfig,
    run_dir: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Experiment:
    """Train everything that ``config`` asks for, and choose; a run that a resumed experiment has finished is kept."""
    table = load_prices(config.data)
    folds = make_folds(config.train, config.validate, config.test, table, config.walk_forward)
    seen = prepared(config, table)
    for agent in config.agents:
        find_agent(agent)
    folder = claim(config, run_dir, resume)
    table.save(folder / "prices")
    seen.save(folder / "features")
    write_atomic(folder / CONFIG_FILE, config.to_yaml().encode())
    trained: list[Trained] = []
    for number, fold in enumerate(folds):
        for agent in config.agents:
            trained += train_agent(config, folder, number, fold, agent, len(folds), say)
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


def prepared(config: ExperimentConfig, table: PriceTable) -> PriceTable:
    """The prices with features, of the assets that are traded; refuses settings before anything is written."""
    assets = config.env.get("assets")
    seen = with_features(table.select(assets) if assets else table, "turbulence_limit" in config.env)
    kwargs = {**config.env, "period": config.train, "episode_steps": config.episode_steps, "random_start": True}
    try:
        make_env(ENVS[config.kind], 1, data=seen, **kwargs).close()
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


def train_agent(
    config: ExperimentConfig,
    folder: Path,
    number: int,
    fold: Fold,
    agent: str,
    num_folds: int,
    say: Callable[[str], None],
) -> list[Trained]:
    """The runs of an agent on one fold."""
    label = re.sub(r"[^\w.+-]", "-", agent)
    place = Path("runs") / (f"fold{number}" if num_folds > 1 else "")
    runs = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        where = place / f"{label}_seed{seed}"
        score, snapshots = train_run(config, folder, folder / where, fold, agent, seed)
        runs.append(Trained(agent, seed, number, str(where), score, snapshots))
        fold_text = f"fold {number + 1} of {num_folds}, " if num_folds > 1 else ""
        say(f"{fold_text}{agent} seed {seed}: validation {score:+.1f} (100 * log growth), {snapshots} snapshots")
    return runs


def train_run(
    config: ExperimentConfig, folder: Path, where: Path, fold: Fold, agent: str, seed: int
) -> tuple[float, int]:
    """Train one run unless it is there; returns its validation score and the number of its snapshots."""
    summary = where / "summary.json"
    if not summary.exists():
        data = {"data": str(folder / "features"), **config.env}
        whole = {**data, "period": str(fold.validate), "random_cash": 0.0}
        scoring = {"env_id": SINGLE_ENVS.get(config.kind, ENVS[config.kind]), "env_kwargs": whole}
        start = {"period": str(fold.train), "episode_steps": config.episode_steps, "random_start": True}
        interval = max(1, config.max_steps // config.snapshots)
        settings: dict[str, Any] = {} if config.num_envs is None else {"num_envs": config.num_envs}
        train(
            agent,
            ENVS[config.kind],
            run_dir=where,
            resume=(where / "config.yaml").exists(),
            verbose=False,
            seed=seed,
            max_steps=config.max_steps,
            target_return=math.inf,
            executor="inline",
            loggers=(),
            env_kwargs={**data, **start},
            eval={"episodes": 1, "interval": interval, **scoring},
            checkpoint={"interval": config.max_steps},
            **settings,
            **config.agent,
        )
    found: Mapping[str, Any] = json.loads(summary.read_text())
    return float(found["selected_return"]), int(read_run(where).evaluation.steps.size)

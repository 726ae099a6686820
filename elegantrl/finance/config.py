"""The settings of ``elegantrl finance train``; YAML in and out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import tyro
import yaml

from ..config.fields import Section, setting
from ..config.sections import NamedValues
from ..config.structure import build_section, expect_mapping, plain_section
from ..config.yaml_text import parse_yaml
from ..errors import ConfigError

ENVS = {"stock": "StockTrading", "portfolio": "Portfolio", "team": "PortfolioTeam"}
TOURNAMENT = "tournament"
"""The name of the strategy that a tournament of agents gives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentConfig(Section):
    """Train trading agents on one period, choose their snapshots on the next, and leave the last for the back-test."""

    section: ClassVar[str] = "finance"

    agents: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="AGENT...", help_behavior_hint="")]
    """Agents to train; with several, validation also decides between them."""
    tournament: int | None = setting(None, ge=2)
    """Let the agents compete instead of training each on its own: this many members start from scratch, and every
    later one from a policy that did well on the validation period, with changed hyper-parameters."""
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
    """Environment steps of each run; a tournament trains this many times its members."""
    snapshots: int = setting(20, ge=1)
    """Snapshots of each run that are scored on the validation period; periods of a tournament."""
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
        assets = self.env.get("assets", [])
        if not isinstance(assets, list | tuple):
            raise ConfigError(f"env.assets={assets} is not a list of names; write assets=[{assets}]")

    @property
    def strategies(self) -> tuple[str, ...]:
        """Names of what is trained with each seed."""
        return self.agents if self.tournament is None else (TOURNAMENT,)

    def to_yaml(self) -> str:
        return yaml.safe_dump(plain_section(self), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> ExperimentConfig:
        return build_section(cls, expect_mapping(parse_yaml(text), "the config"))

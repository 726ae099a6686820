"""The settings of a population; YAML in and out. Its hash is the identity of a population folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import yaml

from ..config.fields import Hidden, Section, deciding_fields, setting
from ..config.sections import NamedValues, check_kwargs
from ..config.structure import build_section, expect_mapping, plain_section
from ..config.yaml_text import parse_yaml
from ..errors import ConfigError, did_you_mean
from ..execute.base import EXECUTORS
from ..imports import is_import_path


@dataclass(frozen=True, kw_only=True, slots=True)
class PopulationConfig(Section):
    """Train many agents, copy the good ones and change their hyper-parameters."""

    section: ClassVar[str] = "population"

    env: Hidden[str]
    """The environment of all members."""
    agents: tuple[str, ...] = ()
    """Agents of the first members, in turn; none: several that fit the environment."""
    mode: Literal["tournament", "generational"] = "tournament"
    """`generational`: all members train a period, then copies of the best replace the worst. `tournament`: no barrier,
    every new member starts from one of the leaderboard."""
    members: int = setting(8, ge=1)
    """Members of a generation; in a tournament, members that start from scratch."""
    periods: int = setting(10, ge=1)
    """Periods that each member trains; a tournament trains members x periods of them in total."""
    period_steps: int | None = setting(None, ge=1)
    """Environment steps of a period; None: so many that all periods are one run with tuned settings."""
    period_seconds: float | None = setting(None, gt=0.0)
    """Seconds of a period, instead of its steps; results then depend on the speed of the machine."""
    pods: int = setting(1, ge=1)
    """Runs of each member in a period, with the same hyper-parameters and other seeds, fused into one at its end."""
    seed: int = setting(0, ge=0)
    """Seed of all decisions and of all runs."""
    selection: Literal["truncation", "softmax", "tournament", "random"] = "truncation"
    """How a parent is chosen: one of the best, by the softmax of z-scores, the best of three drawn, or any."""
    fraction: float = setting(0.25, gt=0.0, le=0.5)
    """The best and the worst: this fraction of a generation or of the leaderboard."""
    explore: Literal["perturb", "resample"] = "perturb"
    """How hyper-parameters of a copy change: by a factor, or drawn anew from their whole range."""
    board: int = setting(8, ge=1)
    """Size of the leaderboard."""
    ensemble: int = setting(3, ge=1)
    """Runs of the leaderboard that form the ensemble."""
    episodes: int = setting(20, ge=1)
    """Episodes of an evaluation."""
    attempts: int = setting(3, ge=1, decides_numbers=False)
    """Attempts at a period; a member that fails so often in a row is retired."""
    executor: str = setting("auto", decides_numbers=False)
    """Train members in this process (`inline`), in processes of their own (`process`), or in actors of Ray, on many
    machines (`ray`); `auto`: processes if there is more than one core; an import path names an executor of your own."""
    address: str | None = setting(None, decides_numbers=False)
    """HOST:PORT of the Ray cluster that `--executor ray` uses, or `auto` on one of its nodes; None: that of the
    variable RAY_ADDRESS, or a Ray of its own on this machine."""
    max_running: int | None = setting(None, ge=1, decides_numbers=False)
    """Runs at the same time; None: one per core."""
    gpus: float = setting(1.0, gt=0.0, le=1.0, decides_numbers=False)
    """GPUs of each member on a Ray cluster if its device is cuda; with 0.25 four members share one."""
    env_kwargs: NamedValues = field(default_factory=dict)
    """Keyword arguments of the environment."""
    settings: Hidden[dict[str, Any]] = field(default_factory=dict)
    """Settings of all runs by section, on top of the tuned ones; an agent takes those that it has."""
    starts: Hidden[tuple[dict[str, float], ...]] = ()
    """Hyper-parameters of the first members, in turn, on top of their tuned ones; none: drawn around those."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        check_kwargs("population.env_kwargs", self.env_kwargs)
        if self.executor not in ("auto", *EXECUTORS) and not is_import_path(self.executor):
            known = did_you_mean(self.executor, ("auto", *EXECUTORS))
            raise ConfigError(f"population.executor={self.executor!r} is unknown; {known} (or package.module:Class)")
        if self.address is not None and self.executor in ("auto", "inline", "process"):
            raise ConfigError(f"population.address={self.address!r} is that of a Ray cluster; add --executor ray")
        if self.pods > 1 and self.mode == "tournament":
            raise ConfigError(
                f"population.pods={self.pods} needs the barrier of a generation; add --mode generational or drop it"
            )
        if self.period_steps is not None and self.period_seconds is not None:
            raise ConfigError(
                f"population.period_steps={self.period_steps} and period_seconds={self.period_seconds} contradict each"
                f" other; give one of them"
            )

    @property
    def num_trainings(self) -> int:
        """Periods that are trained in total."""
        return self.members * self.periods

    def to_yaml(self) -> str:
        return yaml.safe_dump(plain_section(self), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> PopulationConfig:
        return cls.from_dict(expect_mapping(parse_yaml(text), "the config"))

    def to_dict(self) -> dict[str, Any]:
        return plain_section(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PopulationConfig:
        return build_section(cls, data)

    def hash(self) -> str:
        """The identity: the settings that determine the numbers."""
        return hashlib.sha256(json.dumps(deciding_fields(self), sort_keys=True).encode()).hexdigest()[:16]

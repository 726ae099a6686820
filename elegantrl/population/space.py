"""Hyper-parameters of members: where they start, how they change, and the settings of the runs that use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

from ..agents.base import AgentConfig
from ..config.fields import tunable_fields, used_fields
from ..config.names import check_names
from ..config.resolve import resolve_config
from ..config.run import RunConfig
from ..config.structure import expect_mapping
from ..errors import ConfigError
from ..registry import find_agent
from ..rng import derive_seed
from .config import PopulationConfig

FACTORS = (0.8, 1.0, 1.25)
"""Factors of a perturbation on a logarithmic scale."""
SHIFTS = (-0.1, 0.0, 0.1)
"""Shifts of a perturbation on a linear scale, in units of the range."""
START_FACTOR, START_SHIFT = 3.0, 0.25
"""How far the first hyper-parameters may lie from the tuned ones."""
NEVER = 2**62
"""A number of steps that no run reaches."""


class Range(NamedTuple):
    """The values that a hyper-parameter may have, and its tuned one."""

    low: float
    high: float
    scale: str
    start: float

    def clip(self, value: float) -> float:
        return min(max(value, self.low), self.high)


Space = dict[str, Range]


def stream(seed: int, *key: str | int) -> Random:
    """A random stream for one decision. Building it takes a tenth of the time of a NumPy generator."""
    return Random(derive_seed(seed, *key))


def space_of(config: AgentConfig) -> Space:
    """The tunable hyper-parameters of an agent; a tuned value outside of its range widens it."""
    space = {}
    for name, (low, high, scale) in tunable_fields(config).items():
        start = float(getattr(config, name))
        space[name] = Range(min(low, start), max(high, start), scale, start)
    return space


def first_hypers(space: Space, random: Random) -> dict[str, float]:
    """Hyper-parameters near the tuned ones."""
    return {
        name: kind.clip(kind.start * START_FACTOR ** _sym(random))
        if kind.scale == "log"
        else kind.clip(kind.start + START_SHIFT * (kind.high - kind.low) * _sym(random))
        for name, kind in space.items()
    }


def perturbed(space: Space, hypers: Mapping[str, float], random: Random) -> dict[str, float]:
    """Every hyper-parameter a step lower, the same, or a step higher."""
    new = {}
    for name, kind in space.items():
        step = int(random.random() * 3)
        value = hypers[name]
        value = value * FACTORS[step] if kind.scale == "log" else value + SHIFTS[step] * (kind.high - kind.low)
        # A first value may lie outside of the range: it can come back, and goes no further.
        low, high = min(kind.low, hypers[name]), max(kind.high, hypers[name])
        new[name] = min(max(value, low), high)
    return new


def resampled(space: Space, random: Random) -> dict[str, float]:
    """Every hyper-parameter drawn from its whole range."""
    return {
        name: kind.low * (kind.high / kind.low) ** random.random()
        if kind.scale == "log"
        else kind.low + (kind.high - kind.low) * random.random()
        for name, kind in space.items()
    }


def explored(config: PopulationConfig, space: Space, hypers: Mapping[str, float], random: Random) -> dict[str, float]:
    """Hyper-parameters of a copy."""
    return resampled(space, random) if config.explore == "resample" else perturbed(space, hypers, random)


def _sym(random: Random) -> float:
    return 2.0 * random.random() - 1.0


class Spaces:
    """The hyper-parameters of every agent of a population."""

    def __init__(self, config: PopulationConfig) -> None:
        self.config = config
        self.by_agent = {agent: space_of(base_config(config, agent).agent) for agent in config.agents}

    def start(self, number: int) -> tuple[str, dict[str, float]]:
        """Agent and hyper-parameters of the first members; one of each agent has the tuned ones."""
        agents, starts = self.config.agents, self.config.starts
        agent = agents[number % len(agents)]
        space = self.by_agent[agent]
        tuned = {name: kind.start for name, kind in space.items()}
        if starts:
            given = starts[number % len(starts)]
            check_names(given, space, "population.starts: ")
            return agent, tuned | {name: float(value) for name, value in given.items()}
        if number < len(agents):
            return agent, tuned
        return agent, first_hypers(space, stream(self.config.seed, "start", number))


@cache
def _agent_names(agent: str) -> frozenset[str]:
    return frozenset(f.name for f in used_fields(find_agent(agent).config))


def base_config(config: PopulationConfig, agent: str) -> RunConfig:
    """The settings of the runs of an agent: tuned ones, then those of the population; all in one process."""
    given: dict[str, dict[str, Any]] = {
        name: dict(expect_mapping(values, f"population.settings.{name}")) for name, values in config.settings.items()
    }
    own = given.get("agent", {})
    for name in own:
        if not any(name in _agent_names(other) for other in config.agents):
            check_names({name: None}, sorted(set().union(*map(_agent_names, config.agents))), "agent.")
    given["agent"] = {name: value for name, value in own.items() if name in _agent_names(agent)}
    env = given.setdefault("env", {})
    if config.env_kwargs:
        env["kwargs"] = {**env.get("kwargs", {}), **config.env_kwargs}
    given.setdefault("eval", {})["episodes"] = config.episodes
    for name, setting in (("execute", "executor"), ("train", "seed"), ("train", "target_return")):
        if setting in given.get(name, {}):
            raise ConfigError(f"population.settings: {name}.{setting} is determined by the population; leave it out")
    given["execute"] = {**given.get("execute", {}), "executor": "inline", "core_helper": "off"}
    run, _ = resolve_config(agent, config.env, given)
    # Selection adapts the learning rate; a schedule would reach zero in long lineages.
    settings = run.agent if "lr_schedule" in own else replace(run.agent, lr_schedule="constant")
    train = replace(run.train, target_return=math.inf, loggers=(), max_seconds=None, patience=None)
    return replace(
        run,
        agent=settings,
        train=train,
        eval=replace(run.eval, interval=NEVER),
        checkpoint=replace(run.checkpoint, interval=NEVER, keep=1),
    )


def run_config(base: RunConfig, hypers: Mapping[str, float], seed: int, max_steps: int) -> RunConfig:
    """The settings of one period."""
    values: dict[str, Any] = dict(hypers)
    train = replace(base.train, seed=seed, max_steps=max_steps)
    return replace(base, agent=replace(base.agent, **values), train=train)


def default_period_steps(config: PopulationConfig) -> int:
    """Steps of a period such that all periods of a member are one run with tuned settings."""
    total = min(resolve_config(agent, config.env)[0].train.max_steps for agent in config.agents)
    return max(1, total // config.periods)

"""Selection and variation of a stacked population. Every decision is a device tensor; nothing waits for the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ...agents.base import Agent, AgentConfig
from ...errors import ConfigError, did_you_mean
from ..space import FACTORS, SHIFTS
from .learner import StackedLearner


class Tunable(NamedTuple):
    """A setting that evolution changes, within limits."""

    name: str
    low: float
    high: float
    scale: str


def tunables_of(configs: Sequence[AgentConfig], names: Sequence[str] | None) -> list[Tunable]:
    """The settings to tune: those of ``names``, or all that have an effect. Limits include the values at the start."""
    found = {}
    for f in fields(configs[0]):
        values = [getattr(config, f.name) for config in configs]
        # A term whose weight is 0 for all is not computed, and the terms behind ``only_with`` are switched off.
        if "tunable" in f.metadata and "only_with" not in f.metadata and any(values):
            low, high, scale = f.metadata["tunable"]
            found[f.name] = Tunable(f.name, min(low, *values), max(high, *values), scale)
    for name in names or ():
        if name not in found:
            raise ConfigError(f"tune={name!r} is no setting that has an effect here; {did_you_mean(name, found)}")
    return list(found.values()) if names is None else [found[name] for name in names]


def choose_parents(scores: Tensor, replaced: float, generator: Generator) -> Tensor:
    """Truncation selection: the index [P] of the member that each member copies, its own if it stays.

    The worst ``replaced`` of the members copy random ones of as many best. A NaN never ranks: such a member copies one
    of the best too, and is never copied.
    """
    num_members = len(scores)
    number = max(1, int(replaced * num_members))
    is_ranked = ~scores.isnan()
    order = torch.where(is_ranked, scores, -torch.inf).argsort(stable=True)
    itself = torch.arange(num_members, device=scores.device)
    is_replaced = torch.zeros_like(is_ranked).index_fill(0, order[:number], True) | ~is_ranked
    drawn = torch.randint(number, (num_members,), generator=generator, device=scores.device)
    parents = order[num_members - 1 - drawn]
    parents = torch.where(is_ranked[parents], parents, order[-1])  # fewer are ranked than copied
    return torch.where(is_replaced & is_ranked[parents], parents, itself)


def perturb(agent: Agent, tunables: Sequence[Tunable], chosen: Tensor, generator: Generator) -> None:
    """Change the tunable settings of the ``chosen`` members [P], each by a step up, down or not at all."""
    for name, low, high, scale in tunables:
        values = getattr(agent.hypers, name)
        step = torch.randint(3, values.shape, generator=generator, device=values.device) - 1
        moved = values * FACTORS[2] ** step if scale == "log" else values + step * (SHIFTS[2] * (high - low))
        values.copy_(torch.where(chosen, moved.clamp(low, high), values))


def evolve(
    learner: StackedLearner, scores: Tensor, tunables: Sequence[Tunable], replaced: float, generator: Generator
) -> Tensor:
    """Replace the worst members by copies of the best with other settings; returns the parents [P]."""
    parents = choose_parents(scores, replaced, generator)
    learner.copy_members(parents)
    is_copy = parents != torch.arange(len(parents), device=parents.device)
    perturb(learner.agent, tunables, is_copy, generator)
    learner.agent.schedule(learner.env_steps)  # learning rates follow their settings
    return parents

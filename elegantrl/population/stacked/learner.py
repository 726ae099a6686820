"""Learning of a population: the stacked agent and one memory for all members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ... import tree
from ...agents.base import AgentConfig
from ...data.memory import LatestRollout, Memory, Replay, Setup
from ...data.replay import FIELDS, ReplayBuffer
from ...registry import AgentEntry, build_agent
from ...rng import torch_stream
from ...types import EnvSpec, Metrics, Rollout, Transition, Update
from .agent import check_stackable, rows_of, stack_agents


class StackedReplay(Replay):
    """The replay buffers of all members as one ring, in which a member has N lanes in a row."""

    def __init__(self, setup: Setup, generators: Sequence[torch.Generator]):
        self.generators = generators
        super().__init__(setup)

    def build_ring(self) -> ReplayBuffer:
        spec, num_members = self.setup.spec, len(self.generators)
        spec = replace(spec, num_envs=spec.num_envs * num_members)
        return ReplayBuffer(self.config.buffer_size * num_members, spec, self.setup.device)

    def add(self, rollout: Rollout, env_steps: int) -> None:
        super().add(tree.flatten(rollout._replace(carry=()), 1, 2), env_steps)

    def draw(self) -> Transition:
        """A minibatch [P, B, ...]: each member draws from its own lanes, with its own stream and discount."""
        c, num_members, num_envs = self.config, len(self.generators), self.setup.spec.num_envs
        size, held = c.batch_size, self.ring.filled * num_envs
        drawn = [torch.randint(held, (size,), device=g.device, generator=g) for g in self.generators]
        index_PB = torch.stack(drawn)
        member_P1 = torch.arange(num_members, device=index_PB.device).unsqueeze(1)
        age_PB, lane_PB = index_PB // num_envs, index_PB % num_envs
        index_PB = (age_PB * num_members + member_P1) * num_envs + lane_PB
        gamma = self.setup.gamma.repeat_interleave(size)
        batch = self.ring.gather(index_PB.flatten(), gamma, c.n_step)
        members: Transition = tree.map_leaves(lambda x: x.unflatten(0, (num_members, size)), batch)
        return members

    def copy_members(self, parents: Tensor) -> None:
        """Member p gets the transitions of member ``parents[p]``; they end where its own lanes go on."""
        shape = (len(self.generators), self.setup.spec.num_envs)
        for name in FIELDS:
            for ring in tree.leaves(getattr(self.ring, name)):
                filled = ring[: self.ring.filled].unflatten(1, shape)
                filled.copy_(filled[:, parents])
        is_copy = parents != torch.arange(len(parents), device=parents.device)
        self.ring.truncate_newest(is_copy.repeat_interleave(shape[1]))


class StackedLearner:
    """Turns the rollouts of all members into newer weights of all members.

    ``configs`` differ in tunable settings only. ``spec`` is that of one member's environments.
    """

    def __init__(
        self,
        entry: AgentEntry,
        configs: Sequence[AgentConfig],
        spec: EnvSpec,
        device: torch.device,
        seeds: Sequence[int],
    ):
        self.members = [build_agent(entry, spec, *pair) for pair in _pairs(configs, device, seeds)]
        config = common_config(configs)
        check_stackable(self.members[0], spec, config)
        self.agent = stack_agents(build_agent(entry, spec, config, device, seeds[0]), self.members)
        self.memory: Memory
        setup = Setup(config, spec, device, self.members[0].generator, self.agent.hypers.gamma)
        if self.agent.memory_name() == "rollout":
            self.memory = LatestRollout(setup)
        else:
            self.memory = StackedReplay(setup, [torch_stream(seed, "replay", device=device) for seed in seeds])
        self.env_steps = 0
        self.agent.schedule(0)

    def update(self, rollout: Rollout) -> Metrics:
        """Learn from a rollout [T, P, N, ...]; metrics [P] are empty if no update was due."""
        self.env_steps += rollout.num_steps // len(self.members)
        self.agent.see(rollout)
        self.memory.add(rollout, self.env_steps)
        update = Update({})
        for _ in range(self.memory.num_due(self.agent.num_updates)):
            update = self.agent.update(self.memory.draw())
        self.agent.schedule(self.env_steps)
        return update.metrics

    def copy_members(self, parents: Tensor) -> None:
        """Member p becomes a copy of member ``parents[p]``: networks, moments, settings, statistics and replay."""
        for rows in rows_of(self.agent):
            rows.copy_(rows[parents])
        if isinstance(self.memory, StackedReplay):
            self.memory.copy_members(parents)


def _pairs(configs: Sequence[AgentConfig], device: torch.device, seeds: Sequence[int]) -> list[tuple[Any, ...]]:
    return [(config, device, seed) for config, seed in zip(configs, seeds, strict=True)]


def common_config(configs: Sequence[AgentConfig]) -> AgentConfig:
    """The settings of the stacked agent: tunable ones have their largest value, because 0 may switch a term off."""
    first = configs[0]
    tunables = [name for name, field in first.__dataclass_fields__.items() if "tunable" in field.metadata]
    return replace(first, **{name: max(getattr(config, name) for config in configs) for name in tunables})

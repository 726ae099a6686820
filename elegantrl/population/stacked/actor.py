"""Acting and evaluation of a population: the lanes of all members step in one environment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ... import tree
from ...agents.base import Agent
from ...envs.tensor import TensorEnv
from ...nets.policies import Draw
from ...rng import derive_seed, torch_stream
from ...tree import Tree
from ...types import Rollout
from .mapped import Mapped

READ_EVERY = 32
"""Steps of an evaluation between two looks at whether all episodes have ended, each of which waits for the device."""


class StackedActor:
    """Steps the lanes of all members, each with its own policy and random stream."""

    def __init__(self, env: TensorEnv, agent: Agent, members: Sequence[Agent], seeds: Sequence[int]):
        """``env`` has P * N lanes, those of a member in a row."""
        self.env, self.members, self.num_members = env, members, len(members)
        self.num_envs = env.spec.num_envs // self.num_members
        self.explore = Mapped(agent.policy, "explore")
        self.kept = Mapped(agent.policy, "kept", axis=1, result_axis=1)
        self.generators = [torch_stream(seed, "act", 0, device=env.device) for seed in seeds]
        self.initial_carry = initial_carry(agent, self.num_members, self.num_envs)
        self.carry = self.initial_carry
        self.obs = self.by_member(env.reset(derive_seed(seeds[0], "env", 0)))

    def by_member(self, x: Tree, axis: int = 0) -> Tree:
        """Lanes [P * N, ...] as [P, N, ...]."""
        shape = (self.num_members, self.num_envs)
        return tree.map_leaves(lambda leaf: leaf.unflatten(axis, shape), x)

    @torch.no_grad()
    def roll_out(self, horizon: int) -> Rollout:
        """The next ``horizon`` steps of every lane [T, P, N, ...]."""
        rows: list[tuple[Tree, ...]] = []
        obs, carry = self.obs, self.carry
        for draw in self.draws(horizon):
            action, out, carry = self.explore(obs, carry, draw)
            step = self.env.step(action.flatten(0, 1))
            taken = (step.reward, step.terminated, step.truncated, step.next_obs)
            rows.append((obs, action, *self.by_member(taken), out))
            obs = self.by_member(step.obs)
            if self.initial_carry != ():
                ended = self.by_member(step.terminated | step.truncated)
                carry = restart(ended, self.initial_carry, carry)
        self.obs, self.carry = obs, carry
        *columns, out = [tree.stack(column) for column in zip(*rows, strict=True)]
        kept = () if out == () else self.kept(out, columns[1])
        return Rollout(*columns)._replace(kept=kept)

    def draws(self, num_steps: int) -> list[Draw]:
        """The random numbers of each step [P, N, ...]."""
        own = [
            member.policy.draw(num_steps, self.num_envs, generator)
            for member, generator in zip(self.members, self.generators, strict=True)
        ]
        return [tree.stack(step) for step in zip(*own, strict=True)]


class StackedEvaluator:
    """Plays the same episodes with every member at once, without exploration."""

    def __init__(self, env: TensorEnv, agent: Agent, num_members: int, max_episode_steps: int):
        """``env`` has a lane for each episode of each member, those of a member in a row."""
        self.env, self.num_members, self.max_episode_steps = env, num_members, max_episode_steps
        self.act = Mapped(agent.policy, "act")
        self.episodes = env.spec.num_envs // num_members
        self.initial_carry = initial_carry(agent, num_members, self.episodes)
        tensors = agent.policy.tensors()
        self.shapes = [tensor.shape for tensor in tensors]
        names = {id(tensor): name for name, tensor in agent.policy.state_dict(keep_vars=True).items()}
        order = [f"owner.{names[id(tensor)]}" for tensor in tensors]
        self.places = [order.index(key) for key in self.act.keys]

    @torch.no_grad()
    def scores(self, policies: Tensor, seed: int) -> Tensor:
        """Mean returns [P] of policies [P, n], as ``policy_rows`` orders them; all begin in the same states."""
        parts = torch.split(policies, [shape[1:].numel() for shape in self.shapes], 1)
        views = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        tensors = [views[place] for place in self.places]
        obs, carry = self.reset(seed), self.initial_carry
        total = torch.zeros(self.num_members, self.episodes, dtype=torch.float64, device=self.env.device)
        running = torch.ones_like(total, dtype=torch.bool)
        for i in range(self.max_episode_steps):
            if i % READ_EVERY == 0 and not running.any():
                break
            action, carry = self.act(self.by_member(obs), carry, tensors=tensors)
            step = self.env.step(action.flatten(0, 1))
            total += self.by_member(step.reward) * running
            running &= ~self.by_member(step.terminated | step.truncated)
            obs = step.obs
        return total.mean(1)

    def reset(self, seed: int) -> Tree:
        """First observations, the same for every member."""
        self.env.reset(seed)
        state = self.env.state_dict()
        first = state["state"][: self.episodes]
        return self.env.load_state_dict(state | {"state": first.repeat(self.num_members, *(1,) * (first.dim() - 1))})

    def by_member(self, x: Tree) -> Tree:
        return tree.map_leaves(lambda leaf: leaf.unflatten(0, (self.num_members, self.episodes)), x)


def initial_carry(agent: Agent, num_members: int, num_lanes: int) -> Tree:
    """The carry of all members at the beginning of an episode [P, N, ...]."""
    one = agent.policy.initial_carry(num_lanes)
    return tree.map_leaves(lambda x: x.expand(num_members, *x.shape), one)


def restart(ended: Tensor, first: Tree, carry: Tree) -> Tree:
    """``carry`` [P, N, ...] with that of a new episode where one ``ended`` [P, N]."""
    return tree.map_leaves(lambda x, y: torch.where(tree.across(ended, x), x, y), first, carry)

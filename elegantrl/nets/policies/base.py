"""The policy contract: the part of an agent that is sent to the processes that step environments.

A policy has no hidden state. Its carry holds what depends on earlier steps (correlated noise, held actions, recurrent
state): a tree that the caller keeps, saves, and resets at the end of an episode.

Axes: T rollout steps, N lanes, B rows, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from ...errors import SpecError
from ...tree import Tree, map_leaves, named_leaves
from ...types import ActionSpec, Leaf, mask_of, seen_part, vector_dim
from ..distributions import Categorical, DiagGaussian
from ..encoders import Encoder
from ..networks import NetSpec
from ..normalize import build_norm
from ..recurrent import Core

Draw = tuple[Any, ...]
"""Random numbers for one step, drawn for many steps at once: between two environment steps kernels are slow."""


class Acted(NamedTuple):
    """What ``explore`` returns."""

    action: Tensor  # [N, ...]
    out: Tree  # [N, ...] the input of ``kept``, such as network outputs; () if it needs none
    carry: Tree  # [N, ...]


class Policy(nn.Module, ABC):
    """Acts on observations. All its parameters and buffers are float32 and are sent as one flat tensor.

    A policy is built from the leaves of its observations, the specification of its actions and a ``NetSpec``; other
    arguments of its constructor must be JSON values, because they are stored with the trained weights.
    """

    norm: nn.Module
    """Normalises observations; ``nn.Identity`` if it is switched off."""
    encoder: Encoder | None
    """Turns normalised observations into features; None if they are the features. ``NetPolicy`` has one if needed."""
    core: Core | None
    """The memory between features and head, whose state is the carry; None for a policy without memory."""
    feature_leaves: Tree
    """The leaves of what the head reads: features, or the output of the memory. Of a team those of one agent."""
    ids: Tensor | None
    """The numbers of agents that share their weights, one-hot [G, G]: features of theirs; None for other policies."""
    used: Tensor | None
    """[G, A] 1 for the numbers that an agent of a team has, 0 for others; None if all agents have all."""

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec):
        super().__init__()
        self.action_spec, self.action_dim, self.team = action, action.num_outputs, net.team
        seen, self.has_mask = seen_part(obs), mask_of(obs) is not None
        self.norm = build_norm(seen) if net.normalize_obs else nn.Identity()
        self.encoder, self.core, self.feature_leaves = None, None, agent_leaves(seen, net.team)
        self.register_buffer("ids", torch.eye(*net.team) if net.team and not net.separate else None)
        used = [[float(i < size) for i in range(action.dim)] for size in action.sizes]
        self.register_buffer("used", torch.tensor(used) if used else None)

    def normed(self, obs: Tree) -> Tree:
        """The part of observations that a policy sees, normalised."""
        return self.norm(seen_part(obs))

    def encode(self, normed: Tree) -> Tree:
        """Features [..., F] of observations, whose leaves have any axes in front, that are normalised already."""
        features = normed if self.encoder is None else self.encoder(normed)
        if self.ids is None:
            return features
        return torch.cat([features, self.ids.expand(*features.shape[:-1], -1)], -1)

    def features(self, obs: Tree) -> Tree:
        """The input of the memory; without memory that of the network and of a value network beside it: [..., F]."""
        return self.encode(self.normed(obs))

    def advance(self, obs: Tree, carry: Tree) -> tuple[Tree, Tree]:
        """What the head reads [N, F] for one step, and the next carry."""
        features = self.features(obs)
        if self.core is None:
            return features, carry
        carry = self.core(features, carry)
        return carry[0], carry

    def unroll(self, obs: Tree, carry: Tree, first: Tensor | None) -> tuple[Tree, Tree]:
        """What the head reads [T, N, F] for T steps, and the carry after each of them [T, N, ...].

        ``carry`` [N, ...] is that before the first step; ``first`` [T, N] are the steps that begin an episode. Without
        memory the axes in front are arbitrary, and the carry is empty.
        """
        features = self.features(obs)
        if self.core is None:
            return features, ()
        assert first is not None
        states = self.core.unroll(features, carry, first)
        return states[0], states

    def initial_carry(self, num_lanes: int) -> Tree:
        """The carry at the beginning of an episode [N, ...]; () for a policy that needs none."""
        return () if self.core is None else self.core.initial(num_lanes)

    @abstractmethod
    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        """The random numbers of each step of ``explore``; on a CPU they do not depend on how many are drawn at once."""

    @abstractmethod
    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        """Actions for training."""

    @abstractmethod
    def act(self, obs: Tree, carry: Tree) -> tuple[Tensor, Tree]:
        """The best known actions [N, ...], and the next carry."""

    def kept(self, out: Tree, action: Tensor) -> Tree:
        """What a rollout stores for learning about actions [T, N, ...], computed from ``out`` [T, N, ...]."""
        return ()

    def vote(self, obs: Tree) -> Tensor:
        """What an ensemble averages [N, A]: the best known action, or a weight for each choice (they sum to 1)."""
        raise NotImplementedError(f"{type(self).__name__} cannot be a member of an ensemble")

    def logp_above_entropy(self, obs: Tree, action: Tensor) -> Tensor:
        """Log-probabilities [...] of actions plus the policy's entropy.

        A density depends on the units of an action. This sum does not: a change of units shifts both terms by the
        same amount with opposite signs. Only the log-probability has a gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} has no probabilities")

    def tensors(self) -> list[Tensor]:
        """All parameters and buffers that are sent, in a fixed order."""
        return [*self.parameters(), *self.buffers()]

    def to_flat(self) -> Tensor:
        return joined(self.tensors())


class NetPolicy(Policy):
    """A policy that is one network, with or without memory: subclasses turn its output into actions."""

    net: Any
    keeps_out = False
    """Whether ``kept`` needs the network's output."""

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec):
        super().__init__(obs, action, net)
        self.encoder = net.build_encoder(self.feature_leaves)
        if self.encoder is not None:
            self.feature_leaves = Leaf((self.encoder.num_features,))
        if self.ids is not None:
            self.feature_leaves = Leaf((vector_dim(self.feature_leaves) + len(self.ids),))
        self.core = net.build_core(self.feature_leaves)
        if self.core is not None:
            self.feature_leaves = Leaf((self.core.size,))

    def output(self, obs: Tree) -> Tensor:
        """The network's output for observations [B, ...] of a policy without memory."""
        return self.output_from(self.features(obs), mask_of(obs))

    def output_from(self, features: Tree, mask: Tensor | None) -> Tensor:
        """The network's output for features [..., F]; a policy that chooses marks what the mask [..., A] forbids."""
        return self.net(features)

    def step(self, obs: Tree, carry: Tree) -> tuple[Tensor, Tree]:
        """The network's output for one step [N, ...], and the next carry."""
        if self.core is None:
            return self.output(obs), carry
        features, carry = self.advance(obs, carry)
        return self.output_from(features, mask_of(obs)), carry

    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        out, carry = self.step(obs, carry)
        return Acted(self.choose(out, draw), out if self.keeps_out else (), carry)

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        """Actions made of the network's output and random numbers."""
        raise NotImplementedError(f"{type(self).__name__} does not explore")

    def act(self, obs: Tree, carry: Tree) -> tuple[Tensor, Tree]:
        out, carry = self.step(obs, carry)
        return self.best(out), carry

    @abstractmethod
    def best(self, out: Tensor) -> Tensor:
        """The best known actions for the network's output."""


def agent_leaves(seen: Tree, team: tuple[int, ...]) -> Tree:
    """The leaves of one agent, given those of a team: without the axis G."""
    if not team:
        return seen
    for path, leaf in named_leaves(seen).items():
        if leaf.shape[:1] != team:
            raise SpecError(
                f"the observation {path!r} of a team of {team[0]} is {leaf}, expected {team[0]} as its first axis"
            )
    return map_leaves(lambda leaf: Leaf(leaf.shape[1:], leaf.dtype, one_hot=leaf.one_hot), seen)


@torch.no_grad()
def joined(tensors: Iterable[Tensor]) -> Tensor:
    """One flat copy of all tensors."""
    return torch.cat([t.reshape(-1) for t in tensors])


def above_entropy(dist: Categorical | DiagGaussian, action: Tensor) -> Tensor:
    return dist.log_prob(action) + dist.entropy().detach()

"""Action values (DQN)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from ...tree import Tree
from ...types import ActionSpec, mask_of
from ..distributions import choice, masked
from ..networks import NetSpec, build_dueling
from .base import Acted, Draw, NetPolicy


class QPolicy(NetPolicy):
    """Epsilon-greedy on action values; with ``dueling`` Q = V + A - mean(A)."""

    epsilon: Tensor

    def __init__(
        self,
        obs: Tree,
        action: ActionSpec,
        net: NetSpec = NetSpec(),  # noqa: B008
        dueling: bool = False,
        layer_norm: bool = False,
    ):
        super().__init__(obs, action, net)
        self.dueling = dueling
        if dueling:  # one more output: the state value, before the advantages
            self.net = build_dueling(self.feature_leaves, self.action_dim, net, layer_norm)
        else:
            self.net = net.build(self.feature_leaves, self.action_dim, normed=layer_norm)
        self.register_buffer("epsilon", torch.ones(()))

    def q(self, obs: Tree) -> Tensor:
        """Action values [B, A]."""
        return self.values(self.normed(obs))

    def values(self, normed_obs: Tree) -> Tensor:
        """Action values [B, A] of observations that are normalised already."""
        return self.q_from(self.encode(normed_obs))

    def q_from(self, features: Tree) -> Tensor:
        """Action values [..., A] for what the head reads [..., F]."""
        return self._join(self.net(features))

    def allowed(self, mask: Tensor | None) -> Tensor | None:
        """Which values [..., A] may be chosen, by the mask of an observation."""
        return mask

    def index(self, action: Tensor) -> Tensor:
        """The numbers [...] of actions among the A values."""
        return action

    def output_from(self, features: Tree, mask: Tensor | None) -> Tensor:
        out = self.net(features)
        if mask is None:
            return out
        first = int(self.dueling)
        return torch.cat([out[..., :first], masked(out[..., first:], self.allowed(mask))], -1)

    def _join(self, out: Tensor) -> Tensor:
        if not self.dueling:
            return out
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        draws: list[Draw] = []
        shape, device = (num_lanes, *self.team), generator.device
        for _ in range(num_steps):
            is_random = torch.rand(shape, generator=generator, device=device) < self.epsilon
            if self.has_mask:  # the allowed action with the largest of these is uniform among the allowed ones
                uniform = torch.rand(*shape, self.action_dim, generator=generator, device=device)
            else:
                uniform = torch.randint(self.action_dim, shape, generator=generator, device=device)
            draws.append((is_random, uniform))
        return draws

    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        if self.has_mask:
            is_random, uniform = draw
            draw = is_random, choice(masked(uniform, self.allowed(mask_of(obs))))
        return super().explore(obs, carry, draw)

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        is_random, uniform = draw
        return torch.where(is_random, uniform, choice(out[..., int(self.dueling) :]))  # V is the same for all choices

    def best(self, out: Tensor) -> Tensor:
        return out[..., int(self.dueling) :].argmax(-1)

    def vote(self, obs: Tree) -> Tensor:
        # One-hot: values of different runs have different scales.
        return one_hot(self.best(self.output(obs)), self.action_dim).to(self.epsilon.dtype)

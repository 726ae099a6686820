"""Action values (DQN)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from ...tree import Tree
from ...types import ActionSpec
from ..distributions import choice
from ..networks import NetSpec, build_dueling
from .base import Draw, NetPolicy


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
        return self._join(self.output(obs))

    def values(self, normed_obs: Tree) -> Tensor:
        """Action values [B, A] of observations that are normalised already."""
        return self._join(self.net(self.encode(normed_obs)))

    def _join(self, out: Tensor) -> Tensor:
        if not self.dueling:
            return out
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        draws: list[Draw] = []
        for _ in range(num_steps):
            is_random = torch.rand(num_lanes, generator=generator, device=generator.device) < self.epsilon
            uniform = torch.randint(self.action_dim, (num_lanes,), generator=generator, device=generator.device)
            draws.append((is_random, uniform))
        return draws

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        is_random, uniform = draw
        return torch.where(is_random, uniform, choice(out[..., int(self.dueling) :]))  # V is the same for all choices

    def best(self, out: Tensor) -> Tensor:
        return self._join(out).argmax(-1)

    def vote(self, obs: Tree) -> Tensor:
        q = self.q(obs)
        # One-hot: values of different runs have different scales.
        return one_hot(q.argmax(-1), q.shape[-1]).to(q.dtype)

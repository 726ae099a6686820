"""Logits of one choice with relaxed samples (MADDPG, MATD3): straight-through Gumbel-softmax.

Jang et al. 2017 (arXiv:1611.01144). Axes: N lanes, B rows, A options.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...tree import Tree
from ...types import ActionSpec, mask_of
from ..distributions import FORBIDDEN, MAX_NOISE, choice, masked
from ..networks import NetSpec
from .base import Draw, NetPolicy


class GumbelPolicy(NetPolicy):
    """Acts by the largest logit and explores by samples; a share of the exploring actions is uniform."""

    random_frac: Tensor

    def __init__(
        self,
        obs: Tree,
        action: ActionSpec,
        net: NetSpec = NetSpec(),  # noqa: B008
        temperature: float = 1.0,
    ):
        super().__init__(obs, action, net)
        self.net = net.build(self.feature_leaves, self.action_dim, head_gain=0.01)
        self.temperature = temperature
        # Fraction of uniform random actions: 1 while the buffer warms up. The learner sets it.
        self.register_buffer("random_frac", torch.ones(()))

    def output_from(self, features: Tree, mask: Tensor | None) -> Tensor:
        return masked(self.net(features), mask)

    def logits(self, obs: Tree, normed: Tree) -> Tensor:
        """Logits [..., A] of observations and their normalised part; ``FORBIDDEN`` where the mask forbids."""
        return self.output_from(self.encode(normed), mask_of(obs))

    def hard(self, logits: Tensor) -> Tensor:
        """The option with the largest logit, one-hot [..., A] without a gradient."""
        return self.one_hot(choice(logits)).to(logits.dtype)

    def one_hot(self, action: Tensor) -> Tensor:
        """Actions [...] as vectors [..., A]."""
        # torch's one_hot reads the largest index on the host, and vmap cannot map it.
        return (action.unsqueeze(-1) == torch.arange(self.action_dim, device=action.device)).float()

    def relaxed(self, logits: Tensor, gumbel: Tensor) -> Tensor:
        """Samples [..., A]: one-hot in value, with the gradient of the softmax of the same noisy logits."""
        soft = ((logits + gumbel) / self.temperature).softmax(-1)
        return self.hard(soft.detach()) + (soft - soft.detach())  # the brackets make the value exactly one-hot

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        shape = num_lanes, *self.team, self.action_dim
        draws: list[Draw] = []
        for _ in range(num_steps):
            uniform = torch.rand((*shape[:-1], 1), generator=generator, device=generator.device)
            draws.append((gumbel_noise(shape, generator), uniform < self.random_frac))
        return draws

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        gumbel, is_random = draw
        # With equal logits for all allowed options a sample is uniform among them.
        is_allowed = out > FORBIDDEN / 2
        return choice(torch.where(is_random & is_allowed, 0.0, out) + gumbel)

    def best(self, out: Tensor) -> Tensor:
        return choice(out)

    def vote(self, obs: Tree) -> Tensor:
        return self.output(obs).softmax(-1)


def gumbel_noise(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Gumbel noise, bounded so that no forbidden option wins."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return uniform.log_().neg_().log_().neg_().clamp_(-MAX_NOISE, MAX_NOISE)

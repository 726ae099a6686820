"""tanh of a network, with noise for exploration (DDPG, TD3)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ...tree import Tree
from ...types import ActionSpec
from ..distributions import DiagGaussian
from ..networks import NetSpec
from .base import Acted, Draw, above_entropy
from .warm_up import Carry, WarmUpPolicy

NoiseKind = Literal["gaussian", "ou"]


class DeterministicPolicy(WarmUpPolicy):
    """Exploring adds noise: fresh at every step, or an Ornstein-Uhlenbeck process per lane."""

    THETA = 0.15
    """Fraction by which a lane's Ornstein-Uhlenbeck noise decays per step."""
    MIN_STD = 0.05
    """Minimum standard deviation of the normal distribution that gives log-probabilities."""

    def __init__(
        self,
        obs: Tree,
        action: ActionSpec,
        net: NetSpec = NetSpec(),  # noqa: B008
        noise: NoiseKind = "gaussian",
        noise_std: float = 0.1,
        warm_up_hold: int = 1,
    ):
        super().__init__(obs, action, net, warm_up_hold)
        self.net = net.build(self.feature_leaves, self.action_dim, head_gain=0.01)
        self.noise_std, self.drifts = noise_std, noise == "ou"

    def initial_carry(self, num_lanes: int) -> Tree:
        carry = super().initial_carry(num_lanes)
        if not self.drifts:
            return carry
        noise = self.random_frac.new_zeros(num_lanes, *self.team, self.action_dim)
        return Carry(None, None, noise) if carry == () else carry._replace(noise=noise)

    def action(self, normed_obs: Tree) -> Tensor:
        """Actions in [-1, 1], shape [B, A], for observations that are normalised already."""
        return self.best(self.net(self.encode(normed_obs)))

    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        normal, *rest = draw
        noise = self.noise_std * normal
        if self.drifts:
            noise = noise + (1 - self.THETA) * carry.noise
            carry = carry._replace(noise=noise)
        return super().explore(obs, carry, type(draw)(noise, *rest))

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        noise, is_random, uniform, _ = draw
        action = torch.where(is_random, uniform, (out.tanh() + noise).clamp(-1, 1))
        return action if self.used is None else action * self.used

    def best(self, out: Tensor) -> Tensor:
        return out.tanh() if self.used is None else out.tanh() * self.used

    def logp_above_entropy(self, obs: Tree, action: Tensor) -> Tensor:
        # The log-density of the normal distribution with which it explores.
        log_std = torch.full_like(action[..., :1], math.log(max(self.noise_std, self.MIN_STD)))
        return above_entropy(DiagGaussian(self.action(self.normed(obs)), log_std), action)

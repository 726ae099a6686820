"""tanh of a normal distribution (soft actor-critic)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...tree import Tree
from ...types import ActionSpec
from ..distributions import DiagGaussian, squash
from ..networks import NetSpec
from .base import Draw, above_entropy
from .warm_up import WarmUpPolicy


class SquashedPolicy(WarmUpPolicy):
    """tanh of a normal whose mean and standard deviation depend on the observation."""

    LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
    EDGE = 1 - 1e-4
    """Stored actions are clipped to this magnitude: tanh has no inverse at 1."""

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec = NetSpec(), warm_up_hold: int = 1):  # noqa: B008
        super().__init__(obs, action, net, warm_up_hold)
        self.net = net.build(self.feature_leaves, 2 * self.action_dim)

    def sample(self, obs: Tree, noise_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) [B, A] and the log-density [B] of those samples."""
        mean, log_std = self.output(obs).chunk(2, -1)
        return squash(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX), noise_BA)

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        normal, is_random, uniform, _ = draw
        mean, log_std = out[:, : self.action_dim], out[:, self.action_dim :]
        action = (mean + log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX).exp() * normal).tanh()
        return torch.where(is_random, uniform, action)

    def best(self, out: Tensor) -> Tensor:
        mean, _ = out.chunk(2, -1)
        return mean.tanh()

    def logp_above_entropy(self, obs: Tree, action: Tensor) -> Tensor:
        mean, log_std = self.output(obs).chunk(2, -1)
        # Density before tanh: the derivative of tanh at a given action is the same for every policy.
        normal = DiagGaussian(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX))
        return above_entropy(normal, action.clamp(-self.EDGE, self.EDGE).atanh())

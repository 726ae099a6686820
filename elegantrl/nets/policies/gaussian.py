"""A normal distribution whose standard deviation does not depend on the observation."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from ...tree import Tree
from ...types import ActionSpec
from ..distributions import DiagGaussian
from ..networks import NetSpec
from .base import Draw, NetPolicy, above_entropy
from .categorical import DEFAULT_NET


class GaussianPolicy(NetPolicy):
    """A numbers. They may leave [-1, 1]; the environment clips them."""

    keeps_out = True

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec = DEFAULT_NET, log_std_init: float = 0.0):
        super().__init__(obs, action, net)
        self.net = net.build(self.feature_leaves, self.action_dim, head_gain=0.01)
        owners = self.team if net.separate else ()
        self.log_std = nn.Parameter(torch.full((*owners, self.action_dim), log_std_init))

    def dist(self, obs: Tree) -> DiagGaussian:
        return self.dist_from(self.features(obs), None)

    def dist_from(self, features: Tree, mask: Tensor | None) -> DiagGaussian:
        """The distribution for features [..., F]; numbers have no mask."""
        return DiagGaussian(self.output_from(features, None), self.masked_log_std())

    def output_from(self, features: Tree, mask: Tensor | None) -> Tensor:
        out = self.net(features)
        return out if self.used is None else out * self.used

    def masked_log_std(self) -> Tensor:
        # A number that an agent does not have is always 0 with mean 0 and log_std 0: its log-probability is constant.
        return self.log_std if self.used is None else self.log_std * self.used

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        shape = (num_steps, num_lanes, *self.team, self.action_dim)
        noise = DiagGaussian.noise(self.log_std, shape, generator)
        return list(zip(noise if self.used is None else noise * self.used))

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        return DiagGaussian(out, self.log_std).sample(*draw)

    def best(self, out: Tensor) -> Tensor:
        return out

    def kept(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [T, N]."""
        # With lanes innermost a reduction over the short axis A is several times faster.
        return DiagGaussian(out.mT.contiguous().mT, self.masked_log_std()).log_prob(action)

    def vote(self, obs: Tree) -> Tensor:
        # Clipped as the environment does: a value beyond the limits must not outweigh the other members.
        return self.output(obs).clamp(-1, 1)

    def logp_above_entropy(self, obs: Tree, action: Tensor) -> Tensor:
        return above_entropy(self.dist(obs), action)

"""Critics: state values and ensembles of action values.

Axes: B rows, E critics, O observation, A action.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..errors import ConfigError
from ..tree import Tree
from ..types import seen_part, vector_dim
from .layers import AgentLinear, Members
from .networks import NetSpec


class ValueNet(nn.Module):
    """State value V(s) of the policy's features: [..., F] -> [...], or ``num_values`` of them: [..., F] -> [..., V]."""

    def __init__(self, features: Tree, net: NetSpec, normed: bool = False, num_values: int | None = None):
        """``features`` are their leaves; if ``normed``, hidden layers are layer-normalised."""
        super().__init__()
        self.is_single = num_values is None
        self.net = net.build(features, num_values or 1, normed=normed)

    def forward(self, features: Tree) -> Tensor:
        return self.net(features).squeeze(-1) if self.is_single else self.net(features)

    def loss(self, features: Tree, target: Tensor, active: Tensor | None = None) -> Tensor:
        """Half the mean square error, over the ``active`` elements if given."""
        return 0.5 * self.square_error(self(features), target, active)

    @staticmethod
    def square_error(value: Tensor, target: Tensor, active: Tensor | None) -> Tensor:
        return mse_loss(value, target) if active is None else mean_of((value - target).square(), active)


def mean_of(x: Tensor, active: Tensor | None) -> Tensor:
    """The mean of ``x``, over its ``active`` elements if given; 0 if there are none."""
    if active is None:
        return x.mean()
    weight = weight_of(x, active)
    return (x * weight).sum() / weight.sum().clamp(min=1)


def weight_of(x: Tensor, active: Tensor) -> Tensor:
    """1 for the elements of ``x`` [..., G] whose agent is active, 0 for others. One number for the whole team [..., 1]
    counts while any of its agents is active."""
    return (active if active.shape == x.shape else active.any(-1, keepdim=True)).to(x.dtype)


class ScaledValueNet(ValueNet):
    """A state value whose network predicts targets normalised by their mean and deviation, so rewards of any scale fit.

    When they change, the last layer is rescaled so that no value changes (van Hasselt et al. 2016, arXiv:1602.07714).
    """

    mean: Tensor
    std: Tensor
    seen: Tensor
    MEMORY = 100
    """Target batches over which the statistics are averaged; the weight of older batches decays."""

    def __init__(self, features: Tree, net: NetSpec, normed: bool = False, num_values: int | None = None):
        super().__init__(features, net, normed, num_values)
        self.head = [module for module in self.net.modules() if isinstance(module, nn.Linear | AgentLinear)][-1:]
        if not self.head or self.head[0].out_features != (num_values or 1):
            raise ConfigError(
                f"agent.normalize_value=True rescales the last linear layer, but network {net.network!r} ends with none"
                f" of {num_values or 1} outputs; give it one or set agent.normalize_value=False"
            )
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, features: Tree) -> Tensor:
        return torch.addcmul(self.mean, self.std, super().forward(features))

    def loss(self, features: Tree, target: Tensor, active: Tensor | None = None) -> Tensor:
        return 0.5 * self.square_error(super().forward(features), (target - self.mean) / self.std, active)

    @torch.no_grad()
    def observe(self, target_mean: Tensor, target_variance: Tensor) -> None:
        """Update the statistics with new targets, before learning from them."""
        self.seen.add_(1).clamp_(max=self.MEMORY)
        share = 1 / self.seen  # a plain average at first, then an exponential one
        shift = target_mean - self.mean
        # Mean and variance of the mixture of the old statistics and the new targets.
        variance = (1 - share) * self.std.square() + share * target_variance
        variance += share * (1 - share) * shift.square()
        mean, std = self.mean + share * shift, variance.sqrt().clamp(min=1e-3)
        (head,) = self.head
        assert head.bias is not None
        head.weight *= self.std / std
        head.bias.copy_((head.bias * self.std + self.mean - mean) / std)
        self.mean.copy_(mean)
        self.std.copy_(std)


class EnsembleCritic(nn.Module):
    """E independent action values Q(s, a): [B, O], [B, A] -> [E, B]. They share an encoder if observations are no
    vector of floats."""

    def __init__(
        self,
        obs: Tree,
        action_dim: int,
        net: NetSpec,
        num_critics: int,
        normed: bool = False,
    ):
        super().__init__()
        self.encoder = net.build_encoder(seen_part(obs), needs_vector=True)
        num_features = vector_dim(seen_part(obs)) if self.encoder is None else self.encoder.num_features
        self.net = net.build_ensemble(num_features + action_dim, 1, num_critics, normed)

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        return self.net(self.inputs(obs, action)).squeeze(-1)

    def subset(self, members: Members, obs: Tree, action: Tensor) -> Tensor:
        """The values of the chosen critics; the others are not computed: [B, O], [B, A] -> [members, B]."""
        return self.net.subset(members, self.inputs(obs, action)).squeeze(-1)

    def inputs(self, obs: Tree, action: Tensor) -> Tensor:
        """Features and actions side by side [B, F + A]."""
        return torch.cat([obs if self.encoder is None else self.encoder(obs), action], -1)

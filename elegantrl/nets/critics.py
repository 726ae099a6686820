"""Critics: state values and ensembles of action values.

Axes: B rows, E critics, O observation, A action.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Activation, Init, mlp


class ValueNet(nn.Module):
    """State value V(s): [..., O] -> [...]."""

    def __init__(self, obs_dim: int, hidden: tuple[int, ...], activation: Activation, init: Init):
        super().__init__()
        self.net = mlp((obs_dim, *hidden, 1), activation, init=init)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class EnsembleCritic(nn.Module):
    """E independent action values Q(s, a) in one batched product: [B, O], [B, A] -> [E, B]."""

    def __init__(
        self, obs_dim: int, action_dim: int, hidden: tuple[int, ...], activation: Activation, num_critics: int
    ):
        super().__init__()
        self.net = mlp((obs_dim + action_dim, *hidden, 1), activation, num_members=num_critics)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)).squeeze(-1)

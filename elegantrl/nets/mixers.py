"""The mixing network of QMIX (arXiv:1803.11485).

Axes: G agents, S state, M units of the mixing layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, relu


class Mixer(nn.Module):
    """Q_tot = w2(s) . elu(W1(s) q + b1(s)) + V(s), given the values q [..., G] of agents and a state s [..., S]: [...].

    A hyper-network makes the weights of the state. They are absolute values, so Q_tot never falls when the value of an
    agent rises, and the best action of the team consists of the best actions of its agents.
    """

    def __init__(self, num_agents: int, state_dim: int, size: int):
        super().__init__()
        self.sizes = [num_agents * size, size, size, size]
        self.hyper = nn.Linear(state_dim, sum(self.sizes))  # W1, w2, b1 and the hidden layer of V in one product
        self.value = nn.Linear(size, 1)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        inner, outer, bias, hidden = torch.split(self.hyper(state), self.sizes, -1)
        inner_GM = inner.abs().reshape(*q.shape, -1)
        # A sum of products: a batched product of so small matrices takes longer.
        mixed_M = elu((q.unsqueeze(-1) * inner_GM).sum(-2) + bias)
        return (mixed_M * outer.abs()).sum(-1) + self.value(relu(hidden)).squeeze(-1)

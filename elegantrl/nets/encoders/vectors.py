"""Encoders of vectors, and the way numbers of any type enter a network.

Axes: B rows, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...types import Leaf
from ..layers import Stack

VECTOR_FEATURES = 64


class Flat(nn.Module):
    """All numbers of a leaf in a row: [B, *shape] -> floats [B, F]."""

    def forward(self, x: Tensor) -> Tensor:
        return as_floats(x.flatten(1))


def flat(leaf: Leaf) -> nn.Module:
    """All numbers of a leaf in a row."""
    return Flat()


def mlp(leaf: Leaf) -> nn.Module:
    """A linear layer with 64 features."""
    return Stack(Flat(), nn.Linear(math.prod(leaf.shape), VECTOR_FEATURES), nn.ReLU(inplace=True))


def as_floats(x: Tensor) -> Tensor:
    """Numbers of any type as floats; bytes are scaled from [0, 255] to [0, 1]."""
    return x.float().mul_(1 / 255) if x.dtype == torch.uint8 else x.float()

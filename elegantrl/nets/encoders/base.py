"""The encoder of a whole observation, made of an encoder per leaf.

Axes: B rows, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...imports import find
from ...tree import Tree, leaves, named_leaves
from ...types import Leaf


def flat(leaf: Leaf) -> nn.Module:
    """All numbers of a leaf in a row."""
    return nn.Flatten()


ENCODERS: dict[str, Callable[[Leaf], nn.Module]] = {"flat": flat}
"""Functions from a leaf to a module that maps it [B, *shape] to features [B, F]."""


class Encoder(nn.Module):
    """The features of all leaves of an observation, joined: leaves [..., *shape] -> [..., F]."""

    num_features: int

    def __init__(self, seen: Tree, name: str):
        super().__init__()
        named = named_leaves(seen)
        self.ranks = [len(leaf.shape) for leaf in named.values()]
        self.leaves = nn.ModuleList(
            find("flat" if name == "auto" else name, ENCODERS, "encoder")(x) for x in named.values()
        )
        with torch.no_grad():
            self.num_features = sum(
                encode(leaf.zeros(1)).shape[-1] for encode, leaf in zip(self.leaves, named.values(), strict=True)
            )

    def forward(self, seen: Tree) -> Tensor:
        parts = []
        for x, rank, encode in zip(leaves(seen), self.ranks, self.leaves, strict=True):
            lead = x.shape[: x.dim() - rank]
            parts.append(encode(x.reshape(math.prod(lead), *x.shape[x.dim() - rank :])).view(*lead, -1))
        return torch.cat(parts, -1)

"""Observation normalisation: the policy holds mean and scale, only the learner updates them.

Every leaf of floats is normalised by itself; pictures and one-hot choices stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import tree
from ..tree import Tree
from ..types import Leaf, State

Average = Callable[[Tensor], Tensor]


class ObsNorm(nn.Module):
    """(obs - mean) / std, clipped. Its two buffers are sent with the policy's weights."""

    mean: Tensor
    inv_std: Tensor

    def __init__(self, shape: int | tuple[int, ...], clip: float = 10.0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("inv_std", torch.ones(shape))
        self.clip = clip

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self.mean) * self.inv_std).clamp(-self.clip, self.clip)


class RunningStats:
    """Mean and variance of all observations seen, in float64 so that a long run does not drift."""

    def __init__(self, shape: int | tuple[int, ...], device: torch.device):
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.m2 = torch.zeros(shape, dtype=torch.float64, device=device)

    def update(self, obs: Tensor, average: Average = lambda x: x, num_parts: int = 1) -> None:
        """Merge a batch [..., *shape], or one of ``num_parts`` parts that ``average`` combines."""
        merge(self.count, self.mean, self.m2, obs, average, num_parts)

    def write_to(self, norm: nn.Module) -> None:
        """Copy mean and scale into the policy's normaliser."""
        assert isinstance(norm, ObsNorm)
        norm.mean.copy_(self.mean)
        norm.inv_std.copy_(scale_of(self.count, self.m2))

    def state_dict(self) -> State:
        return {name: getattr(self, name).clone() for name in ("count", "mean", "m2")}

    def load_state_dict(self, state: State) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)


def merge(count: Tensor, mean: Tensor, m2: Tensor, obs: Tensor, average: Average, num_parts: int) -> None:
    """Merge a batch [..., *shape] into statistics, in place (Chan et al. 1979)."""
    rows = obs.reshape(-1, *mean.shape).double()
    num_rows, row_mean = rows.shape[0] * num_parts, average(rows.mean(0))
    total = count + num_rows
    shift = row_mean - mean
    within = average((rows - row_mean).square().sum(0)) * num_parts
    m2 += within + shift.square() * count * num_rows / total
    mean += shift * num_rows / total
    count.copy_(total)


def scale_of(count: Tensor, m2: Tensor) -> Tensor:
    """1 / standard deviation; a constant feature keeps scale 1."""
    variance = m2 / count.clamp(min=1)
    return torch.where(variance > 1e-8, variance.clamp(min=1e-8).rsqrt(), torch.ones_like(variance))


class StateNorm(nn.Module):
    """Normalises what only training sees, with statistics of its own: no worker needs them."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, size: int, clip: float = 10.0):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))
        self.clip = clip

    def forward(self, state: Tensor) -> Tensor:
        scale = scale_of(self.count, self.m2)
        return ((state - self.mean.to(state.dtype)) * scale.to(state.dtype)).clamp(-self.clip, self.clip)

    def update(self, state: Tensor, average: Average, num_parts: int) -> None:
        merge(self.count, self.mean, self.m2, state, average, num_parts)


# ---- trees of observations


class TreeNorm(nn.Module):
    """An ``ObsNorm`` for every leaf that is normalised; the others pass unchanged."""

    def __init__(self, seen: Tree):
        super().__init__()
        self.leaves = nn.ModuleList(build_norm(leaf) for leaf in tree.leaves(seen))

    def forward(self, seen: Tree) -> Tree:
        norms = iter(self.leaves)
        return tree.map_leaves(lambda x: next(norms)(x), seen)


class TreeStats:
    """``RunningStats`` for every leaf that is normalised."""

    def __init__(self, seen: Tree, device: torch.device):
        self.leaves = {
            i: RunningStats(leaf.shape, device) for i, leaf in enumerate(tree.leaves(seen)) if is_normalized(leaf)
        }

    def update(self, seen: Tree, average: Average = lambda x: x, num_parts: int = 1) -> None:
        parts = tree.leaves(seen)
        for i, stats in self.leaves.items():
            stats.update(parts[i], average, num_parts)

    def write_to(self, norm: nn.Module) -> None:
        assert isinstance(norm, TreeNorm)
        for i, stats in self.leaves.items():
            stats.write_to(norm.leaves[i])

    def state_dict(self) -> State:
        return {str(i): stats.state_dict() for i, stats in self.leaves.items()}

    def load_state_dict(self, state: State) -> None:
        for i, stats in self.leaves.items():
            stats.load_state_dict(state[str(i)])


def is_normalized(leaf: Leaf) -> bool:
    return leaf.dtype == "float32" and not leaf.one_hot


def build_norm(seen: Tree) -> nn.Module:
    """The normaliser of observations with the leaves ``seen``."""
    if not any(map(is_normalized, tree.leaves(seen))):
        return nn.Identity()
    return ObsNorm(seen.shape) if isinstance(seen, Leaf) else TreeNorm(seen)


def build_stats(seen: Tree, device: torch.device) -> RunningStats | TreeStats | None:
    """The statistics that ``build_norm(seen)`` needs; None if no leaf is normalised."""
    if not any(map(is_normalized, tree.leaves(seen))):
        return None
    return RunningStats(seen.shape, device) if isinstance(seen, Leaf) else TreeStats(seen, device)

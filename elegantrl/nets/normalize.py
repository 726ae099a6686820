"""Observation normalisation: the policy holds mean and scale, only the learner updates them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..types import State


class ObsNorm(nn.Module):
    """(obs - mean) / std, clipped. Its two buffers are sent with the policy's weights."""

    mean: Tensor
    inv_std: Tensor

    def __init__(self, obs_dim: int, clip: float = 10.0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(obs_dim))
        self.register_buffer("inv_std", torch.ones(obs_dim))
        self.clip = clip

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self.mean) * self.inv_std).clamp(-self.clip, self.clip)


class RunningStats:
    """Mean and variance of all observations seen, in float64 so that a long run does not drift."""

    def __init__(self, obs_dim: int, device: torch.device):
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(obs_dim, dtype=torch.float64, device=device)
        self.m2 = torch.zeros(obs_dim, dtype=torch.float64, device=device)

    def update(self, obs: Tensor, average: Callable[[Tensor], Tensor] = lambda x: x, num_parts: int = 1) -> None:
        """Merge a batch [..., O] (Chan et al. 1979), or one of ``num_parts`` equal parts that ``average`` combines."""
        rows = obs.reshape(-1, obs.shape[-1]).double()
        count, mean = rows.shape[0] * num_parts, average(rows.mean(0))
        total = self.count + count
        shift = mean - self.mean
        within = average((rows - mean).square().sum(0)) * num_parts
        self.m2 += within + shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.count.copy_(total)

    def write_to(self, norm: ObsNorm) -> None:
        """Copy mean and scale into the policy's normaliser; a constant feature keeps scale 1."""
        variance = self.m2 / self.count.clamp(min=1)
        norm.mean.copy_(self.mean)
        norm.inv_std.copy_(torch.where(variance > 1e-8, variance.clamp(min=1e-8).rsqrt(), torch.ones_like(variance)))

    def state_dict(self) -> State:
        return {name: getattr(self, name).clone() for name in ("count", "mean", "m2")}

    def load_state_dict(self, state: State) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)

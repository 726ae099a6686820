"""A ring of recent trajectories that finds windows in them.

Axes: F rows held, N lanes, W possible windows, L selected windows, K steps of a window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import tree
from ..types import Windows
from .replay import ReplayBuffer

MIN_STEPS = 4096
"""Steps before the first windows are returned: the best windows of few steps are random."""


class TrajectoryStore(ReplayBuffer):
    """The newest steps of all lanes, from which windows are selected. No window crosses the end of an episode; it may
    end with one."""

    def has_enough(self) -> bool:
        """Whether there are enough steps to select from."""
        return len(self) >= min(MIN_STEPS, self.num_rows * self.terminated.shape[1])

    def top_windows(self, num_windows: int, length: int, gamma: Tensor) -> Windows | None:
        """The L windows of K steps with the highest discounted return, weighed by their rewards scaled to [0, 1]; None
        while there are too few steps."""
        if self.filled < length or not self.has_enough():
            return None
        discount_K = discounts(gamma, length)
        return_WN = self.reward[self.filled_rows()].unfold(0, length, 1) @ discount_K
        return_WN = return_WN.masked_fill(self._crosses_end(length), -torch.inf)
        best, flat = return_WN.flatten().topk(min(num_windows, return_WN.numel()))
        if len(flat) < num_windows:  # too few windows: the rest has weight 0
            missing = num_windows - len(flat)
            best = torch.cat([best, best.new_full((missing,), -torch.inf)])
            flat = torch.cat([flat, flat.new_zeros(missing)])
        row_LK, lane_LK = self._steps_of(flat, length)
        valid_LK = (best > -torch.inf).unsqueeze(-1)
        weight_LK = discount_K * scale_to_unit(self.reward[row_LK, lane_LK], valid_LK) * valid_LK
        return self._windows(row_LK, lane_LK, weight_LK)

    def draw_windows(self, advantage_FN: Tensor, num_windows: int, length: int, gamma: Tensor) -> Windows | None:
        """L windows of K steps in proportion to the advantage of their first step where it is positive, all of the same
        weight; of weight 0 if none is. None while there is no window.

        Evenly spaced along the sum of the advantages, oldest first: no random numbers, and no window much more often
        than its share.
        """
        if self.filled < length:
            return None
        chance_WN = advantage_FN[: self.filled - length + 1].clamp(min=0.0).masked_fill(self._crosses_end(length), 0.0)
        sum_W = chance_WN.flatten().cumsum(0)
        place_L = (torch.arange(num_windows, device=sum_W.device) + 0.5) / num_windows
        flat = torch.searchsorted(sum_W, place_L * sum_W[-1]).clamp(max=len(sum_W) - 1)
        weight_LK = discounts(gamma, length).expand(num_windows, -1) * (sum_W[-1] > 0)
        return self._windows(*self._steps_of(flat, length), weight_LK)

    def _crosses_end(self, length: int) -> Tensor:
        """Whether an episode ends within each window [W, N], before its last step."""
        ended_FN = (self.terminated | self.truncated)[self.filled_rows()]
        return ended_FN.unfold(0, length, 1)[..., :-1].any(-1)

    def _steps_of(self, flat_L: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Rows and lanes [L, K] of the windows that start at ``age * N + lane``."""
        num_envs = self.terminated.shape[1]
        age_LK = (flat_L // num_envs).unsqueeze(-1) + torch.arange(length, device=flat_L.device)
        return self.filled_rows()[age_LK], (flat_L % num_envs).unsqueeze(-1).expand(-1, length)

    def _windows(self, row_LK: Tensor, lane_LK: Tensor, weight_LK: Tensor) -> Windows:
        obs = self.obs_at((row_LK * self.terminated.shape[1] + lane_LK).flatten())
        obs = tree.map_leaves(lambda x: x.unflatten(0, tuple(row_LK.shape)), obs)
        return Windows(obs, self.action[row_LK, lane_LK], weight_LK)


def discounts(gamma: Tensor, length: int) -> Tensor:
    """gamma^k for k from 1 to K."""
    return gamma ** torch.arange(1, length + 1, device=gamma.device)


def scale_to_unit(reward_LK: Tensor, valid_LK: Tensor) -> Tensor:
    """Rewards scaled so that the smallest valid one is 0 and the largest 1; all 1 if they are equal."""
    low = torch.where(valid_LK, reward_LK, torch.inf).amin()
    span = torch.where(valid_LK, reward_LK, -torch.inf).amax() - low
    return torch.where(span > 1e-8, (reward_LK - low) / span.clamp(min=1e-8), torch.ones_like(reward_LK))

"""A ring of recent trajectories that finds its best windows.

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
    """The newest steps of all lanes, from which the windows with the highest return are selected."""

    def top_windows(self, num_windows: int, length: int, gamma: Tensor) -> Windows | None:
        """The L windows of K steps with the highest discounted return; None while there are too few steps.

        No window crosses the end of an episode; it may end with one.
        """
        num_starts = self.filled - length + 1
        if num_starts < 1 or len(self) < min(MIN_STEPS, self.num_rows * self.terminated.shape[1]):
            return None
        device, num_envs = self.reward.device, self.terminated.shape[1]
        age_F = self.filled_rows()
        discount_K = gamma ** torch.arange(1, length + 1, device=device)
        return_WN = self.reward[age_F].unfold(0, length, 1) @ discount_K
        ended_WNK = (self.terminated | self.truncated)[age_F].unfold(0, length, 1)
        return_WN = return_WN.masked_fill(ended_WNK[..., :-1].any(-1), -torch.inf)
        best, flat = return_WN.flatten().topk(min(num_windows, return_WN.numel()))
        if len(flat) < num_windows:  # too few windows: the rest has weight 0
            missing = num_windows - len(flat)
            best = torch.cat([best, best.new_full((missing,), -torch.inf)])
            flat = torch.cat([flat, flat.new_zeros(missing)])
        start_L, lane_L = flat // num_envs, flat % num_envs
        row_LK = age_F[start_L.unsqueeze(-1) + torch.arange(length, device=device)]
        lane_LK = lane_L.unsqueeze(-1)
        valid_LK = (best > -torch.inf).unsqueeze(-1)
        weight_LK = discount_K * scale_to_unit(self.reward[row_LK, lane_LK], valid_LK) * valid_LK
        obs = self.obs_at((row_LK * num_envs + lane_LK).flatten())
        obs = tree.map_leaves(lambda x: x.unflatten(0, tuple(row_LK.shape)), obs)
        return Windows(obs, self.action[row_LK, lane_LK], weight_LK)


def scale_to_unit(reward_LK: Tensor, valid_LK: Tensor) -> Tensor:
    """Rewards scaled so that the smallest valid one is 0 and the largest 1; all 1 if they are equal."""
    low = torch.where(valid_LK, reward_LK, torch.inf).amin()
    span = torch.where(valid_LK, reward_LK, -torch.inf).amax() - low
    return torch.where(span > 1e-8, (reward_LK - low) / span.clamp(min=1e-8), torch.ones_like(reward_LK))

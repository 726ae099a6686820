"""A cart on a rail in the wind, the task of all fake simulators, as functions of tensors.

A state is [position, velocity, wind, steps of the episode]. The wind is constant within an episode, and a policy that
does not see it can only guess. An episode ends beyond ``END``, and is out of time after ``LIMIT`` steps.

Axes: N rows.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

LIMIT, END = 9, 1.0
NUM_SEEN, NUM_STATE = 3, 4


def first_states(num_rows: int, device: torch.device) -> Tensor:
    """States [N, 4] drawn from the global generators of torch, NumPy and Python, as simulators do."""
    moves = torch.rand(num_rows, 2, device=device) - 0.5
    wind = torch.tensor(np.random.choice([-1.0, 1.0], (num_rows, 1)), dtype=torch.float32, device=device)
    wind *= 0.5 + 0.5 * random.random()
    return torch.cat([moves, wind, torch.zeros_like(wind)], 1)


def advance(state: Tensor, force: Tensor) -> Tensor:
    """The states [N, 4] after one step with forces [N], which count between -1 and 1."""
    place, speed, wind, elapsed = state.unbind(1)
    speed = speed + 0.2 * force.clamp(-1, 1) + 0.1 * wind
    return torch.stack([place + 0.3 * speed, speed, wind, elapsed + 1], 1)


def reward_of(state: Tensor, force: Tensor) -> Tensor:
    """The reward [N] of a step that led to ``state``."""
    return 1 - state[:, 0].square() - 0.1 * force.clamp(-1, 1).square()


def has_ended(state: Tensor) -> Tensor:
    return state[:, 0].abs() > END


def is_late(state: Tensor) -> Tensor:
    return state[:, 3] >= LIMIT


def seen_of(state: Tensor) -> Tensor:
    """What a policy sees [N, 3]: all but the wind."""
    return state[:, [0, 1, 3]]

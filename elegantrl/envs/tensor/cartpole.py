"""CartPole-v1 of Gymnasium as tensor operations in float32: same dynamics, limits and rewards."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...types import ActionSpec
from .base import TensorEnv

GRAVITY = 9.8
TOTAL_MASS = 1.1
POLE_MASS = 0.1
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE = 10.0
SECONDS = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360


class CartPoleVecEnv(TensorEnv):
    """A cart is pushed left (0) or right (1) to keep its pole upright; each step is worth 1."""

    name = "TensorCartPole"
    obs_dim = 4
    action = ActionSpec(choices=(2,))
    max_episode_steps = 500
    target_return = 475.0

    def initial(self, num_rows: int) -> Tensor:
        return torch.rand(num_rows, 4, generator=self.generator, device=self.device) * 0.1 - 0.05

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, _, angle, spin = state.unbind(1)
        sin, cos = angle.sin(), angle.cos()
        force = action * (2 * FORCE) - FORCE
        push = (force + POLE_MOMENT * spin.square() * sin) / TOTAL_MASS
        spin_rate = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS / TOTAL_MASS * cos.square()))
        acceleration = push - POLE_MOMENT / TOTAL_MASS * spin_rate * cos
        change = torch.stack([state[:, 1], acceleration, spin, spin_rate], dim=1)
        state = torch.add(state, change, alpha=SECONDS)
        fallen = (state[:, 0].abs() > MAX_POSITION) | (state[:, 2].abs() > MAX_ANGLE)
        return state, torch.ones_like(spin), fallen

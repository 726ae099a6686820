"""Pendulum-v1 of Gymnasium as tensor operations in float32: same dynamics, limits and rewards."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...types import ActionSpec
from .base import TensorEnv

GRAVITY = 10.0
SECONDS = 0.05
MAX_SPEED = 8.0
MAX_TORQUE = 2.0


class PendulumVecEnv(TensorEnv):
    """A torque swings a pendulum up and keeps it there; an action of 1 is the full torque. No state ends the MDP."""

    name = "TensorPendulum"
    obs_dim = 3
    action = ActionSpec(dim=1)
    max_episode_steps = 200
    target_return = -200.0

    def initial(self, num_rows: int) -> Tensor:
        angle, speed = torch.rand(2, num_rows, generator=self.generator, device=self.device) * 2 - 1
        return torch.stack([math.pi * angle, speed], dim=1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(1)
        torque = MAX_TORQUE * action[:, 0]
        upright_angle = (angle + math.pi).remainder(2 * math.pi) - math.pi
        cost = upright_angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = speed + (1.5 * GRAVITY * angle.sin() + 3.0 * torque) * SECONDS
        speed = speed.clamp(-MAX_SPEED, MAX_SPEED)
        angle = angle + speed * SECONDS
        return torch.stack([angle, speed], dim=1), -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(1)
        return torch.stack([angle.cos(), angle.sin(), speed], dim=1)

"""Pendulum-v1 of Gymnasium as tensor operations in float32: same dynamics, limits and rewards."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types import ActionSpec
from .base import TensorEnv
from .drawing import INK, LIGHT, RED, Canvas

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
    frames_per_second = 1 / SECONDS

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

    def draw(self, lane: int = 0) -> NDArray[np.uint8]:
        """The pendulum of one lane as a picture [H, W, 3]; the ring is the way of its tip."""
        angle, _ = self.lane_state(lane)
        canvas = Canvas(1.3)
        canvas.ring(0.0, 0.0, 1.0, LIGHT)
        canvas.rod((0.0, 1.0), (0.0, 1.12), 0.03, LIGHT)  # the goal
        canvas.rod((0.0, 0.0), (math.sin(angle), math.cos(angle)), 0.16, RED)
        canvas.disc(0.0, 0.0, 0.05, INK)
        return canvas.pixels()

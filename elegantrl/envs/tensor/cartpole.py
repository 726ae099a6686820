"""CartPole-v1 of Gymnasium as tensor operations in float32: same dynamics, limits and rewards."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types import ActionSpec
from .base import TensorEnv
from .drawing import GREY, INK, LIGHT, ORANGE, Canvas

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
    frames_per_second = 1 / SECONDS

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

    def draw(self, lane: int = 0) -> NDArray[np.uint8]:
        """Cart and pole of one lane as a picture [H, W, 3]; marks on the track show where an episode ends."""
        position, _, angle, _ = self.lane_state(lane)
        canvas, ground, top = Canvas(MAX_POSITION + 0.3, 1.2, width=480), -0.75, -0.4
        canvas.bar(-MAX_POSITION - 0.3, ground, 2 * MAX_POSITION + 0.6, 0.03, LIGHT)
        for edge in (-MAX_POSITION, MAX_POSITION):
            canvas.bar(edge - 0.02, ground, 0.04, 0.2, GREY)
        for wheel in (-0.17, 0.17):
            canvas.disc(position + wheel, ground + 0.08, 0.08, GREY)
        canvas.bar(position - 0.3, top - 0.1, 0.6, 0.26, INK)
        length = 2 * HALF_LENGTH
        tip = position + length * math.sin(angle), top + length * math.cos(angle)
        canvas.rod((position, top), tip, 0.1, ORANGE)
        canvas.disc(position, top, 0.045, GREY)
        return canvas.pixels()

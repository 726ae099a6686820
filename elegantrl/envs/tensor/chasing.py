"""A point mass chases another one through space of any dimension.

Axes: N environment lanes, D dimensions of space. The state is the observation: position and velocity of the chaser,
then of its target, [N, 4 D].
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types import ActionSpec
from .base import TensorEnv
from .drawing import BLUE, LIGHT, ORANGE, Canvas

START_DISTANCE = 8.0
CATCH_DISTANCE = 1.0
INERTIA = 0.8
TOP_SPEED = 0.4
TARGET_SPEED = 0.1
ACTION_COST = 0.01
VIEW = 12.0
"""Half the width of the square that ``draw`` shows."""


class ChasingVecEnv(TensorEnv):
    """The action accelerates the chaser, the target drifts. Reward: decrease of the distance minus the action cost.

    The distance is computed from the state and never kept from one step to the next, so a new episode cannot be
    rewarded for the distance of the one before.
    """

    name = "Chasing"
    max_episode_steps = 100
    target_return = 6.5

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        dim: int = 2,
        max_episode_steps: int | None = None,
    ) -> None:
        self.dim = dim
        self.obs_dim = 4 * dim
        self.action = ActionSpec(dim=dim)
        super().__init__(num_envs, device, max_episode_steps)

    def initial(self, num_rows: int) -> Tensor:
        normal = torch.randn(3, num_rows, self.dim, generator=self.generator, device=self.device)
        direction, drift = torch.nn.functional.normalize(normal[:2], dim=2)
        chaser = 0.1 * normal[2]
        still = torch.zeros_like(chaser)
        return torch.cat([chaser, still, START_DISTANCE * direction, TARGET_SPEED * drift], dim=1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chaser, velocity, target, drift = state.chunk(4, dim=1)
        before = torch.linalg.vector_norm(target - chaser, dim=1)
        velocity = INERTIA * velocity + (1 - INERTIA) * TOP_SPEED * action
        chaser = chaser + velocity
        target = target + drift
        after = torch.linalg.vector_norm(target - chaser, dim=1)
        reward = before - after - ACTION_COST * action.square().sum(1)
        return torch.cat([chaser, velocity, target, drift], dim=1), reward, after < CATCH_DISTANCE

    def draw(self, lane: int = 0) -> NDArray[np.uint8]:
        """The first two dimensions of one lane as a picture [H, W, 3]: the chaser blue, its target orange, with lines
        that show where they will be ten steps later, and the ring at whose edge the target is caught."""
        state = torch.tensor(self.lane_state(lane)).view(4, self.dim)[:, :2]
        state = torch.nn.functional.pad(state, (0, 2 - state.shape[1]))  # a world of one dimension lies in the middle
        chaser, velocity, target, drift = state.tolist()
        canvas = Canvas(VIEW)
        for mark in range(-10, 11, 5):
            canvas.bar(-VIEW, mark, 2 * VIEW, 0.04, LIGHT)
            canvas.bar(mark - 0.02, 0.0, 0.04, 2 * VIEW, LIGHT)
        canvas.ring(target[0], target[1], CATCH_DISTANCE, ORANGE)
        for (x, y), (dx, dy), color in ((target, drift, ORANGE), (chaser, velocity, BLUE)):
            canvas.rod((x, y), (x + 10 * dx, y + 10 * dy), 0.18, color)
            canvas.disc(x, y, 0.4, color)
        return canvas.pixels()

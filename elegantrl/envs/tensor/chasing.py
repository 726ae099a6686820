"""A point mass chases another one through space of any dimension.

Axes: N environment lanes, D dimensions of space. The state is the observation: position and velocity of the chaser,
then of its target, [N, 4 D].
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import ActionSpec
from .base import TensorEnv

START_DISTANCE = 8.0
CATCH_DISTANCE = 1.0
INERTIA = 0.8
TOP_SPEED = 0.4
TARGET_SPEED = 0.1
ACTION_COST = 0.01


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

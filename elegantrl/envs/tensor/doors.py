"""A corridor of doors and many keys, few of which fit: a task in which masks of actions matter.

Axes: N environment lanes, D doors, K keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...rng import torch_stream
from ...tree import Tree
from ...types import ActionSpec, Leaf, Obs
from .base import TensorEnv


class DoorsVecEnv(TensorEnv):
    """An action tries a key on the door ahead. Few keys fit into a door and one of them opens it.

    A key that fits and does not open leads back to the first door, one that does not fit does nothing. An episode
    begins at the first or the second door. The reward of a step is the number of doors gained or lost, so a return is
    at most the number of doors. The observation is the number of the door, one-hot, and the mask allows the keys that
    fit. Which keys these are is the same in all episodes and runs.
    """

    name = "Doors"
    max_episode_steps = 40

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        num_doors: int = 8,
        num_keys: int = 64,
        num_fitting: int = 4,
        masks: bool = True,
        max_episode_steps: int | None = None,
    ) -> None:
        self.num_doors, self.masks = num_doors, masks
        self.action = ActionSpec(choices=(num_keys,))
        self.target_return = num_doors - 1.0
        seen, mask = Leaf((num_doors,)), Leaf((num_keys,), "bool")
        self.obs = Obs(seen, mask) if masks else seen  # type: ignore[arg-type]
        super().__init__(num_envs, device, max_episode_steps)
        noise = torch.rand(num_doors, num_keys, generator=torch_stream(0, "doors"))
        rank = noise.argsort(1).argsort(1).to(self.device)  # [D, K]; the key with rank 0 opens the door
        self.fits_DK, self.opens_DK = rank < num_fitting, rank == 0

    def initial(self, num_rows: int) -> Tensor:
        return torch.randint(2, (num_rows, 1), generator=self.generator, device=self.device)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        door = state[:, 0]
        ahead = torch.where(self.fits_DK[door, action], 0, door)
        ahead = torch.where(self.opens_DK[door, action], door + 1, ahead)
        over = ahead == self.num_doors
        return ahead.unsqueeze(1), (ahead - door).float(), over

    def observe(self, state: Tensor) -> Tree:
        door = state[:, 0].clamp(max=self.num_doors - 1)  # behind the last door the episode is over
        seen = torch.nn.functional.one_hot(door, self.num_doors).float()
        return Obs(seen, self.fits_DK[door]) if self.masks else seen

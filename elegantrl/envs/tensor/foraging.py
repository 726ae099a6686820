"""Level-Based Foraging, ``Foraging-8x8-2p-2f-coop-v3`` of ``lbforaging``: same dynamics, observations and rewards.

Axes: N environment lanes, G agents, F pieces of food, C = size * size cells of the field, 4 sides of a cell. A state
[N, 3 F + 3 G + 1] holds row, column and level of each piece of food, then of each agent, and the sum of levels of the
food at the beginning. Food that was eaten has level 0.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ConfigError
from ...types import ActionSpec, Leaf
from .base import TensorEnv
from .drawing import BLUE, GREEN, GREY, Canvas
from .particles import require_count

WAIT, FIRST_MOVE, LOAD = 0, 1, 5
SIDES = ((-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
"""North, south, west, east: rows and columns to go by the actions from ``FIRST_MOVE`` on."""
MAX_LEVEL = 2
"""Of an agent; the lowest is 1."""
MIN_SIZE = 5
NOT_THERE = -1.0
"""Row and column of food in an observation after it was eaten."""


class ForagingVecEnv(TensorEnv):
    """Agents on a field of cells eat food that is too much for one of them.

    An agent waits, goes to a cell beside its own, or loads the food beside it. Food is eaten if the levels of the
    agents that load it at the same time add up to its level at least; each receives its share by level, and all food of
    an episode is worth 1 in total. Agents that want to go to the same cell stay where they are; an action that is not
    possible is a wait. With ``coop`` each piece of food has the levels of the agents together (of the three weakest if
    there are more), so that all are needed; otherwise any level up to that.

    An agent sees all food that is left in the order of its cells, itself, and the other agents: row, column and level.
    """

    name = "TensorForaging"
    max_episode_steps = 50

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        size: int = 8,
        num_agents: int = 2,
        foods: int = 2,
        coop: bool = True,
        max_episode_steps: int | None = None,
    ) -> None:
        if size < MIN_SIZE:
            raise ConfigError(f"environment {self.name!r}: size={size!r} is too small; choose at least {MIN_SIZE}")
        self.size, self.coop = size, coop
        self.num_agents = self._team = require_count(self.name, "num_agents", num_agents)
        self._foods = require_count(self.name, "foods", foods)
        if self._team > size or self._foods > size:
            raise ConfigError(
                f"environment {self.name!r}: {num_agents} agents and {foods} pieces of food need a larger field than"
                f" size={size}; choose at least size={max(num_agents, foods)}"
            )
        self.action = ActionSpec(choices=(LOAD + 1,))
        self.obs = Leaf((self._team, 3 * self._foods + 3 * self._team))
        super().__init__(num_envs, device, max_episode_steps)
        self._side_42 = torch.tensor(SIDES, device=self.device)
        cell = torch.arange(size * size, device=self.device)
        self._cell_C2 = torch.stack([cell // size, cell % size], dim=1).float()
        self._is_inner_C = ((self._cell_C2 > 0) & (self._cell_C2 < size - 1)).all(1)
        others = [[own, *(other for other in range(self._team) if other != own)] for own in range(self._team)]
        self._absent_3 = torch.tensor([NOT_THERE, NOT_THERE, 0.0], device=self.device)
        self._order_GG = torch.tensor(others, device=self.device)  # an agent itself, then the others

    # ---- first states

    def initial(self, num_rows: int) -> Tensor:
        """Agents on different cells; food neither at the edge nor beside or two cells from other food in a line."""
        is_free_NC = torch.ones(num_rows, self.size * self.size, dtype=torch.bool, device=self.device)
        agents, foods = [], []
        for _ in range(self._team):
            place_N2, _ = self._draw_cell(is_free_NC)
            is_free_NC = is_free_NC & (self._offset(place_N2) != 0).any(2)
            agents.append(place_N2)
        is_free_NC = is_free_NC & self._is_inner_C
        for _ in range(self._foods):
            place_N2, found_N = self._draw_cell(is_free_NC)
            offset_NC2 = self._offset(place_N2).abs()
            near_NC = (offset_NC2 <= 1).all(2) | ((offset_NC2.amin(2) == 0) & (offset_NC2.amax(2) <= 2))
            is_free_NC = is_free_NC & ~near_NC
            foods.append((place_N2, found_N))
        level_NG = self._draw_levels((num_rows, self._team), MAX_LEVEL)
        # The strongest food: the levels of the three weakest agents.
        most_N1 = level_NG.sort(1).values[:, :3].sum(1, keepdim=True)
        drawn_NF = self._draw_levels((num_rows, self._foods), most_N1)
        food_NF = most_N1.expand_as(drawn_NF) if self.coop else drawn_NF
        food_NF = food_NF * torch.stack([found_N for _, found_N in foods], dim=1)
        food_NF3 = torch.cat([torch.stack([place_N2 for place_N2, _ in foods], dim=1), food_NF.unsqueeze(2)], dim=2)
        agent_NG3 = torch.cat([torch.stack(agents, dim=1), level_NG.unsqueeze(2)], dim=2)
        return torch.cat([food_NF3.flatten(1), agent_NG3.flatten(1), food_NF.sum(1, keepdim=True)], dim=1)

    def _draw_cell(self, is_free_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column [N, 2] of a cell that is free, and whether there is one [N]."""
        noise_NC = torch.rand(is_free_NC.shape, generator=self.generator, device=self.device)
        best_N, cell_N = noise_NC.masked_fill(~is_free_NC, -1).max(1)
        return self._cell_C2[cell_N], best_N >= 0

    def _offset(self, place_N2: Tensor) -> Tensor:
        return self._cell_C2 - place_N2.unsqueeze(1)  # [N, C, 2]

    def _draw_levels(self, shape: tuple[int, int], highest: Tensor | int) -> Tensor:
        """Whole numbers from 1 to ``highest``, each with the same probability."""
        noise = torch.rand(shape, generator=self.generator, device=self.device)
        return (noise * highest).floor() + 1

    # ---- dynamics

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        food_NF3, agent_NG3, total_N1 = self._parts(state)
        place_NG2, level_NG = agent_NG3[..., :2], agent_NG3[..., 2]
        place_NG2 = self._move(place_NG2, food_NF3, action)
        is_loading_NG = action == LOAD
        offset_NFG2 = place_NG2.unsqueeze(1) - food_NF3[..., :2].unsqueeze(2)
        loads_NFG = (offset_NFG2.abs().sum(-1) == 1) & is_loading_NG.unsqueeze(1)
        strength_NF = (loads_NFG * level_NG.unsqueeze(1)).sum(2)
        food_NF = food_NF3[..., 2]
        is_eaten_NF = (food_NF > 0) & (strength_NF >= food_NF)
        share_NF = torch.where(is_eaten_NF, food_NF / (strength_NF * total_N1).clamp(min=1), 0)
        reward_NG = (loads_NFG * share_NF.unsqueeze(2)).sum(1) * level_NG
        left_NF = food_NF.masked_fill(is_eaten_NF, 0)
        food_NF3 = torch.cat([food_NF3[..., :2], left_NF.unsqueeze(2)], dim=2)
        agent_NG3 = torch.cat([place_NG2, level_NG.unsqueeze(2)], dim=2)
        after = torch.cat([food_NF3.flatten(1), agent_NG3.flatten(1), total_N1], dim=1)
        return after, reward_NG, (left_NF == 0).all(1)

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Food [N, F, 3], agents [N, G, 3], and the level [N, 1] of all food at first."""
        food, agent = state[:, : 3 * self._foods], state[:, 3 * self._foods : -1]
        return food.reshape(-1, self._foods, 3), agent.reshape(-1, self._team, 3), state[:, -1:]

    def _move(self, place_NG2: Tensor, food_NF3: Tensor, action: Tensor) -> Tensor:
        """Where agents are after their moves."""
        moves_NG1 = ((action >= FIRST_MOVE) & (action < LOAD)).unsqueeze(2)
        target_NG2 = place_NG2 + self._side_42[(action - FIRST_MOVE).clamp(0, 3)] * moves_NG1
        is_inside_NG = ((target_NG2 >= 0) & (target_NG2 < self.size)).all(2)
        meets_NGF = (target_NG2.unsqueeze(2) == food_NF3[..., :2].unsqueeze(1)).all(3)
        is_blocked_NG = (meets_NGF & (food_NF3[..., 2] > 0).unsqueeze(1)).any(2)
        is_possible_NG1 = (is_inside_NG & ~is_blocked_NG).unsqueeze(2)
        target_NG2 = torch.where(is_possible_NG1, target_NG2, place_NG2)
        same_NGG = (target_NG2.unsqueeze(1) == target_NG2.unsqueeze(2)).all(3)
        is_alone_NG1 = (same_NGG.sum(2) == 1).unsqueeze(2)
        return torch.where(is_alone_NG1, target_NG2, place_NG2)

    # ---- observations

    def observe(self, state: Tensor) -> Tensor:
        food_NF3, agent_NG3, _ = self._parts(state)
        is_left_NF = food_NF3[..., 2] > 0
        cell_NF = food_NF3[..., 0] * self.size + food_NF3[..., 1]
        order_NF = cell_NF.masked_fill(~is_left_NF, torch.inf).argsort(1)
        shown_NF3 = torch.where(is_left_NF.unsqueeze(2), food_NF3, self._absent_3)
        shown_NF3 = shown_NF3.gather(1, order_NF.unsqueeze(2).expand_as(shown_NF3))
        food_NGX = shown_NF3.flatten(1).unsqueeze(1).expand(-1, self._team, -1)
        return torch.cat([food_NGX, agent_NG3[:, self._order_GG].flatten(2)], dim=2)

    # ---- pictures

    def draw(self, lane: int = 0) -> NDArray[np.uint8]:
        """The field of one lane as a picture [H, W, 3]: agents blue, food green, larger if their level is higher."""
        assert self._state is not None, "reset comes before draw"
        half = self.size / 2
        canvas = Canvas(half)
        for line in range(self.size + 1):
            canvas.bar(-half, line - half, self.size, 0.03, GREY)
            canvas.bar(line - half - 0.015, 0.0, 0.03, self.size, GREY)
        food, agents, _ = (part[lane].tolist() for part in self._parts(self._state))
        for things, color in ((food, GREEN), (agents, BLUE)):
            for row, column, level in things:
                if level:
                    canvas.disc(column + 0.5 - half, half - row - 0.5, 0.18 + 0.06 * min(level, 4), color)
        return canvas.pixels()

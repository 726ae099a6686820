"""A battle of two small groups of shooters: available actions, partial sight, agents that end early, a battle to win.

Axes: N environment lanes, G allies, F enemies, U = G + F units, allies first. A unit has its place x and y, its health
and the steps until its weapon is ready; a state [N, 4 U] holds x of all units, then y, health and waiting times. As
in ``particles``, D = 2 dimensions are the first and N the last axis within a step.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ...errors import ConfigError
from ...tree import Tree
from ...types import ActionSpec, Leaf, Obs
from .base import TensorEnv
from .drawing import BLUE, GREEN, GREY, LIGHT, RED, WHITE, Canvas
from .particles import distances, length, require_count, rows

HALF_WIDTH = 8.0
"""The arena is the square [-8, 8]^2."""
SIGHT = 9.0
RANGE = 5.0
SPEED = 1.0
HEALTH, ENEMY_HEALTH = 8.0, 7.0
"""Of an ally and of an enemy at first; a hit takes 1."""
COOLDOWN = 2.0
"""Steps after a shot in which a weapon cannot be fired."""
START = 5.0
"""The distance of the centre of a side from the middle of the arena."""

DAMAGE_SHARE, KILL_SHARE, WIN_SHARE = 8.0, 2.0, 10.0
"""What a team receives for all damage, for all kills and for the victory; together the best return."""

NOOP, STOP, FIRST_MOVE, FIRST_ATTACK = 0, 1, 2, 6
MOVES = ((0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0))
"""North, south, east, west: the directions of the actions from ``FIRST_MOVE`` on."""

Aim = Literal["nearest", "weakest"]


class SkirmishVecEnv(TensorEnv):
    """Allies, which are the team, fight a scripted side of units that are a little weaker.

    An ally that is alive may stop, move to one of four sides within the arena, or attack an enemy that is alive and
    within ``RANGE``; a shot hits at once if the weapon is ready, and otherwise the unit waits. One that is dead has the
    action 0 only and is no longer active. An action that is not available is a stop. All units act at the same time.

    A scripted enemy attacks the ally it aims at, ``enemy_aim="nearest"`` or, of those within range, ``"weakest"``. If
    none is within range, it goes straight to the nearest one, wherever that is.

    An ally sees its own place, health and weapon, and of each unit alive within ``SIGHT`` the distance, the offset, the
    health and, of an enemy, whether it is in range. The team's reward is shared equally by the allies that are alive:
    damage, kills and the victory are worth 8, 2 and 10 in total. A side that is dead ends the episode; if both are, the
    battle is not won.
    """

    name = "TensorSkirmish"
    max_episode_steps = 60
    target_return = 18.0

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        allies: int = 3,
        enemies: int = 3,
        enemy_aim: Aim = "nearest",
        max_episode_steps: int | None = None,
    ) -> None:
        if enemy_aim not in get_args(Aim):
            raise ConfigError(
                f"environment {self.name!r}: enemy_aim={enemy_aim!r:.80} is not among {', '.join(get_args(Aim))}"
            )
        self.enemy_aim = enemy_aim
        self.num_agents = self._team = team = require_count(self.name, "allies", allies)
        self.num_enemies = require_count(self.name, "enemies", enemies)
        num_actions, num_units = FIRST_ATTACK + self.num_enemies, team + self.num_enemies
        self.action = ActionSpec(choices=(num_actions,))
        self.obs = Obs(
            seen=Leaf((team, 4 + 5 * (team - 1) + 6 * self.num_enemies)),
            mask=Leaf((team, num_actions), "bool"),  # type: ignore[arg-type]
            state=Leaf((4 * num_units,)),  # type: ignore[arg-type]
            active=Leaf((team,), "bool"),  # type: ignore[arg-type]
        )
        super().__init__(num_envs, device, max_episode_steps)
        self._moves_D4 = torch.tensor(MOVES, device=self.device).t().contiguous()
        scale = torch.tensor([HALF_WIDTH, HALF_WIDTH, HEALTH, COOLDOWN], device=self.device)
        self._scale_411 = scale.view(4, 1, 1)
        side = [-START] * team + [START] * self.num_enemies
        first = [side, [0.0] * num_units, [HEALTH] * team + [ENEMY_HEALTH] * self.num_enemies, [0.0] * num_units]
        self._first = torch.tensor(first, device=self.device).flatten()
        self._number_U11 = torch.arange(num_units, device=self.device).view(-1, 1, 1)
        # The other allies of each ally.
        others = [[other for other in range(team) if other != ally] for ally in range(team)]
        self._others = torch.tensor(others, dtype=torch.int64, device=self.device)  # [G, G - 1]
        self._each = torch.arange(team, device=self.device).unsqueeze(1)  # [G, 1]

    def initial(self, num_rows: int) -> Tensor:
        """Each side within a square of 4 x 4 around its start."""
        size = num_rows, len(self._first) // 2
        offset = torch.rand(size, generator=self.generator, device=self.device) * 4 - 2
        return self._first + pad(offset, (0, size[1]))

    # ---- dynamics

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, health, wait = self._units(state)
        alive = health > 0
        action = action.t().contiguous()  # [G, N]
        allowed = self._available(place, alive).gather(1, action.unsqueeze(1)).squeeze(1)
        ordered, aimed_at = self._orders(torch.where(allowed, action, STOP))
        scripted, aimed_back = self._script(place, health, alive)
        target = torch.cat([aimed_at, aimed_back])  # [U, N] the unit that a unit shoots at, or -1
        fires = (target >= 0) & (wait == 0) & alive
        hits = ((target == self._number_U11) & fires).sum(1)  # [U, N]
        step = torch.cat([ordered, scripted], dim=1) * alive  # [D, U, N]
        place = torch.add(place, step, alpha=SPEED).clamp(-HALF_WIDTH, HALF_WIDTH)
        left = (health - hits).clamp(min=0)
        wait = torch.where(fires, COOLDOWN, (wait - 1).clamp(min=0))
        fighting = alive[: self._team]
        reward = self._reward(health, left) / fighting.sum(0).clamp(min=1) * fighting  # [G, N]
        return rows(torch.cat([place.flatten(0, 1), left, wait])), rows(reward), self._is_over(left)

    def _units(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Places [D, U, N], health [U, N] and waiting times [U, N]."""
        units = state.t().contiguous().view(4, -1, len(state))
        return units[:2], units[2], units[3]

    def _orders(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Directions [D, G, N] and targets [G, N] of the allies' actions [G, N]."""
        moves = (action >= FIRST_MOVE) & (action < FIRST_ATTACK)
        direction = self._moves_D4[:, (action - FIRST_MOVE).clamp(0, 3)] * moves
        return direction, torch.where(action >= FIRST_ATTACK, action - FIRST_ATTACK + self._team, -1)

    def _script(self, place: Tensor, health: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        """Directions [D, F, N] and targets [F, N] of the enemies."""
        ally, enemy = place[:, : self._team], place[:, self._team :]
        distance = distances(enemy, ally).masked_fill(~alive[: self._team], torch.inf)  # [F, G, N]
        nearest, target = distance.min(1)
        in_range = nearest <= RANGE
        toward = ally.gather(1, target.expand(2, -1, -1)) - enemy
        direction = toward / nearest.clamp(min=1e-6) * ~in_range
        if self.enemy_aim == "weakest":
            target = health[: self._team].expand_as(distance).masked_fill(distance > RANGE, torch.inf).argmin(1)
        return direction, torch.where(in_range, target, -1)

    def _reward(self, before: Tensor, after: Tensor) -> Tensor:
        """The reward [N] of the team for what the enemies lost."""
        had, left = before[self._team :], after[self._team :]
        killed = ((had > 0) & (left == 0)).sum(0)
        damage = (had - left).sum(0) / ENEMY_HEALTH
        return (DAMAGE_SHARE * damage + KILL_SHARE * killed) / self.num_enemies + WIN_SHARE * self._is_won(after)

    def _is_won(self, health: Tensor) -> Tensor:
        return (health[self._team :] == 0).all(0) & (health[: self._team] > 0).any(0)

    def _is_over(self, health: Tensor) -> Tensor:
        return (health[self._team :] == 0).all(0) | (health[: self._team] == 0).all(0)

    def won(self, state: Tensor) -> Tensor:
        return self._is_won(self._units(state)[1])

    # ---- observations

    def _available(self, place: Tensor, alive: Tensor) -> Tensor:
        """The mask [G, A, N] of actions."""
        ally, enemy = place[:, : self._team], place[:, self._team :]
        lives = alive[: self._team].unsqueeze(1)
        inside = ((ally.unsqueeze(2) + SPEED * self._moves_D4[:, None, :, None]).abs() <= HALF_WIDTH).all(0)
        reach = (distances(ally, enemy) <= RANGE) & alive[self._team :]
        return torch.cat([~lives, lives, inside & lives, reach & lives], dim=1)

    def observe(self, state: Tensor) -> Tree:
        place, health, wait = self._units(state)
        alive = health > 0
        active = alive[: self._team]
        scaled = torch.stack([*place, health, wait]) / self._scale_411 * alive  # [4, U, N]
        offset = place.unsqueeze(1) - place[:, : self._team].unsqueeze(2)  # [D, G, U, N]
        distance = length(offset)
        visible = ((distance <= SIGHT) & alive & active.unsqueeze(1)).float()
        parts = [torch.ones_like(visible), distance / SIGHT, *(offset / SIGHT)]
        parts += [scaled[2].expand_as(visible), (distance <= RANGE).float()]
        views = torch.stack(parts, dim=2) * visible.unsqueeze(2)  # [G, U, 6, N]
        others = views[self._each, self._others, :5]  # [G, G - 1, 5, N]
        own = scaled[:, : self._team].transpose(0, 1)  # [G, 4, N]
        seen = torch.cat([own, others.flatten(1, 2), views[:, self._team :].flatten(1, 2)], dim=1)
        return Obs(rows(seen), rows(self._available(place, alive)), rows(scaled.flatten(0, 1)), rows(active))

    # ---- pictures

    def draw(self, lane: int = 0) -> NDArray[np.uint8]:
        """The battle of one lane as a picture [H, W, 3]: allies blue, enemies red, a bar for health above each.

        Units that are dead are grey; a ring marks a weapon that is ready.
        """
        canvas = Canvas(HALF_WIDTH + 0.7, width=400)
        canvas.bar(-HALF_WIDTH - 0.4, 0.0, 2 * HALF_WIDTH + 0.8, 2 * HALF_WIDTH + 0.8, WHITE)
        units = torch.tensor(self.lane_state(lane)).view(4, -1).t().tolist()
        for unit, (x, y, health, wait) in enumerate(units):
            color, full = (BLUE, HEALTH) if unit < self._team else (RED, ENEMY_HEALTH)
            if not health:
                canvas.disc(x, y, 0.35, GREY, opacity=0.25)
                continue
            canvas.disc(x, y, 0.4, color)
            if wait == 0:
                canvas.ring(x, y, 0.55, color)
            canvas.bar(x - 0.6, y + 0.85, 1.2, 0.24, LIGHT)
            canvas.bar(x - 0.6, y + 0.85, 1.2 * health / full, 0.24, GREEN)
        return canvas.pixels()

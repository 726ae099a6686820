"""Predators and prey, ``simple_tag_v3`` of ``mpe2``: same dynamics, observations and rewards.

Axes: N environment lanes, G agents of the team, P predators, Q prey.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ...errors import ConfigError
from ...types import Leaf
from .drawing import GREEN, GREY, RED
from .particles import Entity, ParticleVecEnv, distances, five_actions, length, require_count, rows

PREDATOR = Entity(size=0.075, acceleration=3.0, max_speed=1.0, color=RED)
PREY = Entity(size=0.05, acceleration=4.0, max_speed=1.3, color=GREEN)
OBSTACLE = Entity(size=0.2, color=GREY)
CATCH = PREDATOR.size + PREY.size
CATCH_REWARD = 10.0
LANDMARK_RANGE = 0.9

WALL = 0.8
"""How far from the middle, along an axis, a scripted prey begins to turn back."""
WALL_URGE = 100.0

Prey = Literal["scripted", "learned"]


class TagVecEnv(ParticleVecEnv):
    """Slow predators chase a fast prey around obstacles.

    Every predator receives 10 for each contact of any predator with any prey, so the return of one predator divided by
    10 is the number of catches. A prey receives -10 for each of its contacts, and a penalty if it leaves the arena.

    ``prey="learned"``: all agents are the team, predators first. ``prey="scripted"``: the predators are the team, and a
    prey flees: from each predator with the inverse square of the distance, and from the edge of the arena once it is
    closer than 0.2 to it; of the five actions it takes the one that follows the larger component of the sum.
    """

    name = "TensorTag"

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        num_good: int = 1,
        num_adversaries: int = 3,
        num_obstacles: int = 2,
        prey: Prey = "scripted",
        continuous_actions: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        if prey not in get_args(Prey):
            raise ConfigError(f"environment {self.name!r}: prey={prey!r:.80} is not among {', '.join(get_args(Prey))}")
        self.prey = prey
        num_prey = require_count(self.name, "num_good", num_good)
        self.num_predators = require_count(self.name, "num_adversaries", num_adversaries)
        require_count(self.name, "num_obstacles", num_obstacles, least=0)
        num_bodies = self.num_predators + num_prey
        self.num_agents = self.num_predators if prey == "scripted" else num_bodies
        self.agent_names = (
            *(f"adversary_{i}" for i in range(self.num_predators)),
            *(f"agent_{i}" for i in range(self.num_agents - self.num_predators)),
        )
        self.action = five_actions(continuous_actions)
        # Velocity, position, obstacles, other bodies, velocities of the prey; a prey does not see its own twice.
        self.obs = Leaf((self.num_agents, 4 + 2 * num_obstacles + 2 * (num_bodies - 1) + 2 * num_prey))
        bodies = [PREDATOR] * self.num_predators + [PREY] * num_prey
        super().__init__(bodies, [OBSTACLE] * num_obstacles, num_envs, device, max_episode_steps)
        self._show([self._seen_by(agent) for agent in range(self.num_agents)])

    def _seen_by(self, agent: int) -> list[tuple[int, int]]:
        others = [body for body in range(self.num_bodies) if body != agent]
        seen = self._velocity(agent) + self._place(agent)
        seen += self._relative(range(self.num_bodies, self.num_entities), agent) + self._relative(others, agent)
        return seen + [pair for body in others if body >= self.num_predators for pair in self._velocity(body)]

    def initial(self, num_rows: int) -> Tensor:
        state = super().initial(num_rows)
        places = state[:, : 2 * self.num_entities].view(num_rows, 2, self.num_entities)
        places[:, :, self.num_bodies :] *= LANDMARK_RANGE
        return state

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        columns, push = state.t().contiguous(), self._pushes(action)
        if self.prey == "scripted":
            push = torch.cat([push, self._moves_D5[:, self._flee(columns)]], dim=1)
        columns = self._move(columns, push)
        predator, prey = self._split(columns)
        contact = (distances(prey, predator) < CATCH).sum(1)  # [Q, N]
        reward = CATCH_REWARD * contact.sum(0).expand(self.num_predators, -1)
        if self.prey == "learned":
            reward = torch.cat([reward, -CATCH_REWARD * contact - outside(prey)])
        return rows(columns), rows(reward), torch.zeros_like(reward[0], dtype=torch.bool)

    def _flee(self, columns: Tensor) -> Tensor:
        """The actions [Q, N] of scripted prey."""
        predator, prey = self._split(columns)
        away = prey.unsqueeze(2) - predator.unsqueeze(1)  # [D, Q, P, N]
        urge = (away / length(away).clamp(min=1e-6) ** 3).sum(2)  # unit vectors by the inverse square of the distance
        urge = urge - WALL_URGE * prey.sign() * (prey.abs() - WALL).clamp(min=0)
        x, y = urge
        return torch.where(x.abs() > y.abs(), 1 + (x > 0).long(), 3 + (y > 0).long())

    def _split(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The places of predators [D, P, N] and prey [D, Q, N]."""
        position = self.positions(columns)
        return position[:, : self.num_predators], position[:, self.num_predators : self.num_bodies]


def outside(place: Tensor) -> Tensor:
    """The penalty [Q, N] for places [D, Q, N] near or beyond the edge of the arena, summed over both axes."""
    far = place.abs()
    beyond = torch.exp(2 * far - 2).clamp(max=10)
    return torch.where(far < 1, ((far - 0.9) * 10).clamp(min=0), beyond).sum(0)

"""Cooperative navigation, ``simple_spread_v3`` of ``mpe2``: same dynamics, observations and rewards.

Axes: N environment lanes, G agents, as many landmarks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ConfigError
from ...types import Leaf
from .drawing import GREY
from .particles import Entity, ParticleVecEnv, distances, five_actions, require_count, rows

AGENT = Entity(size=0.15)
LANDMARK = Entity(size=0.05, collides=False, color=GREY)


class SpreadVecEnv(ParticleVecEnv):
    """Agents share out the landmarks without touching each other.

    All receive minus the distance of each landmark to the agent nearest to it, with weight ``1 - local_ratio``, and
    each -1 for every agent that it touches, with weight ``local_ratio``. There is no global state: ``state()`` of
    ``mpe2`` is all observations joined, and a centralised critic joins them itself where there is none.
    """

    name = "TensorSpread"

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        num_agents: int = 3,
        local_ratio: float = 0.5,
        continuous_actions: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        if not 0 <= local_ratio <= 1:
            raise ConfigError(f"environment {self.name!r}: local_ratio={local_ratio} is not between 0 and 1")
        self.local_ratio = local_ratio
        team = require_count(self.name, "num_agents", num_agents)
        self.num_agents = team
        self.action = five_actions(continuous_actions)
        # Velocity, position, landmarks, other agents, and two numbers of each other agent that never speaks.
        self.obs = Leaf((team, 4 + 2 * team + 4 * (team - 1)))
        super().__init__([AGENT] * team, [LANDMARK] * team, num_envs, device, max_episode_steps)
        agents, landmarks = range(team), range(team, 2 * team)
        self._show(
            [
                self._velocity(agent)
                + self._place(agent)
                + self._relative(landmarks, agent)
                + self._relative([other for other in agents if other != agent], agent)
                + self._nothing(2 * (team - 1))
                for agent in agents
            ]
        )

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        columns = self._move(state.t().contiguous(), self._pushes(action))
        agent, landmark = self.positions(columns).chunk(2, dim=1)
        shared = -distances(landmark, agent).amin(1).sum(0)  # [N]
        # Each agent is at distance 0 of itself, which is no contact.
        own = 1 - (distances(agent, agent) < 2 * AGENT.size).sum(1)  # [G, N]
        reward = (1 - self.local_ratio) * shared + self.local_ratio * own
        return rows(columns), rows(reward), torch.zeros_like(shared, dtype=torch.bool)

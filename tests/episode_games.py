"""Small tasks for teams of two, which several tests share."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.types import ActionSpec, Leaf, Obs

ADDITIVE = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [1.0, 2.0, 3.0]]
"""The sum of a number for each agent's action: (0, 3, 1) and (0, 1, 2)."""
MONOTONIC = [[0.0, 0.0], [0.0, 8.0]]
"""Not a sum, but it never falls when an agent prefers its second action more."""
CLIMBING = [[8.0, -12.0, -12.0], [-12.0, 0.0, 0.0], [-12.0, 0.0, 0.0]]
"""The best action of an agent depends on that of the other: no monotonic function of values per agent fits."""


class Matrix(TensorEnv):
    """One step in which two agents choose the row and the column of ``payoff``; each gets half of it."""

    payoff: ClassVar[list[list[float]]]
    num_agents, max_episode_steps = 2, 1
    obs = Leaf((2, 1))

    def __init__(self, num_envs: int = 1, device: torch.device | str = "cpu", max_episode_steps: int | None = None):
        self.action = ActionSpec(choices=(len(self.payoff),))
        super().__init__(num_envs, device, max_episode_steps)
        self.table = torch.tensor(self.payoff, device=self.device)

    def initial(self, num_rows: int) -> Tensor:
        return torch.zeros(num_rows, 1, device=self.device)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reward = self.table[action[:, 0], action[:, 1]] / 2
        return state, reward.unsqueeze(1).expand(-1, 2), torch.ones(len(state), dtype=torch.bool, device=self.device)

    def observe(self, state: Tensor) -> Tensor:
        return torch.ones(len(state), 2, 1, device=self.device)


class Additive(Matrix):
    payoff = ADDITIVE


class Monotonic(Matrix):
    payoff = MONOTONIC


class Climbing(Matrix):
    payoff = CLIMBING


class Relay(TensorEnv):
    """Up to six steps of two agents with masks, a state and ends of their own.

    Agent 1 has ended from the third step on; option 2 is allowed at even steps, option 1 at odd ones; option 0 always.
    The state of a lane is its number of steps and a number that every observation shows with noise. Actions 2, 2 in the
    same step terminate the episode.
    """

    num_agents, max_episode_steps, action = 2, 6, ActionSpec(choices=(3,))
    obs = Obs(Leaf((2, 3)), Leaf((2, 3), "bool"), Leaf((2,)), Leaf((2,), "bool"))

    def initial(self, num_rows: int) -> Tensor:
        number = torch.rand(num_rows, 1, generator=self.generator, device=self.device)
        return torch.cat([torch.zeros_like(number), number], 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        active, allowed = self.active(state), self.allowed(state)
        assert allowed.gather(-1, action.unsqueeze(-1)).squeeze(-1)[active].all(), "a forbidden action was taken"
        reward = (action.float() - 2 * state[:, 1:]) * active
        after = torch.stack([state[:, 0] + 1, (state[:, 1] * 1.7 + 0.1) % 1.0], 1)
        return after, reward, (action == 2).all(1) & active.all(1)

    def active(self, state: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(state[:, 0], dtype=torch.bool), state[:, 0] < 2], 1)

    def allowed(self, state: Tensor) -> Tensor:
        even = state[:, 0] % 2 == 0
        mask = torch.stack([torch.ones_like(even), ~even, even], 1).unsqueeze(1)
        return mask & self.active(state).unsqueeze(-1)

    def observe(self, state: Tensor) -> Obs:
        active = self.active(state)
        seen = torch.stack([state[:, 0] / 6, state[:, 1], state[:, 1].square()], 1).unsqueeze(1) * active.unsqueeze(-1)
        return Obs(seen, self.allowed(state), state, active)


class TwoSteps(TensorEnv):
    """The two-step game of the QMIX paper: in step one agent 0 chooses the payoff table of step two, where it is 7 for
    all actions in the first table and 0, 1, 1, 8 in the second. Observations and state: start, first or second table.
    """

    num_agents, max_episode_steps, action = 2, 2, ActionSpec(choices=(2,))
    obs = Obs(Leaf((2, 3)), state=Leaf((3,)))

    def initial(self, num_rows: int) -> Tensor:
        return torch.eye(3, device=self.device)[:1].repeat(num_rows, 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tables = torch.tensor([[[0.0, 0], [0, 0]], [[7, 7], [7, 7]], [[0, 1], [1, 8]]], device=self.device)
        number, terminated = state.argmax(1), state[:, 0] == 0
        reward = tables[number, action[:, 0], action[:, 1]]
        after = torch.eye(3, device=self.device)[1 + action[:, 0]]
        return after, reward.unsqueeze(1).expand(-1, 2) / 2, terminated

    def observe(self, state: Tensor) -> Obs:
        return Obs(state.unsqueeze(1).expand(-1, 2, -1), state=state)

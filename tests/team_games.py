"""Small games of teams: a shared goal, a zero sum, and agents that end early, with masks and a global state."""

from __future__ import annotations

import torch
from torch import Tensor

from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.types import ActionSpec, Leaf, Obs


class Sum(TensorEnv):
    """The actions of two agents must add up to a number that only the first one sees; the second sees the half of it
    with the other sign. Both get an equal share of the reward."""

    obs, action, num_agents, max_episode_steps = Leaf((2, 1)), ActionSpec(dim=1), 2, 4

    def initial(self, num_rows: int) -> Tensor:
        return torch.rand(num_rows, 1, generator=self.generator, device=self.device) * 2 - 1

    def observe(self, state: Tensor) -> Tensor:
        return torch.stack([state, -state / 2], 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        miss = (action.sum((1, 2)) - state[:, 0]).square()
        reward = (-miss / 2).unsqueeze(1).expand(-1, 2)
        return self.initial(len(state)), reward, torch.zeros_like(miss, dtype=torch.bool)


class Chase(Sum):
    """The first agent wants the actions to be equal, the second wants them to differ: rewards add up to 0."""

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, _, ended = super().dynamics(state, action)
        distance = (action[:, 0, 0] - action[:, 1, 0]).abs()
        return state, torch.stack([-distance, distance], 1), ended


class SizedSum(Sum):
    """The second agent has one number, the first two; padded numbers must be 0."""

    action = ActionSpec(dim=2, sizes=(2, 1))

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert (action[:, 1, 1] == 0).all()
        return super().dynamics(state, action)


class Pick(Sum):
    """Two agents pick one of two options by what they see; the team is paid for right picks."""

    action = ActionSpec(choices=(2,))

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right = (action == (state > 0)).float()
        reward = right.mean(1, keepdim=True).expand(-1, 2) / 2
        return self.initial(len(state)), reward, torch.zeros(len(state), dtype=torch.bool)


class Leaving(TensorEnv):
    """Agent g ends after g + 2 steps, the episode with the last of three; the allowed options change with time. An
    action that is forbidden is an error."""

    obs = Obs(Leaf((3, 2)), Leaf((3, 4), "bool"), Leaf((3,)), Leaf((3,), "bool"))  # type: ignore[arg-type]
    action, num_agents = ActionSpec(choices=(4,)), 3

    def initial(self, num_rows: int) -> Tensor:
        start = torch.randint(4, (num_rows, 1), generator=self.generator, device=self.device).float()
        return torch.cat([start, torch.zeros_like(start)], 1)

    def active(self, state: Tensor) -> Tensor:
        return state[:, 1:] < torch.arange(3) + 2

    def mask(self, state: Tensor) -> Tensor:
        place = state.sum(1)[:, None, None] + torch.arange(3)[:, None] + torch.arange(4)
        return (place % 4 < 2) & self.active(state).unsqueeze(-1)

    def observe(self, state: Tensor) -> Obs:
        active = self.active(state)
        seen = state.unsqueeze(1) * active.unsqueeze(-1)
        return Obs(seen, self.mask(state), torch.cat([state, state[:, :1]], 1), active)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        active, allowed = self.active(state), self.mask(state).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        assert (allowed | ~active).all()
        reward = (action == 0).float() * active
        state = state + torch.tensor([0.0, 1.0])
        return state, reward, ~self.active(state).any(1)

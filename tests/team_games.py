"""Small games of teams: a shared goal, a zero sum, and agents that end early, with masks and a global state; random
transitions of a team."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.registry import build_agent, find_agent
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, Transition

CPU = torch.device("cpu")
ROWS, AGENTS, DIM = 6, 3, 2
DISCRETE, CONTINUOUS = ActionSpec(choices=(DIM + 2,)), ActionSpec(dim=DIM)
SIZED = ActionSpec(dim=DIM, sizes=(2, 1, 2))


def build(spec: EnvSpec, name: str = "matd3", seed: int = 0, **settings: Any) -> Any:
    entry = find_agent(name)
    return build_agent(entry, spec, entry.config(**{"hidden": (8, 8), **settings}), CPU, seed)


def team_spec(action: ActionSpec, full: bool = True, obs_dim: int = 4, num_agents: int = AGENTS) -> EnvSpec:
    """Of a team with mask, state and agents that end, or with plain observations."""
    obs: Any = Leaf((num_agents, obs_dim))
    if full:
        mask = Leaf((num_agents, action.num_outputs), "bool") if action.choices else None
        obs = Obs(obs, mask, Leaf((5,)), Leaf((num_agents,), "bool"))  # type: ignore[arg-type]
    return EnvSpec("Team", obs, action, 1, num_agents=num_agents)


def transitions(spec: EnvSpec, weighted: bool = False, seed: int = 0) -> Transition:
    g = torch.Generator().manual_seed(seed)

    def observed() -> Any:
        seen = torch.randn(ROWS, *spec.obs.seen.shape if isinstance(spec.obs, Obs) else spec.obs.shape, generator=g)
        if not isinstance(spec.obs, Obs):
            return seen
        active = torch.rand(ROWS, AGENTS, generator=g) < 0.7
        mask = None
        if spec.obs.mask is not None:
            mask = (torch.rand(ROWS, *spec.obs.mask.shape, generator=g) < 0.6) & active.unsqueeze(-1)
        return Obs(seen * active.unsqueeze(-1), mask, torch.randn(ROWS, 5, generator=g), active)

    action = spec.action.random((ROWS, AGENTS), g)
    if spec.action.sizes:
        action = action * torch.tensor([[i < size for i in range(DIM)] for size in spec.action.sizes])
    discount = torch.where(torch.rand(ROWS, generator=g) < 0.3, 0.0, 0.9)
    weight = torch.rand(ROWS, generator=g) if weighted else None
    reward = torch.randn(ROWS, AGENTS, generator=g)
    return Transition(observed(), action, reward, discount, observed(), weight)


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

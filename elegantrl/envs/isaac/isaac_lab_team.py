"""Multi-agent environments of Isaac Lab (``DirectMARLEnv``) as a team: dicts of tensors by agent.

The simulator resets a lane when all its agents have terminated or all are out of time, within the same step. Flags of
single agents do not end anything there, so they are not used.

Axes: N environment lanes, G agents, O observation, A action, S state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import pad

from ...errors import SpecError
from ...tree import Tree
from ...types import EnvSpec, Leaf, Obs
from ..space_text import describe_spaces
from ..team_spaces import TeamActions
from .groups import TensorActions, as_space
from .simulator import Outcome, SimulatorVecEnv, as_limit, name_of

ATTRIBUTES = ("num_envs", "possible_agents", "observation_spaces", "action_spaces", "episode_length_buf", "step")


def is_lab_team(env: Any) -> bool:
    base = getattr(env, "unwrapped", env)
    return all(hasattr(base, name) for name in ATTRIBUTES)


class IsaacLabTeamVecEnv(SimulatorVecEnv):
    """Agents that see less than others see zeros at the end; those with fewer options than others have masks."""

    def __init__(self, env: Any, name: str | None = None):
        base = self._base = getattr(env, "unwrapped", env)
        super().__init__(env, base.device)
        name = name or name_of(env)
        self._agents = tuple(base.possible_agents)
        action_spaces = {agent: as_space(base.action_spaces[agent]) for agent in self._agents}
        self._team = TeamActions(name, action_spaces, base.num_envs)
        self._decoders = [
            TensorActions(name, space, base.num_envs, self.device, f" of agent {agent!r}")
            for agent, space in action_spaces.items()
        ]
        self._mask = self._options(base.num_envs) if self._team.is_uneven else None
        with self._calls(0):
            sample, state = self._begin(0), self._state()
        sizes = [sample[agent].reshape(base.num_envs, -1).shape[1] for agent in self._agents]
        self._width, self._name = max(sizes), name
        seen = Leaf((len(sizes), self._width))
        parts: list[Any] = [
            None if self._mask is None else Leaf(tuple(self._mask.shape[1:]), "bool"),
            None if state is None else Leaf((state.shape[1],)),
        ]
        shown = [(agent, as_space(base.observation_spaces[agent])) for agent in self._agents]
        self.spec = EnvSpec(
            name=name,
            obs=Obs(seen, *parts) if any(parts) else seen,
            action=self._team.spec,
            num_envs=base.num_envs,
            max_episode_steps=as_limit(base.max_episode_length),
            num_agents=len(self._agents),
            agent_names=self._agents,
            spaces=describe_spaces(spaces.Dict(shown), spaces.Dict(list(action_spaces.items()))),
        )

    def _options(self, num_envs: int) -> Tensor:
        """The options of every agent [N, G, A], which never change."""
        mask = torch.zeros(len(self._agents), self._team.spec.num_outputs, dtype=torch.bool)
        for i in range(len(self._agents)):
            mask[i, self._team.own_options(i)] = True
            mask[i, self._team.fixed_options(i)] = True
        return mask.to(self.device).expand(num_envs, -1, -1)

    def _begin(self, seed: int) -> Any:
        return self.env.reset(seed=seed)[0]

    def _decode(self, action: Tensor) -> dict[str, Tensor]:
        expected = (self.spec.num_envs, *self.spec.action_leaf.shape)
        if action.shape != expected:
            raise SpecError(
                f"environment {self.spec.name!r}: action has shape {tuple(action.shape)}, expected {expected}"
            )
        return {agent: self._own(i, action[:, i]) for i, agent in enumerate(self._agents)}

    def _own(self, i: int, action: Tensor) -> Tensor:
        """The action of one agent, without what only other agents have."""
        leaf = self._decoders[i].spec.leaf
        if leaf.shape:
            return self._decoders[i].decode(action[:, : leaf.shape[0]])
        return self._decoders[i].decode(action if action.dim() == 1 else action[:, 0])

    def _advance(self, action: Any) -> Outcome:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        rewards = torch.stack([reward[agent] for agent in self._agents], 1)
        ends = [torch.stack([flags[agent] != 0 for agent in self._agents]).all(0) for flags in (terminated, truncated)]
        return Outcome(self._read(obs), rewards, *ends)

    def _read(self, obs: Mapping[str, Tensor], known: Tree = None) -> Tree:
        if missing := [agent for agent in self._agents if agent not in obs]:
            raise SpecError(
                f"environment {self._name!r}: there is no observation of agent {missing[0]!r}; all agents of a team act"
                f" until their episode ends"
            )
        rows = [obs[agent].to(self.device, torch.float32).reshape(len(obs[agent]), -1) for agent in self._agents]
        seen = torch.stack([pad(row, (0, self._width - row.shape[1])) for row in rows], 1)
        state = self._state()
        if self._mask is None and state is None:
            return seen
        return Obs(seen, self._mask, state)

    def _state(self) -> Tensor | None:
        """A copy of the global state [N, S]; None if the environment has none."""
        state = self._base.state() if getattr(self._base, "state", None) is not None else None
        if state is None:
            return None
        flat: Tensor = state.reshape(len(state), -1).to(self.device, torch.float32, copy=True)
        return flat

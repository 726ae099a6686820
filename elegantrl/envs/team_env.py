"""Teams of agents as lanes of one ``VecEnv``: the part that all interfaces of teams share.

Axes: N environment lanes, G agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..errors import SpecError
from ..types import EnvSpec, Step
from .gymnasium import GymVecEnv
from .masks import empty_mask, mask_size
from .space_text import describe_spaces
from .spaces import Array, Frame
from .team_spaces import TeamActions, TeamObs, TeamObsCodec


class TeamLane(ABC):
    """One environment of a team, behind the interface that ``GymVecEnv`` steps."""

    env: Any
    observation_spaces: dict[str, Any]
    """The space of each agent by its name; their order is that of G."""
    action_spaces: dict[str, Any]
    gives_masks = False
    state_size: int | None = None
    ends_early = False
    """Whether agents may end before their team."""
    can_win = False
    max_episode_steps: int | None = None
    active: Sequence[bool]
    """Which agents have not ended."""
    won = False
    """Whether the last step ended an episode that was won."""

    @abstractmethod
    def reset(self, seed: int) -> tuple[TeamObs, dict[str, Any]]:
        """Begin an episode; the info is empty."""

    @abstractmethod
    def step(self, actions: Sequence[Any]) -> tuple[TeamObs, Array, bool, bool, dict[str, Any]]:
        """Take an action for each agent, None for those that have ended; rewards are float32 [G]."""

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()

    @property
    def num_agents(self) -> int:
        return len(self.action_spaces)


class TeamVecEnv(GymVecEnv):
    """N environments, each with a team of the same agents."""

    def __init__(
        self, lanes: Sequence[TeamLane], name: str, device: torch.device | str = "cpu", masks: bool | None = None
    ):
        """``masks``: whether observations have masks; None: if agents have different options or the environment gives
        masks."""
        first = lanes[0]
        self._lanes = list(lanes)
        self._actions = TeamActions(name, first.action_spaces, len(lanes))
        if masks is False and self._actions.is_uneven:
            raise SpecError(
                f"environment {name!r}: its agents have different numbers of options, which masks tell apart; leave"
                f" masks=False out"
            )
        has_mask = mask_size(
            name, self._actions.spec, masks, None, lambda: self._actions.is_uneven or first.gives_masks
        )
        self._team = TeamObsCodec(
            name,
            first.observation_spaces,
            self._actions,
            has_mask=has_mask is not None,
            state_size=first.state_size,
            has_active=first.ends_early,
        )
        spec = EnvSpec(
            name=name,
            obs=self._team.spec,
            action=self._actions.spec,
            num_envs=len(lanes),
            max_episode_steps=first.max_episode_steps,
            num_agents=first.num_agents,
            agent_names=tuple(first.action_spaces),
            spaces=describe_spaces(_by_name(first.observation_spaces), _by_name(first.action_spaces)),
        )
        self._has_masks = has_mask is not None
        self._set_up(self._lanes, spec, self._team, self._actions, device)
        self._step_fns = [self._step_fn(lane) for lane in self._lanes]

    def _step_fn(self, lane: TeamLane) -> Callable[[Array], Any]:
        split = self._actions.split
        return lambda row: lane.step(split(row, lane.active))

    def step(self, action: Tensor) -> Step:
        step = super().step(action)
        if not self._lanes[0].can_win:
            return step
        return step._replace(won=self._tensor(np.array([lane.won for lane in self._lanes])))

    def _put(self, frame: Frame, lane: int, obs: Any, info: Any, source: str) -> None:
        self._team.put(frame, lane, obs, source)

    def _as_reward(self, value: Any) -> Any:
        return value  # a lane gives arrays [G] of the right type

    def _masks(self, frame: Frame) -> Array:
        """The masks [N, G, A] of ``frame``; an agent that has ended needs no option."""
        parts = self._team.parts(frame)
        return np.asarray(parts.mask if parts.active is None else parts.mask | ~parts.active[..., None])

    def _forbids_all(self, masks: Array, lane: int, step: int) -> SpecError:
        first = np.cumsum([0, *self.spec.action.choices[:-1]])
        empty = ~np.logical_or.reduceat(masks[lane], first, axis=-1).all(-1)
        return empty_mask(self.spec.name, lane, step, f" to agent {self.spec.agent_names[int(empty.argmax())]!r}")


def _by_name(agents: dict[str, Any]) -> spaces.Dict:
    return spaces.Dict(list(agents.items()))  # from pairs: a mapping would be sorted


def team_rewards(name: str, agents: Sequence[str], rewards: Sequence[Any]) -> Array:
    """The rewards of all agents as float32 [G], or an error that names the agent whose reward is no number."""
    array = np.asarray(rewards)
    if array.shape != (len(agents),) or array.dtype.kind not in "fiub":
        for agent, reward in zip(agents, rewards, strict=False):
            if np.shape(reward) != () or np.asarray(reward).dtype.kind not in "fiub":
                raise SpecError(
                    f"environment {name!r}: step returned reward {reward!r:.60} for agent {agent!r}, expected a number"
                )
        raise SpecError(f"environment {name!r}: step returned {len(rewards)} rewards for {len(agents)} agents")
    return array.astype(np.float32)


def shared_reward(reward: float, active: Sequence[bool]) -> Array:
    """The reward of a whole team as equal shares [G] of the agents that acted, so that their sum is the team's."""
    shares = np.asarray(active, dtype=np.float32)
    return shares * np.float32(reward / max(int(shares.sum()), 1))

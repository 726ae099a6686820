"""Gymnasium environments whose observations and actions are tuples, one part for each agent of a team.

Level-Based Foraging and the robot warehouse are of this kind.

Axes: G agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ..errors import SpecError
from .lanes import seeded_reset
from .results import as_flag, as_number, five_values
from .spaces import Array
from .team_env import TeamLane, shared_reward, team_rewards
from .team_spaces import TeamObs


def is_tuple_team(env: Any) -> bool:
    """Whether an environment takes a tuple of actions: what marks a team in Gymnasium's interface."""
    return isinstance(getattr(env, "action_space", None), spaces.Tuple)


class TupleLane(TeamLane):
    """One such environment. Rewards are a sequence with one for each agent, or one number that they share."""

    def __init__(self, env: Any, name: str):
        takes, shows = env.action_space, env.observation_space
        if not isinstance(shows, spaces.Tuple) or len(shows) != len(takes):
            found = f"a tuple of {len(shows)}" if isinstance(shows, spaces.Tuple) else type(shows).__name__
            raise SpecError(
                f"environment {name!r}: its action_space is a tuple of {len(takes)}, one for each agent, but its"
                f" observation_space is {found}; give each agent an observation of its own"
            )
        package = type(getattr(env, "unwrapped", env)).__module__.partition(".")[0]
        self.env = _WRAPPERS[package](env) if package in _WRAPPERS else env
        self.name, self.agents = name, tuple(f"agent_{i}" for i in range(len(takes)))
        self.action_spaces = dict(zip(self.agents, takes, strict=True))
        self.observation_spaces = dict(zip(self.agents, shows, strict=True))
        self.active = (True,) * len(takes)
        self._reset = seeded_reset(self.env)
        spec = getattr(env, "spec", None)
        limits = [spec.max_episode_steps if spec else None, getattr(self.env, "time_limit", None)]
        self.max_episode_steps = min((limit for limit in limits if limit), default=None)

    def reset(self, seed: int) -> tuple[TeamObs, dict[str, Any]]:
        obs, _ = self._reset(seed)
        return self._shown(obs, "reset"), {}

    def step(self, actions: Sequence[Any]) -> tuple[TeamObs, Array, bool, bool, dict[str, Any]]:
        obs, value, terminated, truncated, _ = five_values(self.name, self.env.step(tuple(actions)))
        if isinstance(value, list | tuple | np.ndarray) and np.shape(value) != ():
            rewards = team_rewards(self.name, self.agents, list(value))
        else:
            rewards = shared_reward(as_number(self.name, value), self.active)
        flags = as_flag(self.name, "terminated", terminated), as_flag(self.name, "truncated", truncated)
        return self._shown(obs, "step"), rewards, *flags, {}

    def _shown(self, obs: Any, source: str) -> TeamObs:
        if not isinstance(obs, tuple | list | np.ndarray) or len(obs) != self.num_agents:
            raise SpecError(
                f"environment {self.name!r}: {source} returned {obs!r:.60}, expected a tuple of {self.num_agents}"
                f" observations, one for each agent"
            )
        return TeamObs(tuple(obs))


class Foraging(gym.Wrapper[Any, Any, Any, Any]):
    """Level-Based Foraging calls its time limit an end of the task: it ends when all food is eaten.

    Where its players were in the last episode decides where they may start in the next; without that memory an episode
    depends on its seed and its actions alone.
    """

    @property
    def time_limit(self) -> int:
        game: Any = self.unwrapped
        return int(game._max_episode_steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        game: Any = self.unwrapped
        for player in game.players:
            player.position = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, ended, truncated, info = self.env.step(action)
        game: Any = self.unwrapped
        eaten = not game.field.any()
        return obs, reward, eaten, truncated or bool(ended), info


class Warehouse(gym.Wrapper[Any, Any, Any, Any]):
    """The robot warehouse calls its time limits an end of the task, which has none: there is always another order."""

    @property
    def time_limit(self) -> int | None:
        game: Any = self.unwrapped
        return game.max_steps or None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, ended, truncated, info = self.env.step(action)
        return obs, reward, False, truncated or bool(ended), info


_WRAPPERS: dict[str, Any] = {"lbforaging": Foraging, "rware": Warehouse}
"""By the package of an environment."""

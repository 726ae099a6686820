"""Environments with the interface of the StarCraft Multi-Agent Challenge (SMAC): one reward for the whole team, masks
of available actions, a global state, and battles that are won or lost.

Tests run it with a small combat world of this interface; StarCraft II itself was not run. SMAC takes no seed for an
episode, so a resume begins new episodes there, with a warning.

Axes: G agents, A options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ..errors import SpecError
from .lanes import seeded_reset
from .results import as_flag, as_number
from .spaces import Array
from .team_env import TeamLane, shared_reward
from .team_spaces import TeamObs

METHODS = ("reset", "step", "get_obs", "get_state", "get_avail_actions", "get_env_info")
NO_OP = 0
"""The action that is left to a unit that has died, and to no other."""


def is_smac_env(env: Any) -> bool:
    return all(callable(getattr(env, name, None)) for name in METHODS)


class SmacLane(TeamLane):
    """One such environment. A unit whose only available action is the first one, no-op, has died."""

    gives_masks = True
    ends_early = True
    can_win = True

    def __init__(self, env: Any, name: str):
        info = env.get_env_info()
        needed = ("n_agents", "n_actions", "obs_shape", "state_shape")
        if not isinstance(info, dict) or any(key not in info for key in needed):
            raise SpecError(
                f"environment {name!r}: get_env_info returned {info!r:.80}, expected a dict with {', '.join(needed)}"
            )
        self.env, self.name = env, name
        agents = [f"agent_{i}" for i in range(info["n_agents"])]
        shows = spaces.Box(-np.inf, np.inf, (_size(info["obs_shape"]),), np.float32)
        self.observation_spaces = dict.fromkeys(agents, shows)
        self.action_spaces = dict.fromkeys(agents, spaces.Discrete(int(info["n_actions"])))
        self.state_size = _size(info["state_shape"])
        self.max_episode_steps = info.get("episode_limit")
        self.active = [True] * len(agents)
        self._num_steps = 0
        self._reset = seeded_reset(env)

    def reset(self, seed: int) -> tuple[TeamObs, dict[str, Any]]:
        self._reset(seed)
        self._num_steps = 0
        return self._shown(), {}

    def step(self, actions: Sequence[Any]) -> tuple[TeamObs, Array, bool, bool, dict[str, Any]]:
        self.won = False
        result = self.env.step([NO_OP if action is None else int(action) for action in actions])
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise SpecError(
                f"environment {self.name!r}: step returned {result!r:.60}, expected reward, terminated, info"
            )
        reward, ended, info = result
        rewards = shared_reward(as_number(self.name, reward), self.active)
        ended, info = as_flag(self.name, "terminated", ended), info or {}
        self._num_steps += 1
        obs = self._shown()
        if not ended:
            return obs, rewards, False, False, {}
        self.won = bool(info.get("battle_won", False))
        cut = bool(info.get("episode_limit", self._is_undecided()))
        return obs, rewards, not cut, cut, {}

    def _is_undecided(self) -> bool:
        """Whether an end without an explanation came from the time limit: units are left and the battle is not won."""
        limit = self.max_episode_steps
        return limit is not None and self._num_steps >= limit and not self.won and any(self.active)

    def _shown(self) -> TeamObs:
        seen, masks = list(self.env.get_obs()), [np.asarray(mask) for mask in self.env.get_avail_actions()]
        for what, found in (("get_obs", seen), ("get_avail_actions", masks)):
            if len(found) != self.num_agents:
                raise SpecError(
                    f"environment {self.name!r}: {what} returned {len(found)} items for {self.num_agents} agents"
                )
        self.active = [mask.size < 2 or not mask[NO_OP] or bool(mask[NO_OP + 1 :].any()) for mask in masks]
        alive = [part if acts else None for part, acts in zip(seen, self.active, strict=True)]
        return TeamObs(alive, masks, self.env.get_state())


def _size(shape: Any) -> int:
    return math.prod(shape) if isinstance(shape, tuple | list) else int(shape)

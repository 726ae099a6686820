"""Environments as RSL-RL trains them: ``step`` returns observations, rewards, dones and extras.

Those of legged_gym, for its first version, return privileged observations as a second value. All reset a lane within
the step that ends it, so the last observation is lost; ``extras["time_outs"]`` tells truncations from ends.

Axes: N environment lanes, A action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ...errors import SpecError
from .groups import CRITIC_GROUPS, POLICY_GROUPS
from .simulator import Outcome, SimulatorVecEnv, name_of

ATTRIBUTES = ("num_envs", "num_actions", "episode_length_buf", "get_observations", "step")


def is_rsl_env(env: Any) -> bool:
    return all(hasattr(env, name) for name in ATTRIBUTES)


class RslVecEnv(SimulatorVecEnv):
    """Actions have no bounds. ``policy_group`` and ``critic_group`` name groups of observations; None: their usual
    names."""

    def __init__(
        self, env: Any, name: str | None = None, policy_group: str | None = None, critic_group: str | None = None
    ):
        super().__init__(env, env.device)
        space = Box(-np.inf, np.inf, (int(env.num_actions),))
        limit = getattr(env, "max_episode_length", None)
        self._describe(name or name_of(env), env.num_envs, space, limit, policy_group, critic_group)

    def _begin(self, seed: int) -> Any:
        env = self.env
        if callable(seeds := getattr(env, "seed", None)):
            seeds(seed)
        if hasattr(env, "reset"):
            result = env.reset()
            if not isinstance(result, tuple):
                return result
            # legged_gym returns privileged observations or None, others return extras.
            return with_privileged(result[0], result[1] if isinstance(result[1], Tensor) else None)
        # The interface has no reset, but a counter that callers may set: at its limit every episode ends and is reset.
        env.episode_length_buf = torch.full_like(env.episode_length_buf, int(env.max_episode_length))
        env.step(torch.zeros(env.num_envs, env.num_actions, device=self.device))
        return env.get_observations()

    def _advance(self, action: Tensor) -> Outcome:
        result = self.env.step(action)
        if len(result) not in (4, 5):
            raise SpecError(
                f"environment {self.spec.name!r}: step returned {len(result)} values, expected observations, rewards,"
                f" dones and extras"
            )
        obs, *privileged, reward, dones, extras = result
        done = dones != 0
        out_of_time = extras.get("time_outs")
        truncated = torch.zeros_like(done) if out_of_time is None else done & (out_of_time.to(done.device) != 0)
        groups = with_privileged(obs, privileged[0]) if privileged else obs
        return Outcome(self._read(groups), reward, done & ~truncated, truncated)


def with_privileged(obs: Any, privileged: Tensor | None) -> Any:
    """Observations and, if there are any, privileged ones as groups."""
    return obs if privileged is None else {POLICY_GROUPS[0]: obs, CRITIC_GROUPS[0]: privileged}

"""Isaac Gym's ``VecTask``: ``step`` returns observations, rewards, resets and extras.

A lane whose task has ended keeps its last observation and is reset within the next step, whose action is lost. Here it
is reset at once, with the two calls that the task would make itself, so that every action counts and no step is lost.
Some tasks reset within the same step instead; their counter is 0 already, and the last observation is lost.

Axes: N environment lanes.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ... import tree
from ...errors import SpecError
from ...tree import Tree
from .simulator import Outcome, SimulatorVecEnv, name_of

ATTRIBUTES = ("num_envs", "num_obs", "rl_device", "reset_idx", "reset_buf", "progress_buf")


def is_vec_task(env: Any) -> bool:
    return all(hasattr(env, name) for name in (*ATTRIBUTES, "step", "action_space"))


class IsaacGymVecEnv(SimulatorVecEnv):
    """A task of Isaac Gym. ``states`` are what the value network sees; ``critic_group=""`` leaves them out."""

    def __init__(self, env: Any, name: str | None = None, critic_group: str | None = None):
        super().__init__(env, env.rl_device)
        name = name or name_of(env)
        if not hasattr(env, "compute_observations"):
            raise SpecError(
                f"environment {name!r}: the task has no method compute_observations, without which the first"
                f" observation of an episode is not known; add it"
            )
        parameters = inspect.signature(env.reset_idx).parameters.values()
        self._num_ids = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        """1, or 2 for tasks whose goals are reset with the lanes."""
        self._elapsed = torch.zeros(env.num_envs, dtype=torch.int64, device=self.device)
        self._limit = int(env.max_episode_length)
        self._describe(name, env.num_envs, env.action_space, self._limit, "obs", critic_group)

    def _begin(self, seed: int) -> Any:
        self._elapsed = torch.zeros_like(self._elapsed)
        return self._restart(torch.arange(self.env.num_envs, device=self.env.reset_buf.device))

    def _advance(self, action: Tensor) -> Outcome:
        obs, reward, reset, extras = self.env.step(action)
        last, reward = self._read(obs), reward.clone()
        done = reset.to(self.device) != 0
        self._elapsed += 1
        was_reset = done & (self.env.progress_buf.to(self.device) == 0)
        truncated = self._elapsed >= self._limit - 1
        if "time_outs" in extras:
            # These flags are computed from the counter, which a reset within the step has set to 0.
            truncated = (extras["time_outs"].to(self.device) != 0) | (was_reset & truncated)
        self._elapsed.masked_fill_(done, 0)
        first = self._first_obs(last, done & ~was_reset)
        return Outcome(first, reward, done & ~truncated, done & truncated, last, ~was_reset)

    def _first_obs(self, last: Tree, lanes: Tensor) -> Tree:
        """``last`` with the observations of new episodes in the given lanes [N]."""
        ids = lanes.nonzero().flatten()  # a task reads the numbers of these lanes on the host, too
        if len(ids) == 0:
            return last
        return tree.where(lanes, self._read(self._restart(ids.to(self.env.reset_buf.device))), last)

    def _restart(self, ids: Tensor) -> dict[str, Tensor]:
        env = self.env
        env.reset_idx(*(ids,) * self._num_ids)
        env.compute_observations()
        groups = {"obs": torch.clamp(env.obs_buf, -env.clip_obs, env.clip_obs)}
        if getattr(env, "num_states", 0) > 0:
            groups["states"] = env.get_state()
        return groups

    def reset_lanes(self, lanes: Tensor) -> Tree:
        with self._calls():
            self._seen = self._first_obs(self._seen, lanes.to(self.device))
            self._elapsed.masked_fill_(lanes.to(self.device), 0)
        return self._seen

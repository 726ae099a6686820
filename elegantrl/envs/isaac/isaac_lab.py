"""Environments of Isaac Lab, ``ManagerBasedRLEnv`` and ``DirectRLEnv``, and those of mjlab, which are like them.

A lane is reset within the step that ends it. Where ``extras["final_obs"]`` holds the last observations they are used.
An environment of mjlab with ``cfg.auto_reset=False`` returns the last observation and is reset here.

Axes: N environment lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import tree
from ...tree import Tree
from .groups import as_groups, as_tree
from .simulator import Outcome, SimulatorVecEnv, name_of

ATTRIBUTES = ("num_envs", "single_observation_space", "single_action_space", "episode_length_buf", "step")
FINAL_KEYS = ("final_obs", "final_observation")


def is_lab_env(env: Any) -> bool:
    base = getattr(env, "unwrapped", env)
    return all(hasattr(base, name) for name in ATTRIBUTES)


class IsaacLabVecEnv(SimulatorVecEnv):
    """One agent. ``policy_group`` and ``critic_group`` name groups of observations; None: their usual names.

    With ``cfg.is_finite_horizon`` the time limit is a part of the task, so that reaching it is an end.
    """

    def __init__(
        self, env: Any, name: str | None = None, policy_group: str | None = None, critic_group: str | None = None
    ):
        base = getattr(env, "unwrapped", env)
        super().__init__(env, base.device)
        self._resets_here = getattr(base.cfg, "auto_reset", True) is False
        self._has_end = bool(getattr(base.cfg, "is_finite_horizon", False))
        space, limit = base.single_action_space, base.max_episode_length
        self._describe(name or name_of(env), base.num_envs, space, limit, policy_group, critic_group)

    def _begin(self, seed: int) -> Any:
        # The global generators have the seed already, and mjlab would print it.
        return self.env.reset(seed=None if self._resets_here else seed)[0]

    def _advance(self, action: Tensor) -> Outcome:
        obs, reward, terminated, truncated, extras = self.env.step(action)
        terminated, truncated = terminated != 0, truncated != 0
        done = terminated | truncated
        if self._has_end:
            terminated, truncated = done, torch.zeros_like(done)
        copied = self._read(obs)
        if self._resets_here:
            reward = reward.clone()
            return Outcome(self._first_obs(copied, done), reward, terminated, truncated, copied)
        last, is_known = self._final_obs(extras, obs)
        return Outcome(copied, reward, terminated, truncated, last, is_known)

    def _first_obs(self, last: Tree, lanes: Tensor) -> Tree:
        """``last`` with the observations of new episodes in the given lanes [N]."""
        ids = lanes.nonzero().flatten()
        if len(ids) == 0:
            return last
        return tree.where(lanes, self._read(self.env.reset(env_ids=ids)[0]), last)

    def reset_lanes(self, lanes: Tensor) -> Tree | None:
        if not self._resets_here:
            return None
        with self._calls():
            self._seen = self._first_obs(self._seen, lanes)
        return self._seen

    def _final_obs(self, extras: Mapping[str, Any], obs: Any) -> tuple[Tree, Tensor | None]:
        """The last observations of episodes that ended, and the lanes for which they are given; None if they are not.

        They are tensors of all lanes, alone or in groups, or an array with an observation or None for each lane; flags
        under the same key with an underscore in front may say which count.
        """
        key = next((key for key in FINAL_KEYS if extras.get(key) is not None), None)
        if key is None:
            return None, None
        given, flags = extras[key], extras.get(f"_{key}")
        if isinstance(given, np.ndarray | list):
            given, flags = spread(given, as_groups(obs))
        is_known = None if flags is None else torch.as_tensor(flags, device=self.device) != 0
        return None if given is None else self._read(given, known=self._seen), is_known


def spread(rows: Any, like: dict[str, Any]) -> tuple[dict[str, Any] | None, list[bool]]:
    """Observations of single lanes as groups ``like`` those of all lanes, and the lanes that have one."""
    found = {lane: _row(row, like) for lane, row in enumerate(rows) if row is not None}
    flags = [lane in found for lane in range(len(rows))]
    if not found:
        return None, flags
    shown = next(iter(found.values()))
    groups = {key: tree.map_leaves(torch.clone, as_tree(like[key])) for key in shown if key in like}
    for lane, row in found.items():
        tree.map_leaves(partial(_set_lane, lane), groups, row)
    return groups, flags


def _set_lane(lane: int, whole: Tensor, part: Any) -> None:
    whole[lane] = torch.as_tensor(part)


def _row(row: Any, like: dict[str, Any]) -> dict[str, Any]:
    """The observation of one lane by group; a single one is that of the only or first group."""
    return dict(row.items()) if hasattr(row, "items") else {next(iter(like)): row}

"""Finds out which interface the environment of a team has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .pettingzoo import is_pettingzoo_env, parallel_lanes
from .smac import SmacLane, is_smac_env
from .team_env import TeamLane, TeamVecEnv
from .team_lanes import TupleLane, is_tuple_team


def is_team(env: Any) -> bool:
    """Whether ``env`` is a single environment in which several agents act."""
    return is_tuple_team(env) or is_smac_env(env) or is_pettingzoo_env(env)


def make_team(envs: Sequence[Any], name: str | None, device: torch.device | str, masks: bool | None) -> TeamVecEnv:
    """Environments of one of these interfaces as lanes."""
    first = envs[0]
    spec = getattr(first, "spec", None)
    name = name or (spec.id if spec else type(getattr(first, "unwrapped", first)).__name__)
    lanes: Sequence[TeamLane]
    if is_tuple_team(first):
        lanes = [TupleLane(env, name) for env in envs]
    elif is_smac_env(first):
        lanes = [SmacLane(env, name) for env in envs]
    else:
        lanes = parallel_lanes(envs, name)
    return TeamVecEnv(lanes, name, device, masks)

"""Isaac Gym, Isaac Lab, mjlab, legged_gym and what RSL-RL trains, recognised by their attributes.

make_env(env)                                        an instance, which has its number of lanes
make_env("my_package.tasks:make_ant", 4096)          a function of (num_envs, device) that returns one
make_env("mjlab:Mjlab-Cartpole-Balance", 256)        a task of mjlab
make_env("my_package:Isaac-Cartpole-v0", 4096)       an id of Isaac Lab, once ``my_package`` has registered it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .isaac_gym import IsaacGymVecEnv, is_vec_task
from .isaac_lab import IsaacLabVecEnv, is_lab_env
from .isaac_lab_team import IsaacLabTeamVecEnv, is_lab_team
from .rsl_rl import RslVecEnv, is_rsl_env
from .simulator import SimulatorVecEnv
from .tasks import is_lab_id, make_lab_task, make_mjlab_task

__all__ = [
    "is_simulator",
    "adapt_simulator",
    "is_lab_id",
    "make_lab_task",
    "make_mjlab_task",
    "SimulatorVecEnv",
    "IsaacGymVecEnv",
    "IsaacLabVecEnv",
    "IsaacLabTeamVecEnv",
    "RslVecEnv",
]

# A wrapper for RSL-RL around an environment of Isaac Lab is the former: its step returns four values.
ADAPTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, str | None], SimulatorVecEnv]], ...] = (
    (is_vec_task, IsaacGymVecEnv),
    (is_rsl_env, RslVecEnv),
    (is_lab_team, IsaacLabTeamVecEnv),
    (is_lab_env, IsaacLabVecEnv),
)


def is_simulator(env: Any) -> bool:
    """Whether ``env`` is an instance of one of these interfaces."""
    return not isinstance(env, SimulatorVecEnv | type) and any(suits(env) for suits, _ in ADAPTERS)


def adapt_simulator(env: Any, name: str | None = None) -> SimulatorVecEnv:
    """``env`` behind the contract."""
    return next(build for suits, build in ADAPTERS if suits(env))(env, name)

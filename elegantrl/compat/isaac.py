"""The documented names for tasks of NVIDIA Isaac Gym, which IsaacGymEnvs makes; they import without either."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..envs.isaac import IsaacGymVecEnv
from ..errors import ConfigError
from .envs import BuiltSingleEnv, BuiltVecEnv, Origin, device_of, get_gym_env_args

TARGET_RETURNS = {"Ant": 14e3, "Humanoid": 9e3}
"""Those of the documents."""


class NoIsaac(ConfigError, ImportError):
    """An ImportError for Python, and a ConfigError for the user: the environment is not available."""


def find_isaac(name: str) -> Any:
    """The package IsaacGymEnvs; ``name`` is what needs it."""
    try:
        import_module("isaacgym")  # before IsaacGymEnvs, and before torch
        return import_module("isaacgymenvs")
    except ImportError as error:
        raise NoIsaac(
            f"{name} needs NVIDIA Isaac Gym and IsaacGymEnvs, which cannot be imported here"
            f" ({' '.join(str(error).split())}); import isaacgym in the first line of the script, or use the tasks of"
            f" Isaac Lab or mjlab (docs/tutorials/isaac.md)"
        ) from error


def make_task(num_envs: int, device: str, env_name: str, sim_device: str | None = None) -> IsaacGymVecEnv:
    """A task by its name, without what only a critic may see: the documented interface has one state."""
    task = find_isaac("IsaacVecEnv").make(
        seed=0,  # the seed of a run is set at every reset
        task=env_name,
        num_envs=num_envs,
        sim_device=sim_device or str(device),
        rl_device=str(device),
        headless=True,
        force_render=False,
    )
    return IsaacGymVecEnv(task, env_name, critic_group="")


class IsaacVecEnv(BuiltVecEnv):
    """``env_num`` environments of a task. The simulation is on GPU ``device_id`` and its tensors on ``rl_device_id``,
    the same unless it is given; below 0, or without a GPU, the CPU."""

    def __init__(
        self,
        env_name: str,
        env_num: int = 32,
        device_id: int | None = 0,
        rl_device_id: int | None = None,
        if_print: bool = True,
    ) -> None:
        origin = self.origin_of(env_name, env_num, device_id)
        super().__init__(origin, env_num, device_of(_first(rl_device_id, device_id)))
        if if_print:
            get_gym_env_args(self, if_print=True)

    @classmethod
    def origin_of(cls, env_name: str, env_num: int = 32, device_id: int | None = 0, *_: Any, **__: Any) -> Origin:
        find_isaac(cls.__name__)
        target = {"target_return": TARGET_RETURNS[env_name]} if env_name in TARGET_RETURNS else {}
        sim = {"env_name": env_name, "sim_device": device_of(_first(device_id))}
        return Origin(make_task, env_name, sim, target, env_num)


class IsaacOneEnv(BuiltSingleEnv):
    """One environment of it, for evaluation, with arrays on the host."""

    def __init__(self, env_name: str, device_id: int | None = 0, if_print: bool = True) -> None:
        super().__init__(self.origin_of(env_name, device_id))
        if if_print:
            get_gym_env_args(self, if_print=True)

    @classmethod
    def origin_of(cls, env_name: str, device_id: int | None = 0, *_: Any, **__: Any) -> Origin:
        find_isaac(cls.__name__)
        return IsaacVecEnv.origin_of(env_name, 1, device_id)


def _first(*ids: int | None) -> int:
    """The first GPU that is named; 0 if none is, because the documents leave it to the worker."""
    return next((gpu for gpu in ids if gpu is not None), 0)

"""The documented names for NVIDIA Isaac Gym, which this version does not run."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import ConfigError


class NoIsaac(ConfigError, ImportError):
    """For Python a module that is missing, for the user an environment that cannot be had."""


class IsaacVecEnv:
    """Can be imported and named; making one says why it cannot be had."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NoIsaac(
            f"{cls.__name__} needs NVIDIA Isaac Gym, which this version of elegantrl does not support; a tensor"
            f" environment of your own derives from elegantrl.envs.TensorEnv"
        )


class IsaacOneEnv(IsaacVecEnv):
    """One environment of it, for evaluation."""

"""The documented names for NVIDIA Isaac Gym, which this version does not run."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import ConfigError


class NoIsaac(ConfigError, ImportError):
    """An ImportError for Python, and a ConfigError for the user: the environment is not available."""


class IsaacVecEnv:
    """Can be imported and named; the constructor raises the reason why it is not available."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NoIsaac(
            f"{cls.__name__} needs NVIDIA Isaac Gym, which this version of elegantrl does not support; a tensor"
            f" environment of your own derives from elegantrl.envs.TensorEnv"
        )


class IsaacOneEnv(IsaacVecEnv):
    """One environment of it, for evaluation."""

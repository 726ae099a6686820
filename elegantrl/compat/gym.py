"""``gym`` as documents use it after a star import: Gymnasium, with retired ids and ``logger.set_level``.

Only star imports of documented modules import this module. A script's own ``import gym`` is not affected.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium

from .envs import current_id


def make(id: Any, *args: Any, **kwargs: Any) -> Any:
    """``gymnasium.make``; a retired id makes its successor, with a warning."""
    return gymnasium.make(current_id(id) if isinstance(id, str) else id, *args, **kwargs)


def set_level(level: int) -> None:
    """Show messages of Gymnasium's logger from this level on, as ``gym.logger.set_level`` did."""
    gymnasium.logger.min_level = level


logger = SimpleNamespace(
    set_level=set_level,
    **{name: getattr(gymnasium.logger, name) for name in ("warn", "error", "deprecation")},
)


def __getattr__(name: str) -> Any:
    return getattr(gymnasium, name)

"""What the commands that play a trained policy share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import ElegantRLError, RoleError, format_error

T = TypeVar("T")


def guard(play: Callable[[], T], what: str) -> T:
    """The result of ``play``; any error of the environment's code becomes one sentence, which begins with ``what``."""
    try:
        return play()
    except ElegantRLError:
        raise
    except Exception as error:
        raise RoleError(f"{what}: {format_error(error)}") from error

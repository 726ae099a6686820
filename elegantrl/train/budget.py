"""How often a run forgives: so many times within a sliding window, each after a longer pause than the one before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..errors import RoleError

WINDOW_SECONDS = 600.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0


class RestartBudget:
    """Allows ``limit`` restarts within the window."""

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        of: str = "restarts",
    ):
        self.limit, self.of, self._clock, self._sleep = limit, of, clock, sleep
        self._spent: deque[float] = deque()

    def spend(self, why: str) -> str:
        """Take one restart, after a pause from the second on; says how many are gone. Raises if none is left."""
        while self._spent and self._spent[0] <= self._clock() - WINDOW_SECONDS:
            self._spent.popleft()
        if len(self._spent) >= self.limit:
            raise RoleError(
                f"{why}; the budget of {self.limit} {self.of} within {WINDOW_SECONDS / 60:g} minutes is spent:"
                f" fix the cause and resume the last commit, or raise --max-restarts"
            )
        self._spent.append(self._clock())
        count = len(self._spent)
        if count > 1:
            self._sleep(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (count - 2)))
        return f"{count} of {self.limit}"

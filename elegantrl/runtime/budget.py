"""How many failures a run accepts within a sliding window, and the pause before a role is restarted again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..errors import BudgetSpent

WINDOW_SECONDS = 600.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0


class RestartBudget:
    """Allows ``limit`` restarts within the window.

    If a role dies again before it has done any work, the pause gets longer each time: the cause may be temporary.
    Deaths with work in between need no pause, and the budget ends a loop of them. A role that has done no work since
    its first death, a whole window ago, ends the run too: hangs of ten minutes each would never fill a window.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        of: str = "restarts",
    ):
        self.limit, self.of, self._clock, self._sleep = limit, of, clock, sleep
        self._spent: deque[float] = deque()
        self._in_a_row: dict[str, int] = {}
        self._first_in_a_row: dict[str, float] = {}

    def spend(self, why: str, role: str = "") -> str:
        """Spend one restart, after a pause unless it is the first in a row; returns how many are spent.

        Failures without a ``role`` have nothing in between that could count as work.
        """
        if role and self._clock() - self._first_in_a_row.setdefault(role, self._clock()) >= WINDOW_SECONDS:
            raise BudgetSpent(f"{why}; it has done no work for {WINDOW_SECONDS / 60:g} minutes, so the run ends")
        while self._spent and self._spent[0] <= self._clock() - WINDOW_SECONDS:
            self._spent.popleft()
        if len(self._spent) >= self.limit:
            raise BudgetSpent(
                f"{why}; the budget of {self.limit} {self.of} within {WINDOW_SECONDS / 60:g} minutes is spent:"
                f" fix the cause and resume the last commit, or raise --max-restarts"
            )
        self._spent.append(self._clock())
        before = self._in_a_row.get(role, 0)
        self._in_a_row[role] = before + 1
        if before:
            self._sleep(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(before - 1, 10)))
        return f"{len(self._spent)} of {self.limit}"

    def has_recovered(self, role: str) -> None:
        """The role works again: its next death counts as the first in a row."""
        self._in_a_row.pop(role, None)
        self._first_in_a_row.pop(role, None)

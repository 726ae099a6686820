"""What a run does when the process of a role dies: count it, recover, and try again, as long as the budget lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import RoleDied, RoleTimedOut
from .budget import RestartBudget

T = TypeVar("T")


@dataclass(slots=True)
class FaultCounts:
    """What failures, and not waiting for slow workers, have cost a run so far."""

    restarts: int = 0
    steps_lost: int = 0
    """Environment steps of work that died with its process: at most one fragment of each group for every worker, and
    the steps after the last commit for every learner."""
    episodes_lost: int = 0
    """Open episodes that could not be continued."""
    steps_stale: int = 0
    """Environment steps that came too late to be learned from."""
    env_errors: int = 0
    """Environments that were reset because they failed, and fragments that were rejected."""
    failed_commits: int = 0
    """Commits that could not be written."""


class Restarts:
    """The one place that retries."""

    def __init__(self, limit: int, notify: Callable[[str], None]):
        self.budget = RestartBudget(limit)
        self.counts = FaultCounts()
        self.notify = notify

    def retry(self, role: str, attempt: Callable[[], T], recover: Callable[[], None] = lambda: None) -> T:
        """The value of ``attempt``; if a process dies of it, count a restart, ``recover``, and attempt again.

        A process that dies while ``recover`` runs is handled in the same way.
        """
        died = False
        while True:
            try:
                if died:
                    recover()
                return attempt()
            except (RoleDied, RoleTimedOut) as death:
                died = True
                self.count_restart(role, death)

    def count_restart(self, role: str, death: Exception) -> None:
        """Spend one restart of the budget; raises ``BudgetSpent`` if none is left."""
        spent = self.budget.spend(f"{role}: {death}", role)
        self.counts.restarts += 1
        self.notify(f"{role}: {death}; restarted ({spent} within 10 minutes)")

    def has_recovered(self, role: str) -> None:
        """The role has done useful work since its last restart: its next death is a first one."""
        self.budget.has_recovered(role)

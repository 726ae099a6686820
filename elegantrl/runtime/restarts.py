"""Restarts of roles: count the death of a process, recover, and retry, as long as the budget lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import NodeLost, RoleDied, RoleTimedOut
from .budget import RestartBudget

T = TypeVar("T")


@dataclass(slots=True)
class FaultCounts:
    """Counts of failures and of work that was lost to them or came too late."""

    restarts: int = 0
    steps_lost: int = 0
    """Environment steps lost with a process: at most one fragment of each group for a worker, and the steps after the
    last commit for a learner."""
    episodes_lost: int = 0
    """Open episodes that could not be continued."""
    steps_stale: int = 0
    """Environment steps that came too late for an update."""
    env_errors: int = 0
    """Environments that were reset because they failed, and fragments that were rejected."""
    failed_commits: int = 0
    """Commits that could not be written."""


class Restarts:
    """The only class that retries."""

    def __init__(self, limit: int, notify: Callable[[str], None]):
        self.budget = RestartBudget(limit)
        self.counts = FaultCounts()
        self.notify = notify
        self.lost_nodes: set[str] = set()

    def retry(self, role: str, attempt: Callable[[], T], recover: Callable[[], None] = lambda: None) -> T:
        """The value of ``attempt``; if a process dies during it, count a restart, ``recover``, and attempt again.

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
        """Spend one restart, or one for all roles of a lost node; raises ``BudgetSpent`` if none is left."""
        self.counts.restarts += 1
        if isinstance(death, NodeLost):
            if death.node in self.lost_nodes:
                self.notify(f"{role}: {death}; restarted")
                return
            self.lost_nodes.add(death.node)
        spent = self.budget.spend(f"{role}: {death}", role)
        self.notify(f"{role}: {death}; restarted ({spent} within 10 minutes)")

    def has_recovered(self, role: str) -> None:
        """The role has done useful work since its last restart: its next death counts as the first in a row."""
        self.budget.has_recovered(role)

"""Time limits of calls on roles, after which a role counts as stuck."""

from __future__ import annotations

from ..execute.base import Future

FIRST_SECONDS = 600.0
"""Limit of calls without earlier measurements: constructors, states, and the first of each kind."""
USUAL_SECONDS = {"sample": 60.0, "score": 300.0, "update": 300.0}
USUAL_FACTOR = 20.0
"""Calls of one kind take similar times: a call is stuck if it takes longer than these seconds and than this multiple of
the longest call before."""


class Timeouts:
    """The limits of one run. ``role_timeout`` is the user's limit for fragments and scores."""

    def __init__(self, role_timeout: float | None = None, isolates: bool = True):
        self.role_timeout, self.isolates = role_timeout, isolates
        self.longest: dict[str, float] = {}

    def of(self, kind: str = "") -> float | None:
        """The seconds that a call of this kind may take; None if a call cannot be ended."""
        if not self.isolates:
            return None
        if self.role_timeout is not None:
            # A resume may replay long episodes: the user's limit for a fragment does not apply.
            return self.role_timeout if kind in ("sample", "score") else self.of_build()
        if kind not in self.longest:
            return FIRST_SECONDS
        return max(USUAL_SECONDS[kind], USUAL_FACTOR * self.longest[kind])

    def of_build(self) -> float:
        """The seconds that the constructor of a role may take, in any process."""
        return max(FIRST_SECONDS, self.role_timeout or 0.0)

    def of_reset(self) -> float | None:
        """The seconds that the first resets may take in this process; None if they run in other processes."""
        return None if self.isolates else self.of_build()

    def note(self, kind: str, call: Future) -> None:
        """Record the time of a call that has ended."""
        self.longest[kind] = max(self.longest.get(kind, 0.0), call.seconds)

"""What happens to a population: frozen records, which the log holds as JSON objects.

Decisions (``Spawned``, ``Exploited``, ``Nominated``, ``Promoted``, ``Retired``) and results (``Committed``,
``Evaluated``, ``Failed``) determine the state of a population together; see ``fold``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ..errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log."""

    kind: ClassVar[str]

    member: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"event": self.kind, **{name: getattr(self, name) for name in NAMES[self.kind]}}


@dataclass(frozen=True, slots=True)
class Spawned(Event):
    """A new member, from scratch or from the run ``origin`` of another member."""

    kind: ClassVar[str] = "spawned"

    agent: str
    hypers: dict[str, float]
    parent: str | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Exploited(Event):
    """A member continues with a copy of its parent's run ``origin`` and with other hyper-parameters."""

    kind: ClassVar[str] = "exploited"

    period: int
    parent: str
    origin: str
    agent: str
    hypers: dict[str, float]


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """The run of one period is stored; ``pod`` is -1 for the fusion of all pods, and ``key`` None if it diverged."""

    kind: ClassVar[str] = "committed"

    period: int
    pod: int
    key: str | None
    steps: int
    """Environment steps of the agent so far, those of its ancestors included."""


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    """The mean return of a member's run after ``period``; ``fresh`` if on seeds that no selection has used."""

    kind: ClassVar[str] = "evaluated"

    period: int
    score: float | None
    """None if it is not finite."""
    ci95: float = 0.0
    fresh: bool = False

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            object.__setattr__(self, "score", None)
            object.__setattr__(self, "ci95", 0.0)


@dataclass(frozen=True, slots=True)
class Nominated(Event):
    """The run of ``period`` is good enough for the leaderboard and is evaluated again."""

    kind: ClassVar[str] = "nominated"

    period: int


@dataclass(frozen=True, slots=True)
class Promoted(Event):
    """A run enters the leaderboard with its score on fresh seeds."""

    kind: ClassVar[str] = "promoted"

    period: int
    score: float


@dataclass(frozen=True, slots=True)
class Retired(Event):
    """A member is trained no more, because it failed too often."""

    kind: ClassVar[str] = "retired"

    reason: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """An attempt at a job failed."""

    kind: ClassVar[str] = "failed"

    job: str
    period: int
    pod: int
    error: str


KINDS: dict[str, type[Event]] = {
    kind.kind: kind for kind in (Spawned, Exploited, Committed, Evaluated, Nominated, Promoted, Retired, Failed)
}
NAMES = {name: tuple(f.name for f in fields(kind)) for name, kind in KINDS.items()}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The inverse of ``to_json``."""
    values = dict(data)
    try:
        return KINDS[values.pop("event")](**values)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the log of a population has the malformed event {dict(data)!r:.120}") from error

"""The state of a population as a fold over its events: members, scores, leaderboard, lineage, and what is due next.

``read_population(folder)`` gives the state of a population folder, also while it is running.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .config import PopulationConfig
from .events import Committed, Evaluated, Event, Exploited, Failed, Nominated, Promoted, Retired, Spawned

FUSED = -1
"""The pod number of the fusion of all pods."""


class Job(NamedTuple):
    """Work that is due: train a pod for a period, fuse the pods, or evaluate a run again."""

    kind: Literal["train", "fuse", "evaluate"]
    member: str
    period: int
    pod: int = 0


class Point(NamedTuple):
    """A score of a member."""

    period: int
    steps: int
    score: float


class Link(NamedTuple):
    """An edge of the lineage: ``member`` began ``period`` as a copy of the run ``origin`` of ``parent``.

    Members without a parent began from scratch.
    """

    member: str
    period: int
    parent: str | None
    origin: str | None
    agent: str
    hypers: dict[str, float]


class Run(NamedTuple):
    """What a member was when it ended a period."""

    key: str
    agent: str
    hypers: dict[str, float]
    steps: int


class Entry(NamedTuple):
    """A row of the leaderboard."""

    score: float
    member: str
    period: int
    run: Run


@dataclass(slots=True)
class Member:
    """One member as the events describe it."""

    id: str
    agent: str
    hypers: dict[str, float]
    parent: str | None
    origin: str | None
    """The run that its next period starts from; None: from scratch."""
    steps: int = 0
    """Environment steps of its agent, those of its ancestors included."""
    period: int = 0
    """Complete periods."""
    key: str | None = None
    """Its newest complete run."""
    score: float = math.nan
    """Its newest score."""
    curve: list[Point] = field(default_factory=list)
    pods: dict[int, str | None] = field(default_factory=dict)
    """The runs of the pods that have ended the period; None: the pod diverged."""
    status: Literal["active", "done", "retired"] = "active"
    reason: str = ""
    """Why it was retired."""
    runs: dict[int, Run] = field(default_factory=dict)
    """Its complete runs, by period; their files may have been removed."""


class PopulationState:
    """Applies events; every attribute is a function of the config and the events so far."""

    def __init__(self, config: PopulationConfig) -> None:
        self.config = config
        self.members: dict[str, Member] = {}
        self.lineage: list[Link] = []
        self.board: list[Entry] = []
        """The leaderboard, best first."""
        self.due: dict[Job, None] = {}
        """Jobs that are running or can start, oldest first."""
        self.requested: list[Job] = []
        """Jobs that have become due since the caller last emptied this list."""
        self.failures: dict[Job, int] = {}
        self.num_failures = 0
        self.generation = 0
        """Complete generations."""
        self.num_results = 0
        """Complete periods of all members."""
        self.total_steps = 0
        """Environment steps of all runs."""
        self.new_generation = False
        """Whether the newest events completed a generation."""
        self.seconds = 0.0
        """How long the population has run, over all sittings."""
        self._at_barrier = 0
        self._active: dict[str, Member] = {}
        self.steps_of: dict[str, int] = {}
        """Environment steps of the agent in each run, by key."""

    # ---- reading

    @property
    def champion(self) -> Entry | None:
        return self.board[0] if self.board else None

    @property
    def active(self) -> list[Member]:
        return list(self._active.values())

    @property
    def retired(self) -> list[Member]:
        return [member for member in self.members.values() if member.status == "retired"]

    @property
    def is_complete(self) -> bool:
        """Whether no work is left; before the first event all of it is."""
        return bool(self.members) and not self.due

    def ranked(self) -> list[Member]:
        """Active members with a finite score, best first; the order of equal scores is that of their names."""
        finite = [member for member in self.active if math.isfinite(member.score)]
        return sorted(finite, key=lambda member: (-member.score, member.id))

    def kept_keys(self) -> set[str]:
        """The runs that are still needed: of the leaderboard, of members, of their parents and candidates."""
        kept = {entry.run.key for entry in self.board}
        for job in self.due:
            if job.kind == "evaluate":
                kept.add(key_of(job.member, job.period))
        for member in self._active.values():
            kept.update((member.key or "", member.origin or ""))
            kept.update(key or "" for key in member.pods.values())
        return kept - {""}

    # ---- folding

    def apply_all(self, events: Iterable[Event]) -> PopulationState:
        """Apply the events of one tick."""
        self.new_generation = False
        for event in events:
            self.apply(event)
        return self

    def apply(self, event: Event) -> None:
        match event:
            case Spawned():
                self._spawn(event)
            case Exploited():
                self._exploit(event)
            case Committed():
                self._commit(event)
            case Evaluated(fresh=True):
                self._drop(Job("evaluate", event.member, event.period))
            case Evaluated():
                self._evaluate(event)
            case Nominated():
                self._request(Job("evaluate", event.member, event.period))
            case Promoted():
                self._promote(event)
            case Retired():
                self._retire(event)
            case Failed():
                job = Job(event.job, event.member, event.period, event.pod)  # type: ignore[arg-type]
                self.failures[job] = self.failures.get(job, 0) + 1
                self.num_failures += 1

    def _spawn(self, event: Spawned) -> None:
        parent = None if event.parent is None else self.members[event.parent]
        steps = 0 if event.origin is None else self.steps_of.get(event.origin, 0)
        name = None if parent is None else parent.id
        self.members[event.member] = Member(event.member, event.agent, event.hypers, name, event.origin, steps)
        self.lineage.append(Link(event.member, 0, event.parent, event.origin, event.agent, event.hypers))
        self._active[event.member] = self.members[event.member]
        self._request_training(self.members[event.member])

    def _exploit(self, event: Exploited) -> None:
        member = self.members[event.member]
        member.agent, member.hypers, member.parent = event.agent, event.hypers, event.parent
        member.origin, member.steps = event.origin, self.steps_of[event.origin]
        self.lineage.append(Link(event.member, event.period, event.parent, event.origin, event.agent, event.hypers))

    def _request_training(self, member: Member) -> None:
        for pod in range(self.config.pods):
            self._request(Job("train", member.id, member.period, pod))

    def _commit(self, event: Committed) -> None:
        member = self.members[event.member]
        if event.pod != FUSED:
            self.total_steps += event.steps - member.steps
            if self.config.pods > 1:
                self._drop(Job("train", event.member, event.period, event.pod))
                member.pods[event.pod] = event.key
                if len(member.pods) == self.config.pods:
                    self._request(Job("fuse", event.member, event.period, FUSED))
                return
        assert event.key is not None, "a member without a run has no commit"
        member.key = member.origin = event.key
        member.steps = self.steps_of[event.key] = event.steps
        member.runs[event.period] = Run(event.key, member.agent, member.hypers, event.steps)

    def _evaluate(self, event: Evaluated) -> None:
        """The end of a member's period."""
        member = self.members[event.member]
        for pod in range(self.config.pods):
            self._drop(Job("train", event.member, event.period, pod))
        if self.config.pods > 1:
            self._drop(Job("fuse", event.member, event.period, FUSED))
        member.period, member.pods = event.period + 1, {}
        member.score = math.nan if event.score is None else event.score
        if event.score is not None:
            member.curve.append(Point(event.period, member.steps, event.score))
        self.num_results += 1
        if self.config.mode == "generational":
            self._at_barrier += 1
            self._check_barrier()
        else:
            self._leave(member, "done")

    def _check_barrier(self) -> None:
        if not self._active or self._at_barrier < len(self._active):
            return
        self.generation, self._at_barrier, self.new_generation = self.generation + 1, 0, True
        for member in self.active:
            if self.generation < self.config.periods:
                self._request_training(member)

    def _promote(self, event: Promoted) -> None:
        entry = Entry(event.score, event.member, event.period, self.members[event.member].runs[event.period])
        bisect.insort(self.board, entry, key=lambda entry: (-entry.score, entry.member, entry.period))
        del self.board[self.config.board :]

    def _retire(self, event: Retired) -> None:
        member = self.members[event.member]
        for job in [job for job in self.due if job.member == event.member and job.kind != "evaluate"]:
            self._drop(job)
        if self.config.mode == "generational" and member.period > self.generation:
            self._at_barrier -= 1
        member.reason = event.reason
        self._leave(member, "retired")
        if self.config.mode == "generational":
            self._check_barrier()

    def _leave(self, member: Member, status: Literal["done", "retired"]) -> None:
        member.status = status
        del self._active[member.id]

    def _request(self, job: Job) -> None:
        self.due[job] = None
        self.requested.append(job)

    def _drop(self, job: Job) -> None:
        self.due.pop(job, None)
        self.failures.pop(job, None)


def key_of(member: str, period: int, pod: int | None = None) -> str:
    """The key of the run of a period, or of one of its pods."""
    return f"runs/{member}-{period:04}" + ("" if pod is None else f"-p{pod}")


def fold(config: PopulationConfig, ticks: Iterable[Sequence[Event]]) -> PopulationState:
    """The state after all ticks of a log."""
    state = PopulationState(config)
    for events in ticks:
        state.apply_all(events)
    return state

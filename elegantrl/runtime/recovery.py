"""Replaces workers: snapshots, repetition of the requests since then, and lanes whose episodes were lost.

A new worker starts from the last snapshot of its groups and repeats the requests since then with their original
weights: if environments can be restored it continues bit for bit. A worker that dies twice at the same request, or
whose environments cannot be restored, begins new episodes instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..execute.base import Executor, Future, Handle
from ..nets.policies import PolicySpec
from ..rng import derive_seed
from ..types import Fragment, State
from .requests import RESTORING, Pending, Request, WorkerRecord, last_results, value_of
from .restarts import FaultCounts
from .timeouts import Timeouts

SNAPSHOT_SECONDS, SNAPSHOT_CALLS = 1.0, 32
"""A snapshot is due after either of these; snapshots change no result, so they may depend on time."""
SNAPSHOT_SHARE = 0.05
"""Maximum fraction of a worker's time for snapshots: those of long episodes are large."""
MAX_PAST = 1024
"""Requests after which a snapshot is due at any cost: each request holds the weights it was sent with."""


class BrokenLanes:
    """Lanes whose newest delivered transition has no successor, because their open episode was lost."""

    def __init__(self, num_groups: int, num_lanes: int):
        self.num_groups, self.num_lanes = num_groups, num_lanes
        self.by_group: dict[int, tuple[int, np.ndarray]] = {}
        """For each group that lost open episodes: the first request after the loss, and the lanes [N]."""

    def mark(self, group: int, seq: int, lanes: np.ndarray | None = None) -> None:
        """From request ``seq`` on, the fragments of a group do not continue earlier ones in these lanes."""
        lanes = np.ones(self.num_lanes, dtype=bool) if lanes is None else lanes
        self.by_group[group] = (seq, lanes | self.by_group[group][1] if group in self.by_group else lanes)

    def take(self, fragments: Sequence[Fragment], oldest: Callable[[int], int | None]) -> list[np.ndarray] | None:
        """For each group, the lanes [N] whose newest transition has no successor; None if there is none.

        Called before an update with ``fragments``, or without fragments after the updates with all taken ones:
        ``oldest(group)`` is then the oldest request of the group that was answered and not taken.
        """
        if not self.by_group:  # the usual case
            return None
        coming = {fragment.slot_group: fragment.seq for fragment in fragments}
        broken = [np.zeros(self.num_lanes, dtype=bool) for _ in range(self.num_groups)]
        for group, (seq, lanes) in list(self.by_group.items()):
            if fragments:
                following = coming.get(group, -1)
            else:
                waiting = oldest(group)
                following = seq if waiting is None else waiting
            if following >= seq:
                broken[group] = lanes
                del self.by_group[group]
        return broken if any(lanes.any() for lanes in broken) else None

    def state(self) -> list[Any]:
        return [[group, seq, torch.from_numpy(lanes)] for group, (seq, lanes) in sorted(self.by_group.items())]

    def load(self, state: list[Any]) -> None:
        self.by_group = {group: (seq, lanes.numpy()) for group, seq, lanes in state}


class Recovery:
    """Restores the state of a replaced worker in a new one."""

    def __init__(
        self,
        executor: Executor,
        timeouts: Timeouts,
        counts: FaultCounts,
        broken: BrokenLanes,
        spawn: Callable[[str, Sequence[Callable[[], Any]]], list[Handle]],
    ):
        self.executor, self.timeouts, self.counts, self.broken, self.spawn = executor, timeouts, counts, broken, spawn
        self.policy_spec: PolicySpec | None = None
        self.seed = 0
        self.diverged = False
        """Whether environments that declare to be restorable gave other steps after a restore."""

    # ---- snapshots

    def take_snapshots(self, workers: Sequence[WorkerRecord], seq: int) -> None:
        """Request the states of workers when a snapshot is due, and adopt those that have arrived; never waits."""
        if not self.executor.isolates:
            return
        for worker in workers:
            if worker.next_snapshot is not None and worker.next_snapshot.call.done():
                request, call = worker.next_snapshot
                worker.next_snapshot = None
                if value_of(call) is not None:
                    worker.snapshot_seconds = call.seconds
                    self.adopt_snapshot(worker, call.take(), request.seq)
            if worker.next_snapshot is None and self.is_due(worker):
                worker.next_snapshot = Pending(Request(None, 0, seq - 1), self.request_state(worker))

    def is_due(self, worker: WorkerRecord) -> bool:
        passed = time.monotonic() - worker.snapshot_time
        if len(worker.past) >= MAX_PAST:
            return True
        due = len(worker.past) >= SNAPSHOT_CALLS or (worker.past and passed > SNAPSHOT_SECONDS)
        return bool(due) and passed * SNAPSHOT_SHARE >= worker.snapshot_seconds

    def adopt_snapshot(self, worker: WorkerRecord, part: dict[str, State], seq: int) -> None:
        """Make ``part``, the state after request ``seq``, the state from which a successor starts."""
        if self.executor.isolates:
            worker.snapshot, worker.snapshot_seq, worker.snapshot_time = part, seq, time.monotonic()
            worker.past = [request for request in worker.past if request.seq > seq]

    # ---- replacing

    def place_of_death(self, worker: WorkerRecord) -> int | None:
        """The request at which a worker died, None if it had none; counts lost steps unless it was a repetition."""
        at, worker.repeating = worker.repeating, None
        # The first request that failed; the worker had not begun later ones.
        failed = (p.request for p in worker.pending if p.call.done() and value_of(p.call) is None)
        lost = next(failed, None)
        if at is not None or lost is None:
            return at
        self.counts.steps_lost += lost.horizon * self.broken.num_lanes * len(worker.groups)
        return lost.seq

    def replace(self, worker: WorkerRecord, name: str, new_episodes: bool) -> None:
        """Start a new worker, restore the state of the old one, and repeat its pending requests."""
        self.executor.kill(worker.handle)
        (worker.handle,), worker.next_snapshot = self.spawn(name, [worker.build]), None
        if self.policy_spec is None:  # no worker has been started yet
            return
        worker.repeating = RESTORING
        self.start(worker, new_episodes)
        if new_episodes or not self.catch_up(worker):
            self.lose_episodes(worker)
        for i, (request, call) in enumerate(worker.pending):
            if value_of(call) is None:
                worker.pending[i] = Pending(request, self.request_fragment(worker, request))
        worker.repeating = None

    def start(self, worker: WorkerRecord, new_episodes: bool) -> None:
        # The random streams of a worker that begins new episodes must not repeat those of the run's beginning.
        seed = derive_seed(self.seed, "restart", self.counts.restarts) if new_episodes else self.seed
        worker.handle.call("start", self.policy_spec, seed, timeout=self.timeouts.of()).result()

    def lose_episodes(self, worker: WorkerRecord) -> None:
        """Record that a worker has begun new episodes, and take a snapshot of them."""
        for group in worker.groups:
            self.broken.mark(group, worker.last_answered() + 1)
        self.counts.episodes_lost += self.broken.num_lanes * len(worker.groups)
        self.adopt_snapshot(worker, self.request_state(worker).take(), worker.last_answered())

    def begin_new_episodes(self, worker: WorkerRecord) -> None:
        """Begin new episodes in a worker, with random streams that the run has not used."""
        self.start(worker, new_episodes=True)
        self.lose_episodes(worker)

    def catch_up(self, worker: WorkerRecord) -> bool:
        """Restore the state of the old worker in a new one; returns whether that succeeded."""
        if not worker.snapshot:  # the old worker had just been started
            return True
        restored = worker.handle.call(
            "load_state_dict", worker.parts_of(worker.snapshot), timeout=self.timeouts.of()
        ).take()
        if any(lanes.any() for lanes in restored):
            self.diverged = True
            return False
        repeated: list[Fragment] = []
        expected = worker.last_results
        for request in worker.past:
            repeated = self.repeat(worker, request)
        for request, call in worker.pending:
            answer = value_of(call)
            if answer is not None and request.seq > worker.snapshot_seq:
                repeated, expected = self.repeat(worker, request), last_results(answer)
        same = not repeated or all(map(torch.equal, last_results(repeated), expected))
        self.diverged |= not same
        return same

    def repeat(self, worker: WorkerRecord, request: Request) -> list[Fragment]:
        worker.repeating = request.seq
        fragments: list[Fragment] = self.request_fragment(worker, request).result()
        return fragments

    # ---- calls

    def request_fragment(self, worker: WorkerRecord, request: Request) -> Future:
        return worker.handle.call("sample", *request, timeout=self.timeouts.of("sample"))

    def request_state(self, worker: WorkerRecord) -> Future:
        return worker.handle.call("state_dict", timeout=self.timeouts.of())

"""The worker pool: assigns groups to workers, and limits how far workers run ahead of the learner.

Workers act ahead of the learner by up to ``max_lag`` fragments of every group. With a lag of L the data of update k
were made with the weights after update k - 1 - L; this depends on the order of calls and not on the speed of processes.
Data depend on speed only if the learner does not wait for all workers (``sync_frac`` below 1).

A worker that dies or hangs is replaced (``recovery.py``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from ..config.sections import ExecuteConfig
from ..execute.base import ANSWERS_HELD, ONE_CPU, Executor, Future, Handle, Needs, Ref
from ..execute.limit import time_limit
from ..nets.policies import PolicySpec
from ..types import EnvSpec, Fragment, State, Weights
from .recovery import BrokenLanes, Recovery
from .requests import (
    Pending,
    Request,
    WorkerRecord,
    answered_before,
    by_address,
    last_results,
    pack_fragment,
    split_groups,
    unpack_fragment,
    value_of,
)
from .restarts import Restarts
from .timeouts import Timeouts

IN_FLIGHT = "in_flight"
"""The part of a commit that holds fragments which no update has used yet."""
EXACTNESS = ("episode", "replayed", "exact")

Explain = Callable[[Exception, str], Exception]


class WorkerPool:
    """The workers of a run; ``build(groups)`` returns the function that makes the worker of these groups.

    ``explain(error, role)`` turns an error that a role raised into the one that the run raises.
    """

    def __init__(
        self,
        executor: Executor,
        build: Callable[[range], Callable[[], Any]],
        num_groups: int = 1,
        config: ExecuteConfig | None = None,
        restarts: Restarts | None = None,
        explain: Explain = lambda error, role: error,
        needs: Needs = ONE_CPU,
    ):
        config = config or ExecuteConfig()
        self.executor, self.explain, self.needs = executor, explain, needs
        self.max_lag, self.sync_frac = config.max_lag, config.sync_frac
        self.max_bytes = math.inf if config.max_worker_memory is None else config.max_worker_memory * 1e6
        self.timeouts = Timeouts(config.role_timeout, executor.isolates)
        self.restarts = restarts or Restarts(config.max_restarts, lambda text: None)
        self.counts = self.restarts.counts
        self.build, self.num_groups = build, num_groups
        self.broken = BrokenLanes(num_groups, 1)
        self.recovery = Recovery(executor, self.timeouts, self.counts, self.broken, self.spawn)
        self.workers = self.spawn_workers(config.num_workers)
        spec: EnvSpec = self.call_worker(0, lambda worker: worker.handle.call("env_spec", timeout=self.timeouts.of()))
        self.num_lanes = self.broken.num_lanes = spec.num_envs
        self.env_spec = replace(spec, num_envs=self.num_lanes * self.num_groups)
        self.weights: Ref | None = None
        self.version = 0

    # ---- spawning

    def spawn(self, role: str, builds: Sequence[Callable[[], Any]]) -> list[Handle]:
        """New roles; if one of them dies before it is built, all are spawned again."""
        held = self.max_lag + ANSWERS_HELD
        limit = self.timeouts.of_build()
        return self.restarts.retry(role, lambda: self.executor.spawn_all(builds, limit, self.needs, held))

    def spawn_workers(self, num_workers: int) -> list[WorkerRecord]:
        """Workers that share all groups."""
        groups = split_groups(self.num_groups, num_workers)
        builds = [self.build(part) for part in groups]
        handles = self.spawn("workers", builds)
        self.restarts.has_recovered("workers")  # a later change of their number fails for reasons of its own
        return [WorkerRecord(*worker) for worker in zip(builds, groups, handles, strict=True)]

    def start(self, policy_spec: PolicySpec, seed: int) -> None:
        """Send the policy's spec to all workers; only now can they act."""
        self.recovery.policy_spec, self.recovery.seed = policy_spec, seed
        self.start_workers()
        if self.executor.isolates:
            self.state_dict()

    def start_workers(self) -> None:
        spec, seed = self.recovery.policy_spec, self.recovery.seed
        with time_limit(self.timeouts.of_reset(), "the first reset of an environment"):
            calls = [w.handle.call("start", spec, seed, timeout=self.timeouts.of()) for w in self.workers]
        for number, call in enumerate(calls):
            # A worker that replaced the first one was started by its recovery.
            self.call_worker(number, lambda worker: None, call)

    def resize(self, num_workers: int) -> None:
        """Divide the groups among another number of workers; their fragments stay the same."""
        parts, old = self.state_dict(), self.workers
        self.workers = self.spawn_workers(num_workers)
        self.start_workers()
        broken = self.broken.by_group
        self.load_state_dict(parts)
        self.broken.by_group = broken | self.broken.by_group  # a loss that was detected just now is in no part
        for worker in old:
            self.executor.kill(worker.handle)

    def close(self) -> None:
        for worker in self.workers:
            self.executor.kill(worker.handle)

    # ---- acting

    def publish(self, weights: Weights) -> None:
        """Set the weights of further requests; they are written once for all roles."""
        self.weights, self.version = self.executor.put(weights), weights.version

    def ref_of(self, weights: Weights) -> Ref:
        """These weights as an argument of calls."""
        is_newest = self.weights is not None and weights.version == self.version
        return self.weights if is_newest and self.weights is not None else self.executor.put(weights)

    def request(self, horizon: int, seq: int) -> int:
        """Request fragments from all workers up to the lag, so that none idles; returns the next request's number."""
        while any(len(worker.pending) <= self.max_lag for worker in self.workers):
            for worker in self.workers:
                if len(worker.pending) <= self.max_lag:
                    request = Request(self.weights, horizon, seq)
                    worker.pending.append(Pending(request, self.recovery.request_fragment(worker, request)))
            seq += 1
        self.recovery.take_snapshots(self.workers, seq)
        return seq

    def waits_for(self) -> list[Future]:
        """Calls of which one must end before ``take``; none if fragments can be taken without waiting."""
        calls = [worker.pending[0].call for worker in self.workers]
        if self.sync_frac == 1.0:
            return next(([call] for call in calls if not call.done()), [])
        # Each call is polled once: a call that ends between two polls must not be missed in the wait.
        late = [call for call in calls if not call.done()]
        return late if len(late) > len(calls) - math.ceil(self.sync_frac * len(calls)) else []

    def take(self) -> list[Fragment]:
        """Fragments for the next update, in the order of groups; none if all were too old.

        Waits for all workers, or leaves out those that have not answered if ``sync_frac`` allows it.
        """
        waits = self.sync_frac == 1.0
        ready = [i for i, worker in enumerate(self.workers) if waits or worker.pending[0].call.done()]
        return [fragment for number in ready for fragment in self.take_from(number)]

    def take_from(self, number: int) -> list[Fragment]:
        """The oldest fragments of a worker; none if they are too old to learn from."""
        worker = self.workers[number]
        part: list[Fragment] = self.call_worker(number, lambda worker: worker.pending[0].call)
        request, call = worker.pending.popleft()
        self.timeouts.note("sample", call)
        if self.executor.isolates:
            if request.seq > worker.snapshot_seq:
                worker.past.append(request)
            worker.last_results = last_results(part)
        fresh = [fragment for fragment in part if self.version - fragment.version <= self.max_lag]
        if len(fresh) < len(part):
            self.counts.steps_stale += sum(fragment.rollout.num_steps for fragment in part)
            self.counts.steps_lost += sum(fragment.steps_lost for fragment in part)
            self.counts.env_errors += sum(len(fragment.faults) for fragment in part)
            for group in worker.groups:
                self.broken.mark(group, request.seq + 1)
            return []
        return fresh

    def worker_of(self, group: int) -> int:
        """The number of the worker that acts for a group."""
        return next(i for i, worker in enumerate(self.workers) if group in worker.groups)

    def take_broken(self, fragments: Sequence[Fragment] = ()) -> list[np.ndarray] | None:
        """For each group, the lanes [N] whose newest transition has no successor; see ``BrokenLanes.take``."""
        return self.broken.take(fragments, self.oldest_answered)

    def oldest_answered(self, group: int) -> int | None:
        pending = self.workers[self.worker_of(group)].pending
        return min((p.request.seq for p in pending if value_of(p.call) is not None), default=None)

    def num_ready(self) -> int:
        """Answers of workers that wait for an update."""
        return sum(p.call.done() for worker in self.workers for p in worker.pending)

    def memory_bytes(self) -> int:
        """Memory that the process of a worker holds; the maximum over several."""
        return max(worker.handle.memory_bytes() for worker in self.workers)

    def busy_seconds(self) -> float:
        """How long the workers have worked, on average."""
        return math.fsum(worker.handle.busy_seconds for worker in self.workers) / len(self.workers)

    # ---- commits

    def request_states(self) -> list[Future]:
        return [self.recovery.request_state(worker) for worker in self.workers]

    def state_dict(self, calls: Sequence[Future] = ()) -> dict[str, State]:
        """A part of a commit for each group, as own copies; it does not depend on how groups are divided among workers.

        The states are those after all requests; fragments that were not taken yet are a part too.
        ``calls`` are those of ``request_states``, if they were made before.
        """
        calls = calls or self.request_states()
        parts: dict[str, State] = {}
        in_flight: list[Fragment] = []
        for number, (worker, call) in enumerate(zip(self.workers, calls, strict=True)):
            part = self.call_worker(number, self.recovery.request_state, call, take=True)
            for pending in worker.pending:  # calls run in order, so these were answered before
                in_flight += pending.call.result()
            self.recovery.adopt_snapshot(worker, part, worker.last_answered())
            parts |= part
        if in_flight:
            in_flight.sort(key=by_address)
            packed = [pack_fragment(fragment) for fragment in in_flight]
            parts[IN_FLIGHT] = {"fragments": packed, "broken": self.broken.state()}
        return parts

    def load_state_dict(self, parts: dict[str, State]) -> None:
        """Continue from ``parts``; lanes that cannot be restored begin new episodes."""
        in_flight = parts.get(IN_FLIGHT, {"fragments": [], "broken": []})
        fragments = [unpack_fragment(state) for state in in_flight["fragments"]]
        self.broken.load(in_flight["broken"])
        for worker in self.workers:  # before the first call: a worker that must be replaced starts here too
            mine = [fragment for fragment in fragments if fragment.slot_group in worker.groups]
            worker.pending = deque(answered_before(list(same)) for _, same in groupby(mine, key=lambda f: f.seq))
            worker.next_snapshot = None
            worker.past, worker.snapshot_seq = [], -1
            self.recovery.adopt_snapshot(worker, worker.parts_of(parts), worker.last_answered())
        request_load = partial(self.request_load, parts)
        calls = [request_load(worker) for worker in self.workers]
        for number, (worker, call) in enumerate(zip(self.workers, calls, strict=True)):
            restarted = self.call_worker(number, request_load, call)
            for group, lanes in zip(worker.groups, restarted, strict=True):
                if lanes.any():
                    self.recovery.diverged = True
                    self.broken.mark(group, worker.last_answered() + 1, lanes)
                    self.counts.episodes_lost += int(lanes.sum())

    def request_load(self, parts: dict[str, State], worker: WorkerRecord) -> Future:
        return worker.handle.call("load_state_dict", worker.parts_of(parts), timeout=self.timeouts.of())

    def begin_new_episodes(self) -> None:
        """Begin new episodes in all workers, with random streams that the run has not used."""
        for number, worker in enumerate(self.workers):
            self.restarts.retry(
                f"worker {number}",
                partial(self.recovery.begin_new_episodes, worker),
                partial(self.recovery.replace, worker, f"worker {number}", new_episodes=True),
            )

    def exactness(self) -> str:
        """How much of open episodes a resume would restore now; the minimum over the groups."""
        if self.recovery.diverged:
            return EXACTNESS[0]
        found = [self.call_worker(i, lambda worker: worker.handle.call("exactness", timeout=self.timeouts.of()))
                 for i in range(len(self.workers))]  # fmt: skip
        return min(found, key=EXACTNESS.index)

    # ---- replacing

    def call_worker(
        self,
        number: int,
        request: Callable[[WorkerRecord], Future | None],
        first: Future | None = None,
        take: bool = False,
    ) -> Any:
        """The result of ``request`` on a worker; a worker that dies during it is replaced, and the request repeated.

        ``first`` is the call on the first worker, if it was made before; a request that returns None has no result.
        """
        worker, name = self.workers[number], f"worker {number}"
        died_at: list[int | None] = []

        def attempt() -> Any:
            call = request(worker) if died_at or first is None else first
            try:
                answer = None if call is None else call.take() if take else call.result()
            except Exception as error:
                failure = self.explain(error, name)
                raise failure from failure.__cause__
            self.restarts.has_recovered(name)
            return answer

        def recover() -> None:
            died_at.append(self.recovery.place_of_death(worker))
            twice = died_at[-1] is not None and died_at[-1] in died_at[:-1]
            self.recovery.replace(worker, name, new_episodes=twice)

        return self.restarts.retry(name, attempt, recover)

    def renew_workers(self) -> None:
        """Replace workers whose processes hold too much memory, for example because of a leak, and those that share
        processors although others are free; no result changes."""
        for number, worker in enumerate(self.workers):
            grown = (held := worker.handle.memory_bytes()) > self.max_bytes
            if grown or worker.handle.can_move():
                part = self.call_worker(number, self.recovery.request_state, take=True)
                self.recovery.adopt_snapshot(worker, part, worker.last_answered())
                replace_worker = partial(self.recovery.replace, worker, f"worker {number}", new_episodes=False)
                self.restarts.retry(f"worker {number}", replace_worker)
                why = f"held {held / 1e6:,.0f} MB and was replaced" if grown else "moved to processors of its own"
                self.restarts.notify(f"worker {number} {why}")

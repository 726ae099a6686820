"""Drives a population on any executor: submits what is due, logs results and decisions, and acts on them.

What happened is in the log before anything follows from it. The controller keeps no state of its own but the calls that
are running, so a controller that was killed continues from the log.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Protocol

from ..errors import ConfigError, ElegantRLError, RoleDied, RoleTimedOut, SpecError, StorageError, format_error
from ..execute.base import Executor, Future, Handle, Needs
from ..execute.settle import settle_and
from ..rng import derive_seed
from ..store.storage import Storage, everywhere
from .config import PopulationConfig
from .events import Committed, Evaluated, Event, Failed, Retired
from .fold import FUSED, Job, PopulationState, key_of
from .generational import Generational
from .log import PopulationLog
from .member import Outcome, Task, Trainer
from .space import NEVER, Spaces, base_config
from .tournament import Tournament

WAIT_SECONDS = 1.0
"""How long a wait lasts before requests of signals are looked at."""
PATIENCE, PATIENCE_SECONDS = 20.0, 600.0
"""A call that takes so many times the longest one so far, and at least so many seconds, is ended."""
FIRST_SECONDS = 86_400.0
"""The time limit while no call has ended yet."""
MANY_RUNS = 64
"""Stored runs beyond those that are needed, from which on the others are removed."""
PLANS: dict[str, type[Generational] | type[Tournament]] = {"generational": Generational, "tournament": Tournament}


class Watcher(Protocol):
    """Shows a population to its user."""

    def message(self, text: str) -> None: ...

    def tick(self, state: PopulationState, events: Sequence[Event]) -> None: ...


class Interrupted(BaseException):
    """Raised by a signal in the middle of a period that runs in this process."""


class Controller:
    """One population from its first event to its last."""

    def __init__(
        self,
        config: PopulationConfig,
        storage: Storage,
        executor: Executor,
        watcher: Watcher,
        source: Any = None,
        state: PopulationState | None = None,
        build: Callable[[], Any] | None = None,
    ) -> None:
        """``state`` is that of a log to continue; ``build`` makes the role that trains, ``Trainer`` by default."""
        self.config, self.storage, self.executor, self.watcher = config, storage, executor, watcher
        self.log = PopulationLog(storage)
        self.plan = PLANS[config.mode](config, Spaces(config))
        self.state = state or PopulationState(config)
        role = build or partial(Trainer, config, config.env if source is None else source, everywhere(storage.url))
        self.build = partial(settle_and, role, 1) if executor.isolates else role
        self.needs = needs_of_member(config)
        self._room = room_of(config, executor, self.needs)
        most = config.max_running or min(executor.num_cpus(), config.members * config.pods)
        self.max_running = int(min(most, self._room))
        self.running: dict[Future, tuple[Job, Handle]] = {}
        self.stop: str | None = None
        self.stored = set(storage.list("runs"))
        self._queue = deque(self.state.due)
        self.state.requested.clear()
        self._max_stored = MANY_RUNS
        self._free: list[Handle] = []
        self._longest = 0.0
        self._in_call = False
        self._seconds_before, self._started = self.state.seconds, time.monotonic()

    # ---- signals

    def request_stop(self, reason: str) -> None:
        """Stop; periods that are running are done again after a resume. Safe to call from a signal handler."""
        self.stop = reason
        if self._in_call:
            raise Interrupted

    def request_running(self, more: int) -> None:
        """Change the number of runs at the same time; safe to call from a signal handler."""
        self.max_running = int(max(1, min(self.max_running + more, self._room)))

    # ---- the loop

    def run(self) -> str:
        """Train until all periods are complete; returns the reason to stop."""
        try:
            with imports_left_alone():
                self.record([[] if self.state.members else self.plan.begin()])
                while not self.state.is_complete and self.stop is None:
                    self.submit()
                    ended = self.executor.wait(list(self.running), WAIT_SECONDS)
                    if ended:
                        self.record(map(self.take, ended))
        except Interrupted:
            assert self.stop is not None
        if self.stop is None:
            self.remove_old_runs()
        return self.stop or "complete"

    def record(self, results: Iterable[Sequence[Event]]) -> None:
        """Apply the events of each result and the decisions that follow from all; they are logged as one tick."""
        events = list[Event]()
        self.state.new_generation = False
        for result in results:  # each sees the state after the one before
            for event in result:
                self.state.apply(event)
            events += result
        news: Sequence[Event] = events
        while news := self.plan.decide(self.state, news, self.max_running):
            self.state.apply_all(news)
            events = [*events, *news]
        if events:
            self.log.append(events, self.seconds())
            self.state.seconds = self.seconds()
            self.watcher.tick(self.state, events)
        self._queue.extend(self.state.requested)
        self.state.requested.clear()
        if len(self.stored) > self._max_stored:
            self.remove_old_runs()

    def seconds(self) -> float:
        """How long the population has run."""
        return self._seconds_before + time.monotonic() - self._started

    # ---- jobs

    def submit(self) -> None:
        """Start what is due, up to the number of runs at the same time."""
        while self._free and len(self._free) + len(self.running) > self.max_running:
            self.executor.kill(self._free.pop())
        jobs = self.next_jobs(self.max_running - len(self.running))
        missing = len(jobs) - len(self._free)
        if missing > 0:  # at the same time: a process of another machine takes seconds to start
            self._free += self.executor.spawn_all([self.build] * missing, needs=self.needs)
        timeout = self.time_limit()
        for job in jobs:
            handle = self._free.pop()
            method, arguments = self.call_of(job)
            self._in_call = not self.executor.isolates
            try:
                future = handle.call(method, *arguments, timeout=timeout)
            finally:
                self._in_call = False
            self.running[future] = job, handle

    def next_jobs(self, most: int) -> list[Job]:
        """The oldest jobs that wait, without those of members that were retired."""
        jobs: list[Job] = []
        while self._queue and len(jobs) < most and self.stop is None:
            job = self._queue.popleft()
            if job in self.state.due:
                jobs.append(job)
        return jobs

    def time_limit(self) -> float | None:
        """Seconds that a call may take; a call in this process cannot be ended."""
        if not self.executor.isolates:
            return None
        longest = max(self._longest, self.config.period_seconds or 0.0)
        return max(PATIENCE_SECONDS, PATIENCE * longest) if longest else FIRST_SECONDS

    def call_of(self, job: Job) -> tuple[str, tuple[Any, ...]]:
        """The method of ``Trainer`` that does a job, and its arguments."""
        seed, member = self.config.seed, self.state.members[job.member]
        if job.kind == "evaluate":
            return "evaluate", (key_of(job.member, job.period), derive_seed(seed, "fresh", job.member, job.period))
        # All members of a generation get the same episodes; in a tournament all members do.
        eval_seed: int | None = evaluation_seed(seed, job.period)
        run_seed = derive_seed(seed, job.kind, job.member, job.period, job.pod)
        if job.kind == "fuse":
            parents = tuple(key for _, key in sorted(member.pods.items()) if key is not None)
            key, steps, seconds = key_of(job.member, job.period), 0, None
        else:
            parents = () if member.origin is None else (member.origin,)
            has_pods = self.config.pods > 1
            key = key_of(job.member, job.period, job.pod if has_pods else None)
            quota, seconds = self.config.period_steps, self.config.period_seconds
            steps = NEVER if quota is None else (member.steps // quota + 1) * quota
            eval_seed = None if has_pods else eval_seed
        task = Task(key, member.agent, member.hypers, parents, run_seed, eval_seed, steps, seconds)
        return "train", (task,)

    def take(self, future: Future) -> list[Event]:
        """The events that a call gives; nothing if its member was retired meanwhile."""
        job, handle = self.running.pop(future)
        try:
            outcome: Outcome = future.take()
        except Exception as error:
            if isinstance(error, RoleDied | RoleTimedOut):
                self.executor.kill(handle)
            else:
                self._free.append(handle)
            if isinstance(error, StorageError):
                raise
            if job not in self.state.due:
                return []
            self._queue.appendleft(job)  # first: a generation waits for it
            return self.failure(job, error)
        self._free.append(handle)
        self._longest = max(self._longest, future.seconds)
        return self.success(job, outcome) if job in self.state.due else []

    def success(self, job: Job, outcome: Outcome) -> list[Event]:
        member = self.state.members[job.member]
        if outcome.key is not None:
            self.stored.add(outcome.key)
        if job.kind == "evaluate":
            return [Evaluated(job.member, job.period, outcome.score, outcome.ci95, fresh=True)]
        evaluated = Evaluated(job.member, job.period, outcome.score, outcome.ci95)
        if job.kind == "train" and self.config.pods > 1:
            steps = member.steps if outcome.key is None else outcome.steps
            committed = Committed(job.member, job.period, job.pod, outcome.key, steps)
            is_last = len(member.pods) == self.config.pods - 1
            has_run = outcome.key is not None or any(key is not None for key in member.pods.values())
            return [committed] if has_run or not is_last else [committed, evaluated]
        if outcome.key is None:
            return [evaluated]
        pod = FUSED if job.kind == "fuse" else 0
        return [Committed(job.member, job.period, pod, outcome.key, outcome.steps), evaluated]

    def failure(self, job: Job, error: Exception) -> list[Event]:
        """Attempt the job again, or retire the member; a mistake of the user is not attempted again."""
        reason = str(error) if isinstance(error, ElegantRLError) else format_error(error)
        reason = " ".join(reason.split())[:300]
        events: list[Event] = [Failed(job.member, job.kind, job.period, job.pod, reason)]
        is_final = isinstance(error, ConfigError | SpecError)
        if not is_final and self.state.failures.get(job, 0) + 1 < self.config.attempts:
            return events
        if job.kind == "evaluate":
            return [*events, Evaluated(job.member, job.period, None, fresh=True)]
        return [*events, Retired(job.member, reason)]

    # ---- files

    def remove_old_runs(self) -> None:
        """Remove runs that nothing will start from and that the leaderboard does not show."""
        kept = self.state.kept_keys()
        for key in self.stored - kept:
            self.storage.delete(key)
        self.stored &= kept
        self._max_stored = MANY_RUNS + 2 * len(kept)  # looking at all members again and again would take long

    def close(self) -> None:
        """End all roles."""
        self.executor.close()


@contextlib.contextmanager
def imports_left_alone() -> Iterator[None]:
    """Spare the garbage collector what is there already: torch alone makes each full collection a long pause."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def needs_of_member(config: PopulationConfig) -> Needs:
    """A processor, and with ``--settings train.device=cuda`` a GPU or a part of one."""
    device = base_config(config, config.agents[0]).train.device
    return Needs(gpus=config.gpus if device.startswith("cuda") else 0.0)


def room_of(config: PopulationConfig, executor: Executor, needs: Needs) -> float:
    """How many members can run at the same time: one in this process, and as many as the cluster has GPUs for."""
    if not executor.isolates:
        return 1
    if not needs.gpus or not executor.assigns_devices:
        return math.inf
    there = executor.num_gpus()
    room, least = int(there / needs.gpus + 1e-6), config.max_running or 1
    if room < least:
        raise ConfigError(
            f"population.gpus={needs.gpus:g} for each of {least} at a time is more than the {there:g} GPUs of the Ray"
            f" cluster; lower --gpus or --max-running, or use --settings train.device=cpu"
        )
    return room


@cache
def evaluation_seed(seed: int, period: int) -> int:
    """The seed of the episodes in which all members are scored after this period."""
    return derive_seed(seed, "evaluate", period)


def default_executor(config: PopulationConfig, can_be_sent: bool) -> str:
    """Processes if there is more than one core and members can be sent to them."""
    if config.executor != "auto":
        return config.executor
    has_cores = (os.cpu_count() or 1) > 1 and hasattr(os, "memfd_create")
    return "process" if has_cores and can_be_sent and config.members > 1 else "inline"

"""Going ahead of the learner: how far, in which order, and what becomes of those who are late."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from elegantrl.config.run import ExecuteConfig
from elegantrl.envs import make_env
from elegantrl.execute.base import Executor, Future
from elegantrl.execute.inline import InlineExecutor, InlineFuture
from elegantrl.execute.process import ProcessExecutor
from elegantrl.nets.policies import PolicySpec
from elegantrl.runtime import recovery
from elegantrl.runtime.build import PRELOAD
from elegantrl.runtime.committer import tensors_of
from elegantrl.runtime.requests import Pending, Request, WorkerRecord
from elegantrl.runtime.restarts import FaultCounts
from elegantrl.runtime.timeouts import Timeouts
from elegantrl.runtime.workers import WorkerPool
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fault, Fragment, Rollout, State, Weights


class Counter:
    """A host whose observations count its steps; if it has to wait for a file, something goes wrong in each job."""

    def __init__(self, groups: range, gate: Path | None):
        self.groups, self.gate, self.total = groups, gate, 0

    def env_spec(self) -> EnvSpec:
        return EnvSpec("Counter", (1,), ActionSpec(choices=(2,)), 1)

    def start(self, *_: Any) -> None: ...

    def sample(self, weights: Weights, horizon: int, seq: int) -> list[Fragment]:
        while self.gate is not None and not self.gate.exists():
            threading.Event().wait(0.001)
        time = torch.arange(self.total, self.total + horizon + 1).float().reshape(-1, 1, 1)
        self.total += horizon
        none, zero = torch.zeros(horizon, 1, dtype=torch.bool), torch.zeros(horizon, 1)
        action = torch.zeros(horizon, 1, dtype=torch.int64)
        rollout = Rollout(time[:-1], action, zero, none, none, time[1:], zero)
        episodes = Episodes(np.empty(0), np.empty(0, dtype=np.int64))
        wrong = ((Fault(0, "too late"),), 2) if self.gate is not None else ((), 0)
        return [Fragment(group, seq, weights.version, rollout, episodes, *wrong) for group in self.groups]

    def state_dict(self) -> dict[str, State]:
        return {f"group{group}": {"total": self.total} for group in self.groups}

    def load_state_dict(self, parts: dict[str, State]) -> list[np.ndarray]:
        self.total = parts[f"group{self.groups[0]}"]["total"]
        return [np.zeros(1, dtype=bool) for _ in self.groups]

    def close(self) -> None: ...


@pytest.fixture(params=[InlineExecutor, partial(ProcessExecutor, PRELOAD)], ids=["inline", "process"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made: Executor = request.param()
    yield made
    made.close()


def gather(executor: Executor, gate: Path | None = None, **settings: Any) -> WorkerPool:
    """Three hosts of a group each; the first waits for ``gate``."""

    def build(groups: range) -> Callable[[], Counter]:
        return partial(Counter, groups, gate if 0 in groups else None)

    pool = WorkerPool(executor, build, 3, ExecuteConfig(num_workers=3, **settings))
    pool.start(PolicySpec("none", None, ActionSpec(dim=1)), 0)
    pool.publish(Weights(0, torch.zeros(1)))
    return pool


def take(pool: WorkerPool, seq: int) -> tuple[list[Fragment], int]:
    fragments: list[Fragment] = []
    while not fragments:
        seq = pool.request(4, seq)
        while waits := pool.waits_for():
            pool.executor.wait(waits)
        fragments = pool.take()
    return fragments, seq


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_the_data_of_an_update_are_exactly_as_old_as_the_lag(executor: Executor, max_lag: int) -> None:
    pool, seq = gather(executor, max_lag=max_lag), 0
    for version in range(12):
        fragments, seq = take(pool, seq)
        assert [fragment.slot_group for fragment in fragments] == [0, 1, 2]
        assert {fragment.version for fragment in fragments} == {max(0, version - max_lag)}
        assert {fragment.seq for fragment in fragments} == {version}
        assert fragments[0].rollout.obs[0].item() == 4 * version  # none is left out, none comes twice
        assert seq == version + max_lag + 1
        pool.publish(Weights(version + 1, torch.zeros(1)))


def test_what_is_in_flight_is_part_of_a_commit_and_comes_back(executor: Executor) -> None:
    pool, seq = gather(executor, max_lag=2), 0
    for version in range(3):
        _, seq = take(pool, seq)
        pool.publish(Weights(version + 1, torch.zeros(1)))
    parts = pool.state_dict()
    in_flight = parts["in_flight"]["fragments"]
    assert [(f["seq"], f["slot_group"]) for f in in_flight] == [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2)]
    for successor in (pool, gather(executor, max_lag=2)):  # the pool itself, and another that takes over
        successor.load_state_dict(parts)
        successor.publish(Weights(3, torch.zeros(1)))
        again = seq
        for expected in (3, 4, 5):
            fragments, again = take(successor, again)
            assert [(f.seq, f.slot_group) for f in fragments] == [(expected, group) for group in range(3)]
            assert fragments[0].rollout.obs[0].item() == 4 * expected


def test_a_broken_lane_is_reported_where_the_gap_is(executor: Executor) -> None:
    """A loss concerns what is asked for after it, not what is still on its way."""
    pool, seq = gather(executor, max_lag=2), 0
    fragments, seq = take(pool, seq)
    pool.state_dict()  # jobs 1 and 2 are answered, nobody has taken them
    pool.broken.mark(1, 3)
    assert pool.take_broken() is None  # two fragments are to be learned from before
    parts = pool.state_dict()
    for successor in (pool, gather(executor, max_lag=2)):
        successor.load_state_dict(parts)
        successor.publish(Weights(1, torch.zeros(1)))
        again = seq
        for expected in (1, 2, 3):
            fragments, again = take(successor, again)
            assert {fragment.seq for fragment in fragments} == {expected}
            broken = successor.take_broken(fragments)
            assert (broken is None) == (expected < 3)
        assert broken is not None and [lanes.tolist() for lanes in broken] == [[False], [True], [False]]
        assert successor.take_broken() is None


@pytest.mark.parametrize("max_lag", [0, 2])
def test_the_number_of_workers_may_change_in_the_middle(executor: Executor, max_lag: int) -> None:
    pool, seq = gather(executor, max_lag=max_lag), 0
    for version, num_workers in enumerate((3, 1, 2, 2, 3)):
        if num_workers != len(pool.workers):
            pool.resize(num_workers)
        assert len(pool.workers) == num_workers
        fragments, seq = take(pool, seq)
        assert [(f.slot_group, f.seq) for f in fragments] == [(group, version) for group in range(3)]
        assert {fragment.rollout.obs[0].item() for fragment in fragments} == {4 * version}
        pool.publish(Weights(version + 1, torch.zeros(1)))


class DoneWhenAsked(Future):
    """An answer that comes between one question and the next."""

    def __init__(self, questions: float):
        self.questions = questions

    def done(self) -> bool:
        self.questions -= 1
        return self.questions < 0

    def result(self) -> Any: ...


def test_whoever_is_quick_enough_between_two_questions_is_not_missed() -> None:
    executor = InlineExecutor()
    pool = gather(executor, sync_frac=0.5)
    never, at_once, soon = (DoneWhenAsked(questions) for questions in (math.inf, 0, 1))
    for worker, call in zip(pool.workers, (never, at_once, soon), strict=True):
        worker.pending.append(Pending(Request(None, 4, 0), call))
    assert pool.waits_for() == [never, soon]  # the first alone would be waited for in vain
    assert pool.waits_for() == []


def test_a_slow_worker_holds_nobody_up_and_its_old_data_are_dropped(tmp_path: Path) -> None:
    executor, gate = ProcessExecutor(PRELOAD), tmp_path / "gate"
    try:
        pool, seq = gather(executor, gate, sync_frac=0.5, max_lag=1), 0
        groups: set[int] = set()
        for version in range(6):
            fragments, seq = take(pool, seq)
            groups |= {fragment.slot_group for fragment in fragments}
            assert all(version - fragment.version <= 1 for fragment in fragments)  # the bound
            pool.publish(Weights(version + 1, torch.zeros(1)))
        assert groups == {1, 2} and pool.counts.steps_stale == 0
        gate.touch()
        version = 6
        # The two fragments of the first version that were under way come too late. Whether later ones come in time, and
        # those of the other workers, depends on the machine.
        while pool.counts.env_errors < 2:
            fragments, seq = take(pool, seq)
            assert all(version - fragment.version <= 1 for fragment in fragments)
            version += 1
            pool.publish(Weights(version, torch.zeros(1)))
        # What went wrong in data that are not learned from counts all the same.
        assert pool.counts.steps_lost == 2 * pool.counts.env_errors
        assert pool.counts.steps_stale % 4 == 0 and pool.counts.steps_stale >= 4 * pool.counts.env_errors
        assert pool.take_broken() is not None
    finally:
        executor.close()


def test_how_long_calls_may_take() -> None:
    """R14: ten minutes for the first of a kind, then some minutes or 20 times the longest; or as the user said."""
    timeouts, call = Timeouts(), InlineFuture(lambda: None)
    assert timeouts.of("sample") == timeouts.of("score") == timeouts.of("update") == timeouts.of() == 600.0
    for seconds, sample, update in (
        (1.0, 60.0, 300.0),
        (5.0, 100.0, 300.0),
        (0.1, 100.0, 300.0),
        (50.0, 1000.0, 1000.0),
    ):
        call.seconds = seconds
        timeouts.note("sample", call)
        timeouts.note("update", call)
        assert (timeouts.of("sample"), timeouts.of("update"), timeouts.of()) == (sample, update, 600.0)
    assert Timeouts(isolates=False).of("sample") is None
    # R11: the limit of a fragment is none of a resume, which may have to replay long episodes.
    short, long = Timeouts(7.0), Timeouts(7000.0)
    assert (short.of("sample"), short.of("score"), short.of(), long.of()) == (7.0, 7.0, 600.0, 7000.0)


def test_snapshots_of_long_episodes_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: a snapshot that took long is followed by a pause of 20 times its duration, up to a number of requests."""
    now = [1000.0]
    monkeypatch.setattr(recovery, "time", Mock(monotonic=lambda: now[0]))
    made = recovery.Recovery(Mock(isolates=True), Timeouts(), FaultCounts(), recovery.BrokenLanes(1, 1), Mock())
    worker = WorkerRecord(Mock(), range(1), Mock())
    made.adopt_snapshot(worker, {}, 0)
    assert not made.is_due(worker)  # nothing to repeat
    worker.past = [Request(None, 4, seq) for seq in range(1, recovery.SNAPSHOT_CALLS + 1)]
    assert made.is_due(worker)
    worker.snapshot_seconds = 0.5
    for seconds, due in ((9.9, False), (10.1, True)):
        now[0] = 1000.0 + seconds
        assert made.is_due(worker) is due
    worker.snapshot_seconds, worker.past = 60.0, worker.past * (recovery.MAX_PAST // recovery.SNAPSHOT_CALLS)
    assert made.is_due(worker)  # each request holds the weights that it was sent with


def test_the_snapshot_of_an_endless_episode_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    # R13: beyond its limit the log of an episode is dropped, and a resume begins a new episode.
    monkeypatch.setattr("elegantrl.envs.gymnasium.MAX_LOG_STEPS", 64)
    monkeypatch.setattr("elegantrl.envs.episode_log.CHUNK_STEPS", 16)
    env = make_env("Pendulum-v1", 2, max_episode_steps=10**6)
    env.reset(0)
    sizes = []
    for _ in range(6):
        for _ in range(32):
            env.step(torch.zeros(2, 1))
        sizes.append(sum(leaf.numel() for _, leaf in tensors_of(env.state_dict(), "env")))
    assert sizes[0] < sizes[1] and sizes[2] == sizes[5] < sizes[1]
    env.close()

"""A rank that dies, hangs or fails is noticed at once, whatever the others are doing; all can begin anew."""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elegantrl.agents.ppo import PPOConfig
from elegantrl.errors import NonFinite, PeersLost, RoleDied, RoleError, RoleTimedOut
from elegantrl.execute.base import Executor, Handle
from elegantrl.execute.process import ProcessExecutor, ProcessHandle
from elegantrl.roles import ranks as ranks_module
from elegantrl.roles.learner import Learner
from elegantrl.roles.ranks import Ranks
from elegantrl.runtime import timeouts as timeouts_module
from elegantrl.runtime.build import PRELOAD
from elegantrl.runtime.learners import Learners
from elegantrl.runtime.recovery import Recovery
from elegantrl.runtime.run import RunResult
from elegantrl.runtime.supervisor import Supervisor
from elegantrl.runtime.timeouts import Timeouts
from elegantrl.runtime.workers import WorkerPool
from elegantrl.store.runlog import read_metrics
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Metrics, Rollout

CPU = torch.device("cpu")
SPEC = EnvSpec("Made", (3,), ActionSpec(choices=(2,)), 4)
PROMPTLY = 20.0
"""Seconds on a busy machine; well below the time that a rank waits for the others by itself."""


class Doomed(Learner):
    """Meets its fate once the file ``trigger`` is there."""

    def __init__(self, fate: str, trigger: Path, *args: Any):
        super().__init__(*args)
        self.fate, self.trigger = fate, trigger
        average = self.averaging.average

        def average_and_die(x: Tensor) -> Tensor:
            if self.is_due("inside"):
                assert isinstance(self.averaging, Ranks)
                work = self.averaging.group.allreduce([x])  # runs in a thread of its own while this one dies
                assert work is not None
                self.die()
            return average(x)

        self.averaging.average = average_and_die  # type: ignore[method-assign]

    def is_due(self, fate: str) -> bool:
        return self.fate == fate and self.trigger.exists()

    def die(self) -> None:
        self.trigger.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def connect(self, address: str) -> None:
        if self.is_due("meeting"):
            self.die()
        super().connect(address)

    def update(self, fragments: Any) -> Metrics:
        if self.is_due("before"):
            self.die()
        if self.is_due("raise"):
            raise NonFinite("made up")
        if self.is_due("hang"):
            time.sleep(1000)
        metrics = super().update(fragments)
        if self.is_due("after"):
            self.die()
        return metrics


def build(fate: str, doomed: int, trigger: Path, size: int, rank: int) -> Callable[[], Learner]:
    config = PPOConfig(hidden=(8,), horizon=4, batch_size=8, num_epochs=2)
    return partial(Doomed, fate if rank == doomed else "", trigger, "ppo", config, SPEC, CPU, 3, rank, size)


def fragments_of(seq: int) -> list[Fragment]:
    g = torch.Generator().manual_seed(seq)
    nothing = Episodes(np.empty(0), np.empty(0, np.int64))
    found = []
    for group in range(2):
        obs = torch.randn(5, 2, 3, generator=g)
        ended = torch.zeros(4, 2, dtype=torch.bool)
        action = torch.randint(2, (4, 2), generator=g)
        reward, logp = torch.randn(4, 2, generator=g), torch.full((4, 2), -0.7)
        found.append(Fragment(group, seq, seq, Rollout(obs[:-1], action, reward, ended, ended, obs[1:], logp), nothing))
    return found


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = ProcessExecutor(PRELOAD)
    yield executor
    executor.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("fate", ["before", "inside", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_noticed_and_all_begin_anew(
    executor: Executor, tmp_path: Path, hash_state: Callable[[Any], str], fate: str, rank: int
) -> None:
    trigger = tmp_path / "trigger"
    learners = Learners(executor, partial(build, fate, rank, trigger, 2), 2, 2, timeouts=Timeouts())
    learners.update(fragments_of(0))
    commit = learners.state_dict()
    _, expected = learners.update(fragments_of(1))
    trigger.touch()
    start = time.monotonic()
    with pytest.raises(RoleDied, match="died of SIGKILL before it answered report") as caught:
        learners.update(fragments_of(2))
    assert not isinstance(caught.value, PeersLost)  # the cause, and not what it did to the others
    assert time.monotonic() - start < PROMPTLY
    learners.restart()
    assert len(multiprocessing.active_children()) == 2
    learners.load_state_dict(commit)
    _, again = learners.update(fragments_of(1))
    assert torch.equal(again.flat, expected.flat)
    learners.close()
    assert multiprocessing.active_children() == []


def test_a_rank_that_hangs_is_noticed(executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    learners = Learners(executor, partial(build, "hang", 1, trigger, 2), 2, 2, timeouts=Timeouts())
    learners.timeouts.longest["update"] = 0.0
    monkeypatch.setitem(timeouts_module.USUAL_SECONDS, "update", 3.0)
    trigger.touch()
    start = time.monotonic()
    with pytest.raises(RoleTimedOut, match="no answer to report"):
        learners.update(fragments_of(0))
    assert time.monotonic() - start < PROMPTLY
    trigger.unlink()
    monkeypatch.setitem(timeouts_module.USUAL_SECONDS, "update", 600.0)
    learners.restart()
    learners.update(fragments_of(0))


def test_an_error_of_one_rank_does_not_wait_for_the_others(executor: Executor, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    learners = Learners(executor, partial(build, "raise", 1, trigger, 2), 2, 2, timeouts=Timeouts())
    trigger.touch()
    start = time.monotonic()
    with pytest.raises(NonFinite, match="made up"):  # rank 0 is stuck by now
        learners.update(fragments_of(0))
    assert time.monotonic() - start < PROMPTLY


def test_a_rank_that_dies_before_all_have_met(executor: Executor, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    trigger.touch()
    make = partial(build, "meeting", 1, trigger, 2)
    with pytest.raises(RoleDied, match="died of SIGKILL before it answered connect"):
        Learners(executor, make, 2, 2, timeouts=Timeouts())
    assert multiprocessing.active_children() == []
    Learners(executor, make, 2, 2, timeouts=Timeouts()).update(fragments_of(0))


def test_whoever_waits_for_a_silent_peer_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any help from whoever started the ranks."""
    monkeypatch.setattr(ranks_module, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(PeersLost, match=r"learner 0 of 2 did not reach the others within 0\.5 s"):
        ranks_module.connect(str(tmp_path / "ranks"), 0, 2, CPU)


def test_a_broken_collective_says_who_lost_whom() -> None:
    class Broken:
        def allreduce(self, *_: Any) -> Any:
            raise RuntimeError("Connection closed\nby peer")

    ranks = Ranks(1, 3)
    ranks.group = Broken()
    with pytest.raises(PeersLost, match="learner 1 of 3 lost its connection to the others: Connection closed by peer"):
        ranks.average(torch.ones(2))


# ---- whole runs


RUN: dict[str, Any] = {
    "seed": 5, "num_envs": 4, "num_groups": 2, "executor": "process", "num_workers": 2, "max_steps": 400,
    "eval": {"interval": 10**6, "episodes": 2, "max_episode_steps": 40}, "checkpoint": {"interval": 160},
}  # fmt: skip
ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 1}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 300, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.2}


def kill_at(monkeypatch: pytest.MonkeyPatch, method: str, number: int, rank: int) -> list[int]:
    """Have a rank killed before the given call of a method of ``Learners``; returns what was killed."""
    return kill_before(monkeypatch, Learners, method, number, lambda learners: learners.handles[rank])


def kill_before(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, number: int, victim: Callable[[Any], Handle]
) -> list[int]:
    original, calls, killed = getattr(owner, method), itertools.count(1), list[int]()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            handle = victim(args[0] if owner is Recovery else self)
            assert isinstance(handle, ProcessHandle)
            killed.append(handle.process.pid)
            handle.process.kill()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, call)
    return killed


@pytest.mark.parametrize(
    ("method", "number", "lost"),
    [
        ("start_update", 1, 80),
        ("start_update", 4, 160),
        pytest.param("request_states", 1, 0, marks=pytest.mark.slow),
        ("request_states", 2, 160),
        ("request_states", 4, 80),
    ],
)
@pytest.mark.parametrize(("num_learners", "max_lag"), [(1, 0), (1, 1), (2, 0)])
def test_a_run_that_lost_a_learner_equals_one_that_did_not(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    num_learners: int,
    max_lag: int,
    method: str,
    number: int,
    lost: int,
) -> None:
    settings = RUN | ON_POLICY | {"num_learners": num_learners, "max_lag": max_lag}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "sound", **settings)
    killed = kill_at(monkeypatch, method, number, num_learners - 1)
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "faulty", **settings)
    assert len(killed) == 1 and run.summary["restarts"] == 1
    assert run.summary["steps_lost"] == lost  # commits at 0, 160, 320 and the end; 80 steps per update
    sound, faulty = load_commit(tmp_path / "sound"), load_commit(tmp_path / "faulty")
    assert {name: hash_state(part) for name, part in faulty.items()} == {
        name: hash_state(part) for name, part in sound.items()
    }
    steps = [row["env_steps"] for row in read_metrics(tmp_path / "faulty")]
    assert steps == sorted(steps)  # what was done twice is in the log once
    assert multiprocessing.active_children() == []


def test_a_replay_buffer_comes_back_with_its_learner(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    settings = RUN | REPLAY | {"num_learners": 1, "max_lag": 1}
    run_quietly("sac", "Pendulum-v1", run_dir=tmp_path / "sound", **settings)
    kill_at(monkeypatch, "start_update", 14, 0)
    run = run_quietly("sac", "Pendulum-v1", run_dir=tmp_path / "faulty", **settings)
    assert run.summary["restarts"] == 1 and run.summary["steps_lost"] == 120
    sound, faulty = load_commit(tmp_path / "sound"), load_commit(tmp_path / "faulty")
    assert {name: hash_state(part) for name, part in faulty.items()} == {
        name: hash_state(part) for name, part in sound.items()
    }


def test_a_learner_that_always_dies_ends_the_run(
    run_quietly: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = Learners.start_update

    def update(self: Learners, fragments: Any) -> Any:
        handle = self.handles[0]
        assert isinstance(handle, ProcessHandle)
        handle.process.kill()
        return original(self, fragments)

    monkeypatch.setattr(Learners, "start_update", update)
    with pytest.raises(RoleError, match=r"learner: pid \d+ died of SIGKILL .*; the budget of 2 restarts"):
        run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, **RUN, **ON_POLICY, num_learners=1, max_restarts=2)
    assert multiprocessing.active_children() == []


SEVERAL: dict[str, list[tuple[type, str, int, Callable[[Any], Handle]]]] = {
    "a worker while a new learner takes over": [
        (Learners, "start_update", 4, lambda learners: learners.handles[0]),
        (WorkerPool, "load_state_dict", 1, lambda pool: pool.workers[1].handle),
    ],
    "a learner and its successor": [
        (Learners, "start_update", 4, lambda learners: learners.handles[0]),
        (Learners, "load_state_dict", 1, lambda learners: learners.handles[0]),
    ],
    "a worker and its successor, which repeats what was done before": [
        (WorkerPool, "take", 4, lambda pool: pool.workers[0].handle),
        (Recovery, "repeat", 1, lambda worker: worker.handle),
    ],
    "a worker before and after it is started": [
        (WorkerPool, "call_worker", 1, lambda pool: pool.workers[0].handle),
        (WorkerPool, "exactness", 1, lambda pool: pool.workers[0].handle),
    ],
    # R6: the first commit is tried again, so that the second death has one to go back to.
    "a learner in the first commit and in the first update": [
        (Learners, "request_states", 1, lambda learners: learners.handles[0]),
        (Learners, "start_update", 1, lambda learners: learners.handles[0]),
    ],
    "a worker and a learner before they begin": [
        (WorkerPool, "start", 1, lambda pool: pool.workers[1].handle),
        (Learners, "weights", 1, lambda learners: learners.handles[0]),
    ],
}


@pytest.mark.parametrize("who", SEVERAL)
def test_a_run_that_lost_several_equals_one_that_lost_nobody(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    who: str,
) -> None:
    settings = RUN | ON_POLICY | {"num_learners": 1}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "sound", **settings)
    killed = [kill_before(monkeypatch, *what) for what in SEVERAL[who]]
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "faulty", **settings)
    assert [len(pids) for pids in killed] == [1, 1]
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (2, 0)
    sound, faulty = load_commit(tmp_path / "sound"), load_commit(tmp_path / "faulty")
    assert {name: hash_state(part) for name, part in faulty.items()} == {
        name: hash_state(part) for name, part in sound.items()
    }
    assert multiprocessing.active_children() == []


def test_the_death_of_the_fork_server_is_the_death_of_the_roles(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """R12: the run goes on with new processes of a new fork server, and with the same bits."""
    settings = RUN | ON_POLICY | {"num_learners": 1}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "sound", **settings)
    iterate, iterations = Supervisor.iterate, itertools.count(1)

    def iterate_and_kill(self: Supervisor) -> Any:
        if next(iterations) == 3:
            os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        yield from iterate(self)

    monkeypatch.setattr(Supervisor, "iterate", iterate_and_kill)
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "faulty", **settings)
    assert run.summary["stop_reason"] == "max_steps" and run.summary["restarts"] >= 1
    sound, faulty = load_commit(tmp_path / "sound"), load_commit(tmp_path / "faulty")
    assert {name: hash_state(part) for name, part in faulty.items()} == {
        name: hash_state(part) for name, part in sound.items()
    }


def test_a_learner_that_dies_while_a_run_is_resumed(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    settings = RUN | ON_POLICY | {"num_learners": 1}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "whole", **settings)
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "half", **settings | {"max_steps": 160})
    kill_at(monkeypatch, "load_state_dict", 1, 0)
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "half", resume=True, **settings)
    assert run.summary["restarts"] == 1
    whole, half = load_commit(tmp_path / "whole"), load_commit(tmp_path / "half")
    for part in ("learner", "group0", "group1"):  # the one that was interrupted has been judged once more
        assert hash_state(half[part]) == hash_state(whole[part])


def test_a_target_that_was_reached_must_be_reached_again_after_a_loss(
    run_quietly: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = RUN | ON_POLICY | {"num_learners": 1, "target_return": 1.0, "checkpoint": {"interval": 10**6}}
    # Nothing but the target ends it: how soon an evaluation is heard depends on the machine.
    settings |= {"max_steps": 10**9, "eval": {"interval": 80, "episodes": 2, "max_episode_steps": 40}}
    killed = kill_at(monkeypatch, "request_states", 2, 0)  # the last commit; there is no other but the first
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, **settings)
    assert len(killed) == 1 and run.summary["stop_reason"] == "target_return"
    assert run.summary["env_steps"] >= run.summary["best_step"] > 0 and run.best_return >= 1.0

"""A rank that dies, hangs or fails is noticed at once, whatever the others are doing; all can begin anew."""

from __future__ import annotations

import multiprocessing
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

from elegantrl.agents.averaging import Ranks
from elegantrl.agents.ppo import PPOConfig
from elegantrl.errors import NonFinite, PeersLost, RoleDied, RoleTimedOut
from elegantrl.execute.base import Executor
from elegantrl.execute.process import ProcessExecutor
from elegantrl.train import rendezvous
from elegantrl.train.learner import Learner
from elegantrl.train.learners import Learners
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Metrics, Rollout

CPU = torch.device("cpu")
SPEC = EnvSpec("Made", (3,), ActionSpec("discrete", 2), 4)
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

    def join(self, path: str) -> None:
        if self.is_due("meeting"):
            self.die()
        super().join(path)

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
    executor = ProcessExecutor()
    yield executor
    executor.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("fate", ["before", "inside", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_noticed_and_all_begin_anew(
    executor: Executor, tmp_path: Path, hash_state: Callable[[Any], str], fate: str, rank: int
) -> None:
    trigger = tmp_path / "trigger"
    learners = Learners(executor, partial(build, fate, rank, trigger, 2), 2, 2, timeout=600.0)
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


def test_a_rank_that_hangs_is_noticed(executor: Executor, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    learners = Learners(executor, partial(build, "hang", 1, trigger, 2), 2, 2, timeout=600.0)
    learners.timeout = 3.0
    trigger.touch()
    start = time.monotonic()
    with pytest.raises(RoleTimedOut, match="no answer to report"):
        learners.update(fragments_of(0))
    assert time.monotonic() - start < PROMPTLY
    trigger.unlink()
    learners.timeout = 600.0
    learners.restart()
    learners.update(fragments_of(0))


def test_an_error_of_one_rank_does_not_wait_for_the_others(executor: Executor, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    learners = Learners(executor, partial(build, "raise", 1, trigger, 2), 2, 2, timeout=600.0)
    trigger.touch()
    start = time.monotonic()
    with pytest.raises(NonFinite, match="made up"):  # rank 0 is stuck by now
        learners.update(fragments_of(0))
    assert time.monotonic() - start < PROMPTLY


def test_a_rank_that_dies_before_all_have_met(executor: Executor, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    trigger.touch()
    make = partial(build, "meeting", 1, trigger, 2)
    with pytest.raises(RoleDied, match="died of SIGKILL before it answered join"):
        Learners(executor, make, 2, 2, timeout=600.0)
    assert multiprocessing.active_children() == []
    Learners(executor, make, 2, 2, timeout=600.0).update(fragments_of(0))


def test_whoever_waits_for_a_silent_peer_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any help from whoever started the ranks."""
    monkeypatch.setattr(rendezvous, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(PeersLost, match=r"learner 0 of 2 waited 0\.5 s in vain for the others"):
        rendezvous.meet(str(tmp_path / "ranks"), 0, 2, CPU)


def test_a_broken_collective_says_who_lost_whom() -> None:
    class Broken:
        def allreduce(self, *_: Any) -> Any:
            raise RuntimeError("Connection closed\nby peer")

    ranks = Ranks(1, 3)
    ranks.group = Broken()
    with pytest.raises(PeersLost, match="learner 1 of 3 lost touch with the others: Connection closed by peer"):
        ranks.average(torch.ones(2))

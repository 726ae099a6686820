"""Commits in a thread: one at a time, and none that fails unseen."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from elegantrl.errors import Diverged
from elegantrl.runtime.committer import Committer
from elegantrl.runtime.restarts import FaultCounts
from elegantrl.store.commits import Store

SECONDS = 120.0
"""The most that anything may take on a busy machine; nothing waits for it to pass."""


class SlowStore(Store):
    """A store whose commits wait until they are let go."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.started: list[int] = []
        self.ended: list[int] = []
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def commit(self, step: int, *args: Any) -> Any:
        assert self.started == self.ended, "two commits are written at the same time"
        self.started.append(step)
        self.begun.release()
        assert self.may_end.acquire(timeout=SECONDS)
        self.ended.append(step)


def test_at_most_one_commit_is_written_at_a_time(tmp_path: Path) -> None:
    store, said = SlowStore(tmp_path), list[str]()
    committer = Committer(store, FaultCounts(), said.append)
    committer.submit(1, {}, {})
    assert store.begun.acquire(timeout=SECONDS)
    committer.poll()  # does not wait
    assert (store.started, store.ended) == ([1], [])
    second = threading.Thread(target=committer.submit, args=(2, {}, {}))
    second.start()
    second.join(0.05)
    assert second.is_alive() and store.started == [1]  # the caller waits, so that memory holds one copy of its state
    store.may_end.release()
    second.join(SECONDS)
    assert not second.is_alive() and store.begun.acquire(timeout=SECONDS)
    assert (store.started, store.ended) == ([1, 2], [1])
    store.may_end.release()
    committer.wait()
    assert store.ended == [1, 2] and said == []


def test_what_a_commit_raises_is_raised_where_the_run_trains(tmp_path: Path) -> None:
    committer = Committer(Store(tmp_path), FaultCounts(), lambda text: None)
    committer.submit(1, {"learner": {"w": [torch.tensor([0.0, float("nan")])]}}, {})
    with pytest.raises(Diverged, match=r"learner\.w\.0 has a NaN or an infinity at step 1"):
        committer.wait()
    committer.wait()  # it is told once
    assert Store(tmp_path).ids() == []

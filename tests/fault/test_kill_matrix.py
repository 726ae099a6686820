"""Every role killed in every phase of a run, in processes or all in one: it ends with the bits of a run that nobody
disturbed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import select
import signal
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from elegantrl.execute.process import ProcessExecutor, ProcessHandle
from elegantrl.runtime import build as build_module
from elegantrl.runtime import run as run_module
from elegantrl.runtime.committer import Committer
from elegantrl.runtime.evaluation import EvaluatorClient
from elegantrl.runtime.learners import Learners
from elegantrl.runtime.run import RunResult
from elegantrl.runtime.supervisor import Supervisor
from elegantrl.runtime.workers import WorkerPool
from elegantrl.store import commits as store_module

Run = Callable[..., RunResult]
Hashes = dict[str, str]
HashCommit = Callable[[Path], Hashes]

ROLES = (
    ("inline", "driver"),
    ("ranks", "rank"),
    *(("process", role) for role in ("worker", "learner", "evaluator", "driver")),
)
"""Layouts, and who is killed in them; a rank is the second of two learners."""
COMMIT = ("begin", "after_file", "before_manifest", "before_rename", "after_rename", "prune")
PHASES = ("start", "sample", "update", "evaluate", *(f"commit.{point}" for point in COMMIT), "shutdown")

CHILDREN: dict[str, tuple[str, ...]] = {
    "inline": (),
    "process": ("worker", "worker", "learner", "evaluator"),
    "ranks": ("worker", "worker", "learner", "rank", "evaluator"),
}
"""For each layout, the order in which a run starts its processes."""

SETTINGS: dict[str, Any] = {
    "seed": 5, "num_envs": 4, "num_groups": 2,
    "max_steps": 240, "hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 1,
    "eval": {"interval": 160, "episodes": 2, "max_episode_steps": 40}, "checkpoint": {"interval": 80},
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline"},
    "process": {"executor": "process", "num_workers": 2, "num_learners": 1},
    "ranks": {"executor": "process", "num_workers": 2, "num_learners": 2},
}
FRAGMENT, ITERATION = 40, 80
MOST_LOST = {"worker": FRAGMENT, "learner": 2 * ITERATION, "rank": 2 * ITERATION, "evaluator": 0}
GONE_SECONDS = 20.0


def cells() -> Iterator[Any]:
    """All cells occur: a role that does nothing in a phase can be killed in it too, and is missed later."""
    for phase in PHASES:
        for layout, role in ROLES:
            # While the files of a commit are written other roles have given what it needs: one point stands for all.
            is_alike = role != "driver" and phase.startswith("commit.") and phase != "commit.before_manifest"
            marks = [pytest.mark.slow] if is_alike else []
            yield pytest.param(layout, role, phase, id=f"{layout}-{role}-{phase}", marks=marks)


class Killer:
    """Strikes once, in the given phase after the second update; at the start when a process has just begun to live."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, layout: str, role: str, phase: str):
        self.layout, self.role, self.phase = layout, role, phase
        self.supervisor: Supervisor | None = None
        self.handles: list[ProcessHandle] = []
        """All processes of the run, in the order of their births."""
        self.num_updates = self.num_kills = 0
        self.report: Callable[[list[int]], None] = lambda pids: None
        killer = self

        class Watched(Supervisor):
            def __init__(self, *args: Any, **kwargs: Any):
                killer.supervisor = self
                super().__init__(*args, **kwargs)
                killer.settled()

        monkeypatch.setattr(build_module, "Supervisor", Watched)
        self.wrap(monkeypatch, ProcessExecutor, "start_child", after=self.born)
        self.wrap(monkeypatch, WorkerPool, "take", before=lambda *_: self.enter("sample"))
        if layout == "inline":
            self.wrap(monkeypatch, Learners, "start_update", before=lambda *_: self.enter_update())
        else:
            self.wrap(monkeypatch, Learners, "start_update", after=lambda _: self.enter_update())
        self.wrap(monkeypatch, EvaluatorClient, "score", before=lambda *_: self.enter("evaluate"))
        self.wrap(monkeypatch, run_module, "finish", before=lambda *_: self.enter("shutdown"))
        monkeypatch.setattr(store_module, "failpoint", self.enter)
        # The run waits for each commit: a kill within one then strikes at the same step on any machine, and the handle
        # of the killed process is not closed by the run while this class waits for it.
        submit = Committer.submit

        def submit_and_wait(committer: Committer, *args: Any) -> None:
            submit(committer, *args)
            committer.close()

        monkeypatch.setattr(Committer, "submit", submit_and_wait)

    def wrap(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        before: Callable[..., None] = lambda *_: None,
        after: Callable[[Any], None] = lambda value: None,
    ) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            before(*args)
            value = original(*args)
            after(value)
            return value

        monkeypatch.setattr(owner, name, wrapped)

    def born(self, handle: ProcessHandle) -> None:
        self.handles.append(handle)
        names = CHILDREN[self.layout]
        # A driver that starts dies when all its processes live and none of them has been heard.
        number = len(names) - 1 if self.role == "driver" else names.index(self.role)
        if self.phase == "start" and len(self.handles) == number + 1:
            self.kill(handle)

    def settled(self) -> None:
        if self.phase == "start" and self.layout == "inline":
            self.kill(None)

    def enter_update(self) -> None:
        self.enter("update")
        self.num_updates += 1

    def enter(self, phase: str) -> None:
        if phase == self.phase and self.num_updates >= 2 and self.num_kills == 0:
            self.kill(self.victim())

    def victim(self) -> Any:
        assert self.supervisor is not None
        pool, learners = self.supervisor.pool, self.supervisor.learners
        first, last = learners.handles[0], learners.handles[-1]
        evaluator = self.supervisor.evaluator.handle
        victims = {"worker": pool.workers[0].handle, "learner": first, "rank": last, "evaluator": evaluator}
        return victims.get(self.role)

    def kill(self, handle: Any) -> None:
        self.num_kills += 1
        if self.role == "driver":
            self.report([handle.process.pid for handle in self.handles])
            os.kill(os.getpid(), signal.SIGKILL)
        handle.process.kill()
        connection.wait([handle.process.sentinel])  # it is dead before anything else happens


SOUND: dict[str, Hashes] = {}
"""The parts of the last commit of a run in processes in which nobody is killed, made once; with two learners they are
others, and inline the same."""


@pytest.fixture
def hash_commit(load_commit: Callable[[Path], dict[str, Any]], hash_state: Callable[[Any], str]) -> HashCommit:
    return lambda folder: {part: hash_state(state) for part, state in load_commit(folder).items()}


def sound(layout: str) -> str:
    return "ranks" if layout == "ranks" else "process"


@pytest.fixture
def run(run_quietly: Run, hash_commit: HashCommit, tmp_path: Path, layout: str) -> Run:
    """One and the same run; made without a kill before it is made with one."""
    run = partial(run_quietly, "ppo", "CartPole-v1", **SETTINGS)
    if sound(layout) not in SOUND:
        assert run(run_dir=tmp_path / "sound", **LAYOUTS[sound(layout)]).summary["restarts"] == 0
        SOUND[sound(layout)] = hash_commit(tmp_path / "sound")
    return partial(run, **LAYOUTS[layout])


@pytest.mark.parametrize(("layout", "role", "phase"), cells())
def test_a_run_survives_its_roles(
    run: Run,
    hash_commit: HashCommit,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    layout: str,
    role: str,
    phase: str,
) -> None:
    folder = tmp_path / "run"
    if role == "driver":
        with monkeypatch.context() as inner:
            pids = die_in_child(Killer(inner, layout, role, phase), partial(run, run_dir=folder))
        assert len(pids) == len(CHILDREN[layout])
        wait_until_gone(pids)
        # What died before it had written anything begins anew.
        summary = run(run_dir=folder, resume=phase != "start").summary
        assert summary["restarts"] == summary["steps_lost"] == 0
    else:
        with monkeypatch.context() as inner:
            killer = Killer(inner, layout, role, phase)
            summary = run(run_dir=folder).summary
        assert killer.num_kills == 1
        assert summary["restarts"] == (phase != "shutdown")  # when all is written nobody is missed
        assert summary["steps_lost"] <= MOST_LOST[role]
        assert summary["episodes_lost"] == 0
    assert hash_commit(folder) == SOUND[sound(layout)]
    assert not list(folder.rglob(".tmp-*"))
    assert multiprocessing.active_children() == []


def die_in_child(killer: Killer, work: Callable[[], object]) -> list[int]:
    """Run ``work`` in a fork of this process, which is killed; the processes that it had started."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # The fork server is no child of this process, which may use it all the same.
            multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
            killer.report = lambda pids: os.write(writer, " ".join(map(str, pids)).encode())
            work()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        pids = [int(word) for word in pipe.read().split()]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return pids


def wait_until_gone(pids: list[int]) -> None:
    """Return when none of these processes runs any more; they are given some seconds on a busy machine."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        gone = select.poll()
        gone.register(fd, select.POLLIN)
        assert gone.poll(GONE_SECONDS * 1000), f"{pid} outlived its parent"
        os.close(fd)

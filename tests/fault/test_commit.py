"""A commit under kill -9 at every phase, a full disk, and a second writer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from elegantrl import failpoints
from elegantrl.errors import ConfigError, StorageError
from elegantrl.store.commits import Store
from elegantrl.store.lock import FolderLock

POINTS = [
    "commit.begin",
    "commit.after_file",
    "commit.before_manifest",
    "commit.before_rename",
    "commit.after_rename",
    "commit.prune",
]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


@pytest.fixture(autouse=True)
def close_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests may drop a locked store, as a process that dies does."""
    opened: list[FolderLock] = []
    acquire = FolderLock.acquire

    def acquire_and_remember(lock: FolderLock) -> None:
        opened.append(lock)
        acquire(lock)

    monkeypatch.setattr(FolderLock, "acquire", acquire_and_remember)
    yield
    for lock in opened:
        lock.release()


def write(store: Store, step: int) -> None:
    store.commit(step, {"learner": {"x": torch.full((8,), float(step))}, "workers": {"step": step}}, {})


def die_in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process; return its wait status. Forking is much faster than importing torch again."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def tmp_files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".tmp-*")]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("earlier", [0, 1, 2], ids=["first", "second", "with_prune"])
def test_kill9_never_costs_an_acknowledged_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, earlier: int
) -> None:
    store = Store(tmp_path, keep=2)
    for step in range(1, earlier + 1):
        write(store, step)
    store.close()

    def commit_and_die() -> None:
        failpoints.ARMED[point] = "kill9"
        write(Store(tmp_path, keep=2), earlier + 1)

    status = die_in_child(commit_and_die)
    reached = point != "commit.prune" or earlier == 2
    assert (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL) == reached

    # A reader sees the last acknowledged commit, or the new one if it had its name already.
    published = point in ("commit.after_rename", "commit.prune")
    latest = Store(tmp_path).latest_valid()
    assert (0 if latest is None else latest.step) == earlier + published
    if latest is not None:
        assert latest.load("learner")["x"].tolist() == [float(latest.step)] * 8

    # The next start finds the lock free, removes the half commit and goes on.
    assert bool(tmp_files(tmp_path)) == (reached and point != "commit.after_rename")
    store = Store(tmp_path, keep=2)
    store.lock()
    assert tmp_files(tmp_path) == []
    write(store, earlier + 2)
    latest = store.latest_valid()
    assert latest is not None and latest.step == earlier + 2 and store.skipped == []


def test_kill9_at_any_moment_of_a_series(tmp_path: Path) -> None:
    """Kill a process right after it acknowledged, while it is busy with its next commits."""
    done = 0
    for round_ in range(20):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            store = Store(tmp_path)
            for step in range(done + 1, done + 1000):
                write(store, step)
                os.write(writer, step.to_bytes(4, "little"))
            os._exit(0)
        os.close(writer)
        for _ in range(round_ % 4 + 1):
            done = int.from_bytes(os.read(reader, 4), "little")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while data := os.read(reader, 4):
            done = int.from_bytes(data, "little")
        os.close(reader)
        latest = Store(tmp_path).latest_valid()
        assert latest is not None and latest.step >= done
        assert latest.load("workers") == {"step": latest.step}
        done = latest.step
    Store(tmp_path).lock()
    assert tmp_files(tmp_path) == []


def test_kill9_while_a_pruned_commit_is_half_removed(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=1)
    write(store, 1)
    store.close()

    def prune_and_die() -> None:
        def half(path: Path, ignore_errors: bool) -> None:
            if path.exists():
                (path / "manifest.json").unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        shutil.rmtree = half  # type: ignore[assignment]
        write(Store(tmp_path, keep=1), 2)

    assert os.WIFSIGNALED(die_in_child(prune_and_die))
    assert len(tmp_files(tmp_path)) == 1
    store = Store(tmp_path, keep=1)
    assert store.ids() == ["c-000000000002"], "what is left of the old commit must not look like one"
    store.lock()
    assert tmp_files(tmp_path) == []


def test_kill9_by_environment_variable(tmp_path: Path) -> None:
    script = (
        "import sys; from elegantrl.store.commits import Store; store = Store(sys.argv[1]);"
        "print(store.commit(7, {'part': {'a': 1}}, {}))"
    )
    env = {**os.environ, "ELEGANTRL_FAILPOINTS": "commit.after_rename=kill9", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    result = subprocess.run([sys.executable, "-c", script, tmp_path], env=env, capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert result.stdout == ""
    latest = Store(tmp_path).latest_valid()
    assert latest is not None and latest.load("part") == {"a": 1}


@pytest.mark.parametrize("point", POINTS[:4])
def test_a_full_disk_leaves_the_old_commits_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    store = Store(tmp_path)
    write(store, 1)
    monkeypatch.setitem(failpoints.ARMED, point, "enospc")
    big = {"buffer": {"x": torch.zeros(1_000_000)}}
    message = r"^commit c-000000000002 failed in .*: No space left on device \(need 4\.0 MB, free \d+\.\d MB\)$"
    with pytest.raises(StorageError, match=message):
        store.commit(2, big, {})
    assert os.listdir(tmp_path / "commits") == ["c-000000000001"]
    latest = store.latest_valid()
    assert latest is not None and latest.step == 1
    monkeypatch.delitem(failpoints.ARMED, point)
    store.commit(3, big, {})
    assert store.ids() == ["c-000000000001", "c-000000000003"]


def test_a_commit_survives_that_old_ones_cannot_be_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path, keep=1)
    write(store, 1)
    monkeypatch.setitem(failpoints.ARMED, "commit.prune", "enospc")
    write(store, 2)
    assert "cannot remove old commit c-000000000001: No space left" in caplog.text
    latest = store.latest_valid()
    assert latest is not None and latest.step == 2
    assert tmp_files(tmp_path) == []


def test_a_bug_while_committing_leaves_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setitem(failpoints.ARMED, "commit.before_rename", "raise")
    with pytest.raises(RuntimeError, match=r"failpoint commit\.before_rename"):
        write(store, 1)
    assert os.listdir(tmp_path / "commits") == []


def test_a_disk_that_fills_up_under_safetensors_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(tensors: object, path: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write(Store(tmp_path), 1)
    assert os.listdir(tmp_path / "commits") == []


def test_two_processes_cannot_write_and_a_dead_one_holds_no_lock(tmp_path: Path) -> None:
    ready, ready_writer = os.pipe()
    stop_reader, stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = Store(tmp_path)
        store.lock()
        os.write(ready_writer, b"x")
        os.read(stop_reader, 1)  # holds the lock until it is killed
        os._exit(0)
    assert os.read(ready, 1) == b"x"
    with pytest.raises(ConfigError, match=f"^run folder {tmp_path} is in use by pid {pid}@.*$"):
        write(Store(tmp_path), 1)
    assert not list((tmp_path / "commits").iterdir())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    write(Store(tmp_path), 1)
    assert Store(tmp_path).ids() == ["c-000000000001"]
    for fd in (ready, ready_writer, stop_reader, stop):
        os.close(fd)

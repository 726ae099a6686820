"""Ctrl-C, SIGTERM and kill -9 of a real process: what is committed stays, and the run goes on from there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from elegantrl.cli.main import main
from elegantrl.report import plot as plot_module
from elegantrl.runtime.signals import stop_on_signals
from elegantrl.store.commits import Store
from elegantrl.store.loggers import LOGGERS

LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]
Process = subprocess.Popen[str]
Start = Callable[..., Process]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")

SECONDS = 120.0
"""The most that anything may take on a busy machine; nothing waits for it to pass."""
GONE_SECONDS = 20.0
"""How long after a run its last process may live."""
FLAGS: tuple[Any, ...] = ("--num-envs", 4, "--agent.hidden", 8, "--agent.num-epochs", 1, "--seed", 3)
FLAGS += ("--eval.interval", 500, "--eval.episodes", 2, "--target-return", "inf")


def words(env: str, run_dir: Path, max_steps: int, *more: Any) -> list[str]:
    return [str(w) for w in ("train", "ppo", env, "--run-dir", run_dir, "--max-steps", max_steps, *FLAGS, *more)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begin a run that only a signal ends, in a process of its own."""
    processes: list[Process] = []

    def begin(env: str, run_dir: Path, *more: Any) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-m", "elegantrl.cli.main", *words(env, run_dir, 10**9, *more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def read_until(process: Process, marker: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if marker in line:
            return seen
    raise AssertionError(f"{marker!r} never came: {seen}{process.stderr and process.stderr.read()}")


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path, max_steps: int, *more: Any
) -> str:
    """Continue in this process, and say what was printed."""
    monkeypatch.setattr(plot_module, "plot_run", lambda *_: None)
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: Mock())
    assert main(words("CartPole-v1", run_dir, max_steps, *more)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
        (signal.SIGTERM, 143, "terminated"),
    ],
)
def test_a_signal_ends_a_run_after_a_commit(
    start: Start,
    load_commit: LoadCommit,
    hash_state: HashState,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    reason: str,
) -> None:
    run_dir = tmp_path / "run"
    process = start("CartPole-v1", run_dir, "--checkpoint.interval", 10**9)
    read_until(process, "evaluation")
    assert Store(run_dir).ids() == []
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (code, "")
    assert reason in out and f"continue it     the same command with --run-dir {run_dir} --resume" in out

    summary = json.loads((run_dir / "summary.json").read_text())
    commit = Store(run_dir).latest_valid()
    assert commit is not None and commit.step == summary["env_steps"] > 0
    assert summary["stop_reason"] == reason
    weights = torch.load(run_dir / "actor.pth", weights_only=True)
    assert weights and all(bool(w.isfinite().all()) for w in weights.values())
    assert not list(run_dir.rglob(".tmp-*"))

    steps = commit.step + 512
    assert f"resumed {commit.id}" in resume(monkeypatch, capsys, run_dir, steps, "--resume")
    resume(monkeypatch, capsys, tmp_path / "whole", steps)
    for part in ("learner", "group0"):
        assert hash_state(load_commit(run_dir)[part]) == hash_state(load_commit(tmp_path / "whole")[part])


def test_kill_9(
    start: Start,
    load_commit: LoadCommit,
    hash_state: HashState,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    process = start("CartPole-v1", run_dir, "--checkpoint.interval", 256)
    wait_for(lambda: len(Store(run_dir).ids()) >= 2)
    process.kill()
    process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGKILL
    commit = Store(run_dir).latest_valid()
    assert commit is not None
    steps = commit.step + 512
    out = resume(monkeypatch, capsys, run_dir, steps, "--resume", "--checkpoint.interval", 256)
    assert f"resumed {commit.id}" in out and "skipped" not in out
    resume(monkeypatch, capsys, tmp_path / "whole", steps)
    for part in ("learner", "group0"):
        assert hash_state(load_commit(run_dir)[part]) == hash_state(load_commit(tmp_path / "whole")[part])


SIGNED_ENV = """
import os, pathlib
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Signed(CartPoleEnv):
    def __init__(self):
        super().__init__()
        (pathlib.Path(__file__).parent / "pids" / str(os.getpid())).touch()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_process_outlives_its_run(start: Start, tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "signed_env.py").write_text(SIGNED_ENV)
    (tmp_path / "pids").mkdir()
    shared = set(os.listdir("/dev/shm"))
    run_dir = tmp_path / "run"
    process = start("signed_env:Signed", run_dir, "--executor", "process", "--num-workers", 2)
    read_until(process, "evaluation")
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(pids) == 3 and process.pid not in pids and all(map(is_running, pids))  # two workers and the evaluator
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (code, "")
    wait_for(lambda: not any(map(is_running, pids)))
    assert set(os.listdir("/dev/shm")) <= shared
    if number != signal.SIGKILL:
        commit = Store(run_dir).latest_valid()
        assert commit is not None
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["env_steps"] == commit.step > 0 and summary["restarts"] == 0


def marked(mark: str) -> dict[int, str]:
    """The maps of all processes with this in their environment, which every descendant inherits, by pid."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_text(errors="replace"):
                found[int(folder.name)] = (folder / "maps").read_text()
        except OSError:  # another user's, or gone meanwhile
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "number", [*(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL]
)
def test_nothing_of_a_run_is_left_soon_after_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    """Neither roles nor the helpers of multiprocessing, no memory that they share and no temporary folders (R16)."""
    mark = f"of-{uuid.uuid4().hex}"
    monkeypatch.setenv("ELEGANTRL_TEST_MARK", mark)
    temporary = tempfile.mkdtemp()  # not below tmp_path: the path of a socket has at most 107 characters
    monkeypatch.setenv("TMPDIR", temporary)
    shared = set(os.listdir("/dev/shm"))
    roles = ("--executor", "process", "--num-workers", 2, "--num-learners", 1)
    process = start("CartPole-v1", tmp_path / "run", *roles)
    read_until(process, "evaluation")
    found = marked(mark)
    # Two workers, a learner and an evaluator, their parent, the server that forks them, and multiprocessing's tracker.
    assert len(found) == 7
    assert sum("memfd:elegantrl" in maps for maps in found.values()) >= 4
    assert any(name.startswith("pymp-") for name in os.listdir(temporary))
    process.send_signal(number)
    process.wait(timeout=SECONDS)
    deadline = time.monotonic() + GONE_SECONDS
    while left := marked(mark):
        assert time.monotonic() < deadline, f"{len(left)} processes are left"
        time.sleep(0.01)
    assert set(os.listdir("/dev/shm")) <= shared  # others may have come to their end meanwhile
    assert not any(name.startswith("pymp-") for name in os.listdir(temporary))
    shutil.rmtree(temporary)


def test_a_closed_terminal_ends_a_run_after_a_commit(tmp_path: Path) -> None:
    """The hang-up asks for a stop, and from then on nothing can be printed: neither the bar nor the summary."""
    ours, theirs = os.openpty()
    run_dir = tmp_path / "run"
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "elegantrl.cli.main", *words("CartPole-v1", run_dir, 10**9)],
            stdin=theirs,
            stdout=theirs,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the terminal is this session's, as in a window
        )
    os.close(theirs)
    try:
        seen = b""
        while b"evaluation" not in seen:
            seen += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(SECONDS) == 143
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "stderr").read_text() == ""
    commit, summary = Store(run_dir).latest_valid(), json.loads((run_dir / "summary.json").read_text())
    assert commit is not None and commit.step == summary["env_steps"] > 0
    assert summary["stop_reason"] == "terminated"


def test_two_processes_on_one_folder(start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start("CartPole-v1", run_dir)
    read_until(process, "evaluation")
    assert main(words("CartPole-v1", run_dir, 10**9)) == 2
    assert f"elegantrl: {run_dir} already holds a run" in capsys.readouterr().err
    assert main(words("CartPole-v1", run_dir, 10**9, "--resume")) == 2
    assert f"elegantrl: run folder {run_dir} is in use by pid {process.pid}@" in capsys.readouterr().err
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 143


SLOW_ENV = """
import time
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

def wait():
    print("waiting", flush=True)
    while True:
        time.sleep(0.1)

class SlowToMake(CartPoleEnv):
    def __init__(self):
        wait()

class Stuck(CartPoleEnv):
    total = 0
    def step(self, action):
        self.total += 1
        if self.total > 50:
            wait()
        return super().step(action)
"""


def is_caught(process: Process, number: int) -> bool:
    """Whether a handler of the process's own receives a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(mask & 1 << (number - 1))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_second_ctrl_c_does_not_wait(start: Start, tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    process = start("slow_env:Stuck", tmp_path / "run", "--agent.horizon", 8, "--checkpoint.interval", 64)
    read_until(process, "waiting")
    wait_for(lambda: Store(tmp_path / "run").ids())  # it is written beside the environment that is stuck
    assert is_caught(process, signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: not is_caught(process, signal.SIGTERM))
    assert process.poll() is None  # the environment is stuck, so the run cannot end by itself
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert err == "elegantrl: interrupted at once; a run folder keeps its last commit\n"
    commit = Store(tmp_path / "run").latest_valid()
    assert commit is not None and commit.step > 0


def test_ctrl_c_before_the_run_began(start: Start, tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    process = start("slow_env:SlowToMake", tmp_path / "run")
    read_until(process, "waiting")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert err == "elegantrl: interrupted at once; a run folder keeps its last commit\n"
    assert not (tmp_path / "run").exists()


def test_nohup_is_respected() -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(lambda _: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)

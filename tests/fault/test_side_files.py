"""Files that a run can do without: when they cannot be written or read, a run says so once and goes on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elegantrl.errors import ConfigError
from elegantrl.runtime.run import RunResult
from elegantrl.store import files as files_module
from elegantrl.store.best import ACTOR_FILE, BEST_FILE
from elegantrl.store.commits import Store
from elegantrl.store.loggers import LOGGERS, LoggedRun, find_logger
from elegantrl.store.runlog import RunLog, read_metrics
from elegantrl.store.side_files import SideFiles

Run = Callable[..., RunResult]
SHORT: dict[str, Any] = {"hidden": [4], "horizon": 8, "max_steps": 64, "eval": {"episodes": 1, "interval": 16}}


class Messages:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_a_full_disk_costs_side_files_and_not_the_run(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R7: a full disk ended the run at once through recorder, best, metrics or TensorBoard files.
    write_file = files_module.write_file

    def write_commits_alone(path: Path, data: bytes) -> None:
        if "commits" not in path.parts and path.parent.joinpath("config.yaml").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(path, data)

    monkeypatch.setattr(files_module, "write_file", write_commits_alone)
    monkeypatch.setattr(RunLog, "_append", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    logger = Mock()
    logger.log.side_effect = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: logger)
    display = Messages()
    result = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", display=display, **SHORT)
    assert result.summary["stop_reason"] == "max_steps"
    names = [text.split(" cannot be written")[0] for text in display.messages if "cannot be written" in text]
    assert sorted(names) == sorted([BEST_FILE, ACTOR_FILE, "metrics.jsonl", "recorder.npy", "summary.json",
                                    "tensorboard"])  # fmt: skip
    assert Store(tmp_path / "run").latest_valid() is not None


def test_removing_the_event_files_ends_no_run(tmp_path: Path) -> None:
    # R7: deleting tensorboard/ ended the run with a traceback.
    messages: list[str] = []
    log = RunLog(tmp_path, resume_step=0, side=SideFiles(messages.append))
    for step in range(1, 200):
        log.log({"loss": 1.0}, step)
        if step % 20 == 0:
            shutil.rmtree(tmp_path / "tensorboard")
            log.record_evaluation(step, 1.0, 2.0, 3.0, 4.0, 5.0)
    log.rewind(100)  # opens it anew
    log.log({"loss": 1.0}, 101)
    log.close()
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [*range(1, 102)]
    assert messages == []
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [101]  # the folder went away after step 180 too
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").touch()
    log.log({"loss": 1.0}, 102)
    log.log({"loss": 1.0}, 103)
    assert len(messages) == 1 and messages[0].startswith("tensorboard cannot be written")


def test_a_half_written_row_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    log = RunLog(tmp_path, resume_step=0, loggers=(), side=SideFiles(messages.append))
    log.log({"a": 1}, 1)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"a": 1, "env_')
    log._torn = True  # as a write that took a part leaves it
    log.log({"a": 2}, 2)
    log.close()
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize("kind", ["garbage", "header", "object", "huge", "fifo", "folder", "empty"])
def test_a_damaged_recorder_stops_no_resume(run_quietly: Run, tmp_path: Path, kind: str) -> None:
    # R16: a damaged recorder.npy stopped a resume whose commits were good.
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, **SHORT)
    path = tmp_path / "recorder.npy"
    good = path.read_bytes()
    path.unlink()
    if kind == "garbage":
        path.write_bytes(b"\x93NUMPY" + bytes(range(256)))
    elif kind == "header":
        path.write_bytes(good.replace(b"(4, 6)", b"(2**60, 6)").replace(b"(5, 6)", b"(2**60, 6)"))
    elif kind == "object":
        np.save(path, np.array([{}]), allow_pickle=True)
    elif kind == "huge":
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 6), }".ljust(117) + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
    result = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, resume=True, **(SHORT | {"max_steps": 96}))
    assert result.summary["env_steps"] == 96


DEEP = b"[" * 100_000 + b"]" * 100_000 + b"\n"


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 100, DEEP, b'{"env_steps": 1' + b"0" * 400 + b"}\n", b'{"env_steps": true}\n', None, "fifo", "folder"],
    ids=["bytes", "deep", "huge step", "bool", "zeros", "fifo", "folder"],
)
def test_damaged_metrics_stop_no_resume(run_quietly: Run, tmp_path: Path, content: bytes | str | None) -> None:
    # R16: a damaged metrics.jsonl stopped a resume whose commits were good.
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, **SHORT)
    path = tmp_path / "metrics.jsonl"
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "fifo":
        os.mkfifo(path)
    elif content == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(30 << 30)  # sparse: costs no disk
    result = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, resume=True, **(SHORT | {"max_steps": 96}))
    assert result.summary["env_steps"] == 96
    assert max(row["env_steps"] for row in read_metrics(tmp_path)) == 96


def test_a_side_file_that_is_a_folder_is_reported_once(run_quietly: Run, tmp_path: Path) -> None:
    (tmp_path / "run" / BEST_FILE).mkdir(parents=True)
    display = Messages()
    result = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", display=display, **SHORT)
    assert result.summary["stop_reason"] == "max_steps"
    assert len([text for text in display.messages if text.startswith(BEST_FILE)]) == 1


# ---- loggers


class Recording:
    """A logger as a user may write one."""

    made: list[Recording]

    def __init__(self, run: LoggedRun) -> None:
        self.run, self.rows, self.closed = run, [], False  # type: ignore[var-annotated]
        Recording.made.append(self)

    def log(self, row: Any, step: int) -> None:
        self.rows.append((step, dict(row)))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_a_logger_of_ones_own_is_named_by_import_path(tmp_path: Path) -> None:
    Recording.made = []
    log = RunLog(tmp_path, resume_step=0, loggers=(f"{__name__}:Recording",), config={"agent": {"name": "ppo"}})
    log.log({"loss": float("nan"), "kind": "train"}, 7)
    log.close()
    [logger] = Recording.made
    assert logger.rows == [(7, {"loss": None, "kind": "train"})] and logger.closed
    assert logger.run == LoggedRun(tmp_path, 0, {"agent": {"name": "ppo"}})


@pytest.mark.parametrize("name", ["tensorbord", "none_such:logger", f"{__name__}:none_such"])
def test_an_unknown_logger_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="logger"):
        RunLog(tmp_path, resume_step=0, loggers=(name,))


def test_wandb_says_what_it_needs(run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'elegantrl\[wandb\]'"):
        run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", loggers=["wandb"], **SHORT)
    assert not (tmp_path / "run").exists()


def test_wandb_continues_the_run_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Mock()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: wandb)
    monkeypatch.setitem(__import__("sys").modules, "wandb", wandb)
    ids = []
    for resume_step in (0, 10):
        logger = find_logger("wandb")(LoggedRun(tmp_path, resume_step, {"a": 1}))
        logger.log({"loss": 1.5, "kind": "train", "none": None}, resume_step + 5)
        logger.close()
        ids.append(wandb.init.call_args.kwargs["id"])
        wandb.init.return_value.log.assert_called_with({"loss": 1.5, "env_steps": resume_step + 5})
    assert ids[0] == ids[1] and wandb.init.call_args.kwargs["resume"] == "allow"
    wandb.init.return_value.finish.assert_called()

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elegantrl.store.runlog import RECORDER_COLUMNS, RunLog, read_metrics


def write_rows(run_dir: Path, steps: list[int], resume_step: int = 0, tensorboard: bool = False) -> None:
    log = RunLog(run_dir, resume_step=resume_step, loggers=("tensorboard",) if tensorboard else ())
    for step in steps:
        log.log({"kind": "train", "loss/policy": step / 10}, step)
        log.record_evaluation(step, 1.0, 2.0, 3.0, 4.0, 5.0)
    log.close()


def test_rows_are_json_lines_and_are_on_disk_at_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path, resume_step=0, loggers=())
    log.log({"kind": "eval", "eval/mean": 1.5, "episodes": 3}, 100)
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"kind": "eval", "eval/mean": 1.5, "episodes": 3, "env_steps": 100}\n'
    )
    assert read_metrics(tmp_path) == [{"kind": "eval", "eval/mean": 1.5, "episodes": 3, "env_steps": 100}]
    log.close()


def test_what_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    log = RunLog(tmp_path, resume_step=0, loggers=())
    log.log({"a": math.nan, "b": math.inf, "c": 1.0}, 1)
    log.close()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {"a": None, "b": None, "c": 1.0, "env_steps": 1}


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("torn", [b'{"env_st', b'{"env_steps": 3}', b'{"a": 1}\n', b"[1]\n", b"\xff\n", b"\n"])
def test_a_torn_line_is_ignored_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: bytes) -> None:
    write_rows(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    with caplog.at_level(logging.WARNING):
        assert [row["env_steps"] for row in read_metrics(tmp_path)] == [1, 2]
    assert "line 3 is damaged" in caplog.text
    write_rows(tmp_path, [4], resume_step=2)
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [1, 2, 4]


def test_resume_drops_what_is_done_again(tmp_path: Path) -> None:
    write_rows(tmp_path, [10, 20, 30, 40])
    write_rows(tmp_path, [30, 50], resume_step=20)
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [10, 20, 30, 50]
    assert np.load(tmp_path / "recorder.npy")[:, 0].tolist() == [10, 20, 30, 50]
    write_rows(tmp_path, [5])
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [5]


def test_recorder_has_the_documented_columns(tmp_path: Path) -> None:
    log = RunLog(tmp_path, resume_step=0, loggers=())
    assert not (tmp_path / "recorder.npy").exists()
    log.record_evaluation(1000, 12.5, 3.0, 11.0, -0.25, 0.75)
    log.record_evaluation(2000, 13.5, math.nan, 12.0, -0.5, 0.5)
    log.close()
    rows = np.load(tmp_path / "recorder.npy", allow_pickle=False)
    assert RECORDER_COLUMNS == ("env_steps", "eval_mean", "eval_std", "explore_return", "actor_loss", "critic_loss")
    expected = [[1000, 12.5, 3.0, 11.0, -0.25, 0.75], [2000, 13.5, math.nan, 12.0, -0.5, 0.5]]
    np.testing.assert_array_equal(rows, expected)
    assert rows.dtype == np.float64


@pytest.mark.parametrize("content", [b"", b"junk", "object", "shape"])
def test_a_recorder_file_that_is_none_is_named_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str
) -> None:
    path = tmp_path / "recorder.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, np.array([{}], object) if content == "object" else np.zeros((2, 3)), allow_pickle=True)
    write_rows(tmp_path, [7])
    assert "recorder.npy is not a recorder file" in caplog.text
    assert np.load(path).shape == (1, 6)


def test_tensorboard_gets_the_numbers_and_no_doubled_part(tmp_path: Path) -> None:
    # Guards against: R16, TensorBoard files that nothing switches on.
    write_rows(tmp_path, [10, 20, 30], tensorboard=True)
    write_rows(tmp_path, [25, 35], resume_step=20, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss/policy"]
    assert [event.step for event in events.Scalars("loss/policy")] == [10, 20, 25, 35]
    assert [event.value for event in events.Scalars("loss/policy")] == pytest.approx([1.0, 2.0, 2.5, 3.5])


def test_tensorboard_is_imported_only_when_wanted(tmp_path: Path) -> None:
    script = (
        "import sys; from elegantrl.store.runlog import RunLog;"
        f"RunLog({str(tmp_path)!r}, resume_step=0, loggers=()).close(); print('tensorboard' in sys.modules)"
    )
    env = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
    assert not (tmp_path / "tensorboard").exists()

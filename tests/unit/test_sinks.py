"""Weights & Biases and MLflow as loggers of a run: what they have stored is read back."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import elegantrl
from elegantrl.errors import ConfigError
from elegantrl.runtime.run import RunResult
from elegantrl.store.loggers import EXTRAS, find_logger
from elegantrl.store.runlog import read_metrics

Run = Callable[..., RunResult]
ROOT = Path(elegantrl.__file__).parents[1]
# Both packages start threads and warn about other packages: they run in a process of their own.
TRAIN = """
import sys, elegantrl
logger, folder, steps, resume = sys.argv[1:]
elegantrl.train("ppo", "TensorCartPole", run_dir=folder, loggers=[logger], max_steps=int(steps), resume=resume == "yes",
                hidden=[8], horizon=16, num_envs=1, num_groups=1, target_return=float("inf"), executor="inline",
                eval={"interval": 32, "episodes": 2, "max_episode_steps": 20})
"""


def train(logger: str, folder: Path, steps: int, resume: str = "no", **variables: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", TRAIN, logger, str(folder), str(steps), resume]
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" not in done.stdout + done.stderr, done.stdout  # what a logger that fails is told by


def evaluations(folder: Path) -> list[tuple[int, float]]:
    """What the run itself has written."""
    rows: list[Any] = [row for row in read_metrics(folder) if row.get("kind") == "eval"]
    return [(int(row["env_steps"]), float(row["eval/mean"])) for row in rows]


@pytest.mark.parametrize("name", EXTRAS)
def test_without_its_package_a_sentence_says_what_to_install(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"the logger '{name}' needs {name}: pip install 'elegantrl\[{name}\]'"):
        find_logger(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_weights_and_biases_gets_all_rows_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    folder = tmp_path / "run"
    train("wandb", folder, 64, WANDB_MODE="offline", WANDB_SILENT="true")
    train("wandb", folder, 128, "yes", WANDB_MODE="offline", WANDB_SILENT="true")
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2  # two sittings of one run
    assert {file.stem for file in files} == {f"run-{(folder / 'wandb_id.txt').read_text()}"}
    found = [pair for file in files for pair in read_wandb(file)]
    assert found == evaluations(folder) and [step for step, _ in found] == [32, 64, 96, 128]


def read_wandb(file: Path) -> list[tuple[int, float]]:
    """Steps and means of the evaluations in a file of W&B."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for data in records_of(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if "eval/mean" in row:
            found.append((int(row["env_steps"]), float(row["eval/mean"])))
    return found


def records_of(data: bytes, block: int = 1 << 15) -> Iterator[bytes]:
    """The records of a log in the format of LevelDB: checksum (4 bytes), length (2) and kind (1) before each part, and
    no part crosses the end of a block; the file begins with 7 bytes of its own."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mlflow_gets_all_rows(tmp_path: Path) -> None:
    """Slow, since MLflow makes the tables of its database one migration after the other."""
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason="the extra mlflow is not installed")
    folder, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'mlflow.db'}"
    train("mlflow", folder, 64, MLFLOW_TRACKING_URI=uri)
    train("mlflow", folder, 128, "yes", MLFLOW_TRACKING_URI=uri)
    store = sqlite3.connect(tmp_path / "mlflow.db")
    (run,) = store.execute("select run_uuid, name, status from runs").fetchall()
    assert run == ((folder / "mlflow_id.txt").read_text(), "run", "FINISHED")
    settings = dict(store.execute("select key, value from params").fetchall())
    assert settings["agent.name"] == "ppo" and settings["train.seed"] == "0"
    found = store.execute("select step, value from metrics where key = 'eval/mean' order by step").fetchall()
    store.close()
    assert found == evaluations(folder) and [step for step, _ in found] == [32, 64, 96, 128]

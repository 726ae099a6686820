"""The numbers of a run, in three files for three readers.

metrics.jsonl    one JSON object per row, appended; what plots and programs read
recorder.npy     float64 [rows, 6], one row per evaluation; columns as in ``RECORDER_COLUMNS``
tensorboard/     the same rows as event files
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StorageError
from .files import write_atomic

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Row = dict[str, float | int | str | None]

RECORDER_COLUMNS = ("env_steps", "eval_mean", "eval_std", "explore_return", "actor_loss", "critic_loss")

log = logging.getLogger(__name__)


class RunLog:
    """Writes the numbers of one run.

    ``resume_step`` is the step training continues from, 0 for a new run: rows beyond it belong to work that was lost
    and is done again, so they are dropped and the curve has no doubled part.
    """

    def __init__(self, run_dir: str | Path, *, resume_step: int, tensorboard: bool = True) -> None:
        self.run_dir, self._tensorboard = Path(run_dir), tensorboard
        self._open(resume_step, resume_step)

    def rewind(self, step: int, unfinished: int | None = None) -> None:
        """Forget what was written after ``step``, and evaluations from step ``unfinished`` on: both come again."""
        self.close()
        self._open(step, step if unfinished is None else unfinished - 1)

    def _open(self, last_step: int, last_evaluation: int) -> None:
        self._evaluations = [row for row in _read_recorder(self.run_dir) if row[0] <= last_evaluation]
        path = self.run_dir / "metrics.jsonl"
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            _keep_rows(path, last_step, last_evaluation)
            self._file = path.open("ab")
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror}") from error
        self._writer = _open_tensorboard(self.run_dir, last_step) if self._tensorboard else None

    def log(self, row: Mapping[str, float | int | str], step: int) -> None:
        """Append ``row`` under ``env_steps=step``; a number that is not finite is written as null."""
        numbers = {key: value if isinstance(value, str) or math.isfinite(value) else None for key, value in row.items()}
        line = json.dumps({**numbers, "env_steps": step}) + "\n"
        try:
            self._file.write(line.encode("ascii"))
            self._file.flush()
        except OSError as error:
            raise StorageError(f"{self._file.name} cannot be written: {error.strerror}") from error
        if self._writer is not None:
            for key, value in numbers.items():
                if key != "env_steps" and isinstance(value, int | float):
                    self._writer.add_scalar(key, value, step)

    def record_evaluation(
        self, step: int, mean: float, std: float, explore_return: float, actor_loss: float, critic_loss: float
    ) -> None:
        """Append a row to ``recorder.npy``."""
        self._evaluations.append(np.array([step, mean, std, explore_return, actor_loss, critic_loss], np.float64))
        buffer = io.BytesIO()
        np.save(buffer, np.stack(self._evaluations), allow_pickle=False)
        write_atomic(self.run_dir / "recorder.npy", buffer.getvalue())
        if self._writer is not None:
            self._writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()  # type: ignore[no-untyped-call]


def read_metrics(run_dir: str | Path) -> list[Row]:
    """The rows of ``metrics.jsonl``, without lines that a crash cut short; empty if there is no file."""
    return [row for _, row, _ in _parse_rows(Path(run_dir) / "metrics.jsonl")]


def _parse_rows(path: Path) -> Iterator[tuple[float, Row, bytes]]:
    """The step of every readable row, the row, and the line it came from."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _parse_line(line)
            if row is None:
                log.warning("%s: line %d is damaged and ignored", path, number)
            else:
                yield row["env_steps"], row, line


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("env_steps"), int | float)
    return row if whole else None


def _keep_rows(path: Path, last_step: int, last_evaluation: int) -> None:
    """Rewrite the file without rows beyond these steps and without torn lines."""
    if path.is_file():
        kept = []
        for step, row, line in _parse_rows(path):
            if step <= (last_evaluation if row.get("kind") == "eval" else last_step):
                kept.append(line)
        write_atomic(path, b"".join(kept))


def _read_recorder(run_dir: Path) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    path = run_dir / "recorder.npy"
    if not path.is_file():
        return []
    try:
        rows = np.load(path, allow_pickle=False)
        if rows.dtype != np.float64 or rows.ndim != 2 or rows.shape[1] != len(RECORDER_COLUMNS):
            raise ValueError(f"it holds {rows.dtype} {rows.shape}")
    except (ValueError, EOFError, OSError) as error:
        log.warning("%s is not a recorder file and is written anew: %s", path, error)
        return []
    return list(rows)


def _open_tensorboard(run_dir: Path, resume_step: int) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter  # a second of imports that a run without it is spared

    # The viewer hides what an earlier process wrote at or after purge_step.
    return SummaryWriter(run_dir / "tensorboard", purge_step=resume_step + 1)  # type: ignore[no-untyped-call]

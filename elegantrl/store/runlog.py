"""The metrics of a run, in files of its own and in its loggers.

metrics.jsonl    one JSON object per row, appended; for plots and other programs
recorder.npy     float64 [rows, 6], one row per evaluation; columns as in ``RECORDER_COLUMNS``
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .files import open_regular, read_regular, unreadable, write_atomic
from .loggers import LoggedRun, MetricLogger, Row, find_logger
from .side_files import SideFiles

METRICS, RECORDER = "metrics.jsonl", "recorder.npy"
RECORDER_COLUMNS = ("env_steps", "eval_mean", "eval_std", "explore_return", "actor_loss", "critic_loss")
RECORDER_LIMIT = 64 << 20
METRICS_LIMIT = 2 << 30
LINE_LIMIT = 1 << 20
MAX_STEP = 1e15

log = logging.getLogger(__name__)


class RunLog:
    """Writes the metrics of one run. ``side`` reports the first failed write, and the run continues.

    ``resume_step`` is the step from which training continues, 0 for a new run: rows beyond it belong to work that was
    lost and is repeated, so they are dropped and no part of the curve is doubled.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        resume_step: int,
        loggers: Sequence[str] = ("tensorboard",),
        config: Mapping[str, Any] | None = None,
        side: SideFiles | None = None,
    ) -> None:
        self.run_dir, self._names, self._config = Path(run_dir), tuple(loggers), config or {}
        self._side = side or SideFiles()
        self._open(resume_step, resume_step)

    def rewind(self, step: int, unfinished: int | None = None) -> None:
        """Drop rows after ``step``, and evaluations from step ``unfinished`` on: both will be written again."""
        last_evaluation = step if unfinished is None else unfinished - 1
        if self._opened_at != (step, last_evaluation):  # opening a logger may take seconds
            self.close()
            self._open(step, last_evaluation)

    def _open(self, last_step: int, last_evaluation: int) -> None:
        self._opened_at: tuple[int, int] | None = (last_step, last_evaluation)
        """The rows that were kept; None when others have followed."""
        self._evaluations = [row for row in _read_recorder(self.run_dir) if row[0] <= last_evaluation]
        self._side.attempt(METRICS, lambda: _keep_rows(self.run_dir / METRICS, last_step, last_evaluation))
        self._torn = False
        run = LoggedRun(self.run_dir, last_step, self._config)
        self._loggers: dict[str, MetricLogger] = {}
        for name in self._names:
            self._side.attempt(name, partial(self._add_logger, name, run))

    def _add_logger(self, name: str, run: LoggedRun) -> None:
        self._loggers[name] = find_logger(name)(run)

    def log(self, row: Mapping[str, float | int | str], step: int) -> None:
        """Append ``row`` under ``env_steps=step``; a number that is not finite is written as null."""
        self._opened_at = None
        numbers = {key: value if isinstance(value, str) or math.isfinite(value) else None for key, value in row.items()}
        line = json.dumps({**numbers, "env_steps": step}) + "\n"
        self._side.attempt(METRICS, lambda: self._append(line.encode("ascii")))
        numbers.pop("env_steps", None)
        self._each_logger(lambda logger: logger.log(numbers, step))

    def _append(self, line: bytes) -> None:
        # Opened for each row: if the file was replaced meanwhile, the next row goes to the new file.
        with (self.run_dir / METRICS).open("ab", buffering=0) as file:
            if self._torn:
                line = b"\n" + line
            self._torn = True
            self._torn = file.write(line) != len(line)  # a full disk may accept only a part
            if self._torn:
                raise OSError(f"{METRICS} took a part of a row; is the disk full?")

    def record_evaluation(
        self, step: int, mean: float, std: float, explore_return: float, actor_loss: float, critic_loss: float
    ) -> None:
        """Append a row to ``recorder.npy``."""
        self._evaluations.append(np.array([step, mean, std, explore_return, actor_loss, critic_loss], np.float64))
        self._side.attempt(RECORDER, self._write_recorder)
        self._each_logger(lambda logger: logger.flush())

    def _write_recorder(self) -> None:
        buffer = io.BytesIO()
        np.save(buffer, np.stack(self._evaluations), allow_pickle=False)
        write_atomic(self.run_dir / RECORDER, buffer.getvalue())

    def close(self) -> None:
        self._each_logger(lambda logger: logger.close())

    def _each_logger(self, act: Callable[[MetricLogger], None]) -> None:
        """Call every logger; one that fails is not called again."""
        for name, logger in list(self._loggers.items()):
            if not self._side.attempt(name, partial(act, logger)):
                del self._loggers[name]


# ---- reading


def read_metrics(run_dir: str | Path) -> list[Row]:
    """The rows of ``metrics.jsonl``, without lines that a crash left incomplete; empty if there is no file."""
    return [row for _, row, _ in _parse_rows(Path(run_dir) / METRICS)]


def _parse_rows(path: Path) -> Iterator[tuple[float, Row, bytes]]:
    """The step of every readable row, the row, and the line it came from."""
    if not path.exists():
        return
    try:
        with open_regular(path, follow_links=True) as file:
            if file.seek(0, io.SEEK_END) > METRICS_LIMIT:
                raise CheckpointError(f"{path} has more than {METRICS_LIMIT} bytes; move it away to go on without it")
            file.seek(0)
            number, damaged = 0, 0
            while line := file.readline(LINE_LIMIT):
                number += 1
                row = _parse_line(line)
                if row is not None:
                    yield row["env_steps"], row, line
                elif not damaged:
                    damaged = number
                    log.warning("%s: line %d is damaged; such lines are ignored", path, number)
    except OSError as error:
        raise CheckpointError(unreadable(error)) from error


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not line.endswith(b"\n") or not isinstance(row, dict):
        return None
    step = row.get("env_steps")
    sound = isinstance(step, int | float) and not isinstance(step, bool) and 0 <= step <= MAX_STEP
    return row if sound else None


def _keep_rows(path: Path, last_step: int, last_evaluation: int) -> None:
    """Rewrite the file without rows beyond these steps and without torn lines; make it if there is none."""
    kept = []
    try:
        for step, row, line in _parse_rows(path):
            if step <= (last_evaluation if row.get("kind") == "eval" else last_step):
                kept.append(line)
    except CheckpointError as error:
        aside = path.with_name(f"{path.name}.damaged")
        log.warning("%s; it is kept as %s and written anew", error, aside.name)
        path.replace(aside)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, b"".join(kept))


def _read_recorder(run_dir: Path) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    path = run_dir / RECORDER
    if not path.exists():
        return []
    try:
        file = io.BytesIO(read_regular(path, RECORDER_LIMIT))
        if np.lib.format.read_magic(file) != (1, 0):  # type: ignore[no-untyped-call]
            raise ValueError("it has another version of the format")
        shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
        data = file.read()
        # Compared before memory is allocated: a header of a few bytes can declare any size.
        if dtype != np.float64 or by_column or len(shape) != 2 or shape[1] != len(RECORDER_COLUMNS):
            raise ValueError(f"it holds {dtype} {shape}")
        if math.prod(shape) * 8 != len(data):
            raise ValueError(f"it holds {len(data)} bytes for the shape {shape}")
        return list(np.frombuffer(data, np.float64).reshape(shape))
    except Exception as error:  # damaged bytes: the parser may raise any error
        log.warning("%s is not a recorder file and is written anew: %s", path, error)
        return []

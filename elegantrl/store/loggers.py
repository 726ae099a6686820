"""Loggers for the metrics of a run besides its own files: TensorBoard, Weights & Biases, MLflow, or a user's logger.

A logger is an object with the methods of ``MetricLogger``. ``find_logger`` finds it by its name here, or by the import
path ``module:attribute`` of a function of a ``LoggedRun``.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError, did_you_mean
from .files import read_regular, write_atomic

Row = dict[str, float | int | str | None]


class MetricLogger(Protocol):
    """Receives rows of metrics. Its first error is reported, and the run continues without it."""

    def log(self, row: Mapping[str, float | int | str | None], step: int) -> None:
        """Write one row of the run at environment step ``step``; None is a number that was not finite."""

    def flush(self) -> None:
        """Make logged rows visible to readers; called after each evaluation."""

    def close(self) -> None:
        """Write buffered rows."""


@dataclass(frozen=True)
class LoggedRun:
    """The description of a run that its loggers get."""

    run_dir: Path
    resume_step: int = 0
    """The step from which training continues: rows after it belong to work that is repeated."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """All settings, as ``config.yaml`` holds them."""


class TensorBoardLogger:
    """Event files in ``tensorboard/`` of the run folder.

    This thread writes them at once. TensorBoard's own writer has a thread that dies with a traceback when the disk is
    full or the folder was removed.
    """

    def __init__(self, run: LoggedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # slow imports, only needed here
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._record_writer = Event, Summary, RecordWriter
        # The viewer reads files in the order of their names; START hides earlier events at or after its step.
        name = f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}.{next(_counter)}"
        self._path = run.run_dir / "tensorboard" / name
        self._first = [
            Event(step=run.resume_step + 1, file_version="brain.Event:2"),
            Event(step=run.resume_step + 1, session_log=SessionLog(status=SessionLog.START)),
        ]
        self._write([])

    def log(self, row: Mapping[str, float | int | str | None], step: int) -> None:
        values = [
            self._summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if isinstance(value, int | float)
        ]
        self._write([self._event(step=step, summary=self._summary(value=values))])

    def _write(self, events: list[Any]) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("ab") as file:
            writer = self._record_writer(file)
            for event in events if file.tell() else [*self._first, *events]:
                event.wall_time = time.time_ns() / 1e9
                writer.write(event.SerializeToString())

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


_counter = itertools.count()


class WandbLogger:
    """A run of Weights & Biases; a resumed run folder continues it. Variables such as WANDB_MODE apply."""

    def __init__(self, run: LoggedRun) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]

        self._run = wandb.init(
            project="elegantrl",
            name=run.run_dir.resolve().name,
            id=stored_id(run.run_dir / "wandb_id.txt", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            dir=str(run.run_dir),
            config=dict(run.config),
        )
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, row: Mapping[str, float | int | str | None], step: int) -> None:
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        self._run.log({**numbers, "env_steps": step})

    def flush(self) -> None:
        pass  # wandb sends by itself

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """A run of MLflow; a resumed run folder continues it. Variables such as MLFLOW_TRACKING_URI and
    MLFLOW_EXPERIMENT_NAME apply; without the first, runs are where MLflow keeps them, in ``mlflow.db`` of this folder.
    """

    BATCH = 500
    """Metrics of one request; a server accepts a thousand."""

    def __init__(self, run: LoggedRun) -> None:
        from mlflow import MlflowClient  # type: ignore[import-not-found, unused-ignore]
        from mlflow.entities import Metric

        folder = run.run_dir.resolve()
        self._client, self._metric = MlflowClient(), Metric
        self._id = stored_id(run.run_dir / "mlflow_id.txt", lambda: self._create(folder.name, run.config))
        self._client.update_run(self._id, status="RUNNING")
        self._rows: list[Any] = []

    def _create(self, name: str, config: Mapping[str, Any]) -> str:
        """The id of a new run with these settings."""
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "elegantrl")
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        made: str = self._client.create_run(number, run_name=name).info.run_id
        for section, values in config.items():
            for setting, value in values.items():
                self._client.log_param(made, f"{section}.{setting}", str(value)[:500])
        return made

    def log(self, row: Mapping[str, float | int | str | None], step: int) -> None:
        now = time.time_ns() // 10**6
        self._rows += [self._metric(k, float(v), now, step) for k, v in row.items() if isinstance(v, int | float)]
        if len(self._rows) >= self.BATCH:
            self.flush()

    def flush(self) -> None:
        while self._rows:
            batch, self._rows = self._rows[: self.BATCH], self._rows[self.BATCH :]
            self._client.log_batch(self._id, metrics=batch)

    def close(self) -> None:
        self.flush()
        self._client.set_terminated(self._id)


def stored_id(path: Path, make: Callable[[], str]) -> str:
    """The id in a file of the run folder, which is made at first: a resumed run continues what has this id."""
    if not path.exists():
        write_atomic(path, make().encode("ascii"))
    return read_regular(path, 64).decode("ascii")


LOGGERS: dict[str, Callable[[LoggedRun], MetricLogger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}
EXTRAS = ("wandb", "mlflow")
"""Loggers whose package is an extra of the same name."""


def find_logger(name: str) -> Callable[[LoggedRun], MetricLogger]:
    """The function that makes the logger ``name``, a name or an import path; an error if it cannot work."""
    if name in EXTRAS and importlib.util.find_spec(name) is None:
        raise ConfigError(f"the logger {name!r} needs {name}: pip install 'elegantrl[{name}]'")
    if name in LOGGERS:
        return LOGGERS[name]
    module, _, attribute = name.rpartition(":")
    if not module:
        raise ConfigError(f"there is no logger {name!r}; {did_you_mean(name, [*LOGGERS, 'module:attribute'])}")
    try:
        make: Callable[[LoggedRun], MetricLogger] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"logger {name!r} cannot be imported: {error}") from error
    return make

"""The log of a population: append-only JSON lines, one for each tick of the controller.

A line is durable before anything follows from it.

The first line is a header with the config. A tick is one line, so that a result and the decisions that follow from it
are in the log together or not at all. A last line that was torn by a crash is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError
from ..store.storage import Storage, open_storage
from .config import PopulationConfig
from .events import Event, event_from_json
from .fold import PopulationState

LOG = "log"
FORMAT = 1


class PopulationLog:
    """Appends ticks to the log of a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def begin(self, config: PopulationConfig) -> None:
        """Write the header of a new log."""
        header = {"format": FORMAT, "hash": config.hash(), "config": config.to_dict()}
        self.storage.append(LOG, _line(header))

    def append(self, events: Sequence[Event], seconds: float) -> None:
        """Write the events of one tick; they are durable on return."""
        self.storage.append(LOG, _line({"seconds": round(seconds, 3), "events": [e.to_json() for e in events]}))

    def resume(self, config: PopulationConfig) -> PopulationState:
        """The state after all complete ticks; a torn last line is removed."""
        data = self.storage.read_all(LOG)
        if not data:
            raise CheckpointError(f"{self.storage.url} holds no population to resume; check --run-dir or drop --resume")
        header, state = _read(data, self.storage.url)
        if header["hash"] != config.hash():
            there, here = header["config"], config.to_dict()
            name = next((name for name in here if there.get(name) != here[name]), "a setting")
            raise ConfigError(
                f"{self.storage.url} belongs to another population: {name} is {there.get(name)!r} there and"
                f" {here.get(name)!r} here; use the same settings or another --run-dir"
            )
        if not data.endswith(b"\n"):
            self.storage.write(LOG, data[: data.rindex(b"\n") + 1])
        return state


def has_population(storage: Storage) -> bool:
    """Whether a storage holds the log of a population."""
    return bool(storage.read_all(LOG))


def read_population(folder: str | Path | Storage) -> PopulationState:
    """The state of a population folder: members, curves, lineage and leaderboard; also while it is running."""
    storage = folder if isinstance(folder, Storage) else open_storage(folder)
    data = storage.read_all(LOG)
    if not data:
        raise CheckpointError(f"{storage.url} holds no population; check the path")
    _, state = _read(data, storage.url)
    return state


def _read(data: bytes, where: str) -> tuple[dict[str, Any], PopulationState]:
    lines = _lines(data, where)
    header = next(lines, {})
    if header.get("format") != FORMAT or "config" not in header or "hash" not in header:
        raise CheckpointError(f"{where}/{LOG} is no log of a population, or one of another version")
    state = PopulationState(PopulationConfig.from_dict(header["config"]))
    for line in lines:
        try:
            state.apply_all([event_from_json(event) for event in line["events"]])
            state.seconds = float(line["seconds"])
        except (LookupError, TypeError, AttributeError, AssertionError, ValueError) as error:
            raise CheckpointError(f"{where}/{LOG} is damaged: {error!r:.120} at {line!s:.120}") from error
    return header, state


def _lines(data: bytes, where: str) -> Iterator[dict[str, Any]]:
    """The complete lines; a last one without an end is left out."""
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise CheckpointError(f"{where}/{LOG} is damaged in line {number}; restore the file from a copy")
        yield value


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"

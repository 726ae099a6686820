"""The record of settings that a resumed run changed: in commits, in ``summary.json`` and in the metrics of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .runlog import RunLog, read_metrics

KIND = "change"
"""The kind of the rows of ``metrics.jsonl`` that record a change."""
FROM_THEN_ON = "from then on the run is not bit for bit what one without the change would be"


class Change(NamedTuple):
    """A setting that has another value from this step on."""

    step: int
    setting: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.setting} changed from {self.before} to {self.after} at step {self.step:,}"


def read_changes(run_dir: str | Path) -> list[Change]:
    """The changes in the metrics of a run folder, also while the run is running."""
    return changes_of(read_metrics(run_dir))


def changes_of(rows: Iterable[Mapping[str, Any]]) -> list[Change]:
    """The changes among the rows of a run; of several at the same step and setting the last one."""
    entries = [{**row, "step": row.get("env_steps")} for row in rows if row.get("kind") == KIND]
    return list({(change.step, change.setting): change for change in parse_changes(entries)}.values())


def parse_changes(entries: Any) -> list[Change]:
    """Changes from plain data; what is not one is left out."""
    found = []
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case {"step": int(step), "setting": str(setting), "before": str(before), "after": str(after)}:
                found.append(Change(step, setting, before, after))
    return found


def record_change(log: RunLog, change: Change) -> None:
    """Write a change to the metrics, unless a resume from the same commit has written it already."""
    if change not in read_changes(log.run_dir):
        entries = change._asdict()
        log.log({"kind": KIND, **{name: entries[name] for name in ("setting", "before", "after")}}, change.step)

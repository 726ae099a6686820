"""The page of one run, from the files of its folder."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..store.changes import FROM_THEN_ON
from ..store.files import read_regular
from ..store.runlog import read_metrics
from .page import DEMO_FILES, Chart, Film, Line, Page, Table, thinned
from .runs import Curve, Run, read_run, read_summary

STEPS = "environment steps"
FILM_LIMIT = 32 << 20
"""Bytes of the largest video that becomes a part of a page."""
MEDIA = {".mp4": "video/mp4", ".gif": "image/gif"}
Row = Mapping[str, Any]


def run_page(folder: Path) -> Page:
    """Returns, losses, speed, waiting times and memory of a run, also while it is running."""
    check_run(folder)
    run, summary, rows = read_run(folder), read_summary(folder), read_metrics(folder)
    curve = run.evaluation
    evaluated = curve_line("evaluation", curve)
    trained = Line("training episodes", thinned(run.train_steps.tolist()), thinned(run.train_return.tolist()))
    charts = [Chart("Return", STEPS, "return per episode", [evaluated, trained], target=run.target)]
    groups = {
        "Losses": ("loss/", "loss"),
        "Policy": ("policy/", "value"),
        "Time without work": ("waiting/", "share"),
        "Memory": ("memory_mb/", "MB"),
    }
    for title, (prefix, label) in groups.items():
        names = names_of(rows, prefix)
        charts.append(Chart(title, STEPS, label, [line_of(rows, name, name.removeprefix(prefix)) for name in names]))
    charts.insert(1, Chart("Speed", STEPS, "steps per second", [line_of(rows, "time/steps_per_second", "steps/s")]))
    last = rows[-1] if rows else {}
    reason = str(summary.get("stop_reason", "")).replace("_", " ")
    status = f"ended by {reason}" if reason else "running, or interrupted"
    facts = {
        "environment steps": f"{number(summary.get('env_steps', last.get('env_steps'))):,.0f}",
        "best return": text_of(summary.get("best_return", max(curve.mean, default=math.nan))),
        "last evaluation": text_of(curve.mean[-1] if curve.mean.size else None),
        "seconds": f"{number(summary.get('wall_seconds', run.seconds)):,.0f}",
        "steps per second": f"{number(summary.get('steps_per_second', last.get('time/steps_per_second'))):,.0f}",
        "seed": str(run.seed),
    }
    settings = {name: str(value) for name, value in sorted(run.settings.items())}
    tables, films = changes_table([run]), read_film(folder, "The best policy")
    status = f"run {folder.name}, {status}"
    return Page(run.title, status, facts, tables=tables, charts=charts, settings=settings, films=films)


def check_run(folder: Path) -> None:
    if not (folder / "metrics.jsonl").exists():
        raise CheckpointError(f"{folder} holds no metrics.jsonl; is it a run folder?")


def changes_table(runs: Sequence[Run]) -> list[Table]:
    """The settings that were changed when the runs were resumed."""
    rows = [(run.name, f"{c.step:,}", c.setting, c.before, c.after) for run in runs for c in run.changes]
    columns = ["run", "at step", "setting", "before", "after"]
    return [Table(f"Settings that a resume changed: {FROM_THEN_ON}", columns, rows, marked=True)] if rows else []


def read_film(folder: Path, title: str) -> list[Film]:
    """The video that ``elegantrl record`` left in a run folder, if it is not too large."""
    for name in DEMO_FILES:
        path = folder / name
        if path.exists() and path.stat().st_size <= FILM_LIMIT:
            data = base64.b64encode(read_regular(path, FILM_LIMIT)).decode("ascii")
            return [Film(title, f"data:{MEDIA[path.suffix]};base64,{data}")]
    return []


def curve_line(name: str, curve: Curve, colour: str | None = None) -> Line:
    """A curve with its band."""
    x, mean, low, high = (thinned(values.tolist()) for values in (curve.steps, curve.mean, curve.low, curve.high))
    return Line(name, x, mean, low, high, colour)


def names_of(rows: Sequence[Row], prefix: str) -> list[str]:
    """The metrics whose names begin with ``prefix``."""
    return sorted({name for row in rows for name in row if name.startswith(prefix)})


def line_of(rows: Sequence[Row], key: str, name: str) -> Line:
    """The values of one metric over environment steps."""
    found = thinned([(row["env_steps"], row[key]) for row in rows if math.isfinite(number(row.get(key)))])
    return Line(name, [step for step, _ in found], [value for _, value in found])


def number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def text_of(value: Any) -> str:
    return f"{number(value):,.1f}" if math.isfinite(number(value)) else "-"

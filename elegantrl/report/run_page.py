"""The page of one run, from the files of its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..store.runlog import read_metrics
from .page import Chart, Line, Page, thinned
from .runs import read_run, read_summary

STEPS = "environment steps"
Row = Mapping[str, Any]


def run_page(folder: Path) -> Page:
    """Returns, losses, speed, waiting times and memory of a run, also while it is running."""
    if not (folder / "metrics.jsonl").exists():
        raise CheckpointError(f"{folder} holds no metrics.jsonl; is it a run folder?")
    run, summary, rows = read_run(folder), read_summary(folder), read_metrics(folder)
    curve = run.evaluation
    steps, mean, low, high = (thinned(x.tolist()) for x in (curve.steps, curve.mean, curve.low, curve.high))
    evaluated = Line("evaluation", steps, mean, low, high)
    trained = Line("training episodes", thinned(run.train_steps.tolist()), thinned(run.train_return.tolist()))
    charts = [Chart("Return", STEPS, "return per episode", [evaluated, trained])]
    groups = {
        "Losses": ("loss/", "loss"),
        "Policy": ("policy/", "value"),
        "Time without work": ("waiting/", "share"),
        "Memory": ("memory_mb/", "MB"),
    }
    for title, (prefix, label) in groups.items():
        names = sorted({name for row in rows for name in row if name.startswith(prefix)})
        charts.append(Chart(title, STEPS, label, [line_of(rows, name, name.removeprefix(prefix)) for name in names]))
    charts.insert(1, Chart("Speed", STEPS, "steps per second", [line_of(rows, "time/steps_per_second", "steps/s")]))
    last = rows[-1] if rows else {}
    status = f"ended: {summary['stop_reason']}" if summary.get("stop_reason") else "running, or interrupted"
    facts = {
        "environment steps": f"{number(summary.get('env_steps', last.get('env_steps'))):,.0f}",
        "best return": text_of(summary.get("best_return", max(curve.mean, default=math.nan))),
        "last evaluation": text_of(curve.mean[-1] if curve.mean.size else None),
        "seconds": f"{run.seconds:,.0f}",
        "steps per second": f"{number(summary.get('steps_per_second', last.get('time/steps_per_second'))):,.0f}",
        "seed": str(run.seed),
    }
    settings = {name: str(value) for name, value in sorted(run.settings.items())}
    return Page(run.title, f"{folder.name}: {status}", facts, charts=charts, settings=settings)


def line_of(rows: Sequence[Row], key: str, name: str) -> Line:
    """The values of one metric over environment steps."""
    found = thinned([(row["env_steps"], row[key]) for row in rows if math.isfinite(number(row.get(key)))])
    return Line(name, [step for step, _ in found], [value for _, value in found])


def number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def text_of(value: Any) -> str:
    return f"{number(value):,.1f}" if math.isfinite(number(value)) else "-"

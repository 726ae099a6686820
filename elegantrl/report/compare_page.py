"""The page that compares several runs: one curve per group of equal settings, with a band over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..store.runlog import read_metrics
from .page import Chart, Film, Line, Page, Table
from .plot import common_target
from .run_page import STEPS, Row, changes_table, check_run, curve_line, line_of, names_of, read_film, text_of
from .runs import Curve, Group, Run, combine, group_runs, read_run, read_summary
from .style import COLOURS, duration

MAX_FILMS = 4
"""Videos on one page; each may have many megabytes."""
ABSENT = "-"


class Member(NamedTuple):
    """A run of a group."""

    folder: Path
    run: Run
    rows: list[Row]


class Shown(NamedTuple):
    """A group of runs that differ only in the seed, and its colour."""

    group: Group
    colour: str
    members: list[Member]

    @property
    def name(self) -> str:
        count = len(self.group.runs)
        return f"{self.group.label} ({count} seed{'s' * (count > 1)})"


def compare_page(folders: Sequence[Path]) -> Page:
    """Returns with confidence intervals, speed, losses and the settings in which the runs differ."""
    for folder in folders:
        check_run(folder)
    found = [Member(folder, read_run(folder), list[Row](read_metrics(folder))) for folder in folders]
    runs = [member.run for member in found]
    shown = [
        Shown(group, COLOURS[i % len(COLOURS)], [m for m in found if any(m.run is run for run in group.runs)])
        for i, group in enumerate(group_runs(runs))
    ]
    envs, target = {run.env for run in runs}, common_target(runs)
    title = runs[0].title if len(shown) == 1 else (envs.pop() if len(envs) == 1 else None) or "Several environments"
    status = f"{len(runs)} runs with {len(shown)} different settings; bands are 95 % confidence intervals of the"
    status += " interquartile mean over seeds, or of the evaluation of a single seed; thin lines are the seeds"
    charts = [
        Chart("Return", STEPS, "return per episode", returns_of(shown, "evaluation"), target),
        Chart("Return over time", "seconds of training", "return per episode", returns_of(shown, "timed"), target),
        Chart("Speed", STEPS, "steps per second", metric_lines(shown, "time/steps_per_second")),
    ]
    losses = sorted({name for member in found for name in names_of(member.rows, "loss/")})
    charts += [Chart(f"Loss: {x.removeprefix('loss/')}", STEPS, "loss", metric_lines(shown, x)) for x in losses]
    same, tables = settings_of(shown)
    tables = [results_table(shown), *tables, *changes_table(runs)]
    return Page(title, status, {}, tables=tables, charts=charts, settings=same, films=films_of(shown))


def returns_of(shown: Sequence[Shown], kind: str) -> list[Line]:
    """One line with a band for each group, and thin lines for its seeds."""
    return [line for one in shown for line in group_lines(one, [getattr(run, kind) for run in one.group.runs])]


def group_lines(one: Shown, curves: Sequence[Curve | None]) -> list[Line]:
    """A thin line for each seed, if there are several, and the line of the whole group."""
    known = [curve for curve in curves if curve is not None and curve.steps.size]
    seeds = [replace(curve_line(one.name, curve, one.colour), low=(), high=(), thin=True) for curve in known]
    return [*(seeds if len(seeds) > 1 else []), curve_line(one.name, combine(known), one.colour)]


def metric_lines(shown: Sequence[Shown], key: str) -> list[Line]:
    """The same for any metric, without bands."""
    lines = []
    for one in shown:
        found = [line_of(member.rows, key, one.name) for member in one.members]
        curves = [Curve(*(np.array(values) for values in (line.x, line.y, line.y, line.y))) for line in found]
        lines += [replace(line, low=(), high=()) for line in group_lines(one, curves)]
    return lines


def results_table(shown: Sequence[Shown]) -> Table:
    columns = ["settings", "seeds", "final return", "95 % interval", "best return", "steps", "time", "steps/s"]
    return Table("Results", columns, [results_row(one) for one in shown], colours=[one.colour for one in shown])


def results_row(one: Shown) -> list[str]:
    """Final values of a group: the interquartile mean of its last evaluations, and means of the rest."""
    curve = combine([run.evaluation for run in one.group.runs])
    final = [text_of(values[-1].item()) if values.size else ABSENT for values in (curve.mean, curve.low, curve.high)]
    summaries = [read_summary(member.folder) for member in one.members]
    best = [s["best_return"] for s in summaries if isinstance(s.get("best_return"), int | float)]
    best = best or [run.evaluation.mean.max() for run in one.group.runs if run.evaluation.steps.size]
    steps = [max((row["env_steps"] for row in member.rows), default=0) for member in one.members]
    seconds = [run.seconds for run in one.group.runs]
    seeds = sorted(run.seed for run in one.group.runs if run.seed is not None)
    return [
        one.group.label,
        listed(seeds) if seeds else str(len(one.group.runs)),
        final[0],
        f"{final[1]} .. {final[2]}",
        text_of(float(np.mean(best))) if best else ABSENT,
        f"{np.mean(steps):,.0f}",
        duration(float(np.mean(seconds))),
        f"{sum(steps) / sum(seconds):,.0f}" if sum(seconds) else ABSENT,
    ]


def listed(seeds: Sequence[int], at_most: int = 6) -> str:
    shown = ", ".join(map(str, seeds[:at_most]))
    return f"{shown}, ... ({len(seeds)})" if len(seeds) > at_most else shown


def settings_of(shown: Sequence[Shown]) -> tuple[dict[str, str], list[Table]]:
    """The settings that all groups share, and a table of those in which they differ."""
    each = [one.group.runs[0].settings for one in shown]
    names = sorted(set().union(*each))
    values = {name: [str(settings.get(name, ABSENT)) for settings in each] for name in names}
    same = {name: found[0] for name, found in values.items() if len(set(found)) == 1}
    rows = [[name, *found] for name, found in values.items() if name not in same]
    columns = ["setting", *(one.group.label for one in shown)]
    return same, [Table("Settings that differ", columns, rows, marked=True)] if rows else []


def films_of(shown: Sequence[Shown]) -> list[Film]:
    """The first video of each group."""
    films = []
    for one in shown:
        found = [film for member in one.members for film in read_film(member.folder, one.group.label)]
        films += found[:1]
    return films[:MAX_FILMS]

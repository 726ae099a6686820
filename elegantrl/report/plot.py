"""Learning curves as pictures: one run in detail, or many runs as one curve per agent and environment.

Drawn on canvases of its own, so a caller's matplotlib backend and styles stay as they are.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..errors import ConfigError
from ..store.files import write_atomic
from ..store.runlog import read_metrics
from .statistics import Array, bootstrap_interval, interquartile_mean

FORMATS = ("jpg", "pdf", "png", "svg")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")  # safe for the colour-blind
INK, GREY, LIGHT = "#222222", "#777777", "#b7c3cc"
GRID_POINTS = 200
SEVERAL_SEEDS = "interquartile mean and 95 % bootstrap band; thin: the seeds; after its dot a seed keeps its score"


# ---- What is drawn


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run, or of several as one; ``low`` and ``high`` bound the mean with 95 % confidence."""

    steps: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    name: str
    agent: str | None
    env: str | None
    seed: int | None
    target: float | None
    seconds: float
    evaluation: Curve
    train_steps: Array
    train_return: Array

    @property
    def title(self) -> str:
        return f"{self.label} on {self.env}" if self.agent and self.env else self.name

    @property
    def label(self) -> str:
        """The agent as people write it."""
        return (self.agent or self.name).upper().replace("_", " ")


def read_run(run_dir: str | Path) -> Run:
    """What ``metrics.jsonl``, ``summary.json`` and ``config.yaml`` say; whatever is missing stays empty."""
    folder = Path(run_dir).resolve()
    if not folder.is_dir():
        raise ConfigError(f"{run_dir} is not a run folder")
    rows = read_metrics(folder)
    facts = _read_facts(folder)
    evaluation = _columns(rows, "eval/mean", "eval/ci95")
    train = _columns(rows, "train/return")
    steps, mean, ci95 = evaluation
    band = np.nan_to_num(ci95)  # no interval known: no band
    return Run(
        name=folder.name,
        agent=facts.get("agent"),
        env=facts.get("env"),
        seed=facts.get("seed"),
        target=facts.get("target_return"),
        seconds=max(_columns(rows, "wall_seconds")[1], default=0.0),
        evaluation=Curve(steps, mean, mean - band, mean + band),
        train_steps=train[0],
        train_return=train[1],
    )


def _columns(rows: Sequence[dict[str, Any]], key: str, *more: str) -> Array:
    """Steps, ``key`` and ``more`` [1 + keys, rows] of the rows where ``key`` is a number, by ascending step."""
    names = ("env_steps", key, *more)
    found = [[_number(row.get(name)) for name in names] for row in rows if math.isfinite(_number(row.get(key)))]
    table = np.array(found, np.float64).reshape(-1, len(names))
    return table[np.argsort(table[:, 0], kind="stable")].T


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _read_facts(folder: Path) -> dict[str, Any]:
    """Agent, env, seed and target_return, from the config and, once the run has ended, from its summary."""
    facts: dict[str, Any] = {}
    try:
        if (path := folder / "config.yaml").is_file():
            config = yaml.safe_load(path.read_text())
            agent, env, train = config["agent"], config["env"], config["train"]
            facts = {"agent": agent["name"], "env": env["id"], "seed": train["seed"]}
            facts["target_return"] = train["target_return"]
        if (path := folder / "summary.json").is_file():
            facts |= json.loads(path.read_text())
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not the {path.stem} of a run: {error!r}") from error
    return facts


# ---- Several runs as one curve


def combine(curves: Sequence[Curve]) -> Curve:
    """The interquartile mean over seeds with a bootstrap band; a run that has ended keeps its last score.

    Cutting at the shortest run instead would hide the end of all others wherever runs stop at their target.
    """
    curves = [curve for curve in curves if curve.steps.size]
    if len(curves) < 2:
        return curves[0] if curves else Curve(*np.empty((4, 0)))
    start, end = max(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[start <= steps]
    if steps.size > GRID_POINTS:
        steps = np.linspace(start, end, GRID_POINTS)
    values = np.stack([np.interp(steps, curve.steps, curve.mean) for curve in curves])  # [seeds, steps]
    return Curve(steps, interquartile_mean(values), *bootstrap_interval(values))


# ---- Pictures


def plot_run(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Draw one run into ``out``, by default into its folder under the two documented names; return the path."""
    run = read_run(run_dir)
    notes = [] if run.seed is None else [f"seed {run.seed}"]
    last = max([*run.evaluation.steps[-1:], *run.train_steps[-1:]], default=0)
    notes.append(f"{_short(last)} steps in {_duration(run.seconds)}" if run.seconds else f"{_short(last)} steps")
    figure, axes = _canvas(run.title, ", ".join(notes))
    if run.train_steps.size:
        axes.plot(run.train_steps, run.train_return, color=LIGHT, lw=0.9, label="training episodes", zorder=1)
    _draw_curve(axes, run.evaluation, COLOURS[0], "evaluation, 95 % band")
    _draw_best(axes, run.evaluation)
    _finish(figure, axes, run.target)
    if out is not None:
        return _save(figure, Path(out))
    _save(figure, Path(run_dir) / "LearningCurve.jpg")
    return _save(figure, Path(run_dir) / "plot_learning_curve.jpg")


def plot_runs(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Draw many runs into ``out``, one curve per agent and environment; return the path."""
    if not run_dirs:
        raise ConfigError("there is no run to plot; name at least one run folder")
    runs = [read_run(run_dir) for run_dir in run_dirs]
    groups = _by_title(runs)
    env = runs[0].env if len({run.env for run in runs}) == 1 else None
    several = any(len(group) > 1 for group in groups.values())
    note = SEVERAL_SEEDS if several else "evaluation mean, 95 % band"
    figure, axes = _canvas(next(iter(groups)) if len(groups) == 1 else env or "Learning curves", note)
    for i, (title, group) in enumerate(groups.items()):
        name = group[0].label if env else title
        count = f"{len(group)} seeds" if len(group) > 1 else "1 seed"
        _draw_seeds(axes, group, COLOURS[i % len(COLOURS)], f"{name} ({count})")
    _finish(figure, axes, _common_target(runs))
    return _save(figure, Path(out))


def plot_overview(run_dirs: Sequence[str | Path], out: str | Path, columns: int = 4) -> Path:
    """Draw many runs into ``out``, one small panel per agent and environment; return the path."""
    if not run_dirs:
        raise ConfigError("there is no run to plot; name at least one run folder")
    groups = _by_title([read_run(run_dir) for run_dir in run_dirs])
    rows = math.ceil(len(groups) / columns)
    layout = ConstrainedLayoutEngine(hspace=0.08, wspace=0.04)
    figure = Figure(figsize=(3.4 * columns, 2.3 * rows + 0.5), layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(SEVERAL_SEEDS, x=0.005, ha="left", fontsize=12, color=GREY)
    for i, (title, group) in enumerate(groups.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
        _style(axes)
        _draw_seeds(axes, group, COLOURS[0], None)
        _finish(figure, axes, _common_target(group))
    return _save(figure, Path(out))


def _by_title(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.title, []).append(run)
    return groups


def _common_target(runs: Sequence[Run]) -> float | None:
    targets = {run.target for run in runs}
    return targets.pop() if len(targets) == 1 else None


def _canvas(title: str, note: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{title}\n", loc="left", fontsize=15, fontweight="bold", color=INK)
    axes.text(0, 1.025, note, transform=axes.transAxes, fontsize=10, color=GREY, va="bottom")
    axes.set_xlabel("environment steps", color=GREY)
    axes.set_ylabel("return per episode", color=GREY)
    _style(axes)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT)
    axes.grid(axis="y", color="#e6eaed", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=GREY)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.margins(x=0.02, y=0.12)


def _draw_seeds(axes: Axes, group: Sequence[Run], colour: str, label: str | None) -> None:
    """One curve for all runs, and each of them as a thin line that ends in a dot where the run ended."""
    curves = [run.evaluation for run in group if run.evaluation.steps.size]
    if len(curves) > 1:
        for curve in curves:
            axes.plot(curve.steps, curve.mean, color=colour, lw=0.8, alpha=0.45, zorder=2.5)
            axes.plot(curve.steps[-1:], curve.mean[-1:], "o", ms=3, color=colour, alpha=0.45, mew=0, zorder=2.5)
    _draw_curve(axes, combine(curves), colour, label)


def _draw_curve(axes: Axes, curve: Curve, colour: str, label: str | None) -> None:
    if not curve.steps.size:
        return
    few = curve.steps.size <= 25
    axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, lw=0, zorder=2)
    if curve.steps.size == 1:  # a band needs two points
        axes.vlines(curve.steps, curve.low, curve.high, color=colour, alpha=0.4, lw=3)
    axes.plot(curve.steps, curve.mean, color=colour, lw=2, marker="o" if few else "", ms=4, label=label, zorder=3)


def _draw_best(axes: Axes, curve: Curve) -> None:
    if not curve.steps.size:
        return
    best = int(np.argmax(curve.mean))
    step, value = curve.steps[best], curve.mean[best]
    axes.plot(step, value, "o", ms=10, mfc="white", mec=COLOURS[1], mew=2, zorder=4)
    axes.annotate(
        f"best {_plain_number(value)}",
        (step, value),
        xytext=(0, 10),
        textcoords="offset points",
        ha="center",
        color=COLOURS[1],
        fontweight="bold",
        zorder=5,
    )


def _finish(figure: Figure, axes: Axes, target: float | None) -> None:
    if not axes.lines:
        axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color=GREY, fontsize=12)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        return
    axes.set_xlim(left=0)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(frameon=False, loc="outside lower center", ncols=3, labelcolor=INK)  # never on top of a curve
    if target is not None and math.isfinite(target):
        axes.axhline(target, color=GREY, lw=1, ls=(0, (5, 4)), zorder=1.5)
        axes.annotate(
            f"target\n{_plain_number(target)}",  # beside the axes, where no curve passes
            (1, target),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=9,
        )


def _save(figure: Figure, path: Path) -> Path:
    suffix = path.suffix.lower().removeprefix(".").replace("jpeg", "jpg")
    if suffix not in FORMATS:
        raise ConfigError(f"{path.name} must end in one of .{', .'.join(FORMATS)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=180)
    write_atomic(path, buffer.getvalue())
    return path


def _short(value: float) -> str:
    """20000 as 20k, 1500000 as 1.5M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def _plain_number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

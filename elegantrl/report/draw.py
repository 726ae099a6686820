"""Draws learning curves on separate canvases: the caller's matplotlib backend and styles stay unchanged."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..errors import ConfigError
from ..store.files import write_atomic
from .runs import Curve, Run, combine
from .style import COLOURS, GREY, INK, LIGHT, plain_number, short_number

FORMATS = ("jpg", "pdf", "png", "svg")
SEVERAL_SEEDS = "interquartile mean and 95 % bootstrap band; thin: the seeds; after its dot a seed keeps its score"


def make_canvas(title: str, note: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{title}\n", loc="left", fontsize=15, fontweight="bold", color=INK)
    axes.text(0, 1.025, note, transform=axes.transAxes, fontsize=10, color=GREY, va="bottom")
    axes.set_xlabel("environment steps", color=GREY)
    axes.set_ylabel("return per episode", color=GREY)
    style_axes(axes)
    return figure, axes


def style_axes(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT)
    axes.grid(axis="y", color="#e6eaed", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=GREY)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.margins(x=0.02, y=0.12)


def draw_seeds(axes: Axes, group: Sequence[Run], colour: str, label: str | None, style: str = "-") -> None:
    """One curve for all runs, and each of them as a thin line that ends in a dot where the run ended."""
    curves = [run.evaluation for run in group if run.evaluation.steps.size]
    if len(curves) > 1:
        for curve in curves:
            axes.plot(curve.steps, curve.mean, color=colour, lw=0.8, alpha=0.45, zorder=2.5)
            axes.plot(curve.steps[-1:], curve.mean[-1:], "o", ms=3, color=colour, alpha=0.45, mew=0, zorder=2.5)
    draw_curve(axes, combine(curves), colour, label, style)


def draw_curve(axes: Axes, curve: Curve, colour: str, label: str | None, style: str = "-") -> None:
    if not curve.steps.size:
        return
    few = curve.steps.size <= 25
    axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, lw=0, zorder=2)
    if curve.steps.size == 1:  # a confidence band needs two points
        axes.vlines(curve.steps, curve.low, curve.high, color=colour, alpha=0.4, lw=3)
    marker = "o" if few else ""
    axes.plot(curve.steps, curve.mean, style, color=colour, lw=2, marker=marker, ms=4, label=label, zorder=3)


def draw_best(axes: Axes, curve: Curve) -> None:
    if not curve.steps.size:
        return
    best = int(np.argmax(curve.mean))
    step, value = curve.steps[best], curve.mean[best]
    axes.plot(step, value, "o", ms=10, mfc="white", mec=COLOURS[1], mew=2, zorder=4)
    axes.annotate(
        f"best {plain_number(value)}",
        (step, value),
        xytext=(0, 10),
        textcoords="offset points",
        ha="center",
        color=COLOURS[1],
        fontweight="bold",
        zorder=5,
    )


def finish_axes(figure: Figure, axes: Axes, target: float | None) -> None:
    if not axes.lines:
        axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color=GREY, fontsize=12)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        return
    axes.set_xlim(left=0)
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        columns = max(1, min(3, 110 // max(map(len, labels))))  # so that long labels stay inside the picture
        figure.legend(frameon=False, loc="outside lower center", ncols=columns, labelcolor=INK)  # below the curves
    if target is not None and math.isfinite(target):
        axes.axhline(target, color=GREY, lw=1, ls=(0, (5, 4)), zorder=1.5)
        axes.annotate(
            f"target\n{plain_number(target)}",  # beside the axes, so that no curve crosses it
            (1, target),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=9,
        )


def save_figure(figure: Figure, path: Path) -> Path:
    suffix = path.suffix.lower().removeprefix(".").replace("jpeg", "jpg")
    if suffix not in FORMATS:
        raise ConfigError(f"{path.name} must end in one of .{', .'.join(FORMATS)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=180)
    write_atomic(path, buffer.getvalue())
    return path

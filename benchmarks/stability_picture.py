"""The picture of stability.py: the last score of every run, and below it what the runs of each task say together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from stability import RESULTS, SYSTEMS, Runs, Task, compare, final, resample

from elegantrl.report.statistics import interquartile_mean
from elegantrl.report.style import GREY, INK, LIGHT

ORANGE, DARK = "#d55e00", "#555555"
QUESTIONS = {
    "better": ("Better last policy?", "P(a run of ours beats one of SB3's)", 0.5, ("SB3 better", "ours better")),
    "deviation": ("Steadier over seeds?", "std of ours / std of SB3", 1.0, ("ours steadier", "SB3 steadier")),
    "seconds": ("Faster?", "processor seconds of ours / those of SB3", 1.0, ("ours faster", "SB3 faster")),
}


def draw(runs: Mapping[str, Mapping[str, Runs]], tasks: list[Task], first: str) -> Path:
    """``first`` is the one of ours that is compared with Stable-Baselines3."""
    colours = {first: ORANGE, "sb3": DARK}
    figure = Figure(figsize=(12, 7.4))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 1, left=0.055, right=0.985, top=0.84, bottom=0.085, hspace=0.42, height_ratios=[1, 1])
    upper = grid[0].subgridspec(1, len(tasks), wspace=0.5)
    for index, task in enumerate(tasks):
        draw_task(figure.add_subplot(upper[index]), runs[task.env], task, colours)
    lower = grid[1].subgridspec(1, len(QUESTIONS) + 1, wspace=0.12, width_ratios=[0.52, 1, 1, 1])
    for index, key in enumerate(QUESTIONS):
        draw_question(figure.add_subplot(lower[index + 1]), runs, tasks, key, first, with_names=index == 0)
    but = " but for the normalisation of advantages" if first == "ours_rollout" else ""
    counts = sorted({len(runs[task.env][system]) for task in tasks for system in colours})
    seeds = " to ".join(map(str, {counts[0]: 0, counts[-1]: 0}))
    figure.text(
        0.012, 0.955, f"PPO with the same settings{but}, {seeds} seeds each", fontsize=16, weight="bold", color=INK
    )
    note = "Return of the last policy of every run (a dot), interquartile mean and its 95 % interval (bar)"
    figure.text(0.012, 0.915, note, fontsize=11, color=GREY)
    for place, system in zip((0.73, 0.83), colours, strict=True):
        name = SYSTEMS[system].partition(",")[0]
        figure.text(place, 0.958, f"● {name}", fontsize=12, weight="bold", color=colours[system])
    path = RESULTS / "stability.png"
    figure.savefig(path, dpi=110)
    return path


def plain(axis: Axes) -> None:
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(LIGHT)
    axis.tick_params(length=0, labelcolor=GREY, labelsize=9)


def draw_task(axis: Axes, runs: Mapping[str, Runs], task: Task, colours: dict[str, str]) -> None:
    """A column of dots per system."""
    generator = np.random.default_rng(0)
    for column, (system, colour) in enumerate(colours.items()):
        scores = final(runs[system])
        axis.plot(column + generator.uniform(-0.16, 0.16, len(scores)), scores, "o", ms=6, color=colour, alpha=0.55,
                  mew=0)  # fmt: skip
        low, high = np.quantile(interquartile_mean(resample([scores], 0)[0], axis=1), [0.025, 0.975])
        axis.plot([column + 0.33] * 2, [low, high], color=colour, lw=5, alpha=0.45, solid_capstyle="butt")
        axis.plot([column + 0.22, column + 0.44], [interquartile_mean(scores)] * 2, color=colour, lw=2.5)
    axis.axhline(task.threshold, color=LIGHT, lw=1, ls="--", zorder=0)
    plain(axis)
    axis.set_xlim(-0.4, 1.6)
    axis.set_xticks([0.1, 1.1], ["ours", "SB3"])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_title(f"{task.env.replace('InvertedDouble', 'InvertedDouble' + chr(10))}", fontsize=10, color=INK,
                   weight="bold", loc="left")  # fmt: skip


def draw_question(axis: Axes, runs: Any, tasks: list[Task], key: str, first: str, with_names: bool) -> None:
    """A row per task and one for all: estimate and interval, to the left and right of equality."""
    title, label, equal, sides = QUESTIONS[key]
    rows = [*((task.env, [task]) for task in tasks), ("all tasks", tasks)]
    for row, (name, chosen) in enumerate(reversed(rows)):
        value, low, high = compare(runs, chosen, first, "sb3")[key]
        colour, width = (INK, 3.5) if name == "all tasks" else ("#0072b2", 2)
        axis.plot([low, high], [row, row], color=colour, lw=width, solid_capstyle="butt")
        axis.plot(value, row, "D" if name == "all tasks" else "o", ms=8, color=colour)
    axis.axvline(equal, color=GREY, lw=1)
    axis.axhline(0.5, color=LIGHT, lw=0.8)
    plain(axis)
    axis.grid(axis="x", color="#e6eaed", lw=0.8)
    axis.set_axisbelow(True)
    axis.set_ylim(-0.6, len(rows) - 0.2)
    axis.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)] if with_names else [""] * len(rows))
    if equal == 0.5:
        axis.set_xlim(0, 1)
    else:
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        axis.set_xlim(max(min(low, 0.5), 0.05), min(max(high, 2), 20))  # what lies beyond says no more
        axis.xaxis.set_major_locator(FixedLocator([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_title(title, fontsize=12, weight="bold", color=INK, loc="left", pad=20)
    axis.set_xlabel(label, color=GREY)
    axis.text(0, 1.02, f"← {sides[0]}", transform=axis.transAxes, fontsize=9, color=GREY)
    axis.text(1, 1.02, f"{sides[1]} →", transform=axis.transAxes, fontsize=9, color=GREY, ha="right")

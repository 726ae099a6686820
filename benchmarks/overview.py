"""A picture of many runs: one small panel per agent and environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elegantrl.errors import ConfigError
from elegantrl.report.draw import COLOURS, GREY, INK, SEVERAL_SEEDS, draw_seeds, finish_axes, save_figure, style_axes
from elegantrl.report.plot import common_target
from elegantrl.report.runs import Run, read_run


def plot_overview(run_dirs: Sequence[str | Path], out: str | Path, columns: int = 4) -> Path:
    """Draw many runs into ``out``, one small panel per agent and environment; return the path."""
    if not run_dirs:
        raise ConfigError("there is no run to plot; name at least one run folder")
    groups: dict[str, list[Run]] = {}
    for run in map(read_run, run_dirs):
        groups.setdefault(run.title, []).append(run)
    rows = math.ceil(len(groups) / columns)
    layout = ConstrainedLayoutEngine(hspace=0.08, wspace=0.04)
    figure = Figure(figsize=(3.4 * columns, 2.3 * rows + 0.5), layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(SEVERAL_SEEDS, x=0.005, ha="left", fontsize=12, color=GREY)
    for i, (title, group) in enumerate(groups.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
        style_axes(axes)
        draw_seeds(axes, group, COLOURS[0], None)
        finish_axes(figure, axes, common_target(group))
    return save_figure(figure, Path(out))

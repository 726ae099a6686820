"""A picture of many runs: one small panel per measured task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elegantrl.errors import ConfigError
from elegantrl.report.draw import SEVERAL_SEEDS, draw_seeds, finish_axes, save_figure, style_axes
from elegantrl.report.plot import common_target
from elegantrl.report.runs import read_run
from elegantrl.report.style import COLOURS, GREY, INK


class Panel(NamedTuple):
    """The seeds of one task, which are one curve."""

    run_dirs: Sequence[str | Path]
    note: str = ""
    """What tells the task from another one of the same agent and environment."""


def plot_overview(panels: Sequence[Panel], out: str | Path, columns: int = 4) -> Path:
    """Draw small panels into ``out``; return the path."""
    if not panels:
        raise ConfigError("there is no run to plot; name at least one run folder")
    rows = math.ceil(len(panels) / columns)
    layout = ConstrainedLayoutEngine(hspace=0.08, wspace=0.04)
    figure = Figure(figsize=(3.4 * columns, 2.3 * rows + 0.5), layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(SEVERAL_SEEDS, x=0.005, ha="left", fontsize=12, color=GREY)
    for i, panel in enumerate(panels):
        group = [read_run(run_dir) for run_dir in panel.run_dirs]
        title = "\n".join(filter(None, [group[0].title, panel.note]))
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
        style_axes(axes)
        draw_seeds(axes, group, COLOURS[0], None)
        finish_axes(figure, axes, common_target(group))
    return save_figure(figure, Path(out))

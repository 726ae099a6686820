"""The lineage of a population as a picture: a row per member, a bar per period, a line from each parent to its copy."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .draw import save_figure
from .page import Lineage
from .style import COLOURS, GREY, INK, LIGHT, short_number


def plot_lineage(lineage: Lineage, title: str, path: Path) -> Path:
    """Draw a lineage to ``path``; the suffix decides the format."""
    groups = sorted({span.group for span in lineage.spans})
    colours = {group: COLOURS[i % len(COLOURS)] for i, group in enumerate(groups)}
    figure = Figure(figsize=(9, 1.8 + 0.28 * len(lineage.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=14, fontweight="bold", color=INK)
    for copy in lineage.copies:
        axes.plot([copy.step, copy.step], [copy.source, copy.row], color=LIGHT, lw=1.4, zorder=1)
        axes.plot([copy.step], [copy.row], marker="o", ms=4, color=GREY, zorder=3)
    named: set[str] = set()
    for span in lineage.spans:
        label = None if span.group in named else span.group
        named.add(span.group)
        colour = colours[span.group]
        axes.plot([span.start, span.end], [span.row] * 2, color=colour, lw=6, solid_capstyle="butt", label=label)
    axes.set_yticks(range(len(lineage.rows)), lineage.rows, fontsize=8, color=GREY)
    axes.invert_yaxis()
    axes.set_xlabel("environment steps of an agent, its ancestors included; a dot begins as a copy", color=GREY)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelcolor=GREY)
    if groups:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return save_figure(figure, path)

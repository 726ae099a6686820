"""Figures of a report as SVG text: lines over dates, and the table of monthly returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from .prices import Array

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1040, 300, 62, 12, 10, 28
MAX_POINTS = 700
MARGIN = 0.04
"""Free space above and below lines, relative to their range."""
EARLY_DAYS = 10
"""Dates that begin so many days after a new year begin with it."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Series(NamedTuple):
    """A line over the dates of its figure."""

    name: str
    values: Array  # [T]
    colour: str
    width: float = 1.4


def line_figure(dates: Array, series: Sequence[Series], label: str, *, log: bool = False) -> str:
    """Lines over dates, in percent; ``log`` draws equal ratios as equal distances."""
    shown = [np.log(s.values) if log else s.values for s in series]
    known = np.concatenate([x[np.isfinite(x)] for x in shown])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    days = dates.astype("datetime64[s]").astype(np.float64)
    x = LEFT + (days - days[0]) / (days[-1] - days[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: Array | float) -> Array:
        return np.asarray(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    marks = log_ticks(math.exp(low), math.exp(high)) if log else ticks(low, high)
    digits = max(0, math.ceil(-math.log10(marks[1] - marks[0]) - 2 - 1e-9)) if len(marks) > 1 else 1
    for tick in marks:
        at = float(y(math.log(tick) if log else tick))
        text = f"{tick:.{digits}%}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    for position, text in date_ticks(dates, x):
        parts.append(f'<text x="{position:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{text}</text>')
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).astype(int))
    for line, values in zip(series, shown, strict=True):
        points = [f"{a:.1f},{b:.1f}" for a, b in zip(x[kept], y(values[kept]), strict=True) if math.isfinite(b)]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{line.colour}" stroke-width="{line.width}">'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return "".join(parts) + "</svg>"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers within a range."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers within a range at similar ratios; those of ``ticks`` if it is narrow."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**p for p in powers for m in (1, 1.5, 2, 3, 5, 7) if low <= m * 10.0**p <= high]
    return found if 3 <= len(found) <= 12 else ticks(low, high)


def date_ticks(dates: Array, x: Array) -> list[tuple[float, str]]:
    """Where years begin, or months if there are few years; also the first one if it begins with the dates."""
    years = len(np.unique(dates.astype("datetime64[Y]")))
    unit, step = ("Y", max(1, years // 10)) if years > 2 else ("M", 2)
    periods = dates.astype(f"datetime64[{unit}]")
    starts = np.flatnonzero(periods[1:] != periods[:-1]) + 1
    begins = dates[0] - periods[0].astype("datetime64[s]") < np.timedelta64(EARLY_DAYS, "D")
    starts = np.append(0, starts) if begins and unit == "Y" else starts
    if not len(starts):
        return [(float(x[0]) + 30, str(dates[0].astype("datetime64[D]")))]
    return [(float(x[row]), str(periods[row])) for row in starts[::step]]


def legend(series: Sequence[Series]) -> str:
    marks = "".join(f'<span><i style="background:{s.colour}"></i>{escape(s.name)}</span>' for s in series)
    return f'<div class="legend">{marks}</div>'


def monthly_table(dates: Array, value: Array) -> str:
    """Returns by month and year, coloured by their sign and size."""
    months = dates.astype("datetime64[M]")
    ends = np.flatnonzero(np.append(months[1:] != months[:-1], True))
    before = np.append(0, ends[:-1])
    returns = value[ends] / value[before] - 1
    years = months[ends].astype("datetime64[Y]")
    number = months[ends].astype(int) % 12
    head = "".join(f"<th>{m}</th>" for m in (*MONTHS, "Year"))
    rows = []
    for year in np.unique(years):
        inside = years == year
        cells = {int(m): float(r) for m, r in zip(number[inside], returns[inside], strict=True)}
        row = "".join(_cell(cells.get(m)) for m in range(12))
        whole = float(np.prod(1 + returns[inside]) - 1)
        rows.append(f"<tr><th>{year}</th>{row}{_cell(whole)}</tr>")
    return f'<table class="months"><tr><th></th>{head}</tr>{"".join(rows)}</table>'


def _cell(value: float | None) -> str:
    if value is None:
        return "<td></td>"
    colour, strength = ("0,158,115" if value >= 0 else "213,94,0"), min(0.75, abs(value) * 6)
    return f'<td style="background:rgba({colour},{strength:.2f})">{100 * value:+.1f}</td>'

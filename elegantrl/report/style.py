"""Colours and short forms of numbers for pictures and pages; no import of matplotlib, which takes half a second."""

from __future__ import annotations

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")  # safe for the colour-blind
STYLES = ("-", "--", ":")
"""Lines of the second and third seven curves."""
INK, GREY, LIGHT = "#222222", "#777777", "#b7c3cc"


def short_number(value: float) -> str:
    """20000 as 20k, 1500000 as 1.5M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def plain_number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

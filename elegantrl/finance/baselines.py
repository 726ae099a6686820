"""Rules to compare an agent with. A rule sees the prices up to a bar and answers with weights, or None to do nothing.

Axes: T bars so far, A assets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .prices import TRADED, Array

MONTH, YEAR = 21, 252
"""Bars between two decisions, and bars that rules look back; of daily prices a month and a year."""


class View(NamedTuple):
    """What a rule knows when it decides."""

    close: Array  # [T, A] up to the bar of the decision
    traded: Array  # [A] whether an asset has a price
    bar: int  # bars since the start of the back-test


Rule = Callable[[View], Array | None]


def buy_and_hold(view: View) -> Array | None:
    """Buy all assets in equal parts at the start and hold them."""
    return equal_parts(view.traded) if view.bar == 0 else None


def equal_weight(view: View) -> Array | None:
    """Equal parts of all assets, again every month."""
    return equal_parts(view.traded) if view.bar % MONTH == 0 else None


def minimum_variance(view: View) -> Array | None:
    """Every month the long-only weights with the smallest variance over the last year."""
    if view.bar % MONTH:
        return None
    listed = view.traded & (view.close[-YEAR - 1 :] > 0).all(0)
    if len(view.close) < MONTH or not listed.any():
        return equal_parts(view.traded)
    returns = np.diff(np.log(view.close[-YEAR - 1 :][:, listed].astype(np.float64)), axis=0)
    weights = np.zeros(len(view.traded))
    weights[listed] = least_variance(np.atleast_2d(np.cov(returns, rowvar=False)))
    return weights


def momentum(view: View) -> Array | None:
    """Every month equal parts of the quarter of assets that rose most in the last year without its last month."""
    if view.bar % MONTH:
        return None
    past = view.close[-YEAR - 1 :]
    listed = view.traded & (past > 0).all(0)
    if len(past) <= 2 * MONTH or not listed.any():
        return equal_parts(view.traded)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.where(listed, past[-MONTH - 1] / past[0], -np.inf)
    best = np.argsort(-growth, kind="stable")[: max(1, int(listed.sum()) // 4)]
    chosen = np.zeros(len(listed), dtype=bool)
    chosen[best] = True
    return equal_parts(chosen & listed)


RULES: dict[str, Rule] = {
    "buy and hold": buy_and_hold,
    "equal weight": equal_weight,
    "minimum variance": minimum_variance,
    "momentum": momentum,
}


def equal_parts(chosen: Array) -> Array:
    return np.asarray(chosen / max(1, int(np.sum(chosen))), dtype=np.float64)


def least_variance(covariance: Array, sweeps: int = 1000) -> Array:
    """Weights w >= 0 with sum 1 and the smallest w' C w.

    They are the scaled minimum of x' C x / 2 - sum(x) over x >= 0, found coordinate by coordinate.
    """
    size = len(covariance)
    matrix = covariance / np.trace(covariance) * size + 1e-6 * np.eye(size)
    x = np.full(size, 1.0 / size)
    for _ in range(sweeps):
        before = x.copy()
        for i in range(size):
            x[i] = max(0.0, x[i] + (1 - matrix[i] @ x) / matrix[i, i])
        if np.abs(x - before).max() < 1e-9 * x.max():
            break
    return np.asarray(x / x.sum())


def view_of(close: Array, status: Array | None, row: int, first: int) -> View:
    """What is known at a row of the prices; the arrays end there."""
    traded = np.ones(close.shape[1], dtype=bool) if status is None else status[row] == TRADED
    return View(close[: row + 1], traded & (close[row] > 0), row - first)

"""Figures of a back-test from its returns per bar, equal to those of the package empyrical; the risk-free rate is 0.

Axes: T bars.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..rng import numpy_stream
from .prices import Array

DAYS_PER_YEAR = 252
RESAMPLES = 2000
BLOCK = 21
"""Bars of a block of the bootstrap: a month of days, longer than the memory of volatility from day to day."""


class Performance(NamedTuple):
    """What is reported of a strategy."""

    cumulative_return: float
    annual_return: float
    annual_volatility: float
    max_drawdown: float
    sharpe: float
    sortino: float
    calmar: float


def performance(returns: Array, bars_per_year: float = DAYS_PER_YEAR) -> Performance:
    """The figures of simple returns per bar [T].

    Annual return: the constant yearly growth with the same result. Volatility: standard deviation (n - 1) times the
    root of the bars per year. Sharpe: mean over standard deviation, annualised. Sortino: the same with the root mean
    square of the negative returns. Calmar: annual return over the size of the largest drawdown.
    """
    cumulative = float(np.prod(1 + returns) - 1)
    annual = (1 + cumulative) ** (bars_per_year / len(returns)) - 1 if cumulative > -1 else -1.0
    root = math.sqrt(bars_per_year)
    deepest = float(drawdowns(returns).min())
    downside = math.sqrt(float(np.mean(np.minimum(returns, 0) ** 2)))
    mean = float(np.mean(returns))
    return Performance(
        cumulative,
        annual,
        float(np.std(returns, ddof=1)) * root,
        deepest,
        sharpe_ratio(returns, bars_per_year),
        mean / downside * root if downside > 0 else math.nan,
        annual / abs(deepest) if deepest < 0 else math.nan,
    )


def sharpe_ratio(returns: Array, bars_per_year: float = DAYS_PER_YEAR) -> float:
    spread = float(np.std(returns, ddof=1))
    return float(np.mean(returns)) / spread * math.sqrt(bars_per_year) if spread > 0 else math.nan


def drawdowns(returns: Array) -> Array:
    """The value after each bar relative to the highest value before it, minus one [T]."""
    value = np.cumprod(np.concatenate([[1.0], 1 + returns]))
    return np.asarray(value / np.maximum.accumulate(value) - 1)[1:]


class Interval(NamedTuple):
    """A Sharpe ratio, or a difference of two, and the 95 % interval of the bootstrap."""

    value: float
    low: float
    high: float


def sharpe_interval(returns: Array, bars_per_year: float = DAYS_PER_YEAR, block: int = BLOCK) -> Interval:
    """The Sharpe ratio with an interval; resamples are those of ``sharpe_difference``."""
    ratios = _resampled_ratios(returns, _starts(len(returns), block), block)
    return _interval(ratios, sharpe_ratio(returns, bars_per_year), bars_per_year)


def sharpe_difference(
    returns: Array, others: Array, bars_per_year: float = DAYS_PER_YEAR, block: int = BLOCK
) -> Interval:
    """The difference of two Sharpe ratios over the same bars.

    Resamples join whole blocks of consecutive bars, of both series at once, so that they keep the dependence of returns
    over time and between the two. The stream is fixed: the same returns give the same interval.
    """
    starts = _starts(len(returns), block)
    ratios = [_resampled_ratios(x, starts, block) for x in (returns, others)]
    difference = sharpe_ratio(returns, bars_per_year) - sharpe_ratio(others, bars_per_year)
    return _interval(ratios[0] - ratios[1], difference, bars_per_year)


def _interval(resampled: Array, value: float, bars_per_year: float) -> Interval:
    """The range of resamples per bar around a yearly value."""
    known = resampled[np.isfinite(resampled)]
    if not len(known):  # returns that never move have no ratio
        return Interval(math.nan, math.nan, math.nan)
    low, high = np.percentile(known, [2.5, 97.5]) * math.sqrt(bars_per_year)
    return Interval(value, float(low), float(high))


def _starts(count: int, block: int) -> Array:
    """Where the blocks of each resample begin."""
    return numpy_stream(0, "sharpe_difference").integers(count, size=(RESAMPLES, math.ceil(count / block)))


def _resampled_ratios(returns: Array, starts: Array, block: int) -> Array:
    """Mean over standard deviation of each resample, from the sums of its blocks; blocks go on at the beginning."""
    around = np.concatenate([returns, returns[: block - 1]])
    sums, squares = (np.convolve(x, np.ones(block), "valid")[starts].sum(1) for x in (around, around**2))
    count = starts.shape[1] * block
    variance = np.maximum(squares - sums**2 / count, 0) / (count - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums / count / np.sqrt(variance))


def bars_per_year(dates: Array) -> float:
    """252 for daily bars; for others the bars of an average day times 252."""
    spacing = np.median(np.diff(dates).astype("timedelta64[s]").astype(np.int64))
    if spacing > 5 * 86400:  # weekly and longer
        return float(365.25 * 86400 / spacing)
    days = len(np.unique(dates.astype("datetime64[D]")))
    return DAYS_PER_YEAR * len(dates) / days

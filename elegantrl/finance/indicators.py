"""Technical indicators. The value of a bar depends on that bar and earlier ones only.

Prices are float64 [T, A]; windows that reach back before the first bar use the bars that exist, so no value is missing.
Names and definitions are those that FinRL uses (package stockstats), unless a docstring says otherwise.

Axes: T bars, A assets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .loaders import import_pandas
from .prices import Array


def sma(x: Array, window: int) -> Array:
    """Mean of the last ``window`` bars."""
    sums = np.cumsum(x - x[0], axis=0)  # relative to the first bar, so that small changes keep their digits
    sums[window:] = sums[window:] - sums[:-window].copy()
    return x[0] + sums / _counts(len(x), window)


def rolling_std(x: Array, window: int) -> Array:
    """Standard deviation of the last ``window`` bars with n - 1 in the denominator; 0 for the first bar."""
    y = x - x[0]
    total, squares = np.cumsum(y, axis=0), np.cumsum(y * y, axis=0)
    for sums in (total, squares):
        sums[window:] = sums[window:] - sums[:-window].copy()
    counts = _counts(len(x), window)
    return np.sqrt(np.maximum(squares - total * total / counts, 0) / np.maximum(counts - 1, 1))


def _counts(length: int, window: int) -> Array:
    """How many bars each window holds [T, 1]."""
    return np.minimum(np.arange(1, length + 1), window)[:, None].astype(np.float64)


def ema(x: Array, alpha: float) -> Array:
    """Mean of all bars so far with weights that fall by 1 - ``alpha`` per bar, normalised to one."""
    return np.asarray(import_pandas().DataFrame(x).ewm(alpha=alpha, adjust=True).mean())


def macd(close: Array, fast: int = 12, slow: int = 26) -> Array:
    """The difference of two exponential means, in units of the price."""
    return ema(close, 2 / (fast + 1)) - ema(close, 2 / (slow + 1))


def bollinger(close: Array, window: int = 20, width: float = 2.0) -> tuple[Array, Array]:
    """The upper and the lower band around the moving average."""
    middle, half = sma(close, window), width * rolling_std(close, window)
    return middle + half, middle - half


def rsi(close: Array, window: int = 30) -> Array:
    """Relative strength by Wilder's smoothing, 0 to 100; 50 while no price has changed."""
    change = _differences(close)
    up, down = (ema(np.maximum(sign * change, 0), 1 / window) for sign in (1, -1))
    return _ratio(100 * up, up + down, 50.0)


def cci(high: Array, low: Array, close: Array, window: int = 30) -> Array:
    """Commodity channel index: distance of the typical price from its mean, in units of 1.5 % mean deviations."""
    typical = (high + low + close) / 3
    middle = sma(typical, window)
    deviation = np.zeros_like(typical)
    for lag in range(min(window, len(typical))):
        deviation[lag:] += np.abs(typical[: len(typical) - lag] - middle[lag:])
    return _ratio(typical - middle, 0.015 * deviation / _counts(len(close), window), 0.0)


def dx(high: Array, low: Array, close: Array, window: int = 30) -> Array:
    """Directional movement index by Wilder's smoothing, 0 to 100; 0 while there is no movement."""
    up, down = _differences(high), -_differences(low)
    rises, falls = np.where((up > down) & (up > 0), up, 0), np.where((down > up) & (down > 0), down, 0)
    plus, minus = ema(rises, 1 / window), ema(falls, 1 / window)  # the true range cancels in the ratio
    return _ratio(100 * np.abs(plus - minus), plus + minus, 0.0)


def turbulence(close: Array, window: int = 252) -> Array:
    """How unusual the returns of a bar are [T]: their squared Mahalanobis distance from those of the ``window`` bars
    before it; 0 until there are as many (Kritzman and Li 2010). Assets without a price in the window are left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        returns = np.where(close[:-1] > 0, close[1:] / close[:-1] - 1, np.nan)  # [T - 1, A]; row t ends at bar t + 1
    found = np.zeros(len(close))
    for t in range(window, len(returns)):
        past = returns[t - window : t]
        listed = np.isfinite(past).all(0)
        if not listed.any():
            continue
        past, now = past[:, listed], returns[t, listed]
        distance = now - past.mean(0)
        covariance = np.atleast_2d(np.cov(past, rowvar=False))
        found[t + 1] = max(0.0, float(distance @ np.linalg.pinv(covariance, hermitian=True) @ distance))
    return found


def _differences(x: Array) -> Array:
    return np.diff(x, axis=0, prepend=x[:1])


def _ratio(above: Array, below: Array, otherwise: float) -> Any:
    """``above / below``, or ``otherwise`` where nothing is below."""
    tiny = np.abs(below) < 1e-12
    return np.where(tiny, otherwise, above / np.where(tiny, 1.0, below))

"""Small markets with known or random prices, for the tests of trading."""

from __future__ import annotations

from typing import Any

import numpy as np

from elegantrl.finance import PriceTable
from elegantrl.finance.prices import clean

START = np.datetime64("2020-01-01", "D")


def table_of(close: Any, **fields: Any) -> PriceTable:
    """A table of closing prices [T, A] on consecutive days; NaN is no price."""
    close = np.asarray(close, dtype=np.float64)
    layers = [close, *(np.asarray(x, dtype=np.float64) for x in fields.values())]
    dates = START + np.arange(len(close))
    assets = [f"S{i}" for i in range(close.shape[1])]
    return clean(dates, assets, ["close", *fields], np.stack(layers, -1), splits="keep")


def random_table(seed: int, bars: int = 120, assets: int = 4, gaps: bool = False) -> PriceTable:
    """Random walks with highs and lows; with ``gaps`` one asset comes late, one is delisted and one has a gap."""
    stream = np.random.default_rng(seed)
    close = stream.uniform(2, 200, assets) * np.exp(0.02 * stream.standard_normal((bars, assets))).cumprod(0)
    high, low = (close * np.exp(sign * 0.01 * stream.random((bars, assets))) for sign in (1, -1))
    if gaps:
        close[: bars // 4, 0] = np.nan
        close[bars // 2 :, 1] = np.nan
        close[bars // 3 : bars // 3 + 3, 2] = np.nan
    return table_of(close, high=high, low=low)

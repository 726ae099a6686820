"""What an agent sees of the market: indicators as numbers around zero, none of which depends on the price level.

Each feature of a bar is computed from that bar and earlier ones. There is no fitted scale, so nothing of a later period
can reach an earlier one.

Axes: T bars, A assets, F fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from . import indicators
from .prices import Array, PriceTable

Bars = Mapping[str, Array]
"""``close``, ``high`` and ``low`` of some assets [T, A]; without its own, a high or a low is the close."""

LIMIT = 5.0
"""Features are clipped to this range on both sides."""
BLOCK = 16
"""Assets whose features are computed at once; more would only take more memory."""

FEATURES: dict[str, Callable[[Bars], Array]] = {
    "return": lambda b: 50 * np.log(b["close"] / np.concatenate([b["close"][:1], b["close"][:-1]])),
    "macd": lambda b: 50 * indicators.macd(b["close"]) / b["close"],
    "boll_ub": lambda b: 20 * (indicators.bollinger(b["close"])[0] / b["close"] - 1),
    "boll_lb": lambda b: 20 * (indicators.bollinger(b["close"])[1] / b["close"] - 1),
    "rsi_30": lambda b: indicators.rsi(b["close"], 30) / 25 - 2,
    "cci_30": lambda b: indicators.cci(b["high"], b["low"], b["close"], 30) / 100,
    "dx_30": lambda b: indicators.dx(b["high"], b["low"], b["close"], 30) / 50 - 1,
    "close_30_sma": lambda b: 20 * (indicators.sma(b["close"], 30) / b["close"] - 1),
    "close_60_sma": lambda b: 10 * (indicators.sma(b["close"], 60) / b["close"] - 1),
}
"""Name -> feature of some assets [T, A]."""

PRICES = ("open", "high", "low", "close", "volume")


def with_features(
    table: PriceTable, turbulence: bool = False, features: Mapping[str, Callable[[Bars], Array]] = FEATURES
) -> PriceTable:
    """The closing prices of a table and the features of each asset; before its first price an asset has zeros.

    Fields of the table that are no prices are indicators of the caller's own: they replace ``features``, each divided
    by its typical size so far.
    """
    own = [name for name in table.fields if name not in PRICES]
    names = own or list(features)
    values = np.zeros((len(table.dates), 1 + len(names), len(table.assets)), dtype=np.float32)
    values[:, 0] = table.close
    for begin, columns in _blocks(table):
        bars = {name: _bars(table, name, begin, columns) for name in ("close", "high", "low")}
        for place, name in enumerate(names, 1):
            found = _scaled(_bars(table, name, begin, columns)) if own else features[name](bars)
            values[begin:, place, columns] = np.clip(found, -LIMIT, LIMIT)
    return with_turbulence(replace(table, fields=("close", *names), values=values), turbulence)


def with_turbulence(table: PriceTable, wanted: bool) -> PriceTable:
    """The table with its turbulence if that is ``wanted`` and not known yet."""
    if not wanted or table.turbulence is not None:
        return table
    level = indicators.turbulence(table.close.astype(np.float64))
    return replace(table, turbulence=level.astype(np.float32))


def has_features(table: PriceTable) -> bool:
    """Whether a table is a result of ``with_features`` with the usual features."""
    return table.fields == ("close", *FEATURES)


def _blocks(table: PriceTable) -> list[tuple[int, list[int]]]:
    """(first bar, columns) of assets that have their first price at the same bar."""
    first = (table.close > 0).argmax(0)
    groups = [(int(bar), np.flatnonzero(first == bar).tolist()) for bar in np.unique(first)]
    return [(bar, found[i : i + BLOCK]) for bar, found in groups for i in range(0, len(found), BLOCK)]


def _bars(table: PriceTable, name: str, begin: int, columns: list[int]) -> Array:
    field = name if name in table.fields else "close"
    return table.field(field)[begin:, columns].astype(np.float64)


def _scaled(x: Array) -> Array:
    """``x`` divided by the root of the mean of its squares up to each bar."""
    size = np.sqrt(np.cumsum(x * x, axis=0) / np.arange(1, len(x) + 1)[:, None])
    return x / np.maximum(size, 1e-9)

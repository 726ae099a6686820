"""Prices as one table of dates, fields and assets that environments and processes share without copies.

A table is complete: ``clean`` has sorted its dates and has filled or refused everything that is wrong with raw prices.
The prices of a date lie side by side, because environments read them far more often than anything else.

Axes: T dates, A assets, F fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, StorageError, did_you_mean
from ..store.files import write_atomic

Array = np.ndarray[Any, Any]
Splits = Literal["refuse", "adjust", "keep"]

TRADED, HALTED, DELISTED = 1, 0, -1
"""States of an asset on a date: it has a price; it has none (yet); its position is paid out at the last price."""
MAX_GAP = 10
"""Bars without a price after which an asset counts as delisted."""
SPLIT_RATIOS = (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100)
SPLIT_TOLERANCE = 0.01
EDGE_DAYS = 7
"""A period may begin or end this many days outside of the dates: weekends and holidays have no prices."""
TABLE_FILE = "table.json"


@dataclass(frozen=True, eq=False)
class PriceTable:
    """Fields of assets by date; the first field is ``close``, which is above zero once an asset is listed."""

    dates: Array  # [T] datetime64[s], strictly increasing
    assets: tuple[str, ...]
    fields: tuple[str, ...]
    values: Array  # [T, F, A] float32
    status: Array | None = None  # [T, A] int8: TRADED, HALTED or DELISTED; None if all are always traded
    turbulence: Array | None = None  # [T] float32, if known

    @cached_property
    def rows(self) -> Tensor:
        """The values [T, F * A] as a tensor on the same memory."""
        return torch.from_numpy(self.values.reshape(len(self.dates), -1))

    @property
    def close(self) -> Array:
        return self.values[:, 0]

    def field(self, name: str) -> Array:
        """One field [T, A]."""
        if name not in self.fields:
            raise ConfigError(f"the prices have no field {name!r}; {did_you_mean(name, self.fields)}")
        return self.values[:, self.fields.index(name)]

    def select(self, assets: Sequence[str]) -> PriceTable:
        """The table of these assets alone, in this order."""
        for name in assets:
            if name not in self.assets:
                raise ConfigError(f"there is no asset {name!r} in the prices; {did_you_mean(name, self.assets)}")
        if len(set(assets)) < len(assets) or not assets:
            raise ConfigError(f"assets={list(assets)} must name at least one asset, and each once")
        columns = [self.assets.index(name) for name in assets]
        status = None if self.status is None else self.status[:, columns]
        values = np.ascontiguousarray(self.values[:, :, columns])
        # Turbulence depends on the choice of assets, so it is not kept.
        return replace(self, assets=tuple(assets), values=values, status=status, turbulence=None)

    def span(self, period: Period) -> tuple[int, int]:
        """The first and the last row within a period, both included."""
        first, last = self.dates[0], self.dates[-1]
        margin = np.timedelta64(EDGE_DAYS, "D")
        if period.start < first - margin or period.end > last + margin:
            raise ConfigError(
                f"the period {period} lies outside of the prices, which run from {day(first)} to {day(last)}"
            )
        begin = int(np.searchsorted(self.dates, period.start))
        end = int(np.searchsorted(self.dates, period.end, side="right")) - 1
        if end - begin < 1:
            raise ConfigError(f"the period {period} holds fewer than two dates of the prices; make it longer")
        return begin, end

    def save(self, folder: Path) -> Path:
        """Write the table as files that ``load_table`` maps into memory; the description comes last."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = {"values": self.values, "dates": self.dates.astype(np.int64)}
        parts |= {name: part for name in ("status", "turbulence") if (part := getattr(self, name)) is not None}
        try:
            for name, part in parts.items():
                np.save(folder / f"{name}.npy", part)
        except OSError as error:
            raise StorageError(f"the prices cannot be written to {folder}: {error.strerror}") from None
        about = {"assets": self.assets, "fields": self.fields, "parts": sorted(parts)}
        write_atomic(folder / TABLE_FILE, (json.dumps(about) + "\n").encode())
        return folder


def load_table(folder: Path) -> PriceTable:
    """A saved table; its values stay in the file and are read by pages, which all processes share."""
    try:
        about = json.loads((folder / TABLE_FILE).read_text())
        # Mode "c": a write would stay in this process; torch warns about memory that cannot be written at all.
        parts = {
            name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
            for name in ("dates", "values", "status", "turbulence")
            if name in about["parts"]
        }
        dates = np.asarray(parts.pop("dates")).astype("datetime64[s]")
        table = PriceTable(dates, tuple(about["assets"]), tuple(about["fields"]), **parts)
        expected = (len(table.dates), len(table.fields), len(table.assets))
        if table.values.shape != expected:
            raise ValueError(f"its values have the shape {table.values.shape} instead of {expected}")
        return table
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{folder} does not hold a saved price table ({reason:.200})") from None


class Period(NamedTuple):
    """From ``start`` to ``end``, both included."""

    start: np.datetime64
    end: np.datetime64

    def __str__(self) -> str:
        return f"{day(self.start)}:{day(self.end)}"


def parse_period(text: str) -> Period:
    """``1990:2012``, ``2015-03:2016-06`` or ``2015-03-01:2015-06-30``; an end includes its whole year, month or day."""
    start, colon, end = str(text).partition(":")
    if not colon or not start or not end:
        raise ConfigError(f"the period {text!r} is not START:END; write for example 1990:2012")
    try:
        first, last = np.datetime64(start.strip()), np.datetime64(end.strip())
        following = (last + 1).astype("datetime64[s]")  # of the same unit: the next year, month or day
        period = Period(first.astype("datetime64[s]"), following - 1)
    except ValueError:
        raise ConfigError(f"the period {text!r} has no dates like 1990, 1990-03 or 1990-03-31") from None
    if period.start > period.end:
        raise ConfigError(f"the period {text!r} ends before it begins; swap its dates")
    return period


def day(moment: Any) -> str:
    return str(np.datetime_as_string(np.datetime64(moment), unit="D"))


# ---- from raw prices to a table


def clean(
    dates: Array,
    assets: Sequence[str],
    fields: Sequence[str],
    values: Array,
    *,
    source: str = "the prices",
    splits: Splits = "refuse",
    max_gap: int = MAX_GAP,
) -> PriceTable:
    """A table from raw values [T, A, F] in which NaN is a price that does not exist.

    Dates are sorted. A gap of up to ``max_gap`` bars keeps the last price, and nothing can be traded in it; after that
    many bars an asset is delisted. An asset that comes late is not traded before its first price. Duplicate dates with
    different values, prices that are not above zero, longer gaps and changes that look like splits are refused.
    """
    if "close" not in fields:
        raise ConfigError(f"{source} has no field 'close'; the fields are {', '.join(fields)}")
    order = ["close", *(name for name in fields if name != "close")]
    dates = np.asarray(dates).astype("datetime64[s]")
    dates, values = sorted_dates(dates, np.asarray(values)[:, :, [list(fields).index(name) for name in order]], source)
    close = values[:, :, 0].astype(np.float64)
    refuse_bad_prices(close, dates, assets, source)
    close, status = filled(close, dates, assets, source, max_gap)
    factors = split_factors(close, dates, assets, source, splits)
    table = np.empty((len(dates), len(order), len(assets)), dtype=np.float32)
    table[:, 0] = close * factors
    for place, name in enumerate(order[1:], 1):
        scale = factors if name in ("open", "high", "low") else 1.0
        known = np.where(np.isnan(values[:, :, place]), 0.0 if name == "volume" else close, values[:, :, place])
        table[:, place] = known * scale
    return PriceTable(dates, tuple(map(str, assets)), tuple(order), table, status)


def sorted_dates(dates: Array, values: Array, source: str) -> tuple[Array, Array]:
    """Rows by date; a date may occur twice if its values are the same."""
    if len(dates) != len(values):
        raise ConfigError(f"{source} has {len(dates)} dates and {len(values)} rows of prices; they must match")
    if len(dates) < 2:
        raise ConfigError(f"{source} has {len(dates)} dates; at least two are needed")
    if np.isnat(dates).any():
        raise ConfigError(f"{source} has a row without a date; drop it")
    order = np.argsort(dates, kind="stable")
    dates, values = dates[order], values[order]
    same = np.flatnonzero(dates[1:] == dates[:-1])
    for row in same:
        if not np.array_equal(values[row], values[row + 1], equal_nan=True):
            raise ConfigError(f"{source} has two rows with different values for {day(dates[row])}; keep one of them")
    keep = np.setdiff1d(np.arange(len(dates)), same + 1)
    return dates[keep], values[keep]


def refuse_bad_prices(close: Array, dates: Array, assets: Sequence[str], source: str) -> None:
    for row, column in np.argwhere((close <= 0) | np.isinf(close))[:1]:
        raise ConfigError(
            f"{source} has the price {close[row, column]:g} for {assets[column]} on {day(dates[row])}; prices are"
            f" finite and above zero, so correct it or leave it empty"
        )
    for column in np.flatnonzero(np.isnan(close).all(0))[:1]:
        raise ConfigError(f"{source} has no price for {assets[column]}; drop the asset")


def filled(close: Array, dates: Array, assets: Sequence[str], source: str, max_gap: int) -> tuple[Array, Array | None]:
    """Prices without NaN and the status of assets. Only earlier prices fill a gap; before its first price an asset has
    the price 0."""
    missing = np.isnan(close)
    if not missing.any():
        return close, None
    bars = np.arange(len(close))[:, None]
    last_known = np.maximum.accumulate(np.where(missing, -1, bars), axis=0)
    held = bars - last_known  # bars since the last price
    filled_close = np.where(last_known >= 0, np.take_along_axis(close, last_known.clip(0), 0), 0.0)
    status = np.where(missing, HALTED, TRADED).astype(np.int8)
    status[(last_known >= 0) & (held > max_gap)] = DELISTED
    back = (status[1:] == TRADED) & (status[:-1] == DELISTED)
    for row, column in np.argwhere(back)[:1]:
        length = int(held[row, column])
        raise ConfigError(
            f"{source} has no price for {assets[column]} in {length} bars before {day(dates[row + 1])}; fill the gap,"
            f" drop the asset, or allow it with max_gap={length}"
        )
    return filled_close, status


def split_factors(close: Array, dates: Array, assets: Sequence[str], source: str, splits: Splits) -> Array:
    """By what each price is multiplied [T, A]: 1, or the product of all later splits."""
    factors = np.ones_like(close)
    if splits == "keep":
        return factors
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(close[:-1] > 0, close[1:] / close[:-1], 1.0)
    size = np.maximum(ratio, 1 / np.maximum(ratio, 1e-12))
    whole = np.round(size)
    suspects = np.isin(whole, SPLIT_RATIOS) & (np.abs(size / whole - 1) < SPLIT_TOLERANCE)
    for row, column in np.argwhere(suspects):
        if splits == "refuse":
            raise ConfigError(
                f"{source} changes {assets[column]} by a factor of {ratio[row, column]:.3f} on {day(dates[row + 1])},"
                f" which looks like a split; adjust the prices, or use splits='adjust' or splits='keep'"
            )
        by = 1 / whole[row, column] if ratio[row, column] < 1 else whole[row, column]
        factors[: row + 1, column] *= by
    return factors

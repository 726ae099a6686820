"""Prices from packages, files, arrays and downloads, each as a clean ``PriceTable``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import ConfigError, did_you_mean
from .prices import MAX_GAP, TABLE_FILE, Array, PriceTable, Splits, clean, day, load_table

PACKAGED = {"sp500": "sp500_dataset", "sp500-index": "sp500_index", "factors": "factors_dataset"}
"""Names of the daily prices that come with skfolio, and their files."""
DATE_NAMES = ("date", "datetime", "timestamp", "time", "day")
ASSET_NAMES = ("tic", "ticker", "symbol", "asset")
FIELD_NAMES = ("open", "high", "low", "close", "volume")
ADJUSTED = ("adj close", "adj_close", "adjclose", "adjusted_close", "adjcp")
FIRST_DATE = np.datetime64("2000-01-03", "D")
"""The first date of arrays, which come without dates."""
DOCUMENTED_TECH = (
    "macd",
    "boll_ub",
    "boll_lb",
    "rsi_30",
    "cci_30",
    "dx_30",
    "close_30_sma",
    "close_60_sma",
)


def load_prices(source: str | Path | PriceTable, *, splits: Splits = "refuse", max_gap: int = MAX_GAP) -> PriceTable:
    """Prices from a name (``sp500``, ``sp500-index``, ``factors``), a CSV or Parquet file, an ``.npz`` file of the
    documented arrays, or the folder of a saved table; a table is returned as it is."""
    if isinstance(source, PriceTable):
        return source
    if str(source) in PACKAGED:
        return packaged(str(source))
    path = Path(source)
    if path.is_dir() and (path / TABLE_FILE).exists():
        return load_table(path)
    if not path.is_file():
        names = did_you_mean(str(source), PACKAGED) if not path.suffix and "/" not in str(source) else "check the path"
        raise ConfigError(f"there are no prices {str(source)!r}; {names}")
    if path.suffix == ".npz":
        return from_npz(path)
    return from_frame(read_frame(path), source=path.name, splits=splits, max_gap=max_gap)


@lru_cache(maxsize=len(PACKAGED))
def packaged(name: str) -> PriceTable:
    """Daily prices inside the package skfolio: adjusted for splits and dividends, rounded to three decimals."""
    spec = importlib.util.find_spec("skfolio")  # found, not imported: its own imports take seconds
    places = spec.submodule_search_locations if spec is not None else None
    file = Path(places[0], "datasets", "data", f"{PACKAGED[name]}.csv.gz") if places else None
    if file is None or not file.exists():
        raise ConfigError(f"the prices {name!r} come with skfolio: pip install 'elegantrl[finance]'")
    # Kept as they are: in 1990 one stock falls to a third in a day, and no source at hand tells why.
    return from_frame(read_frame(file), source=name, splits="keep")


def read_frame(path: Path) -> Any:
    """A CSV or Parquet file as a data frame of pandas."""
    pandas = import_pandas()
    try:
        if path.suffix in (".parquet", ".pq"):
            frame = pandas.read_parquet(path)
            return frame if isinstance(frame.index, pandas.RangeIndex) else frame.reset_index()
        return pandas.read_csv(path)
    except ImportError:
        raise ConfigError(f"{path} needs pyarrow: pip install 'elegantrl[finance]'") from None
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read as a table ({reason:.200})") from None


def import_pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ConfigError("reading prices needs pandas: pip install 'elegantrl[finance]'") from None
    return pandas


def from_frame(
    frame: Any, *, source: str = "the frame", splits: Splits = "refuse", max_gap: int = MAX_GAP
) -> PriceTable:
    """A long table (a row for each date and asset) or a wide one (a column of closing prices for each asset)."""
    names = {str(column).strip().lower(): column for column in frame.columns}
    date_column = _first(names, DATE_NAMES) or _index_of_dates(frame)
    if date_column is None:
        raise ConfigError(
            f"{source} has no column of dates; name one of its columns ({', '.join(map(str, frame.columns[:6]))}) date"
        )
    try:
        dates = import_pandas().to_datetime(frame[date_column], utc=True, format="mixed").dt.tz_localize(None)
    except (ValueError, TypeError):
        raise ConfigError(f"{source} has a {date_column} that is no date; write dates like 2020-01-31") from None
    dates = dates.to_numpy().astype("datetime64[s]")
    asset_column = _first(names, ASSET_NAMES)
    if asset_column is None and _first(names, ("close", *ADJUSTED)) is None:
        columns = [column for column in frame.columns if column != date_column]
        close = np.stack([_numbers(frame, column, source) for column in columns], 1)
        return clean(dates, columns, ["close"], close[:, :, None], source=source, splits=splits, max_gap=max_gap)
    found = _ohlcv(frame, names, source)
    tickers = frame[asset_column].astype(str).to_numpy() if asset_column is not None else np.full(len(frame), "asset")
    dates, assets, values = _pivot(dates, tickers, np.stack(list(found.values()), 1), source)
    return clean(dates, assets, list(found), values, source=source, splits=splits, max_gap=max_gap)


def _first(names: Mapping[str, Any], wanted: tuple[str, ...]) -> Any:
    return next((names[name] for name in wanted if name in names), None)


def _index_of_dates(frame: Any) -> Any:
    """An unnamed first column is the index that pandas wrote."""
    first = str(frame.columns[0])
    return frame.columns[0] if first.startswith("Unnamed") or first == "index" else None


def _numbers(frame: Any, column: Any, source: str) -> Array:
    try:
        return np.asarray(frame[column].to_numpy(dtype=np.float64, na_value=np.nan))
    except (ValueError, TypeError):
        raise ConfigError(f"{source} has text in the column {column!r}, which should hold prices") from None


def _ohlcv(frame: Any, names: Mapping[str, Any], source: str) -> dict[str, Array]:
    """The known fields of a long table; an adjusted close replaces the close and scales the other prices."""
    found = {name: _numbers(frame, names[name], source) for name in FIELD_NAMES if name in names}
    adjusted = _first(names, ADJUSTED)
    if adjusted is not None:
        close = _numbers(frame, adjusted, source)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = close / found.get("close", close)
        found = {name: x * scale if name in ("open", "high", "low") else x for name, x in found.items()}
        found["close"] = close
    if "close" not in found:
        raise ConfigError(f"{source} has no column 'close'; its columns are {', '.join(map(str, frame.columns))}")
    return found


def _pivot(dates: Array, tickers: Array, values: Array, source: str) -> tuple[Array, list[str], Array]:
    """Rows of (date, asset) as values [T, A, F]."""
    days, row = np.unique(dates, return_inverse=True)
    assets, column = np.unique(tickers, return_inverse=True)
    cells = row * len(assets) + column
    order = np.argsort(cells, kind="stable")
    same = order[1:][cells[order[1:]] == cells[order[:-1]]]
    earlier = order[:-1][cells[order[1:]] == cells[order[:-1]]]
    for again, before in zip(same, earlier, strict=True):
        if not np.array_equal(values[again], values[before], equal_nan=True):
            raise ConfigError(
                f"{source} has two rows with different values for {tickers[again]} on {day(dates[again])}; keep one"
            )
    table = np.full((len(days) * len(assets), values.shape[1]), np.nan)
    table[cells] = values
    return days, list(assets), table.reshape(len(days), len(assets), -1)


# ---- documented arrays


def from_arrays(
    close: Array,
    tech: Array | None = None,
    turbulence: Array | None = None,
    *,
    assets: tuple[str, ...] | None = None,
    tech_by: Literal["indicator", "asset"] = "indicator",
) -> PriceTable:
    """The documented arrays: prices [T, A], K indicators of each asset, and turbulence [T].

    ElegantRL's ``tech_ary`` [T, K * A] holds an indicator of all assets, then the next; FinRL's ``tech`` [T, A * K]
    holds all indicators of an asset, then those of the next. Arrays have no dates: business days from 2000-01-03 stand
    in for them.
    """
    close = np.asarray(close, dtype=np.float32)
    if close.ndim != 2:
        raise ConfigError(f"the prices have the shape {close.shape}; expected days x assets")
    num_days, num_assets = close.shape
    names = assets or tuple(f"asset_{i}" for i in range(num_assets))
    dates = np.busday_offset(FIRST_DATE, np.arange(num_days), roll="forward")
    layers, fields = [close], ["close"]
    if tech is not None:
        tech = np.asarray(tech, dtype=np.float32)
        if tech.ndim != 2 or len(tech) != num_days or tech.shape[1] % num_assets:
            raise ConfigError(
                f"the indicators have the shape {tech.shape}; expected {num_days} rows and a multiple of {num_assets}"
                f" columns"
            )
        count = tech.shape[1] // num_assets
        if tech_by == "indicator":
            layers += list(tech.reshape(num_days, count, num_assets).transpose(1, 0, 2))
        else:
            layers += list(tech.reshape(num_days, num_assets, count).transpose(2, 0, 1))
        fields += list(DOCUMENTED_TECH) if count == len(DOCUMENTED_TECH) else [f"tech_{i}" for i in range(count)]
    table = clean(dates, names, fields, np.stack(layers, -1), source="the arrays", splits="keep")
    if turbulence is None:
        return table
    turbulence = np.asarray(turbulence, dtype=np.float32)
    if turbulence.shape != (num_days,):
        raise ConfigError(f"the turbulence has the shape {turbulence.shape}; expected ({num_days},)")
    return PriceTable(table.dates, table.assets, table.fields, table.values, table.status, turbulence)


def from_npz(path: Path) -> PriceTable:
    """A file with ``close_ary`` and ``tech_ary``, or with ``price``, ``tech`` and ``turbulence``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as arrays ({' '.join(str(error).split()):.200})") from None
    if "close_ary" in arrays:
        return from_arrays(arrays["close_ary"], arrays.get("tech_ary"))
    if "price" in arrays:
        return from_arrays(arrays["price"], arrays.get("tech"), arrays.get("turbulence"), tech_by="asset")
    raise ConfigError(
        f"{path} holds {', '.join(arrays) or 'nothing'}; expected close_ary and tech_ary, or price and tech"
    )


def download(fetch: Callable[..., Any], assets: list[str], start: str, end: str, **options: Any) -> PriceTable:
    """Prices from a function of yours, ``fetch(assets, start, end)``, which returns a long or wide data frame.

    With yfinance: ``lambda a, s, e: yfinance.download(a, s, e, auto_adjust=True)["Close"].reset_index()``.
    """
    frame = fetch(assets, start, end)
    if frame is None or len(frame) == 0:
        raise ConfigError(
            f"the download of {', '.join(assets)} from {start} to {end} is empty; check the network, names and dates"
        )
    table = from_frame(frame, source="the download", **options)
    for name in assets:
        if len(assets) > 1 and name not in table.assets:
            raise ConfigError(f"the download holds no prices of {name}; check the name")
    return table

"""Prices: loaders, faults of data, files that are shared, and indicators against computations of another kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markets import START, random_table, table_of

from elegantrl.errors import ConfigError
from elegantrl.finance import download, from_arrays, from_frame, indicators, load_prices, load_table, parse_period
from elegantrl.finance.features import FEATURES, with_features
from elegantrl.finance.prices import DELISTED, HALTED, TRADED, clean


def wide(**columns: list[float]) -> pd.DataFrame:
    length = len(next(iter(columns.values())))
    return pd.DataFrame({"date": [str(START + i) for i in range(length)], **columns})


# ---- loaders


def test_the_packaged_prices_are_those_of_skfolio() -> None:
    """Guards against: E11, prices that cannot be fetched."""
    table = load_prices("sp500")
    assert table.values.shape == (8313, 1, 20) and table.values.dtype == np.float32
    assert (str(table.dates[0])[:10], str(table.dates[-1])[:10]) == ("1990-01-02", "2022-12-28")
    assert table.assets[0] == "AAPL" and table.close[0, 0] == np.float32(0.264)
    assert load_prices("sp500") is table  # one copy


def test_long_and_wide_files_of_both_kinds_give_the_same_table(tmp_path: Path) -> None:
    frame = wide(A=[1.0, 2.5, 3.0], B=[10.0, 11.0, 12.0])
    long = frame.melt("date", var_name="tic", value_name="close").sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "wide.csv", index=False)
    long.to_csv(tmp_path / "long.csv", index=False)
    frame.to_parquet(tmp_path / "wide.parquet")
    long.to_parquet(tmp_path / "long.parquet")
    for name in ("wide.csv", "long.csv", "wide.parquet", "long.parquet"):
        table = load_prices(tmp_path / name)
        assert table.assets == ("A", "B") and table.fields == ("close",)
        assert table.close.tolist() == [[1.0, 10.0], [2.5, 11.0], [3.0, 12.0]]


def test_an_adjusted_close_scales_the_other_prices() -> None:
    frame = pd.DataFrame({"Date": ["2020-01-01", "2020-01-02"], "Close": [100.0, 50.0], "Adj Close": [50.0, 50.0]})
    table = from_frame(frame.assign(High=[110.0, 55.0], Volume=[7.0, 8.0]))
    assert table.field("close")[:, 0].tolist() == [50, 50] and table.field("high")[:, 0].tolist() == [55, 55]
    assert table.field("volume")[:, 0].tolist() == [7, 8]


def test_documented_arrays_of_both_orders(tmp_path: Path) -> None:
    close, first, second = np.full((5, 3), 10.0), np.arange(15.0).reshape(5, 3), -np.arange(15.0).reshape(5, 3)
    by_indicator = np.concatenate([first, second], 1)
    by_asset = np.stack([first, second], 2).reshape(5, 6)
    np.savez(tmp_path / "a.npz", close_ary=close, tech_ary=by_indicator)
    np.savez(tmp_path / "b.npz", price=close, tech=by_asset, turbulence=np.arange(5.0))
    for name in ("a.npz", "b.npz"):
        table = load_prices(tmp_path / name)
        assert np.array_equal(table.field("tech_0"), first) and np.array_equal(table.field("tech_1"), second)
    assert table.turbulence is not None and table.turbulence.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match="multiple of 3"):
        from_arrays(close, np.ones((5, 4)))


def test_a_download_that_is_empty_is_an_error() -> None:
    frame = wide(A=[1.0, 2.5], B=[10.0, 11.0])
    assert download(lambda *_: frame, ["A", "B"], "2020", "2021").assets == ("A", "B")
    with pytest.raises(ConfigError, match="the download of A, C from 2020 to 2021 is empty"):
        download(lambda *_: frame[:0], ["A", "C"], "2020", "2021")
    with pytest.raises(ConfigError, match="no prices of C"):
        download(lambda *_: frame, ["A", "C"], "2020", "2021")


# ---- faults of data


def test_unsorted_and_repeated_dates() -> None:
    frame = wide(A=[1.0, 2.5, 3.0])
    mixed = pd.concat([frame[::-1], frame[1:2]])
    assert from_frame(mixed).close[:, 0].tolist() == [1.0, 2.5, 3.0]
    other = frame[1:2].assign(A=9.0)
    with pytest.raises(ConfigError, match="two rows with different values for 2020-01-02"):
        from_frame(pd.concat([frame, other]))


def test_a_gap_keeps_the_last_price_and_nothing_can_be_traded_in_it() -> None:
    table = table_of([[5.0, 1.0], [np.nan, 1.0], [7.0, 1.0]])
    assert table.close[:, 0].tolist() == [5, 5, 7]
    assert table.status is not None and table.status[:, 0].tolist() == [TRADED, HALTED, TRADED]


def test_late_and_delisted_assets() -> None:
    close = np.full((15, 2), 4.0)
    close[:3, 0], close[3:, 1] = np.nan, np.nan
    table = table_of(close)
    assert table.status is not None
    assert table.status[:, 0].tolist() == [HALTED] * 3 + [TRADED] * 12 and table.close[0, 0] == 0
    assert table.status[:, 1].tolist() == [TRADED] * 3 + [HALTED] * 10 + [DELISTED] * 2
    assert (table.close[:, 1] == 4).all()


def test_splits_are_refused_adjusted_or_kept() -> None:
    frame = wide(A=[100.0, 102.0, 51.0, 52.0])
    with pytest.raises(ConfigError, match=r"A by a factor of 0.500 on 2020-01-03, which looks like a split"):
        from_frame(frame)
    assert from_frame(frame, splits="adjust").close[:, 0].tolist() == [50, 51, 51, 52]
    assert from_frame(frame, splits="keep").close[:, 0].tolist() == [100, 102, 51, 52]
    assert from_frame(wide(A=[100.0, 52.0])).close[1, 0] == 52  # a fall that is no round ratio


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (wide(A=[1.0, 0.0]), r"has the price 0 for A on 2020-01-02; prices are finite and above zero"),
        (wide(A=[1.0, -3.0]), r"has the price -3 for A on 2020-01-02"),
        (wide(A=[1.0, np.inf]), r"has the price inf"),
        (wide(A=[np.nan, np.nan]), r"has no price for A; drop the asset"),
        (wide(A=[1.0]), r"has 1 dates; at least two are needed"),
        (wide(A=[1.0] + [np.nan] * 12 + [1.0]), r"no price for A in 12 bars before 2020-01-14; fill the gap"),
        (pd.DataFrame({"A": [1.0, 2.0]}), r"has no column of dates; name one of its columns \(A\) date"),
        (pd.DataFrame({"date": ["x", "y"], "A": [1.0, 2.0]}), r"has a date that is no date"),
        (wide(A=[1.0, 2.5]).assign(B=["1", "a"]), r"text in the column 'B'"),
        (wide(tic=[1.0, 2.0], open=[1.0, 2.0]), r"has no column 'close'; its columns are date, tic, open"),
    ],
)  # fmt: skip
def test_each_fault_is_one_sentence(frame: pd.DataFrame, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        from_frame(frame)
    assert "\n" not in str(error.value)


def test_bad_sources_and_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'sp500'"):
        load_prices("sp5000")
    with pytest.raises(ConfigError, match="check the path"):
        load_prices("somewhere/prices.csv")
    (tmp_path / "x.npz").write_bytes(b"no arrays")
    with pytest.raises(ConfigError, match=r"x.npz cannot be read as arrays"):
        load_prices(tmp_path / "x.npz")
    table = random_table(0)
    with pytest.raises(ConfigError, match="there is no asset 'S9' in the prices"):
        table.select(["S9"])
    with pytest.raises(ConfigError, match="each once"):
        table.select(["S1", "S1"])


def test_periods() -> None:
    assert str(parse_period("1990:2012")) == "1990-01-01:2012-12-31"
    assert str(parse_period("2015-02:2016-02")) == "2015-02-01:2016-02-29"
    table = random_table(0, bars=100)  # from 2020-01-01
    assert table.span(parse_period("2020-01-03:2020-01-31")) == (2, 30)
    for text, sentence in [
        ("1990", "is not START:END"),
        ("2020:x", "has no dates like"),
        ("2021:2020", "ends before it begins"),
        ("2019:2020-02", "lies outside of the prices, which run from 2020-01-01 to 2020-04-09"),
        ("2020-03:2020-05", "lies outside of the prices"),
        ("2020-01-02:2020-01-02", "holds fewer than two dates"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            table.span(parse_period(text))


def test_a_saved_table_is_mapped_and_shared_between_processes(tmp_path: Path) -> None:
    table = with_features(random_table(1, gaps=True), turbulence=True)
    table.save(tmp_path)
    again = load_table(tmp_path)
    assert isinstance(again.values, np.memmap) and np.array_equal(again.values, table.values)
    assert again.rows.data_ptr() == again.values.ctypes.data  # the tensor is the file itself
    assert again.assets == table.assets and np.array_equal(again.dates, table.dates)
    assert np.array_equal(again.status, table.status) and np.array_equal(again.turbulence, table.turbulence)  # type: ignore[arg-type]
    code = f"from elegantrl.finance import load_prices; print(load_prices({str(tmp_path)!r}).close.sum())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert float(done.stdout) == pytest.approx(float(table.close.sum()), rel=1e-6)
    (tmp_path / "values.npy").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="does not hold a saved price table"):
        load_table(tmp_path)


# ---- indicators, each computed in another way


@pytest.fixture(scope="module")
def bars() -> dict[str, Any]:
    table = random_table(3, bars=90, assets=2)
    return {name: table.field(name).astype(np.float64) for name in ("close", "high", "low")}


def by_hand(x: Any, window: int, function: Any) -> Any:
    """``function`` of the last bars, one window at a time."""
    return np.array(
        [[function(x[max(0, t + 1 - window) : t + 1, a]) for a in range(x.shape[1])] for t in range(len(x))]
    )


def weighted(x: Any, alpha: float) -> Any:
    """An exponential mean from its definition."""
    rows = []
    for t in range(len(x)):
        weights = (1 - alpha) ** np.arange(t, -1, -1.0)
        rows.append((weights[:, None] * x[: t + 1]).sum(0) / weights.sum())
    return np.array(rows)


def test_moving_average_and_bollinger_bands(bars: dict[str, Any]) -> None:
    close = bars["close"]
    np.testing.assert_allclose(indicators.sma(close, 30), by_hand(close, 30, np.mean), rtol=1e-12)
    upper, lower = indicators.bollinger(close)
    spread = by_hand(close, 20, lambda x: x.std(ddof=1) if len(x) > 1 else 0.0)
    np.testing.assert_allclose(upper, by_hand(close, 20, np.mean) + 2 * spread, rtol=1e-9)
    np.testing.assert_allclose(lower, by_hand(close, 20, np.mean) - 2 * spread, rtol=1e-9)


def test_macd(bars: dict[str, Any]) -> None:
    close = bars["close"]
    np.testing.assert_allclose(indicators.macd(close), weighted(close, 2 / 13) - weighted(close, 2 / 27), atol=1e-10)


def test_rsi(bars: dict[str, Any]) -> None:
    close = bars["close"]
    change = np.vstack([np.zeros((1, 2)), close[1:] - close[:-1]])
    up, down = weighted(change.clip(0), 1 / 30), weighted((-change).clip(0), 1 / 30)
    known = (down > 0)[:, 0] & (down > 0)[:, 1]
    assert known.sum() > 80
    np.testing.assert_allclose(indicators.rsi(close)[known], 100 - 100 / (1 + up[known] / down[known]), rtol=1e-9)
    assert (indicators.rsi(np.ones((5, 1))) == 50).all()


def test_cci(bars: dict[str, Any]) -> None:
    typical = (bars["close"] + bars["high"] + bars["low"]) / 3
    expected = by_hand(typical, 30, lambda x: (x[-1] - x.mean()) / (0.015 * np.abs(x - x.mean()).mean() or 1.0))
    np.testing.assert_allclose(indicators.cci(bars["high"], bars["low"], bars["close"]), expected, rtol=1e-8, atol=1e-8)


def test_dx(bars: dict[str, Any]) -> None:
    high, low, close = bars["high"], bars["low"], bars["close"]
    plus, minus, true_range = np.zeros_like(close), np.zeros_like(close), np.zeros_like(close)
    for t in range(1, len(close)):
        for a in range(2):
            up, down = high[t, a] - high[t - 1, a], low[t - 1, a] - low[t, a]
            plus[t, a] = up if up > down and up > 0 else 0
            minus[t, a] = down if down > up and down > 0 else 0
            true_range[t, a] = max(high[t, a], close[t - 1, a]) - min(low[t, a], close[t - 1, a])
    pos, neg = (100 * weighted(x, 1 / 30)[1:] / weighted(true_range, 1 / 30)[1:] for x in (plus, minus))
    expected = np.where(pos + neg > 0, 100 * np.abs(pos - neg) / np.where(pos + neg > 0, pos + neg, 1), 0)
    np.testing.assert_allclose(indicators.dx(high, low, close)[1:], expected, rtol=1e-9, atol=1e-9)


def test_turbulence(bars: dict[str, Any]) -> None:
    close = bars["close"]
    found = indicators.turbulence(close, window=20)
    returns = close[1:] / close[:-1] - 1
    assert (found[:21] == 0).all()
    for t in (21, 50, 89):
        past = returns[t - 21 : t - 1]
        a, b = past.T
        covariance = np.array([[a.var(ddof=1), np.cov(a, b)[0, 1]], [np.cov(a, b)[0, 1], b.var(ddof=1)]])
        gap = returns[t - 1] - past.mean(0)
        assert found[t] == pytest.approx(gap @ np.linalg.inv(covariance) @ gap, rel=1e-9)


def test_features_are_bounded_and_do_not_depend_on_the_price_level() -> None:
    table = random_table(5)
    seen = with_features(table)
    dearer = table.values.transpose(0, 2, 1) * 64
    again = with_features(clean(table.dates, table.assets, table.fields, dearer, splits="keep"))
    assert seen.fields == ("close", *FEATURES)
    assert np.abs(seen.values[:, 1:]).max() <= 5 and np.isfinite(seen.values).all()
    np.testing.assert_allclose(again.values[:, 1:], seen.values[:, 1:], atol=1e-4)


def test_own_indicators_replace_the_usual_ones() -> None:
    table = from_arrays(np.full((40, 2), 10.0), np.full((40, 6), 1000.0))
    seen = with_features(table)
    assert seen.fields == ("close", "tech_0", "tech_1", "tech_2")
    assert np.allclose(seen.values[:, 1:], 1)

"""The record of an account over a period: what a back-test measures, draws and writes as trades.

Axes: T bars, the first of which is the start; A assets.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .prices import Array, day
from .single import MarketEnv


@dataclass(frozen=True, eq=False)
class Ledger:
    """An account after the trades of each bar, in money unless a name says shares."""

    name: str
    assets: tuple[str, ...]
    dates: Array  # [T]
    price: Array  # [T, A]
    cash: Array  # [T]
    positions: Array  # [T, A]
    traded: Array  # [T, A] above zero: bought
    cost: Array  # [T]

    @property
    def value(self) -> Array:
        return self.cash + self.positions.sum(1)

    @property
    def returns(self) -> Array:
        """Simple returns per bar [T - 1]."""
        value = self.value
        return np.asarray(value[1:] / value[:-1] - 1)

    @property
    def exposure(self) -> Array:
        """The sum of absolute positions relative to the value [T]."""
        return np.asarray(np.abs(self.positions).sum(1) / self.value)

    @property
    def turnover(self) -> Array:
        """What was bought and sold relative to the value before [T - 1]."""
        return np.asarray(np.abs(self.traded).sum(1)[1:] / self.value[:-1])

    def accounting_error(self) -> float:
        """The largest gap in value before = value after + costs, relative to the value.

        The value before is that of the last bar's positions at the new prices.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.where(self.price[:-1] > 0, self.price[1:] / self.price[:-1], 1.0)
        before = self.cash[:-1] + (self.positions[:-1] * growth).sum(1)
        after = self.value[1:] + self.cost[1:]
        return float(np.max(np.abs(before - after) / self.value[:-1]))

    def trades_csv(self) -> str:
        """One row per trade: date, asset, side, shares, price, value, cost."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["date", "asset", "side", "shares", "price", "value", "cost"])
        totals = np.abs(self.traded).sum(1)
        for row, column in np.argwhere(self.traded != 0):
            money, price = self.traded[row, column], self.price[row, column]
            cost = self.cost[row] * abs(money) / totals[row]
            side = "buy" if money > 0 else "sell"
            numbers = [f"{x:.6g}" for x in (abs(money) / price, price)] + [f"{x:.2f}" for x in (abs(money), cost)]
            writer.writerow([_moment(self.dates[row]), self.assets[column], side, *numbers])
        return out.getvalue()


def _moment(date: np.datetime64) -> str:
    """A date, with its time if it has one."""
    text = str(date)
    return day(date) if text.endswith("T00:00:00") else text


class Recorder:
    """Collects the infos of a ``MarketEnv`` whose ``held`` are shares or money."""

    def __init__(self, env: MarketEnv, name: str) -> None:
        self.env, self.name = env, name
        self.rows: list[tuple[np.datetime64, Array, float, Array, Array, float]] = []
        self.add(np.zeros(env.num_assets), 0.0)

    def add(self, traded_money: Array, cost: float) -> None:
        env = self.env
        date = env.market.table.dates[env.row]
        self.rows.append((date, env.price, env.cash, env.positions().copy(), traded_money, cost))

    def ledger(self) -> Ledger:
        columns = [np.array(column) for column in zip(*self.rows, strict=True)]
        return Ledger(self.name, self.env.market.table.assets, *columns)


def added(ledgers: Sequence[Ledger], name: str) -> Ledger:
    """Several accounts over the same bars as one."""
    names = ("cash", "positions", "traded", "cost")
    parts: dict[str, Any] = {x: np.sum([getattr(ledger, x) for ledger in ledgers], 0) for x in names}
    return replace(ledgers[0], name=name, **parts)


def ended(ledger: Ledger, later_dates: Array, later_price: Array, cost: float) -> Ledger:
    """The ledger of a ruined account: it sells everything, and its cash stays as it is over the bars that remain."""
    ledger, count = closed(ledger, cost), len(later_dates)
    nothing = np.zeros((count, len(ledger.assets)))
    return replace(
        ledger,
        dates=np.concatenate([ledger.dates, later_dates]),
        price=np.concatenate([ledger.price, later_price]),
        cash=np.append(ledger.cash, np.full(count, ledger.cash[-1])),
        positions=np.concatenate([ledger.positions, nothing]),
        traded=np.concatenate([ledger.traded, nothing]),
        cost=np.append(ledger.cost, np.zeros(count)),
    )


def joined(ledgers: Sequence[Ledger], cost: float) -> Ledger:
    """Consecutive ledgers as one account that sells everything, at its cost, where one ends and the next begins.

    Each ledger begins at the last bar of the one before it; it is scaled to the value there.
    """
    whole = ledgers[0]
    for later in ledgers[1:]:
        whole = closed(whole, cost)
        scale = whole.value[-1] / later.value[0]
        parts: dict[str, Any] = {
            name: np.concatenate([getattr(whole, name), getattr(later, name)[1:] * scale])
            for name in ("cash", "positions", "traded", "cost")
        }
        dates = np.concatenate([whole.dates, later.dates[1:]])
        whole = replace(whole, dates=dates, price=np.concatenate([whole.price, later.price[1:]]), **parts)
    return whole


def closed(ledger: Ledger, cost: float) -> Ledger:
    """A ledger whose last bar also sells all positions."""
    cash, positions, traded, costs = (x.copy() for x in (ledger.cash, ledger.positions, ledger.traded, ledger.cost))
    paid = cost * float(np.abs(positions[-1]).sum())
    traded[-1] -= positions[-1]
    cash[-1] += positions[-1].sum() - paid
    costs[-1] += paid
    positions[-1] = 0.0
    return replace(ledger, cash=cash, positions=positions, traded=traded, cost=costs)

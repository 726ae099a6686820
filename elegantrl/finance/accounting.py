"""Trades of one account in NumPy, counted exactly: value before = value after + costs.

Axes: A assets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .prices import DELISTED, TRADED, Array

MARGIN = 1 - 1e-12
"""Buys that need all of the cash are reduced by this, so that rounding never takes more than there is."""


class Trade(NamedTuple):
    """An account after its trades."""

    cash: float
    held: Array  # [A] shares or positions
    traded: Array  # [A] what was bought (above zero) or sold, in shares or in money
    cost: float


def trade_shares(
    cash: float, shares: Array, orders: Array, price: Array, cost: float, status: Array | None = None
) -> Trade:
    """Execute orders of whole shares: sales first, then purchases.

    A sale is limited by the shares. If the cash does not suffice for all purchases, each is reduced in the same
    proportion to whole shares, so the place of an asset in the table does not matter. Assets without a price are not
    traded; a delisted one is paid out at its last price without costs.
    """
    delta = np.maximum(orders, -shares)
    paid_out = 0.0
    if status is not None:
        delta = np.where(status == TRADED, delta, 0.0)
        gone = np.where(status == DELISTED, shares, 0.0)
        paid_out = float((gone * price).sum())
        shares = shares - gone
    money = delta * price
    total, turnover = float(money.sum()), float(np.abs(money).sum())
    left = cash + paid_out - total - cost * turnover
    if left < 0:
        bought = (turnover + total) / 2
        available = cash + paid_out + (bought - total) * (1 - cost)
        share = available / (bought * (1 + cost)) * MARGIN
        delta = np.where(delta > 0, np.floor(delta * share), delta)
        money = delta * price
        turnover = float(np.abs(money).sum())
        left = cash + paid_out - float(money.sum()) - cost * turnover
    return Trade(left, shares + delta, delta, cost * turnover)


def rebalance(cash: float, positions: Array, weights: Array, cost: float, status: Array | None = None) -> Trade:
    """Change positions to ``weights`` of the value that remains after costs.

    The costs are estimated from above in closed form, and what is left of the estimate stays in cash, so cash that the
    weights leave at zero never falls below it. Positions without a price stay; delisted ones are paid out.
    """
    cash, positions = pay_out(cash, positions, status)
    fixed = np.zeros_like(positions)
    if status is not None:
        fixed = np.where(status == TRADED, 0.0, positions)
        weights = np.where(status == TRADED, weights, 0.0)
    value = cash + float(positions.sum())
    free = max(value - float(np.abs(fixed).sum()), 0.0)
    turnover = float(np.abs(weights * free - (positions - fixed)).sum())
    gross = float(np.abs(weights).sum())
    invested = max(free - cost * turnover / (1 - cost * gross), 0.0)
    after = fixed + weights * invested
    traded = after - positions
    paid = cost * float(np.abs(traded).sum())
    return Trade(value - float(after.sum()) - paid, after, traded, paid)


def pay_out(cash: float, positions: Array, status: Array | None) -> tuple[float, Array]:
    """Cash and positions after delisted assets were paid out at their last price without costs."""
    if status is None:
        return cash, positions
    gone = np.where(status == DELISTED, positions, 0.0)
    return cash + float(gone.sum()), positions - gone

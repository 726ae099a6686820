"""Stock trading: cash and whole shares, as thousands of tensor lanes and as one Gymnasium environment.

Both give the same numbers: the tests compare them step by step. The single environment is written in NumPy on its own,
with the trades of ``accounting.trade_shares``.

Axes: N lanes, A assets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..types import ActionSpec
from .accounting import MARGIN, Trade, trade_shares
from .market import CASH, MarketVecEnv, open_market, read_settings
from .prices import DELISTED, TRADED, Array, PriceTable
from .settings import StockSettings
from .single import MarketEnv

SMALLEST_PRICE = 1e-9
"""Stands in for the price of an asset that is not listed yet, so that nothing is divided by zero."""


class StockTradingVecEnv(MarketVecEnv):
    """N accounts that buy and sell whole shares; an action of 1 is the largest order to buy, -1 to sell.

    ``data`` is what ``load_prices`` takes; further arguments are those of ``StockSettings``.
    """

    name = "StockTrading"
    settings: StockSettings

    def __init__(
        self, data: str | PriceTable = "sp500", num_envs: int = 1, device: torch.device | str = "cpu", **settings: Any
    ) -> None:
        self.settings = read_settings(StockSettings, settings)
        market = open_market(data, self.settings, self.settings.turbulence_limit is not None)
        super().__init__(market, num_envs, device)

    def set_spaces(self) -> None:
        super().set_spaces()
        self.action = ActionSpec(dim=self.num_assets)

    def positions(self, held: Tensor, price: Tensor) -> Tensor:
        return held * price

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.seen(state)
        orders = self.orders(action, seen.value, seen.price)
        if self.settings.turbulence_limit is not None:
            assert self._levels is not None
            alarm = self._levels[seen.row] > self.settings.turbulence_limit
            orders = torch.where(alarm.unsqueeze(1), -seen.held, orders)
        row = seen.row + 1
        rows, price = self.rows_at(row)
        cash, held, positions = self.execute(state[:, CASH], seen.held, orders, price.double(), self.status_of(row))
        after, reward, value = self.finish(seen, row, rows, price, cash, held, positions)
        return after, reward, torch.zeros_like(value, dtype=torch.bool)

    def orders(self, action: Tensor, value: Tensor, price: Tensor) -> Tensor:
        """Whole shares [N, A], decided with the prices that are known; in float32, as the single environment does."""
        settings = self.settings
        action = torch.nn.functional.hardshrink(action, settings.min_trade)
        if settings.max_shares is not None:
            shares = action * settings.max_shares
        else:
            size = (settings.max_trade * value).float().unsqueeze(1)
            shares = (size / self.divisor(price)).mul_(action)
        if self._status is not None:
            shares *= price > 0  # what is not listed yet cannot be ordered
        return shares.abs_().floor_().mul_(action.sign_()).double()  # towards zero; ``trunc`` takes twice as long

    def divisor(self, price: Tensor) -> Tensor:
        """Prices without zeros, which only assets that are not listed yet have."""
        return price if self._status is None else price.clamp_min(SMALLEST_PRICE)

    def execute(
        self, cash: Tensor, shares: Tensor, orders: Tensor, price: Tensor, status: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cash, shares and their worth after the orders, by the rules of ``accounting.trade_shares``.

        Whole shares are exact in float64, in whatever order they are added. ``orders`` are overwritten.
        """
        cost = self.settings.cost
        if status is not None:
            orders *= status == TRADED
            gone = shares * (status == DELISTED)
            cash, shares = cash + (gone * price).sum(1), shares - gone
        held = orders.add_(shares).relu_()  # a sale is limited by the shares
        delta = held - shares
        money = delta * price
        total, sales = money.sum(1), money.clamp_max_(0).sum(1)  # purchases + sales, which are negative; sales alone
        # What is left is cash - total - cost * (purchases - sales), and purchases are total - sales.
        rest = torch.add(cash, sales, alpha=2 * cost)
        left = torch.add(rest, total, alpha=-1 - cost)
        short = left < 0
        if self.device.type != "cpu" or bool(short.any()):
            available = torch.add(cash, sales, alpha=cost - 1)
            share = torch.where(short, available / (total - sales) * (MARGIN / (1 + cost)), 1.0).unsqueeze(1)
            # A purchase shrinks to whole shares. A sale stays as it is, because its shrunk size is not below it.
            torch.minimum(delta, torch.mul(delta, share, out=money).floor_(), out=delta)
            left = torch.add(rest, torch.mul(delta, price, out=money).sum(1), alpha=-1 - cost)
            torch.add(shares, delta, out=held)
        return left, held, torch.mul(held, price, out=money)


class StockTradingEnv(MarketEnv):
    """One account of ``StockTradingVecEnv`` as a Gymnasium environment; infos hold the account."""

    held_are_shares = True
    settings: StockSettings

    def __init__(self, data: str | PriceTable = "sp500", **settings: Any) -> None:
        self.settings = read_settings(StockSettings, settings)
        market = open_market(data, self.settings, self.settings.turbulence_limit is not None)
        super().__init__(market, num_actions=len(market.table.assets))

    def positions(self) -> Array:
        return self.held * self.price

    def trade(self, action: Array) -> Trade:
        settings, table = self.settings, self.market.table
        if settings.turbulence_limit is not None and table.turbulence[self.row] > settings.turbulence_limit:  # type: ignore[index]
            orders = -self.held
        else:
            orders = self.orders(action)
        self.advance()
        status = None if table.status is None else table.status[self.row]
        return trade_shares(self.cash, self.held, orders, self.price, settings.cost, status)

    def orders(self, action: Array) -> Array:
        settings = self.settings
        price = self.prices[self.row]
        is_order = (np.abs(action) > np.float32(settings.min_trade)) & (price > 0)
        action = np.where(is_order, action, np.float32(0))
        if settings.max_shares is not None:
            return np.trunc(action * np.float32(settings.max_shares))
        size = np.float32(settings.max_trade * self.value)
        return np.trunc(action * (size / np.maximum(price, SMALLEST_PRICE)))

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
from .market import CASH, HELD, MarketVecEnv, open_market, read_settings
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

    def positions(self, state: Tensor, price: Tensor) -> Tensor:
        return state[:, HELD:] * price

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen, cash, shares = self.seen(state), state[:, CASH], state[:, HELD:]
        orders = self.orders(action, seen.value, seen.price)
        if self.settings.turbulence_limit is not None:
            assert self._levels is not None
            alarm = self._levels[state[:, 0].long()] > self.settings.turbulence_limit
            orders = torch.where(alarm.unsqueeze(1), -shares, orders)
        row = state[:, 0].long() + 1
        rows, price = self.rows_at(row)
        money = price.double()
        cash, shares = self.execute(cash, shares, orders, money, self.status_of(row))
        after, reward, value = self.finish(seen.value, state, rows, price, cash, shares, shares * money)
        return after, reward, torch.zeros_like(value, dtype=torch.bool)

    def orders(self, action: Tensor, value: Tensor, price: Tensor) -> Tensor:
        """Whole shares [N, A], decided with the prices that are known; in float32, as the single environment does."""
        settings = self.settings
        action = torch.nn.functional.hardshrink(action, settings.min_trade)
        if settings.max_shares is not None:
            shares = action * settings.max_shares
        else:
            size = (settings.max_trade * value).float().unsqueeze(1)
            shares = (size / price.clamp_min(SMALLEST_PRICE)).mul_(action)
        if self._status is not None:
            shares = shares * (price > 0)  # what is not listed yet cannot be ordered
        return shares.abs().floor_().copysign_(shares)  # towards zero; ``trunc`` takes several times as long

    def execute(
        self, cash: Tensor, shares: Tensor, orders: Tensor, price: Tensor, status: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Cash and shares after the orders, by the rules of ``accounting.trade_shares``."""
        cost = self.settings.cost
        if status is not None:
            orders = orders * (status == TRADED)
            gone = shares * (status == DELISTED)
            cash, shares = cash + (gone * price).sum(1), shares - gone
        wanted = (shares + orders.double()).clamp_min_(0)
        delta = wanted - shares
        money = delta * price
        total, turnover = money.sum(1), money.abs().sum(1)
        left = cash - total - cost * turnover
        short = left < 0
        if self.device.type == "cpu" and not bool(short.any()):
            return left, wanted
        bought = (turnover + total) / 2
        available = cash + (bought - total) * (1 - cost)
        share = torch.where(short, available / (bought * (1 + cost)) * MARGIN, 1.0).unsqueeze(1)
        buys = delta.relu()
        delta = delta.sub_(buys).add_((buys * share).floor_())  # sales stay as they are
        money = delta * price
        return cash - money.sum(1) - cost * money.abs_().sum(1), shares + delta


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

"""Portfolio weights: fractions of assets with a cost of turnover, as tensor lanes and as one Gymnasium environment.

Long only, an action has a number for each asset and one for cash, and the weights are their softmax. With ``short`` the
action of an asset is its weight, scaled down where the sum of absolute weights would exceed the leverage.

Axes: N lanes, A assets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..types import ActionSpec
from .accounting import Trade, rebalance
from .market import CASH, START, Market, MarketVecEnv, open_market, read_settings
from .prices import DELISTED, TRADED, Array, PriceTable
from .settings import PortfolioSettings
from .single import MarketEnv

SHARPNESS = 4.0
"""Actions are multiplied by this before the softmax: one asset of twenty can have a weight of 99 %."""
RUIN = 0.01
"""An account below this share of its start is ruined, which only short positions and leverage make possible."""


class PortfolioVecEnv(MarketVecEnv):
    """N accounts that change the weights of their assets every day.

    ``data`` is what ``load_prices`` takes; further arguments are those of ``PortfolioSettings``.
    """

    name = "Portfolio"
    settings: PortfolioSettings

    def __init__(
        self, data: str | PriceTable = "sp500", num_envs: int = 1, device: torch.device | str = "cpu", **settings: Any
    ) -> None:
        self.settings = read_settings(PortfolioSettings, settings)
        super().__init__(open_market(data, self.settings), num_envs, device)

    def set_spaces(self) -> None:
        super().set_spaces()
        self.action = ActionSpec(dim=num_actions(self.market, self.settings))

    def positions(self, held: Tensor, price: Tensor) -> Tensor:
        return held

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.seen(state)
        weights = self.weights(action, self.status_of(seen.row))
        row = seen.row + 1
        rows, price = self.rows_at(row)
        growth = price.double() / seen.price
        if self._status is not None:
            growth = torch.where(seen.price > 0, growth, 1.0)  # assets that are not listed yet have the price 0
        cash, held = self.rebalance(state[:, CASH], seen.held * growth, weights, self.status_of(row))
        after, reward, value = self.finish(seen, row, rows, price, cash, held, held)
        return after, reward, value < RUIN * state[:, START]

    def weights(self, action: Tensor, status: Tensor | None) -> Tensor:
        """Weights of the assets [N, A]; what they leave of one is cash."""
        action = action.double()
        if self.settings.short:
            return self.settings.leverage * action / action.abs().sum(1, keepdim=True).clamp_min(1.0)
        logits = SHARPNESS * action
        if status is not None:
            logits = torch.cat([logits[:, :-1].masked_fill(status != TRADED, -torch.inf), logits[:, -1:]], 1)
        return logits.softmax(1)[:, :-1]

    def rebalance(self, cash: Tensor, held: Tensor, weights: Tensor, status: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cash and positions with new weights, by the rules of ``accounting.rebalance``."""
        cost, fixed = self.settings.cost, torch.zeros_like(held)
        if status is not None:
            gone = held * (status == DELISTED)
            cash, held = cash + gone.sum(1), held - gone
            fixed = held * (status != TRADED)
            weights = weights * (status == TRADED)
        value = cash + held.sum(1)
        free = (value - fixed.abs().sum(1)).clamp_min(0)
        turnover = (weights * free.unsqueeze(1) - (held - fixed)).abs().sum(1)
        invested = (free - cost * turnover / (1 - cost * weights.abs().sum(1))).clamp_min(0)
        after = fixed + weights * invested.unsqueeze(1)
        return value - after.sum(1) - cost * (after - held).abs().sum(1), after


class PortfolioEnv(MarketEnv):
    """One account of ``PortfolioVecEnv`` as a Gymnasium environment; infos hold the account."""

    held_are_shares = False
    settings: PortfolioSettings

    def __init__(self, data: str | PriceTable = "sp500", **settings: Any) -> None:
        self.settings = read_settings(PortfolioSettings, settings)
        market = open_market(data, self.settings)
        super().__init__(market, num_actions(market, self.settings))

    def positions(self) -> Array:
        return self.held

    def trade(self, action: Array) -> Trade:
        status, before = self.market.table.status, self.price
        weights = self.weights(action.astype(np.float64), None if status is None else status[self.row])
        self.advance()
        held = self.held * np.where(before > 0, self.price, 1.0) / np.where(before > 0, before, 1.0)
        return rebalance(self.cash, held, weights, self.settings.cost, None if status is None else status[self.row])

    def weights(self, action: Array, status: Array | None) -> Array:
        if self.settings.short:
            return np.asarray(self.settings.leverage * action / max(1.0, float(np.abs(action).sum())))
        powers = np.exp(SHARPNESS * action)
        if status is not None:
            powers[:-1] *= status == TRADED
        return np.asarray(powers[:-1] / powers.sum())

    def is_ruined(self) -> bool:
        return self.value < RUIN * self.start


def num_actions(market: Market, settings: PortfolioSettings) -> int:
    """A number for each asset, and long only one for cash."""
    return len(market.table.assets) + (not settings.short)

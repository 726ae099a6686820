"""The part that the single Gymnasium environments share: one account in NumPy.

Axes: A assets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from ..errors import SpecError
from .accounting import Trade
from .market import Market, account_observation, account_reward, episode_rows, num_seen
from .prices import Array
from .settings import MarketSettings


class MarketEnv(gym.Env[Array, Array], ABC):
    """One account. A subclass says what its positions are worth and how an action becomes trades."""

    settings: MarketSettings
    held_are_shares: ClassVar[bool]
    """Whether ``held`` counts shares, or money."""
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium's own declaration

    def __init__(self, market: Market, num_actions: int) -> None:
        self.market = market
        self.max_step, self._num_starts = episode_rows(market, self.settings)
        self.prices = market.table.close
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (num_seen(market),), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (num_actions,), np.float32)
        self.num_actions = num_actions
        self._begin(market.first, self.settings.cash)

    @property
    def num_assets(self) -> int:
        return len(self.market.table.assets)

    @abstractmethod
    def positions(self) -> Array:
        """The value of each asset's position [A]."""

    @abstractmethod
    def trade(self, action: Array) -> Trade:
        """Go on to the next date and trade there."""

    def _begin(self, row: int, cash: float) -> None:
        self.row, self.cash, self.elapsed = row, cash, 0
        self.held = np.zeros(self.num_assets)
        self.price = self.prices[row].astype(np.float64)
        self.value = self.start = cash

    def advance(self) -> None:
        self.row += 1
        self.price = self.prices[self.row].astype(np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        row, cash = self.market.first, self.settings.cash
        if self.settings.random_start:
            row += int(self.np_random.integers(self._num_starts))
        if self.settings.random_cash:
            cash *= 1 + self.settings.random_cash * self.np_random.uniform(-1, 1)
        given = options or {}
        self._begin(int(given.get("row", row)), float(given.get("cash", cash)))
        return self._observe(), self._info(None)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        action = np.asarray(action, dtype=np.float32)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            got = "NaN or infinity" if action.shape == self.action_space.shape else f"shape {action.shape}"
            wanted = f"{self.num_actions} numbers in [-1, 1]"
            raise SpecError(f"environment {type(self).__name__!r}: the action must be {wanted}, got {got}")
        before = self.value
        done = self.trade(action.clip(-1, 1))
        self.cash, self.held = done.cash, done.held
        self.value = self.cash + float(self.positions().sum())
        self.elapsed += 1
        reward = account_reward(before, self.value, self.settings.risk_aversion)
        return self._observe(), reward, self.is_ruined(), self.elapsed >= self.max_step, self._info(done)

    def is_ruined(self) -> bool:
        return False

    def _observe(self) -> Array:
        return account_observation(self.market, self.row, self.positions(), self.value)

    def _info(self, done: Trade | None) -> dict[str, Any]:
        """The account after its trades; ``traded`` is in shares or in money, like ``held``."""
        traded, cost = (np.zeros(self.num_assets), 0.0) if done is None else (done.traded, done.cost)
        date = self.market.table.dates[self.row]
        return {"date": date, "value": self.value, "cash": self.cash, "held": self.held, "traded": traded, "cost": cost}

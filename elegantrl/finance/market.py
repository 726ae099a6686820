"""The part of a trading environment that all of them share: prices by lane, dates, random starts, rewards.

A step decides at the close of day t with what is known then, and trades at the close of day t + 1. Its reward is the
growth of the account from the close of day t to the close of day t + 1 after costs.

Axes: N lanes, A assets, F fields, T dates, S state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..config.structure import build_section
from ..envs.tensor import TensorEnv
from ..errors import ConfigError, SpecError
from .features import has_features, with_features
from .loaders import load_prices
from .prices import Array, Period, PriceTable, parse_period
from .settings import MarketSettings

S = TypeVar("S", bound=MarketSettings)

CASH, START, HELD = 1, 2, 3
"""Columns of a state: the row of the date, cash, value at the start, then shares or positions of the assets."""
REWARD_SCALE = 100.0
SMALLEST_GROWTH = 1e-4
"""Growth is cut here, so that the logarithm of a ruin is finite."""


class Market(NamedTuple):
    """Prices with features, and the rows between which episodes take place, both included."""

    table: PriceTable
    first: int
    last: int


def open_market(data: str | Path | PriceTable, settings: MarketSettings, turbulence: bool = False) -> Market:
    """The prices of an environment; one table for all environments of a process that name the same data."""
    if isinstance(data, PriceTable):
        table = _prepared(data, settings.assets, turbulence)
    else:
        table = _shared_table(str(data), _modified(data), settings.assets, turbulence)
    if settings.period is None:
        return Market(table, 0, len(table.dates) - 1)
    return Market(table, *table.span(parse_period(settings.period)))


def _modified(source: str | Path) -> int:
    path = Path(source)
    return path.stat().st_mtime_ns if path.exists() else 0


@lru_cache(maxsize=8)
def _shared_table(source: str, modified: int, assets: tuple[str, ...], turbulence: bool) -> PriceTable:
    return _prepared(load_prices(source), assets, turbulence)


def _prepared(table: PriceTable, assets: Sequence[str], turbulence: bool) -> PriceTable:
    if assets and tuple(assets) != table.assets:
        table = table.select(assets)
    if has_features(table) and (table.turbulence is not None or not turbulence):
        return table
    if has_features(table):
        closes = PriceTable(table.dates, table.assets, ("close",), table.values[:, :, :1], table.status)
        return with_features(closes, turbulence)
    return with_features(table, turbulence)


def read_settings(kind: type[S], values: dict[str, Any]) -> S:
    """Settings of an environment from its keyword arguments."""
    return build_section(kind, values)


def episode_rows(market: Market, settings: MarketSettings) -> tuple[int, int]:
    """The steps of an episode, and how many rows it can begin at."""
    available = market.last - market.first
    steps = settings.episode_steps or available
    if steps > available:
        period = Period(market.table.dates[market.first], market.table.dates[market.last])
        raise ConfigError(f"env.episode_steps={steps} is longer than the period {period}, which has {available} steps")
    return steps, available - steps + 1


class MarketVecEnv(TensorEnv):
    """N accounts on one market. A subclass trades; the state [N, S] is float64, so that money is counted exactly."""

    settings: MarketSettings

    def __init__(self, market: Market, num_envs: int, device: torch.device | str) -> None:
        self.market, table = market, market.table
        self.num_assets, self._num_fields = len(table.assets), len(table.fields)
        self.max_episode_steps, self._num_starts = episode_rows(market, self.settings)
        self._table = table.rows.to(device)  # on a CPU this is the memory of the table itself
        self._status = None if table.status is None else torch.from_numpy(np.asarray(table.status)).to(device)
        self._levels = None if table.turbulence is None else torch.from_numpy(np.asarray(table.turbulence)).to(device)
        self._seen: tuple[Tensor, Tensor] | None = None  # a state and its rows of the table
        self.set_spaces()
        super().__init__(num_envs, device)

    def set_spaces(self) -> None:
        """Set ``action``, and ``obs`` or ``obs_dim``."""
        self.obs_dim = self.num_seen

    @property
    def num_seen(self) -> int:
        """The length of an observation: cash, positions, turbulence if it is known, features."""
        known = self.market.table.turbulence is not None
        return 1 + self.num_assets + known + self.num_assets * (self._num_fields - 1)

    def initial(self, num_rows: int) -> Tensor:
        state = torch.zeros(num_rows, HELD + self.num_assets, dtype=torch.float64, device=self.device)
        state[:, 0] = self.market.first
        if self.settings.random_start:
            starts = torch.randint(self._num_starts, (num_rows,), generator=self.generator, device=self.device)
            state[:, 0] += starts
        state[:, CASH] = self.settings.cash
        if self.settings.random_cash:
            drawn = torch.rand(num_rows, generator=self.generator, device=self.device) * 2 - 1
            state[:, CASH] *= 1 + self.settings.random_cash * drawn
        state[:, START] = state[:, CASH]
        return state

    def rows_of(self, state: Tensor) -> Tensor:
        """Prices and features [N, A, F] on the dates of a state; those of the last state are kept."""
        if self._seen is None or self._seen[0] is not state:
            rows = self._table.index_select(0, state[:, 0].long())
            self._seen = state, rows.view(-1, self.num_assets, self._num_fields)
        return self._seen[1]

    def status_of(self, row: Tensor) -> Tensor | None:
        """Whether each asset is traded [N, A]; None if all are always."""
        return None if self._status is None else self._status[row.long()]

    def refuse_nan(self, action: Tensor) -> None:
        if self.device.type == "cpu" and bool(action.isnan().any()):  # elsewhere reading it would wait for the device
            raise SpecError(f"environment {self.spec.name!r}: the action holds NaN; actions are numbers in [-1, 1]")

    def positions(self, state: Tensor) -> Tensor:
        """The value of each asset's position [N, A]."""
        raise NotImplementedError

    def observe(self, state: Tensor) -> Tensor:
        rows, held = self.rows_of(state), self.positions(state)
        value = (state[:, CASH] + held.sum(1)).unsqueeze(1)
        parts = [(state[:, CASH : CASH + 1] / value).float(), (held / value).float()]
        if self._levels is not None:
            parts.append(scaled_turbulence(self._levels[state[:, 0].long()], self.num_assets).unsqueeze(1))
        return torch.cat([*parts, rows[:, :, 1:].flatten(1)], 1)

    def reward(self, before: Tensor, after: Tensor) -> Tensor:
        growth = (after / before).clamp_min(SMALLEST_GROWTH)
        reward = growth.log()
        if self.settings.risk_aversion:
            reward = reward - 0.5 * self.settings.risk_aversion * (growth - 1).square()
        return (REWARD_SCALE * reward).float()


def scaled_turbulence(level: Any, num_assets: int) -> Any:
    """Turbulence relative to the number of assets, which is its mean in quiet times, cut at 5."""
    return (level / num_assets - 1).clip(-5, 5)


def account_reward(before: float, after: float, risk_aversion: float) -> float:
    """``MarketVecEnv.reward`` of one account."""
    growth = max(after / before, SMALLEST_GROWTH)
    return REWARD_SCALE * (float(np.log(growth)) - 0.5 * risk_aversion * (growth - 1) ** 2)


def account_observation(market: Market, row: int, cash: float, held: Array) -> Array:
    """``MarketVecEnv.observe`` of one account."""
    table = market.table
    value = cash + held.sum()
    level = [] if table.turbulence is None else [scaled_turbulence(table.turbulence[row], len(table.assets))]
    seen = np.concatenate([[cash / value], held / value, level, table.values[row, :, 1:].ravel()])
    return seen.astype(np.float32)

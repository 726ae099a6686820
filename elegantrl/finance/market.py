"""The part of a trading environment that all of them share: prices by lane, dates, random starts, rewards.

A step decides at the close of day t with what is known then, and trades at the close of day t + 1. Its reward is the
growth of the account from the close of day t to the close of day t + 1 after costs.

Axes: N lanes, A assets, F fields, T dates, S state.
"""

from __future__ import annotations

from abc import abstractmethod
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
from .features import has_features, with_features, with_turbulence
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
    return with_turbulence(table, turbulence) if has_features(table) else with_features(table, turbulence)


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


class Seen(NamedTuple):
    """What belongs to a state: kept until the next step, which needs it again."""

    state: Tensor  # [N, S]
    row: Tensor  # [N] int64, the date
    obs: Tensor  # [N, O]
    price: Tensor  # [N, A] float32
    held: Tensor  # [N, A] float64, as in the state but without its other columns between the rows
    value: Tensor  # [N] float64


class MarketVecEnv(TensorEnv):
    """N accounts on one market. A subclass trades; the state [N, S] is float64, so that money is counted exactly.

    An observation is a row of the table in which the weights of the assets take the place of their prices, then the
    features, each of all assets, and the turbulence if it is known. The share of cash is what the weights leave of one.
    """

    settings: MarketSettings

    def __init__(self, market: Market, num_envs: int, device: torch.device | str) -> None:
        self.market, table = market, market.table
        self.num_assets = len(table.assets)
        self.max_episode_steps, self._num_starts = episode_rows(market, self.settings)
        self._table = table.rows.to(device)  # on a CPU this is the memory of the table itself
        self._status = None if table.status is None else torch.from_numpy(np.asarray(table.status)).to(device)
        self._levels = None if table.turbulence is None else torch.from_numpy(np.asarray(table.turbulence)).to(device)
        self._seen: Seen | None = None
        self.set_spaces()
        super().__init__(num_envs, device)

    def set_spaces(self) -> None:
        """Set ``action``, and ``obs`` or ``obs_dim``."""
        self.obs_dim = self.num_seen

    @property
    def num_seen(self) -> int:
        """The length of an observation."""
        return num_seen(self.market)

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

    def rows_at(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the table [N, F * A] as new memory, and their prices [N, A]."""
        rows = self._table.index_select(0, row)
        return rows, rows[:, : self.num_assets].clone()

    def see(self, known: Seen, positions: Tensor) -> None:
        """Keep what belongs to a state whose positions are worth ``positions`` [N, A]. ``known.obs`` are rows of the
        table as new memory and become the observation; ``positions`` are overwritten unless they are what is held."""
        out = None if positions is known.held else positions
        known.obs[:, : self.num_assets] = torch.mul(positions, known.value.reciprocal().unsqueeze(1), out=out)
        if self._levels is not None:
            level = scaled_turbulence(self._levels[known.row], self.num_assets)
            known = known._replace(obs=torch.cat([known.obs, level.unsqueeze(1)], 1))
        self._seen = known

    def seen(self, state: Tensor) -> Seen:
        """What belongs to ``state``, which ``dynamics`` has kept unless a lane was reset."""
        if self._seen is None or self._seen.state is not state:
            row, held = state[:, 0].long(), state[:, HELD:].contiguous()
            rows, price = self.rows_at(row)
            positions = self.positions(held, price)
            self.see(Seen(state, row, rows, price, held, state[:, CASH] + positions.sum(1)), positions)
        assert self._seen is not None
        return self._seen

    def status_of(self, row: Tensor) -> Tensor | None:
        """Whether each asset is traded [N, A]; None if all are always."""
        return None if self._status is None else self._status[row]

    @abstractmethod
    def positions(self, held: Tensor, price: Tensor) -> Tensor:
        """The value of each asset's position [N, A]."""

    def observe(self, state: Tensor) -> Tensor:
        return self.seen(state).obs

    def finish(
        self, seen: Seen, row: Tensor, rows: Tensor, price: Tensor, cash: Tensor, held: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next states of lanes, their rewards and values [N], from what they hold on the next date ``row``."""
        value = cash + positions.sum(1)
        if self.device.type == "cpu" and bool(value.isnan().any()):  # elsewhere reading it would wait for the device
            raise SpecError(f"environment {self.spec.name!r}: the action holds NaN; actions are numbers in [-1, 1]")
        state = torch.empty_like(seen.state)
        state[:, 0], state[:, CASH], state[:, START], state[:, HELD:] = row, cash, seen.state[:, START], held
        self.see(Seen(state, row, rows, price, held, value), positions)
        return state, self.reward(seen.value, value), value

    def reward(self, before: Tensor, after: Tensor) -> Tensor:
        growth = (after / before).clamp_min_(SMALLEST_GROWTH)
        reward = growth.log()
        if self.settings.risk_aversion:
            reward = reward - 0.5 * self.settings.risk_aversion * (growth - 1).square()
        return (REWARD_SCALE * reward).float()


def num_seen(market: Market) -> int:
    """The length of an observation: the weight and the features of each asset, and the turbulence if it is known."""
    table = market.table
    return len(table.assets) * len(table.fields) + (table.turbulence is not None)


def scaled_turbulence(level: Any, num_assets: int) -> Any:
    """Turbulence relative to the number of assets, which is its mean in quiet times, cut at 5."""
    return (level / num_assets - 1).clip(-5, 5)


def account_reward(before: float, after: float, risk_aversion: float) -> float:
    """``MarketVecEnv.reward`` of one account."""
    growth = max(after / before, SMALLEST_GROWTH)
    return REWARD_SCALE * (float(np.log(growth)) - 0.5 * risk_aversion * (growth - 1) ** 2)


def account_observation(market: Market, row: int, held: Array, value: float) -> Array:
    """``MarketVecEnv.observe`` of one account."""
    table = market.table
    seen = table.values[row].copy()
    seen[0] = held / value
    if table.turbulence is None:
        return seen.ravel()
    level = scaled_turbulence(table.turbulence[row], len(table.assets))
    return np.append(seen.ravel(), np.float32(level))

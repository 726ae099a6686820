"""The documented stock-trading environments, on the prices and the accounting of ``elegantrl.finance``."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..finance import load_prices
from ..finance.prices import day
from .envs import BuiltSingleEnv, BuiltVecEnv, Origin, device_of

DOCUMENTED_FILE = "China_A_shares.numpy.npz"
DAYS, STOCKS = 1113, 15
"""The size of the documented data."""


def trading(
    initial_amount: float, max_stock: float, cost_pct: float, beg_idx: int, end_idx: int, num_envs: int = 1
) -> Origin:
    """The environment of documented arguments: rows ``beg_idx`` to ``end_idx`` of the documented file if it is in the
    current folder, else of real prices of the same size that come with the extra ``finance``."""
    kwargs: dict[str, Any] = {
        "cash": initial_amount,
        "max_shares": int(max_stock),
        "cost": cost_pct,
        "random_cash": 0.1,
    }
    if Path(DOCUMENTED_FILE).exists():
        kwargs["data"], table = DOCUMENTED_FILE, load_prices(DOCUMENTED_FILE)
        dates = table.dates
    else:
        text = f"there is no {DOCUMENTED_FILE} here; {STOCKS} stocks of the S&P 500 take its place"
        warnings.warn(text, UserWarning, stacklevel=4)
        table = load_prices("sp500")
        kwargs |= {"data": "sp500", "assets": list(table.assets[:STOCKS])}
        dates = table.dates[-DAYS:]
    rows = dates[beg_idx:end_idx]
    if len(rows) < 2:
        raise ConfigError(f"beg_idx={beg_idx} and end_idx={end_idx} leave {len(rows)} of {len(dates)} days; at least 2")
    kwargs["period"] = f"{day(rows[0])}:{day(rows[-1])}"
    return Origin("StockTrading", "StockTradingEnv", kwargs, num_envs=num_envs)


class StockTradingEnv(BuiltSingleEnv):
    """One account that trades whole shares at the next close. ``gamma`` is accepted and has no effect: the reward of
    the last day is like all others here."""

    def __init__(
        self,
        initial_amount: float = 1e6,
        max_stock: float = 1e2,
        cost_pct: float = 1e-3,
        gamma: float = 0.99,
        beg_idx: int = 0,
        end_idx: int = DAYS,
    ) -> None:
        super().__init__(trading(initial_amount, max_stock, cost_pct, beg_idx, end_idx))
        self._log_growth = 0.0

    @property
    def cumulative_returns(self) -> float:
        """The value of the account in percent of its start."""
        return 100 * math.exp(self._log_growth / 100)

    def reset(self, seed: int | None = None) -> Any:
        self._log_growth = 0.0
        return super().reset(seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
        result = super().step(action)
        self._log_growth += float(result[1])
        return result


class StockTradingVecEnv(BuiltVecEnv):
    """``num_envs`` accounts like ``StockTradingEnv``, as tensors; on the CPU if there is no GPU."""

    def __init__(
        self,
        initial_amount: float = 1e6,
        max_stock: float = 1e2,
        cost_pct: float = 1e-3,
        gamma: float = 0.99,
        beg_idx: int = 0,
        end_idx: int = DAYS,
        num_envs: int = 4,
        gpu_id: int = 0,
        env_num: int | None = None,
    ) -> None:
        lanes = env_num or num_envs
        super().__init__(
            trading(initial_amount, max_stock, cost_pct, beg_idx, end_idx, lanes), lanes, device_of(gpu_id)
        )

"""Trade 20 stocks: real prices, two agents, a choice on the validation period, and the report of the test period.

python examples/stock_trading.py                # some minutes on one core; then open runs/stock_trading/report.html

The same from the command line:
elegantrl finance train ppo a2c --seeds 2 --max-steps 100000 --run-dir runs/stock_trading
elegantrl backtest runs/stock_trading
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import elegantrl
from elegantrl.finance import StockTradingEnv, load_prices
from elegantrl.finance.experiment import ExperimentConfig, run_experiment
from elegantrl.finance.results import Backtest, backtest


def look_at_the_market() -> None:
    """One account by hand, and a thousand as tensors."""
    prices = load_prices("sp500")
    print(f"{len(prices.dates):,} days of {', '.join(prices.assets)}")
    env = StockTradingEnv(prices, period="2013:2016", cost=0.001)
    env.reset(seed=0)
    *_, account = env.step(np.full(env.num_assets, 0.5, dtype=np.float32))
    print(f"bought {account['held'].sum():,.0f} shares on {account['date']} for costs of {account['cost']:,.0f}")
    many = elegantrl.make_env("StockTrading", 1000, period="1990:2012", episode_steps=252, random_start=True)
    elegantrl.check_env(many, steps=10)


def trade(folder: Path, max_steps: int = 100_000) -> Backtest:
    """Train, choose and test."""
    config = ExperimentConfig(
        agents=("ppo", "a2c"),
        seeds=2,
        train="1990:2012",
        validate="2013:2016",
        test="2017:2022",
        max_steps=max_steps,
        snapshots=5,
        env={"cost": 0.001},
    )
    run_experiment(config, folder, say=print)
    return backtest(folder)


if __name__ == "__main__":
    look_at_the_market()
    found = trade(Path("runs/stock_trading"))
    for row in found.rows:
        print(
            f"{row.ledger.name:25} {row.performance.annual_return:+7.1%} per year, Sharpe {row.performance.sharpe:5.2f}"
        )

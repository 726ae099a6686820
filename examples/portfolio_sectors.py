"""Five agents manage one portfolio of real stocks: each weighs the stocks of its sector, and all share one reward.

python examples/portfolio_sectors.py            # some minutes on one core; then open runs/sectors/report.html

The reward is adjusted for risk: 100 * (log growth - 5 / 2 * return squared) of the whole portfolio. MAPPO and MADDPG
are trained, the validation period decides between them, and the report shows the test period beside the baselines.

The same from the command line:
elegantrl finance train mappo maddpg --kind team --env-kwargs risk_aversion=5 --max-steps 100000 --run-dir runs/sectors
elegantrl backtest runs/sectors
"""

from __future__ import annotations

from pathlib import Path

from elegantrl.finance.experiment import ExperimentConfig, run_experiment
from elegantrl.finance.results import Backtest, backtest
from elegantrl.finance.team import SECTORS


def manage(folder: Path, max_steps: int = 100_000) -> Backtest:
    """Train, choose and test."""
    config = ExperimentConfig(
        agents=("mappo", "maddpg"),
        kind="team",
        train="1990:2012",
        validate="2013:2016",
        test="2017:2022",
        max_steps=max_steps,
        snapshots=5,
        env={"groups": {name: list(stocks) for name, stocks in SECTORS.items()}, "risk_aversion": 5.0},
    )
    run_experiment(config, folder, say=print)
    return backtest(folder)


if __name__ == "__main__":
    for sector, stocks in SECTORS.items():
        print(f"{sector}: {', '.join(stocks)}")
    for row in manage(Path("runs/sectors")).rows:
        figures = row.performance
        print(f"{row.ledger.name:25} {figures.annual_return:+7.1%} a year, Sharpe {figures.sharpe:5.2f}")

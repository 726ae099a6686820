"""``elegantrl backtest``: plays everything that an experiment trained on its test period, beside the baselines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError
from ..store.files import write_atomic
from ..store.trained import TrainedPolicy
from ..store.untrusted import check_env_kwargs
from .audit import Audit, audit
from .backtest import BASELINES, Decide, make_market_env, play, play_baseline, play_policy
from .config import ENVS, ExperimentConfig
from .experiment import Experiment, Tried, load_experiment
from .ledger import Ledger, added, joined
from .loaders import load_prices
from .metrics import Interval, Performance, bars_per_year, performance, sharpe_difference, sharpe_interval
from .periods import Fold, make_folds
from .prices import Period, PriceTable
from .settings import MarketSettings
from .single import MarketEnv
from .team import PortfolioTeamVecEnv

REPORT_FILE, TRADES_FILE, METRICS_FILE, EQUITY_FILE = "report.html", "trades.csv", "metrics.json", "equity.csv"


@dataclass(frozen=True)
class Row:
    """One strategy of a back-test."""

    ledger: Ledger
    performance: Performance
    is_baseline: bool
    sharpe: Interval
    against: Interval | None
    """Sharpe ratio of the main strategy minus that of this one; None for the main strategy itself."""

    @property
    def yearly_turnover(self) -> float:
        """What is bought and sold in a year relative to the value."""
        return float(self.ledger.turnover.mean()) * bars_per_year(self.ledger.dates)

    @property
    def costs(self) -> float:
        return float(self.ledger.cost.sum())


@dataclass(frozen=True)
class Backtest:
    """The main strategy first, then the others that were trained, then the baselines."""

    title: str
    rows: list[Row]
    audit: Audit
    tried: Tried
    settings: dict[str, Any]

    @property
    def main(self) -> Row:
        return self.rows[0]


def backtest(
    folder: str | Path, test: str | None = None, out: Path | None = None, allow_import: bool = False
) -> Backtest:
    """Back-test the folder of an experiment, or of a run of ``elegantrl train`` on a trading environment, and write
    report, trades, equity and metrics to ``out``, which is the folder itself unless given.

    ``test`` replaces the test period of an experiment; a run has none of its own, so it must be given. Code and files
    that the folder names are used only with ``allow_import``, for a trusted folder.
    """
    from .report import render  # here, because the report reads the classes of this module

    folder = Path(folder)
    if (folder / "finance.yaml").exists():
        found = of_experiment(load_experiment(folder), test, allow_import)
    else:
        found = of_run(folder, test, allow_import)
    where = out or folder
    where.mkdir(parents=True, exist_ok=True)
    write_atomic(where / TRADES_FILE, found.main.ledger.trades_csv().encode())
    write_atomic(where / EQUITY_FILE, equity_csv(found.rows).encode())
    write_atomic(where / METRICS_FILE, (json.dumps(as_json(found), indent=2) + "\n").encode())
    write_atomic(where / REPORT_FILE, render(found).encode())
    return found


# ---- playing


def of_experiment(experiment: Experiment, test: str | None = None, allow_import: bool = False) -> Backtest:
    """Every candidate over all folds; an audit of the main one."""
    config, folds = experiment.config, experiment.folds
    raw = load_prices(experiment.folder / "prices")
    if test is not None:
        if len(folds) > 1:
            raise ConfigError(
                "--test does not fit a walk-forward experiment, whose folds have test periods of their own"
            )
        folds = make_folds(str(folds[0].train), str(folds[0].validate), test, raw)
    seen = load_prices(experiment.folder / "features")
    runs = {(run.agent, run.seed, run.fold): run for run in experiment.trained}

    def play_candidate(table: PriceTable, name: str) -> Ledger:
        members = experiment.candidates[name]
        ledgers = []
        for agent, seed in members:

            def play_member(env: MarketEnv, fold: int, agent: str = agent, seed: int = seed) -> Ledger:
                policy = TrainedPolicy.load(experiment.folder / runs[agent, seed, fold].folder, allow_import)
                return play_trained(config, policy, env, name)

            ledgers.append(join_folds(config, folds, table, play_member, 1 / len(members)))
        return added(ledgers, name)

    ledgers = [play_candidate(seen, name) for name in experiment.candidates]
    baselines = [
        join_folds(config, folds, seen, lambda env, fold, name=name: play_baseline(env, name, fold))  # type: ignore[misc]
        for name in BASELINES
    ]
    checked = audit(lambda table: play_candidate(table, experiment.winner), raw, ledgers[0])
    settings = {**json.loads(json.dumps(config_values(config))), "folder": experiment.folder.name}
    title = f"{experiment.winner}, {config.kind}"
    return compare(title, ledgers, baselines, checked, experiment.tried, settings)


def config_values(config: ExperimentConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ExperimentConfig.__dataclass_fields__ if name != "section"}


def fold_env(
    config: ExperimentConfig, period: Period, before: Period | None, table: PriceTable, share: float = 1.0
) -> MarketEnv:
    """The environment of a test period with a share of the cash; a later fold begins at the last bar of the former."""
    kind = "portfolio" if config.kind == "team" else config.kind
    settings = {name: value for name, value in config.env.items() if name not in ("groups", "assets")}
    settings["cash"] = share * float(settings.get("cash", MarketSettings().cash))
    assets = config.env.get("assets")
    if assets and tuple(assets) != table.assets:
        table = table.select(assets)
    env = make_market_env(kind, table, str(period), settings)
    if before is not None:
        env.market = env.market._replace(first=env.market.first - 1)
        env.max_step += 1
    return env


def join_folds(
    config: ExperimentConfig,
    folds: Sequence[Fold],
    table: PriceTable,
    play_fold: Callable[[MarketEnv, int], Ledger],
    share: float = 1.0,
) -> Ledger:
    """The ledger of all test periods; ``play_fold`` gets the environment and the number of each."""
    ledgers = []
    for number, fold in enumerate(folds):
        before = folds[number - 1].test if number else None
        env = fold_env(config, fold.test, before, table, share)
        ledgers.append(play_fold(env, number))
    return joined(ledgers, env.settings.cost)


def play_trained(config: ExperimentConfig, policy: TrainedPolicy, env: MarketEnv, name: str) -> Ledger:
    if config.kind != "team":
        return play_policy(env, policy, name)
    return play(env, team_decisions(policy, env, config), name)


def team_decisions(policy: TrainedPolicy, env: MarketEnv, config: ExperimentConfig) -> Decide:
    """The decisions of a team in the single environment of portfolio weights."""
    settings = {name: value for name, value in config.env.items() if name != "assets"}
    team = PortfolioTeamVecEnv(env.market.table, 1, **settings)
    carry = policy.policy.initial_carry(1)

    @torch.no_grad()
    def decide(obs: Any) -> Any:
        nonlocal carry
        action, carry = policy.policy.act(team.shared_out(torch.from_numpy(obs).unsqueeze(0)), carry)
        return team.joined(action.clamp(-1, 1))[0].numpy()

    return decide


def of_run(folder: Path, test: str | None, allow_import: bool) -> Backtest:
    """One run of ``elegantrl train`` on a trading environment."""
    policy = TrainedPolicy.load(folder, allow_import)
    kinds = {name: kind for kind, name in ENVS.items()}
    config = policy.config.env
    if config.id not in kinds or kinds[config.id] == "team":
        raise ConfigError(f"{folder} was trained on {config.id}; a back-test needs StockTrading or Portfolio")
    if test is None:
        raise ConfigError(f"{folder} names no test period; add --test START:END with dates after its training")
    if not allow_import:
        check_env_kwargs(config.kwargs, str(folder))
    settings = dict(config.kwargs)
    raw = load_prices(settings.pop("data", "sp500"))

    def play_run(table: PriceTable) -> Ledger:
        return play_policy(make_market_env(kinds[config.id], table, test, settings), policy, policy.config.agent_name)

    ledger = play_run(raw)
    env = make_market_env(kinds[config.id], raw, test, settings)
    baselines = [play_baseline(env, name) for name in BASELINES]
    shown = {**settings, "test": test, "folder": folder.name}
    return compare(
        f"{policy.config.agent_name}, {kinds[config.id]}",
        [ledger],
        baselines,
        audit(play_run, raw, ledger),
        Tried(1, 1, 1),
        shown,
    )


# ---- comparing


def compare(
    title: str,
    ledgers: Sequence[Ledger],
    baselines: Sequence[Ledger],
    checked: Audit,
    tried: Tried,
    settings: dict[str, Any],
) -> Backtest:
    """Figures of all ledgers; Sharpe ratios are compared with that of the first."""
    main = ledgers[0].returns
    rows = []
    for ledger in (*ledgers, *baselines):
        bars = bars_per_year(ledger.dates)
        against = None if ledger is ledgers[0] else sharpe_difference(main, ledger.returns, bars)
        is_baseline = any(ledger is other for other in baselines)
        figures, interval = performance(ledger.returns, bars), sharpe_interval(ledger.returns, bars)
        rows.append(Row(ledger, figures, is_baseline, interval, against))
    return Backtest(title, rows, checked, tried, settings)


def as_json(found: Backtest) -> dict[str, Any]:
    """Everything of a back-test that is a number."""
    return {
        "title": found.title,
        "from": str(found.main.ledger.dates[0]),
        "to": str(found.main.ledger.dates[-1]),
        "tried": found.tried._asdict(),
        "audit": {"look_ahead_checked_at": found.audit.cuts, "accounting_error": found.audit.accounting_error},
        "strategies": [
            {
                "name": row.ledger.name,
                "baseline": row.is_baseline,
                **{name: _number(value) for name, value in row.performance._asdict().items()},
                "yearly_turnover": _number(row.yearly_turnover),
                "costs": _number(row.costs),
                "sharpe_interval": [_number(x) for x in row.sharpe],
                "sharpe_difference": None if row.against is None else [_number(x) for x in row.against],
            }
            for row in found.rows
        ],
        "settings": found.settings,
    }


def _number(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def equity_csv(rows: Sequence[Row]) -> str:
    """The value of every strategy by date."""
    dates = rows[0].ledger.dates
    lines = [",".join(["date", *(row.ledger.name for row in rows)])]
    values = [row.ledger.value for row in rows]
    for i, date in enumerate(dates):
        lines.append(",".join([str(date), *(f"{x[i]:.2f}" for x in values)]))
    return "\n".join(lines) + "\n"

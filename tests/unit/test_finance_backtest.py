"""Back-tests: figures equal to those of empyrical, rules by hand, and no look-ahead anywhere in the pipeline."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import empyrical
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markets import random_table, table_of

from elegantrl.cli.main import main
from elegantrl.errors import ConfigError, SpecError
from elegantrl.finance import PriceTable, load_prices, parse_period
from elegantrl.finance.audit import audit, other_future, refuse_feature_lookahead, refuse_lookahead
from elegantrl.finance.backtest import (
    BASELINES,
    make_market_env,
    play,
    play_baseline,
    play_policy,
    play_random,
    play_rule,
)
from elegantrl.finance.baselines import RULES, View, least_variance, momentum
from elegantrl.finance.experiment import ExperimentConfig, run_experiment
from elegantrl.finance.features import FEATURES, with_features
from elegantrl.finance.ledger import Ledger, joined
from elegantrl.finance.metrics import bars_per_year, performance, sharpe_difference, sharpe_interval
from elegantrl.finance.periods import make_folds
from elegantrl.finance.results import backtest
from elegantrl.store.trained import TrainedPolicy

# ---- figures


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), drift=st.sampled_from([-0.002, 0.0, 0.001]), count=st.integers(3, 600))
def test_figures_equal_those_of_empyrical(seed: int, drift: float, count: int) -> None:
    returns = drift + 0.01 * np.random.default_rng(seed).standard_normal(count)
    found = performance(returns)
    assert found.cumulative_return == pytest.approx(empyrical.cum_returns_final(returns), abs=1e-12)
    assert found.annual_return == pytest.approx(empyrical.annual_return(returns), abs=1e-10)
    assert found.annual_volatility == pytest.approx(empyrical.annual_volatility(returns), rel=1e-10)
    assert found.max_drawdown == pytest.approx(empyrical.max_drawdown(returns), abs=1e-12)
    assert found.sharpe == pytest.approx(empyrical.sharpe_ratio(returns), rel=1e-9)
    if (returns < 0).any():
        assert found.sortino == pytest.approx(empyrical.sortino_ratio(returns), rel=1e-9)
        assert found.calmar == pytest.approx(empyrical.calmar_ratio(returns), rel=1e-9)


def test_the_index_from_2016_to_2020_has_its_known_figures() -> None:
    """The check of FinRL's issue 746 with the index at hand: 2012.66 on 2016-01-04 and 2929.80 on 2020-05-08."""
    table = load_prices("sp500-index")
    first, last = table.span(parse_period("2016-01-04:2020-05-08"))
    close = table.close[first : last + 1, 0].astype(np.float64)
    found = performance(close[1:] / close[:-1] - 1)
    assert found.cumulative_return == pytest.approx(2929.80 / 2012.66 - 1, abs=1e-4)
    assert found.annual_return == pytest.approx(0.090, abs=0.002)
    assert found.max_drawdown == pytest.approx(-0.339, abs=0.001)  # from 3386 on 2020-02-19 to 2237 on 2020-03-23
    assert found.annual_volatility == pytest.approx(0.196, abs=0.005)


def test_the_interval_of_a_sharpe_difference() -> None:
    stream = np.random.default_rng(0)
    market = 0.01 * stream.standard_normal(1500)
    same = sharpe_difference(market, market)
    assert same == (0.0, 0.0, 0.0)
    better = sharpe_difference(market + 0.002, market)
    assert better.low > 0 and better.low < better.value < better.high
    noise = sharpe_difference(0.01 * stream.standard_normal(1500), market)
    assert noise.low < 0 < noise.high
    alone = sharpe_interval(market + 0.001)
    assert alone.value == pytest.approx(empyrical.sharpe_ratio(market + 0.001)) and alone.low < alone.value < alone.high
    assert (alone.high - alone.low) / 3.92 == pytest.approx(np.sqrt(252 / 1500), rel=0.25)  # the usual standard error
    # Independent series of n days: the standard error of a difference of annual ratios is about sqrt(2 * 252 / n).
    assert (noise.high - noise.low) / 3.92 == pytest.approx(np.sqrt(2 * 252 / 1500), rel=0.25)


def test_bars_per_year() -> None:
    days = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]").astype("datetime64[s]")
    assert bars_per_year(days) == 252
    assert bars_per_year(np.concatenate([days, days + np.timedelta64(3600, "s")])[np.arange(120) % 120]) == 504
    assert bars_per_year(days[::7]) == pytest.approx(52.18, abs=0.01)


# ---- rules


def test_rules_by_hand() -> None:
    table = table_of(np.array([[10.0, 10.0], [20.0, 10.0], [40.0, 10.0], [40.0, 5.0]]))
    for kind in ("stock", "portfolio"):
        env = make_market_env(kind, table, None, {"cost": 0.0, "cash": 1000.0})
        ledger = play_rule(env, RULES["buy and hold"], "hold")
        # Decided at 10, bought at the next close: 20 and 10.
        shares = [50, 50] if kind == "stock" else [25, 50]
        if kind == "stock":  # 50 shares of each cost 1500, the cash suffices for two thirds
            shares = [33, 33]
        assert ledger.positions[1].tolist() == pytest.approx([shares[0] * 20, shares[1] * 10])
        assert ledger.positions[3].tolist() == pytest.approx([shares[0] * 40, shares[1] * 5])
        assert ledger.value[3] == pytest.approx(ledger.cash[1] + shares[0] * 40 + shares[1] * 5)
        assert ledger.traded[2:].any() == 0


def test_weights_of_minimum_variance_and_momentum() -> None:
    assert least_variance(np.diag([1.0, 4.0])).tolist() == pytest.approx([0.8, 0.2], abs=1e-5)
    # Without the limit the second weight would be -0.2: it is 0.
    assert least_variance(np.array([[1.0, 1.5], [1.5, 4.0]])).tolist() == pytest.approx([1.0, 0.0], abs=1e-5)
    close = np.outer(np.arange(1.0, 301), [1, 1, 1, 1]) ** np.array([0.1, 0.5, 0.2, 0.3])
    assert momentum(View(close, np.ones(4, dtype=bool), 0)).tolist() == [0, 1, 0, 0]  # type: ignore[union-attr]
    assert momentum(View(close, np.ones(4, dtype=bool), 5)) is None


def test_baselines_keep_exact_accounts_and_do_not_look_ahead() -> None:
    table = random_table(1, bars=320, gaps=True)
    for kind in ("stock", "portfolio"):
        env = make_market_env(kind, table, "2020-09:2020-11-15", {"cost": 0.002})
        for ledger in (play_baseline(env, name) for name in BASELINES):
            assert ledger.accounting_error() < 1e-12, ledger.name
            assert (ledger.cash > -1e-6).all()
    for name, rule in RULES.items():

        def run(prices: PriceTable, rule: Any = rule, name: str = name) -> Ledger:
            return play_rule(make_market_env("stock", prices, "2020-09:2020-11-15", {}), rule, name)

        refuse_lookahead(run, table, [260, 300])


def test_a_ruined_account_keeps_what_is_left_in_cash() -> None:
    prices = np.ones((12, 1)) * [[10.0]] * np.array([1.0] * 4 + [1.0995] * 8)[:, None]
    env = make_market_env("portfolio", table_of(prices), None, {"cost": 0.0, "short": True, "leverage": 10.0})
    ledger = play(env, lambda obs: -np.ones(1, dtype=np.float32), "short")
    assert len(ledger.dates) == 12 and ledger.value[-1] == pytest.approx(5e3, rel=1e-3)  # ten times -9.95 %
    assert (ledger.positions[4:] == 0).all() and ledger.accounting_error() < 1e-12


def test_trades_are_written_one_by_one() -> None:
    env = make_market_env("stock", random_table(1), None, {"cost": 0.01})
    ledger = play_random(env)
    rows = list(csv.DictReader(io.StringIO(ledger.trades_csv())))
    assert len(rows) == int((ledger.traded != 0).sum()) > 50
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(ledger.cost.sum(), abs=0.01 * len(rows))
    assert all(float(row["shares"]) == int(float(row["shares"])) for row in rows)


def test_folds_join_at_the_cost_of_selling_everything() -> None:
    def account(value: float, held: float) -> Ledger:
        two = np.array([value, value])
        held_T = np.array([[0.0], [held]])
        return Ledger(
            "x", ("A",), np.array([1, 2], "datetime64[s]"), np.ones((2, 1)), two - held_T[:, 0], held_T, held_T, 0 * two
        )

    whole = joined([account(100.0, 50.0), account(200.0, 80.0)], cost=0.1)
    assert whole.value.tolist() == [100, 95, 95] and whole.cost.tolist() == [0, 5, 0]
    assert whole.positions[:, 0].tolist() == [0, 0, 38] and whole.traded[:, 0].tolist() == [0, 0, 38]


# ---- no look-ahead


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), row=st.integers(5, 110), gaps=st.booleans())
def test_no_feature_depends_on_a_later_price(seed: int, row: int, gaps: bool) -> None:
    """Guards against: E5, features that use the future."""
    table = random_table(seed, gaps=gaps)
    refuse_feature_lookahead(lambda prices: with_features(prices, turbulence=True), table, [row])


LEAKS = {
    "centred mean": lambda b: b["close"] / np.apply_along_axis(np.convolve, 0, b["close"], np.ones(5) / 5, "same"),
    "scaled by the whole period": lambda b: (b["close"] - b["close"].mean(0)) / b["close"].std(0),
    "tomorrow": lambda b: np.roll(b["close"], -1, 0) / b["close"] - 1,
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_found(name: str) -> None:
    table = random_table(0)
    leaking = {**FEATURES, name: LEAKS[name]}
    with pytest.raises(SpecError, match=f"the feature '{name}' looks ahead: it depends on prices after 2020-02-20"):
        refuse_feature_lookahead(lambda prices: with_features(prices, features=leaking), table, [50])


def test_an_oracle_earns_absurdly_much_and_is_found() -> None:
    raw = random_table(0, bars=250)

    def oracle(prices: PriceTable) -> Ledger:
        """Puts everything into the asset that rises most between the bar of execution and the one after it."""
        env = make_market_env("portfolio", prices, None, {"cost": 0.0, "short": True})
        close = prices.close

        def decide(obs: Any) -> Any:
            last = min(env.row + 2, len(close) - 1)
            return np.eye(env.num_assets)[np.argmax(close[last] / close[env.row + 1])].astype(np.float32)

        return play(env, decide, "oracle")

    ledger = oracle(raw)
    assert performance(ledger.returns).cumulative_return > 50
    with pytest.raises(SpecError, match=r"'oracle' looks ahead: its (cash|positions|traded) on 2020-"):
        audit(oracle, raw, ledger)


def test_an_account_that_does_not_add_up_is_found() -> None:
    ledger = play_random(make_market_env("stock", random_table(0), None, {}))
    ledger.cash[40:] += 1.0
    with pytest.raises(SpecError, match="breaks value before = value after"):
        audit(lambda prices: ledger, random_table(0), ledger)


Done = tuple[PriceTable, Path]
SMALL: dict[str, Any] = {
    "agents": ("ppo",),
    "train": "2020-01:2020-05",
    "validate": "2020-06:2020-07",
    "test": "2020-08:2020-10",
    "episode_steps": 30,
    "num_envs": 4,
    "max_steps": 512,
    "snapshots": 2,
    "agent": {"horizon": 64, "batch_size": 64, "num_epochs": 1, "normalize_obs": True},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A small experiment with two seeds and a normaliser."""
    folder = tmp_path_factory.mktemp("experiment")
    table = random_table(9, bars=305)
    table.save(folder / "raw")
    run_experiment(ExperimentConfig(**SMALL, seeds=2, data=str(folder / "raw")), folder / "out")
    return table, folder / "out"


def test_nothing_of_the_test_period_reaches_training_and_choice(trained: Done, tmp_path: Path) -> None:
    """With other prices after the validation period, training, normaliser and choice are the same bit for bit."""
    table, folder = trained
    _, last = table.span(parse_period(SMALL["validate"]))
    other_future(table, last).save(tmp_path / "raw")
    run_experiment(ExperimentConfig(**SMALL, seeds=2, data=str(tmp_path / "raw")), tmp_path / "out")
    for seed in (0, 1):
        ours, theirs = (
            TrainedPolicy.load(x / "runs" / f"ppo_seed{seed}", allow_import=True).policy.state_dict()
            for x in (folder, tmp_path / "out")
        )
        assert any("mean" in name for name in ours)  # the normaliser is a part of the policy
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (folder / "choice.json").read_text() == (tmp_path / "out" / "choice.json").read_text()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=st.integers(215, 303))
def test_no_observation_action_or_value_of_the_pipeline_depends_on_a_later_price(trained: Done, row: int) -> None:
    """From raw prices through features, normaliser and policy to the account, at any day of the test period."""
    table, folder = trained
    policy = TrainedPolicy.load(folder / "runs" / "ppo_seed0", allow_import=True)

    def play_all(prices: PriceTable) -> tuple[list[Any], Ledger]:
        seen: list[Any] = []
        env = make_market_env("stock", prices, SMALL["test"], {})

        def decide(obs: Any) -> Any:
            action = np.asarray(policy.act(obs))
            seen.append(np.concatenate([obs, action]))
            return action

        return seen, play(env, decide, "ppo")

    (ours, ledger), (theirs, other) = play_all(table), play_all(other_future(table, row))
    known = int((ledger.dates <= table.dates[row]).sum())
    assert 0 < known < len(ours)
    assert all(np.array_equal(a, b) for a, b in zip(ours[:known], theirs[:known], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(ours[known:], theirs[known:], strict=True))
    assert np.array_equal(ledger.value[:known], other.value[:known])


def test_a_report_with_everything_in_it(trained: Done, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = trained
    assert main(["backtest", str(folder)]) == 0
    assert "ppo ensemble" in capsys.readouterr().out
    found = json.loads((folder / "metrics.json").read_text())
    names = [row["name"] for row in found["strategies"]]
    assert names == ["ppo ensemble", "ppo seed 0", "ppo seed 1", *BASELINES]
    assert found["tried"] == {"runs": 2, "configurations": 1, "policies": 4}
    assert len(found["audit"]["look_ahead_checked_at"]) == 3
    assert found["audit"]["accounting_error"] < 1e-12
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 5 and "<script" not in page and "http" not in page.replace("http-equiv", "")
    for words in ("Drawdown", "Exposure", "Turnover", "Costs", "Returns by month", "4 policies"):
        assert words in page
    trades = (folder / "trades.csv").read_text().splitlines()
    assert trades[0] == "date,asset,side,shares,price,value,cost"
    equity = (folder / "equity.csv").read_text().splitlines()
    assert len(equity) == 1 + 92 and equity[0].startswith("date,ppo ensemble,")


def test_a_single_run_can_be_back_tested(trained: Done, tmp_path: Path) -> None:
    _, folder = trained
    run = folder / "runs" / "ppo_seed0"
    with pytest.raises(ConfigError, match="names no test period; add --test START:END"):
        backtest(run, allow_import=True)
    with pytest.raises(ConfigError, match="may read a file or choose code; if you trust the folder"):
        backtest(run, "2020-08:2020-09", tmp_path)
    assert not list(tmp_path.iterdir())
    found = backtest(run, "2020-08:2020-09", tmp_path, allow_import=True)
    assert found.main.ledger.name == "ppo" and (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_a_team_of_sectors_walks_forward(tmp_path: Path) -> None:
    """One agent per group, one reward that is adjusted for risk, two folds; the audit of the joined ledger holds."""
    random_table(9, bars=1100).save(tmp_path / "raw")
    periods = {"train": "2020-01:2020-06", "validate": "2020-07:2020-12", "test": "2021:2022"}
    groups = {"first": ["S0", "S1", "S2"], "second": ["S3"]}
    config = ExperimentConfig(
        **{**SMALL, **periods, "agents": ("mappo",), "max_steps": 256, "snapshots": 1},
        kind="team",
        walk_forward=1,
        data=str(tmp_path / "raw"),
        env={"groups": groups, "risk_aversion": 5.0},
    )
    done = run_experiment(config, tmp_path / "out")
    assert [run.fold for run in done.trained] == [0, 1]
    found = backtest(tmp_path / "out")
    ledger = found.main.ledger
    assert (str(ledger.dates[0])[:10], str(ledger.dates[-1])[:10]) == ("2021-01-01", "2022-12-31")
    assert len(ledger.dates) == 730 and (np.diff(ledger.dates) == np.timedelta64(86400, "s")).all()
    assert ledger.positions[364].any() == 0  # everything is sold where the folds meet
    assert found.audit.accounting_error < 1e-12


def test_a_tournament_of_agents_is_decided_by_the_validation_period(tmp_path: Path) -> None:
    """Two algorithms compete; what comes after the validation period changes nothing, and a resume trains nothing."""
    table = random_table(9, bars=305)
    table.save(tmp_path / "raw")
    _, last = table.span(parse_period(SMALL["validate"]))
    other_future(table, last).save(tmp_path / "other")
    settings = {**SMALL, "agents": ("ppo", "a2c"), "max_steps": 256, "agent": {"horizon": 32}, "tournament": 2}
    said: list[str] = []
    config = ExperimentConfig(**settings, data=str(tmp_path / "raw"))
    done = run_experiment(config, tmp_path / "out", say=said.append)
    (won,) = done.trained
    assert won.winner in ("ppo", "a2c") and said[0].startswith(f"tournament seed 0 won by {won.winner}: validation")
    assert done.winner == "tournament" and done.tried == (4, 4, 4)
    config = ExperimentConfig(**settings, data=str(tmp_path / "other"))
    assert run_experiment(config, tmp_path / "again").trained == done.trained
    config = ExperimentConfig(**settings, data=str(tmp_path / "raw"))
    assert run_experiment(config, tmp_path / "out", resume=True).trained == done.trained
    found = backtest(tmp_path / "out")
    assert found.main.ledger.name == "tournament" and found.audit.accounting_error < 1e-12
    champion = TrainedPolicy.load(tmp_path / "out" / won.folder, allow_import=True)
    ledger = play_policy(make_market_env("stock", table, SMALL["validate"], {}), champion, "champion")
    assert 100 * np.log(ledger.value[-1] / ledger.value[0]) == pytest.approx(won.validation, abs=1e-3)


def test_walk_forward_trains_on_everything_before_each_test_year() -> None:
    table = load_prices("sp500")
    folds = make_folds("1990:2012", "2013:2016", "2017:2021", table, walk_forward=2)
    assert [tuple(map(str, fold)) for fold in folds] == [
        ("1990-01-01:2012-12-31", "2013-01-01:2016-12-31", "2017-01-01:2018-12-31"),
        ("1990-01-01:2014-12-31", "2015-01-01:2018-12-31", "2019-01-01:2020-12-31"),
        ("1990-01-01:2016-12-31", "2017-01-01:2020-12-31", "2021-01-01:2021-12-31"),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--train", "2020-01:2020-06"], "train=2020-01-01:2020-06-30 must end before validate=2020-06-01:2020-07-31"),
        (["--test", "2031:2032"], "lies outside of the prices"),
        (["--test", "2019"], "'2019' is not START:END"),
        (["--env-kwargs", "assets=[S9]"], "there is no asset 'S9'"),
        (["--env-kwargs", "assets=S1"], "env.assets=S1 is not a list of names; write assets=[S1]"),
        (["--env-kwargs", "cost=1.0"], "env.cost=1.0 is out of range"),
        (["dqn"], "AgentDQN needs discrete or multi_discrete actions, but StockTrading has continuous ones"),
        (["mappo"], "AgentMAPPO learns for a team, but StockTrading has one agent"),
        (["pppo"], "there is no agent 'pppo'"),
        (["--agent-kwargs", "lrr=1"], "there is no setting lrr; did you mean 'lr'?"),
        (["--agent-kwargs", "lr=-1"], "agent.lr=-1.0 is out of range"),
        (["--env-kwargs", "period=2020:2021"], "env.period follows from the periods"),
        (["--seeds", "0"], "seeds=0 is out of range"),
        (["--tournament", "1"], "tournament=1 is out of range"),
        (["--data", "no_close.csv"], "no_close.csv has no column 'close'; its columns are date, tic, open"),
        (["--data", "nowhere.csv"], "there are no prices 'nowhere.csv'; check the path"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_nothing_is_written(
    words: list[str],
    sentence: str,
    trained: Done,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, folder = trained
    monkeypatch.chdir(tmp_path)
    Path("no_close.csv").write_text("date,tic,open\n2020-01-01,A,1\n2020-01-02,A,2\n")
    config = {name: SMALL[name] for name in ("train", "validate", "test")} | {"data": str(folder.parent / "raw")}
    base = [word for name, value in config.items() for word in (f"--{name}", value)]
    agents, options = ([], words) if words[0].startswith("--") else (words, [])
    more = ["--episode-steps", "30", "--run-dir", str(tmp_path / "x"), *options]
    assert main(["finance", "train", "ppo", *agents, *base, *more]) == 2
    text = capsys.readouterr().err
    assert sentence in text and text.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_an_experiment_from_a_file_continues(trained: Done, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = trained
    argv = ["finance", "train", "--config", str(folder / "finance.yaml"), "--run-dir", str(folder)]
    assert main(argv) == 2 and "already holds an experiment" in capsys.readouterr().err
    assert main([*argv, "--resume"]) == 0  # both runs are finished, so nothing is trained again
    assert "chosen on 2020-06:2020-07: ppo ensemble; policies tried: 4" in capsys.readouterr().out

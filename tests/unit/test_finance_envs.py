"""Trading environments: exact accounting, the same numbers as tensors and as one environment, clear refusals."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env as check_gymnasium
from hypothesis import given, settings
from hypothesis import strategies as st
from markets import random_table, table_of

import elegantrl
from elegantrl.envs.check import check_env
from elegantrl.errors import ConfigError, SpecError
from elegantrl.finance import PortfolioEnv, PortfolioTeamVecEnv, PortfolioVecEnv, StockTradingEnv, StockTradingVecEnv
from elegantrl.finance.market import CASH, HELD

KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "stock": (StockTradingVecEnv, StockTradingEnv, {}),
    "shares": (StockTradingVecEnv, StockTradingEnv, {"max_shares": 3000, "min_trade": 0.3}),
    "turbulence": (StockTradingVecEnv, StockTradingEnv, {"turbulence_limit": 6.0}),
    "risk": (StockTradingVecEnv, StockTradingEnv, {"risk_aversion": 3.0, "cost": 0.0}),
    "portfolio": (PortfolioVecEnv, PortfolioEnv, {}),
    "short": (PortfolioVecEnv, PortfolioEnv, {"short": True, "leverage": 1.5}),
}


@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "gaps"])
@pytest.mark.parametrize("kind", KINDS)
def test_lanes_equal_the_single_environment_step_by_step(kind: str, gaps: bool) -> None:
    """Guards against: E1 and E2 and E7, lanes that do not obey the action, limits of other stocks, other scales."""
    many_of, one_of, more = KINDS[kind]
    table = random_table(7, bars=300, gaps=gaps)
    many = many_of(table, num_envs=5, episode_steps=40, random_start=True, random_cash=0.2, **more)
    stream = np.random.default_rng(0)
    actions = stream.uniform(-1.3, 1.3, (40, 5, many.action.dim)).astype(np.float32)
    first = many.reset(3)
    starts = many._state.clone()
    steps = [many.step(torch.from_numpy(action)) for action in actions]
    assert len(set(starts[:, 0].tolist())) > 1  # lanes are on different days
    for lane in range(5):
        one = one_of(table, episode_steps=40, random_start=True, **more)
        options = {"row": starts[lane, 0].item(), "cash": starts[lane, CASH].item()}
        obs, _ = one.reset(options=options)
        np.testing.assert_allclose(obs, first[lane].numpy(), atol=1e-6)
        for action, step in zip(actions, steps, strict=True):
            obs, reward, terminated, truncated, info = one.step(action[lane])
            np.testing.assert_allclose(obs, step.next_obs[lane].numpy(), atol=2e-6)
            assert reward == pytest.approx(step.reward[lane].item(), abs=1e-4)
            assert (terminated, truncated) == (bool(step.terminated[lane]), bool(step.truncated[lane]))
            assert info["value"] > 0
        assert truncated


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    cost=st.sampled_from([0.0, 0.001, 0.05, 0.3]),
    gaps=st.booleans(),
    kind=st.sampled_from(["stock", "shares", "portfolio"]),
    cash=st.sampled_from([50.0, 1e4, 1e9]),
)
def test_value_before_is_value_after_plus_costs(seed: int, cost: float, gaps: bool, kind: str, cash: float) -> None:
    """Guards against: E4, cash below zero; also whole shares, no short positions, and a complete account."""
    _, one_of, more = KINDS[kind]
    env = one_of(random_table(seed, bars=60, gaps=gaps), cost=cost, cash=cash, **more)
    stream = np.random.default_rng(seed)
    env.reset(seed=seed)
    for _ in range(59):
        old_price, old_cash, old = env.price, env.cash, env.positions()
        *_, info = env.step(stream.choice([-1, 1, 1], env.action_space.shape) * stream.random(env.action_space.shape))
        growth = np.where(old_price > 0, env.price / np.where(old_price > 0, old_price, 1), 1)
        before = old_cash + (old * growth).sum()
        assert before == pytest.approx(info["value"] + info["cost"], rel=1e-11)
        money = np.abs(info["traded"] * (env.price if env.held_are_shares else 1)).sum()
        assert info["cost"] == pytest.approx(cost * money, rel=1e-9, abs=1e-9)
        assert info["cash"] >= -1e-9 * cash and (info["held"] >= 0).all()
        if env.held_are_shares:
            assert np.array_equal(info["held"], np.trunc(info["held"]))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    cost=st.sampled_from([0.0, 0.001, 0.02]),
    gaps=st.booleans(),
    leverage=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_short_positions_keep_the_limit_of_leverage(seed: int, cost: float, gaps: bool, leverage: float) -> None:
    """Accounts are exact with short positions too. After trades all positions are within the leverage, but for those
    that cannot be traded; an account whose value falls below a hundredth of its start ends."""
    env = PortfolioEnv(random_table(seed, bars=60, gaps=gaps), cost=cost, short=True, leverage=leverage)
    stream = np.random.default_rng(seed)
    env.reset(seed=seed)
    shorts = 0
    for _ in range(59):
        old_price, old_cash, old = env.price, env.cash, env.positions()
        *_, terminated, _, info = env.step(stream.uniform(-1, 1, 4))
        growth = np.where(old_price > 0, env.price / np.where(old_price > 0, old_price, 1), 1)
        assert old_cash + (old * growth).sum() == pytest.approx(info["value"] + info["cost"], rel=1e-9, abs=1e-6)
        status = env.market.table.status
        tradable = np.ones(4, dtype=bool) if status is None else status[env.row] == 1
        assert np.abs(info["held"][tradable]).sum() <= leverage * max(info["value"], 0) * (1 + 1e-9) + 1e-6
        shorts += int((info["held"] < 0).any())
        assert terminated == (info["value"] < 0.01 * 1e6)
        if terminated:
            break
    assert shorts > 10 or terminated


def test_tensor_lanes_keep_exact_accounts() -> None:
    """The same in float64 tensors, with thousands of lanes at once."""
    table = random_table(11, bars=80, gaps=True)
    env = StockTradingVecEnv(table, num_envs=2048, episode_steps=70, random_start=True, cost=0.01, cash=5000.0)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(69):
        before = env._state
        env.step(torch.rand(2048, 4, generator=generator) * 2.5 - 1)
        after, price = env._state, env.seen(env._state).price.double()
        cost = 0.01 * ((after[:, HELD:] - before[:, HELD:]).abs() * price).sum(1)
        paid_out = before[:, HELD:] * price  # delisted positions leave without a cost
        value = after[:, CASH] + (after[:, HELD:] * price).sum(1)
        gap = before[:, CASH] + paid_out.sum(1) - value
        assert (gap >= -1e-9).all() and (gap <= cost + 1e-9).all()
        assert (after[:, CASH] >= 0).all() and (after[:, HELD:] >= 0).all()
        assert torch.equal(after[:, HELD:], after[:, HELD:].trunc())


def test_a_trade_by_hand() -> None:
    """Ordered at 10 and 20, executed at 11 and 30: the cash does not suffice, and both orders shrink alike."""
    table = table_of([[10.0, 20.0], [11.0, 30.0], [12.0, 30.0]])
    env = StockTradingEnv(table, cash=1000.0, cost=0.01, max_trade=1.0, min_trade=0.1)
    env.reset()
    _, reward, *_, info = env.step(np.array([1.0, 0.5]))  # 100 shares for 1100 and 25 for 750, with costs 1868.50
    share = 1000 / 1868.5  # 53.5 and 13.4 shares
    assert info["held"].tolist() == [int(100 * share), int(25 * share)] == [53, 13]
    assert info["cost"] == pytest.approx(0.01 * (53 * 11 + 13 * 30))
    assert info["cash"] == pytest.approx(1000 - 1.01 * (53 * 11 + 13 * 30))
    assert reward == pytest.approx(100 * np.log(info["value"] / 1000))
    _, _, _, truncated, info = env.step(np.array([-1.0, 0.05]))  # more than there is; too small to be an order
    assert info["held"].tolist() == [0, 13] and truncated
    assert info["traded"].tolist() == [-53, 0]


def test_weights_by_hand() -> None:
    """Everything into the first asset: costs are estimated from above, and what is left of the estimate stays cash."""
    env = PortfolioEnv(table_of([[10.0, 20.0], [10.0, 20.0], [11.0, 10.0]]), cash=1000.0, cost=0.01, short=True)
    env.reset()
    *_, info = env.step(np.array([1.0, 0.0]))
    assert info["held"].tolist() == pytest.approx([1000 * (1 - 0.01 / 0.99), 0])
    assert info["cash"] == pytest.approx(2000 * 0.01**2 / 0.99)
    assert info["cost"] == pytest.approx(0.01 * info["held"][0])
    *_, info = env.step(np.array([0.5, -0.5]))
    value = info["value"]
    assert info["held"][0] == pytest.approx(-info["held"][1]) and np.abs(info["held"]).sum() <= value * 1.0000001


def test_turbulence_sells_everything_at_the_next_bar() -> None:
    table = random_table(7, bars=300)
    env = StockTradingEnv(table, turbulence_limit=12.0)
    env.reset()
    alarms = 0
    for _ in range(299):
        known = env.market.table.turbulence[env.row]  # type: ignore[index]
        *_, info = env.step(np.ones(4))
        if known > 12.0:
            alarms += 1
            assert (info["held"] == 0).all()
    assert 0 < alarms < 40


def test_a_delisted_position_is_paid_out_at_its_last_price() -> None:
    close = np.full((20, 2), 10.0)
    close[3:, 0] = np.nan
    env = StockTradingEnv(table_of(close), cash=1000.0, cost=0.0, max_trade=0.5)
    env.reset()
    env.step(np.array([1.0, 0.0]))
    assert env.held.tolist() == [50, 0]
    for _ in range(3):
        env.step(np.array([-1.0, 0.0]))  # the first sells in time
    assert env.held[0] == 0
    env.reset()
    env.step(np.array([1.0, 0.0]))
    env.step(np.array([0.0, 0.0]))
    for _ in range(10):
        env.step(np.array([-1.0, 0.0]))  # no price, no sale
        assert env.held[0] == 50
    env.step(np.array([0.0, 0.0]))
    assert env.held[0] == 0 and env.cash == 1000


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_keep_their_contracts(kind: str) -> None:
    many_of, one_of, more = KINDS[kind]
    table = random_table(2, bars=120, gaps=kind == "stock")
    check_env(many_of(table, num_envs=3, episode_steps=20, random_start=True, random_cash=0.1, **more), steps=60)
    env = one_of(table, episode_steps=20, random_start=True, **more)
    check_gymnasium(env, skip_render_check=True)
    assert isinstance(env, gym.Env)


def test_a_team_gives_the_numbers_of_one_portfolio() -> None:
    table = random_table(4, bars=60)
    groups = {"a": ["S2"], "b": ["S0", "S1", "S3"]}
    team = PortfolioTeamVecEnv(table, 2, groups=groups)
    check_env(PortfolioTeamVecEnv(table, 2, groups=groups, risk_aversion=5.0), steps=70)
    alone = PortfolioVecEnv(table, 2)
    obs, whole = team.reset(0), alone.reset(0)
    for _ in range(20):
        action = torch.rand(2, 2, 3) * 2 - 1
        step = team.step(action)
        numbers = torch.stack([action[:, 1, 0], action[:, 1, 1], action[:, 0, 0], action[:, 1, 2]], 1)
        other = alone.step(torch.cat([numbers, torch.zeros(2, 1)], 1))
        assert torch.allclose(step.reward.sum(1), other.reward) and torch.equal(step.reward[:, 0], step.reward[:, 1])
        assert torch.equal(step.obs.state, other.obs)
    num_fields = len(team.market.table.fields)
    assert torch.equal(obs.seen[:, 0, :num_fields], whole[:, 2::4])  # S2 is its own asset
    assert (obs.seen[:, 0, num_fields:-1] == 0).all() and (obs.seen[:, :, -1] == 1).all()  # the rest of a row, and cash
    with pytest.raises(ConfigError, match="must name each asset of the prices once"):
        PortfolioTeamVecEnv(table, 1, groups={"a": ["S0"]})


def test_names_of_the_command_line_make_the_environments() -> None:
    env = elegantrl.make_env("StockTrading", 4, period="2017:2018", assets=["AAPL", "KO"])
    assert env.spec.name == "StockTrading" and env.spec.action.dim == 2
    team = elegantrl.make_env("PortfolioTeam", 2, period="2017:2017")
    assert team.spec.num_agents == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"cost": 1.0}, r"env.cost=1.0 is out of range: it must be >= 0.0 and < 1.0"),
        ({"cost": "much"}, r"env.cost='much' is not a number"),
        ({"cash": 0.0}, r"env.cash=0.0 is out of range: it must be > 0.0"),
        ({"period": "2030:2031"}, r"the period 2030-01-01:2031-12-31 lies outside of the prices"),
        ({"assets": ["S7"]}, r"there is no asset 'S7' in the prices"),
        ({"random_start": True}, r"env.random_start=True needs env.episode_steps"),
        ({"episode_steps": 500}, r"env.episode_steps=500 is longer than the period"),
        ({"costs": 0.1}, r"env.costs"),
        ({"cost": 0.3, "short": True, "leverage": 2.0}, r"would take half of the account"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    kinds = [PortfolioVecEnv, PortfolioEnv] if "short" in arguments else [StockTradingVecEnv, StockTradingEnv]
    for kind in kinds:
        with pytest.raises(ConfigError, match=sentence) as error:
            kind(random_table(0), **arguments)  # type: ignore[operator]
        assert "\n" not in str(error.value)


def test_an_action_with_nan_is_refused_and_the_account_stays() -> None:
    one, many = StockTradingEnv(random_table(0)), StockTradingVecEnv(random_table(0), 2)
    one.reset()
    many.reset(0)
    before = many._state
    with pytest.raises(SpecError, match="NaN"):
        one.step(np.array([0.0, np.nan, 0.0, 0.0]))
    with pytest.raises(SpecError, match="NaN"):
        many.step(torch.tensor([[0.0, torch.nan, 0.0, 0.0]] * 2))
    assert one.row == 0 and many._state is before
    with pytest.raises(SpecError, match=r"got shape \(2,\)"):
        one.step(np.zeros(2))

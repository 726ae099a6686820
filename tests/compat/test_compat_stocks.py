"""The documented stock-trading environments: names, call forms, and the accounting behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import elegantrl
from elegantrl.compat.envs import build_env
from elegantrl.errors import ConfigError


@pytest.fixture
def documented_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the documents, made up: 1,113 days of 15 stocks with eight indicators."""
    stream = np.random.default_rng(0)
    close = 20 * np.exp(0.01 * stream.standard_normal((1113, 15))).cumprod(0)
    np.savez(tmp_path / "China_A_shares.numpy.npz", close_ary=close, tech_ary=stream.standard_normal((1113, 120)))
    monkeypatch.chdir(tmp_path)


def test_documented_names_and_paths(documented_file: None) -> None:
    from elegantrl.envs.StockTradingEnv import StockTradingEnv, StockTradingVecEnv

    assert elegantrl.StockTradingEnv is StockTradingEnv and elegantrl.StockTradingVecEnv is StockTradingVecEnv
    env = StockTradingEnv(initial_amount=1e6, max_stock=1e2, cost_pct=1e-3, gamma=0.99, beg_idx=0, end_idx=834)
    assert (env.action_dim, env.max_step, env.if_discrete) == (15, 833, False)
    assert env.state_dim == 15 * (1 + 8)
    state = env.reset()
    assert state.shape == (env.state_dim,)
    done, rewards = False, []
    while not done:
        state, reward, done, info = env.step(np.ones(15))
        rewards.append(reward)
    assert info == {"TimeLimit.truncated": True}  # the end of the data is not the end of the account
    assert env.cumulative_returns == pytest.approx(100 * np.exp(sum(rewards) / 100))


def test_lanes_obey_their_own_actions(documented_file: None) -> None:
    """Guards against: E1, an action that is overwritten with ones."""
    env = elegantrl.StockTradingVecEnv(beg_idx=834, end_idx=1113, num_envs=3, gpu_id=-1)
    env.reset()
    actions = torch.stack([torch.ones(15), torch.zeros(15), torch.ones(15)])
    state, *_ = env.step(actions)
    weights = state[:, :15]
    assert (weights[1] == 0).all() and (weights[[0, 2]] > 0).all()


def test_build_env_and_real_prices_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against: E11, an environment whose data cannot be had."""
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"there is no China_A_shares.numpy.npz here; 15 stocks of the S&P 500"):
        env = build_env(elegantrl.StockTradingEnv, {"beg_idx": 0, "end_idx": 100})
    assert (env.action_dim, env.max_step) == (15, 99)
    with pytest.warns(UserWarning), pytest.raises(ConfigError, match="leave 1 of 1113 days"):
        elegantrl.StockTradingEnv(beg_idx=5, end_idx=6)

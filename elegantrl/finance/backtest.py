"""Plays trained policies and rules on a period, each from cash and under the same costs and delay of one bar.

Axes: A assets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..rng import numpy_stream
from ..store.trained import TrainedPolicy
from ..types import Leaf
from .accounting import Trade, pay_out, rebalance, trade_shares
from .baselines import RULES, Rule, view_of
from .ledger import Ledger, Recorder, ended
from .portfolio import PortfolioEnv
from .prices import Array, PriceTable
from .single import MarketEnv
from .stock import StockTradingEnv

KINDS: dict[str, type[MarketEnv]] = {"stock": StockTradingEnv, "portfolio": PortfolioEnv}
Decide = Callable[[Array], Array]
"""From an observation to an action."""


def make_market_env(kind: str, data: str | PriceTable, period: str | None, settings: dict[str, Any]) -> MarketEnv:
    """The single environment of a back-test: whole period, no random start."""
    fixed = {"episode_steps": None, "random_start": False, "random_cash": 0.0}
    maker: Any = KINDS[kind]
    env: MarketEnv = maker(data, **{**settings, **fixed, "period": period})
    return env


def play(env: MarketEnv, decide: Decide, name: str) -> Ledger:
    """The ledger of decisions in ``env`` from the first to the last bar of its period; after a ruin there are none."""
    obs, _ = env.reset(options={"row": env.market.first})
    recorder = Recorder(env, name)
    while True:
        obs, _, terminated, truncated, info = env.step(decide(obs))
        recorder.add(info["traded"] * (env.price if env.held_are_shares else 1.0), info["cost"])
        if truncated:
            return recorder.ledger()
        if terminated:
            table, later = env.market.table, slice(env.row + 1, env.market.last + 1)
            return ended(recorder.ledger(), table.dates[later], table.close[later], env.settings.cost)


def policy_decisions(policy: TrainedPolicy) -> Decide:
    """The best known action of a policy for each observation."""
    carry: dict[str, Any] = {}
    return lambda obs: np.asarray(policy.act(obs, carry))


def play_policy(env: MarketEnv, policy: TrainedPolicy, name: str) -> Ledger:
    size, seen = policy.spec.action.dim, policy.spec.obs
    if size != env.num_actions or seen != Leaf(env.observation_space.shape or ()):
        raise ConfigError(
            f"{policy.folder} was trained on another market: it sees {seen} and decides {size} numbers, but"
            f" this one has {env.observation_space.shape} and {env.num_actions}; use its own assets"
        )
    return play(env, policy_decisions(policy), name)


def play_random(env: MarketEnv, name: str = "random", seed: int = 0) -> Ledger:
    """Uniform random actions."""
    stream = numpy_stream(seed, "random policy")
    return play(env, lambda obs: stream.uniform(-1, 1, env.action_space.shape).astype(np.float32), name)


def play_rule(env: MarketEnv, rule: Rule, name: str) -> Ledger:
    """The ledger of a rule with the accounting of ``env``: whole shares or fractions, its cost, its delay of a bar."""
    market = env.market
    env.reset(options={"row": market.first})
    recorder = Recorder(env, name)
    while env.row < market.last:
        weights = rule(view_of(market.table.close, market.table.status, env.row, market.first))
        done = follow(env, weights)
        money = done.traded * env.price if env.held_are_shares else done.traded
        env.cash, env.held = done.cash, done.held
        env.value = env.cash + float(env.positions().sum())
        recorder.add(money, done.cost)
    return recorder.ledger()


def follow(env: MarketEnv, weights: Array | None) -> Trade:
    """Go on to the next bar and trade there towards weights that were decided before; None: hold."""
    table, cost, value, before = env.market.table, env.settings.cost, env.value, env.price
    env.advance()
    status = None if table.status is None else table.status[env.row]
    if env.held_are_shares:
        # The number of shares is decided with the prices that are known.
        target = env.held if weights is None else np.trunc(weights * value / np.maximum(before, 1e-30))
        return trade_shares(env.cash, env.held, target - env.held, env.price, cost, status)
    held = env.held * np.where(before > 0, env.price, 1.0) / np.where(before > 0, before, 1.0)
    if weights is None:
        return Trade(*pay_out(env.cash, held, status), np.zeros(env.num_assets), 0.0)
    return rebalance(env.cash, held, weights, cost, status)


BASELINES = (*RULES, "random")


def play_baseline(env: MarketEnv, name: str, seed: int = 0) -> Ledger:
    """One of ``BASELINES``; the seed is that of the random policy."""
    return play_rule(env, RULES[name], name) if name in RULES else play_random(env, name, seed)

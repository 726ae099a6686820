"""Every tensor environment steps on a pretended accelerator without a word to the host, with the numbers of a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from markets import random_table

from elegantrl import tree
from elegantrl.envs.masks import allowed_actions
from elegantrl.envs.tensor import (
    CartPoleVecEnv,
    ChasingVecEnv,
    DoorsVecEnv,
    ForagingVecEnv,
    PendulumVecEnv,
    SkirmishVecEnv,
    SpeakerListenerVecEnv,
    SpreadVecEnv,
    TagVecEnv,
    TensorEnv,
)
from elegantrl.finance import PortfolioTeamVecEnv, PortfolioVecEnv, StockTradingVecEnv
from elegantrl.types import State
from tests.accelerator import ACCELERATOR, CPU, Accelerator

LANES, STEPS = 5, 6
GROUPS = {"one": ("S0", "S2"), "other": ("S1", "S3")}
CASES: list[tuple[type[TensorEnv], dict[str, Any]]] = [
    (CartPoleVecEnv, {}),
    (PendulumVecEnv, {}),
    (ChasingVecEnv, {"dim": 3}),
    (DoorsVecEnv, {}),
    (DoorsVecEnv, {"masks": False}),
    (ForagingVecEnv, {}),
    (ForagingVecEnv, {"coop": False, "num_agents": 3, "foods": 3}),
    (SkirmishVecEnv, {}),
    (SkirmishVecEnv, {"enemy_aim": "weakest"}),
    (SpreadVecEnv, {}),
    (SpreadVecEnv, {"continuous_actions": True}),
    (TagVecEnv, {}),
    (TagVecEnv, {"prey": "learned", "num_good": 2}),
    (SpeakerListenerVecEnv, {}),
    (SpeakerListenerVecEnv, {"continuous_actions": True}),
    (StockTradingVecEnv, {}),
    (
        StockTradingVecEnv,
        {"gaps": True, "random_start": True, "episode_steps": 20, "random_cash": 0.5, "turbulence_limit": 1.0},
    ),
    (StockTradingVecEnv, {"max_shares": 100, "risk_aversion": 2.0}),
    (PortfolioVecEnv, {}),
    (PortfolioVecEnv, {"gaps": True, "short": True, "leverage": 2.0}),
    (PortfolioTeamVecEnv, {"groups": GROUPS}),
    (PortfolioTeamVecEnv, {"groups": GROUPS, "gaps": True}),
]


def build(kind: type[TensorEnv], settings: dict[str, Any], device: torch.device) -> TensorEnv:
    arguments = dict(settings)
    if "finance" in kind.__module__:
        arguments["data"] = random_table(0, gaps=arguments.pop("gaps", False))
    return kind(num_envs=LANES, device=device, **arguments)


def given_states(kind: type[TensorEnv], settings: dict[str, Any]) -> list[tuple[State, torch.Tensor, Any]]:
    """States of an environment on the CPU, actions, and what a step makes of them; one lane has reached its limit."""
    env, generator = build(kind, settings, CPU), torch.Generator().manual_seed(0)
    obs, found = env.reset(0), []
    for _ in range(STEPS):
        env._elapsed[1] = env._limit - 1
        state = {name: value.clone() for name, value in env.state_dict().items()}
        action = env.spec.action.random((LANES, *env.spec.team), generator)
        action = allowed_actions(action, obs, env.spec.action)
        step = env.step(action)
        found.append((state, action, step))
        obs = step.obs
    return found


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_a_step_stays_on_the_device(kind: type[TensorEnv], settings: dict[str, Any]) -> None:
    steps = given_states(kind, settings)
    with Accelerator() as accelerator:
        env = build(kind, settings, ACCELERATOR)
        env.reset(0)
        for state, action, expected in steps:
            env.load_state_dict(accelerator.put(state))
            there = accelerator.put(action)
            with accelerator.watch() as events:
                step = env.step(there)
            assert not events
            found = accelerator.values(step)
            for name in ("reward", "terminated", "truncated", "next_obs", "won"):
                assert all(
                    torch.equal(x, y)
                    for x, y in zip(
                        tree.leaves(getattr(found, name)), tree.leaves(getattr(expected, name)), strict=True
                    )
                ), name
            goes_on = ~(expected.terminated | expected.truncated)
            assert not goes_on.all()
            for x, y in zip(tree.leaves(found.obs), tree.leaves(expected.obs), strict=True):
                assert torch.equal(x[goes_on], y[goes_on])


def test_all_environments_are_here() -> None:
    def below(kind: type[Any]) -> set[type[Any]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    library = {kind for kind in below(TensorEnv) if kind.__module__.startswith("elegantrl.")}
    abstract = {kind for kind in library if library & set(kind.__subclasses__()) and kind is not PortfolioVecEnv}
    assert {kind for kind, _ in CASES} == library - abstract

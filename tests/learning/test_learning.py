"""Each agent learns a small task within seconds, and a broken variant of it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import elegantrl
from elegantrl import registry
from elegantrl.agents.dqn import AgentDQN, DQNConfig
from elegantrl.agents.on_policy import Batch
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.registry import register_agent
from elegantrl.types import Rollout

QUICK: dict[str, dict[str, Any]] = {
    "ppo": {"env": "TensorCartPole", "max_steps": 12_000, "better_than": 150.0},
    "a2c": {"env": "TensorCartPole", "max_steps": 30_000, "better_than": 150.0},
    "dqn": {"env": "TensorCartPole", "max_steps": 16_000, "better_than": 100.0},
    "sac": {"env": "TensorPendulum", "max_steps": 5_000, "better_than": -500.0},
}


def best_return(agent: str, env: str, max_steps: int, tmp_path: Path, **settings: Any) -> float:
    every = max(max_steps // 4, 1)
    run = elegantrl.train(
        agent, env, seed=1, max_steps=max_steps, run_dir=tmp_path / agent, eval={"interval": every}, **settings
    )
    return run.best_return


@pytest.mark.parametrize("agent", QUICK)
def test_agent_learns_with_default_settings(agent: str, tmp_path: Path) -> None:
    task = QUICK[agent]
    assert best_return(agent, task["env"], task["max_steps"], tmp_path) > task["better_than"]


class UpsideDownPPO(AgentPPO):
    """Prefers what was bad."""

    @torch.no_grad()
    def targets(self, r: Rollout) -> Batch:
        rows = super().targets(r)
        return rows._replace(advantage=-rows.advantage)


class BlindDQN(AgentDQN):
    """Believes that every state is worth nothing."""

    def next_value(self, next_obs_BO: Tensor) -> Tensor:
        return torch.zeros_like(next_obs_BO[:, 0])


def test_a_broken_agent_fails_the_same_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_AGENTS", dict(registry._AGENTS))  # other tests count the agents
    register_agent("upside-down", UpsideDownPPO, PPOConfig)
    register_agent("blind", BlindDQN, DQNConfig)
    ppo = elegantrl.train(
        "upside-down",
        "TensorCartPole",
        seed=1,
        max_steps=12_000,
        run_dir=tmp_path / "u",
        num_envs=8,
        horizon=32,
        lr=1e-3,
    )
    assert ppo.best_return < 60
    dqn = elegantrl.train(
        "blind", "TensorCartPole", seed=1, max_steps=8_000, run_dir=tmp_path / "b", num_envs=8, horizon=16,
        updates_per_step=0.5, lr=1e-3, explore_steps=3000,
    )  # fmt: skip
    assert dqn.best_return < 100

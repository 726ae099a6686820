"""Each agent learns a small task within seconds, and a broken variant of it does not."""

from __future__ import annotations

from collections.abc import Callable
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
from elegantrl.envs import TensorEnv
from elegantrl.registry import find_agent, register_agent
from elegantrl.types import ActionSpec, Rollout
from tests.names import SINGLE_AGENTS

QUICK: dict[str, dict[str, Any]] = {
    "ppo": {"env": "TensorCartPole", "max_steps": 30_000, "better_than": 400.0},
    "a2c": {"env": "TensorCartPole", "max_steps": 120_000, "better_than": 400.0},
    "dqn": {"env": "TensorCartPole", "max_steps": 40_000, "better_than": 400.0},
    "sac": {"env": "TensorPendulum", "max_steps": 6_000, "better_than": -250.0},
}


def best_return(agent: str, env: str, max_steps: int, tmp_path: Path, **settings: Any) -> float:
    every = max(max_steps // 4, 1)
    run = elegantrl.train(
        agent, env, seed=1, max_steps=max_steps, run_dir=tmp_path / agent, eval={"interval": every}, **settings
    )
    return run.best_return


@pytest.mark.parametrize("agent", ["ppo", "a2c", "dqn", pytest.param("sac", marks=pytest.mark.slow)])
def test_agent_learns_with_default_settings(agent: str, tmp_path: Path) -> None:
    # Guards against: L1, an algorithm that runs and does not learn.
    task = QUICK[agent]
    assert best_return(agent, task["env"], task["max_steps"], tmp_path) > task["better_than"]


class Homing(TensorEnv):
    """A point on a line is pushed by up to 0.5 per step and should stay at 0. To leave it alone costs 6 on average."""

    obs_dim, action, max_episode_steps = 1, ActionSpec(dim=1), 8

    def initial(self, num_rows: int) -> Tensor:
        return torch.rand(num_rows, 1, generator=self.generator, device=self.device) * 3 - 1.5

    def push(self, action: Tensor) -> Tensor:
        return 0.5 * action

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = state + self.push(action)
        return state, -state[:, 0].square(), torch.zeros_like(state[:, 0], dtype=torch.bool)


class HomingByChoice(Homing):
    """The same with three choices: left, stay, right."""

    action = ActionSpec(choices=(3,))

    def push(self, action: Tensor) -> Tensor:
        return 0.5 * (action.unsqueeze(1) - 1)


class HomingByTwoChoices(Homing):
    """The same with two choices: the direction, and whether to push."""

    action = ActionSpec(choices=(2, 2))

    def push(self, action: Tensor) -> Tensor:
        direction, pushes = action[:, :1] * 2 - 1, action[:, 1:]
        return 0.5 * direction * pushes


HOMING: dict[str, type[TensorEnv]] = {
    "continuous": Homing,
    "discrete": HomingByChoice,
    "multi_discrete": HomingByTwoChoices,
}
COMMON: dict[str, Any] = {"hidden": [32], "gamma": 0.9, "lr": 3e-3, "batch_size": 64}
ROLLOUT: dict[str, Any] = {**COMMON, "num_envs": 8, "horizon": 16, "max_steps": 3072}
REPLAY: dict[str, Any] = {
    **COMMON, "num_envs": 4, "horizon": 4, "max_steps": 800, "learning_starts": 100, "updates_per_step": 0.5,
    "buffer_size": 5000, "tau": 0.05,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "a2c": {"horizon": 8, "max_steps": 4096, "lr": 1e-2},
    "redq": {"num_critics": 4, "actor_interval": 2},
    **{name: {"explore_steps": 400} for name in ("dqn", "double_dqn", "dueling_dqn", "d3qn", "recurrent_dqn")},
}


@pytest.mark.parametrize(
    ("agent", "kind"), [(name, kind) for name in SINGLE_AGENTS for kind in sorted(find_agent(name).agent.actions)]
)
def test_every_agent_learns_a_toy_task(
    run_quietly: Callable[..., elegantrl.RunResult], tmp_path: Path, agent: str, kind: str
) -> None:
    """Guards against: L1, an algorithm that runs and does not learn."""
    settings = ROLLOUT if find_agent(agent).agent.memory == "rollout" else REPLAY
    settings = {**settings, **OWN.get(agent, {}), "eval": {"interval": 10**6, "episodes": 20}}
    assert run_quietly(agent, HOMING[kind], run_dir=tmp_path / "run", **settings).best_return > -1.5


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
    # Guards against: L1, an algorithm that runs and does not learn.
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

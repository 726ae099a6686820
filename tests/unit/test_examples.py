"""The examples keep the environment contract and can be trained in."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elegantrl.envs import check_env, make_env
from elegantrl.runtime.run import RunResult
from elegantrl.store.commits import Store

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT: dict[str, Any] = {"hidden": [8], "horizon": 8, "max_steps": 64, "num_envs": 2, "eval": {"episodes": 2}}


@pytest.mark.parametrize(
    ("file", "name", "agent", "settings"),
    [
        ("picture_env", "Catch", "ppo", {"frame_stack": 2}),
        ("dict_env", "Deliver", "ppo", {}),
        ("mask_env", "Sort", "dqn", {"learning_starts": 8, "batch_size": 4}),
        ("tensor_env", "Reach", "ppo", {}),
        ("portfolio_team", "Desks", "mappo", {}),
    ],
)
def test_an_environment_of_an_example(
    run_quietly: Callable[..., RunResult], tmp_path: Path, file: str, name: str, agent: str, settings: dict[str, Any]
) -> None:
    spec = importlib.util.spec_from_file_location(file, EXAMPLES / f"{file}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    env = getattr(module, name)
    check_env(make_env(env, 3, frame_stack=settings.get("frame_stack")), steps=60)
    result = run_quietly(agent, env, run_dir=tmp_path / "run", executor="inline", **SHORT, **settings)
    assert result.summary["updates"] > 0


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_a_network_of_an_example(
    run_quietly: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """A class that is given in Python is the network of the policy and of all critics, also when it is loaded."""
    monkeypatch.syspath_prepend(EXAMPLES)
    own = importlib.import_module("own_network")
    settings: dict[str, Any] = {} if agent == "ppo" else {"learning_starts": 8, "batch_size": 4}
    settings |= {"hidden": [8, 8], "horizon": 8, "max_steps": 32, "eval": {"episodes": 1}, "executor": "inline"}
    result = run_quietly(agent, "TensorPendulum", run_dir=tmp_path / "run", network=own.Residual, **settings)
    policy = result.load_policy().policy
    assert result.summary["updates"] > 0 and any(isinstance(module, own.Residual) for module in policy.modules())
    commit = Store(tmp_path / "run").latest_valid()
    assert commit is not None
    names = {name.rpartition(".head.weight")[0] for name in commit.load("learner")["agent"]["modules"]}
    critics = {"value.net"} if agent == "ppo" else {f"critic.net.0.networks.{i}" for i in range(2)}
    assert critics <= names


def test_desks_share_one_reward_and_gain_with_their_signals() -> None:
    """Weights that follow the signals earn far more than equal ones, which earn next to nothing."""
    spec = importlib.util.spec_from_file_location("portfolio_team", EXAMPLES / "portfolio_team.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    env = make_env(module.Desks, 256)
    obs, total = env.reset(1), torch.zeros(256)
    for _ in range(30):
        step = env.step(obs.seen[..., :2].clamp(-1, 1))
        assert (step.reward == step.reward[:, :1]).all()
        obs, total = step.obs, total + step.reward.sum(1)
    assert total.mean() > 10 and abs(module.equal_weights(256)) < 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "function", "names"),
    [("stock_trading", "trade", {"ppo", "a2c"}), ("portfolio_sectors", "manage", {"mappo", "maddpg"})],
)
def test_an_example_of_trading_ends_in_a_report(tmp_path: Path, file: str, function: str, names: set[str]) -> None:
    spec = importlib.util.spec_from_file_location(file, EXAMPLES / f"{file}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, function)(tmp_path / "out", max_steps=4096)
    trained = {row.ledger.name.split()[0] for row in found.rows if not row.is_baseline}
    assert names <= trained and found.audit.accounting_error < 1e-9
    assert (tmp_path / "out" / "report.html").exists()

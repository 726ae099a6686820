"""Compiled hot functions give the numbers of the eager ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch

from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.types import EnvSpec, Rollout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_ppo_loss_and_update_equal_the_eager_ones(
    make_spec: Callable[..., EnvSpec], make_rollout: Callable[..., Rollout]
) -> None:
    agents = []
    for _ in range(2):
        torch.manual_seed(0)
        agents.append(AgentPPO(make_spec("discrete"), PPOConfig(hidden=(8,), num_epochs=2), torch.device("cpu"), 0))
    eager, compiled = agents
    rollout = make_rollout(eager, "discrete", 16, 4)
    compiled.compile_hot("default")
    rows = eager.targets(rollout)
    loss, metrics = compiled.loss(rows)
    expected, expected_metrics = eager.loss(rows)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert set(metrics) == set(expected_metrics)
    for name, value in expected_metrics.items():
        torch.testing.assert_close(metrics[name], value, atol=1e-5, rtol=1e-5)
    eager.update(rollout)
    compiled.update(rollout)
    torch.testing.assert_close(compiled.step.flat, eager.step.flat, atol=1e-5, rtol=1e-4)

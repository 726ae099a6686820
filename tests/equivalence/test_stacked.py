"""Members of a stacked population learn what they would learn alone: the same seeds and data, the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from elegantrl import tree
from elegantrl.agents.base import Agent
from elegantrl.agents.optim import Target
from elegantrl.config.resolve import resolve_config
from elegantrl.envs import make_env
from elegantrl.fast import traced
from elegantrl.population.stacked import mapped
from elegantrl.population.stacked.actor import StackedActor
from elegantrl.population.stacked.agent import policy_rows
from elegantrl.population.stacked.learner import StackedLearner
from elegantrl.registry import find_agent
from elegantrl.roles.learner import Learner
from elegantrl.types import Episodes, Fragment, Rollout

CPU = torch.device("cpu")
MEMBERS = 3
REPLAY: dict[str, Any] = {"hidden": (8, 8), "batch_size": 16, "horizon": 8, "learning_starts": 32, "buffer_size": 100}
ON_POLICY: dict[str, Any] = {"hidden": (8, 8), "horizon": 12, "batch_size": 20}
CASES: list[Any] = [
    ("ppo", "TensorCartPole", {**ON_POLICY, "num_epochs": 3, "recompute_advantage": True}),
    ("ppo", "TensorPendulum", {
        **ON_POLICY, "batch_size": 24, "normalize_obs": True, "normalize_value": True, "entropy_coef": 0.01,
        "lr_schedule": "linear", "normalize_advantage_over": "minibatch", "reward_clip": 1.0,
    }),
    ("a2c", "TensorCartPole", {"hidden": (8,), "horizon": 5, "vtrace": True}),
    ("dqn", "TensorCartPole", {**REPLAY, "n_step": 3, "explore_steps": 50, "reward_clip": 0.5}),
    pytest.param("d3qn", "TensorCartPole", {
        **REPLAY, "normalize_obs": True, "layer_norm": True, "target_interval": 3, "tau": 1.0,
    }, marks=pytest.mark.slow),
    ("sac", "TensorPendulum", {**REPLAY, "normalize_obs": True}),
    pytest.param("sac", "TensorPendulum", {
        **REPLAY, "warm_up_hold": 4, "actor_interval": 2, "n_step": 2,
    }, marks=pytest.mark.slow),
    pytest.param("td3", "TensorPendulum", {**REPLAY, "noise": "ou"}, marks=pytest.mark.slow),
    ("discrete_sac", "TensorCartPole", REPLAY),
]  # fmt: skip


class Case:
    """A stacked population whose members have different learning rates and discounts, and a learner for each alone."""

    def __init__(self, name: str, env: str, settings: dict[str, Any], num_envs: int = 4):
        config, _ = resolve_config(name, env, {"agent": settings, "train": {"max_steps": 1}})
        self.configs = [replace(config.agent, lr=1e-3 * (1 + p), gamma=0.9 + 0.03 * p) for p in range(MEMBERS)]
        vec_env = make_env(env, MEMBERS * num_envs)
        spec, self.horizon = replace(vec_env.spec, num_envs=num_envs), config.agent.horizon
        self.learner = StackedLearner(find_agent(name), self.configs, spec, CPU, range(5, 5 + MEMBERS))
        self.actor = StackedActor(vec_env, self.learner.agent, self.learner.members, range(5, 5 + MEMBERS))  # type: ignore[arg-type]
        self.alone = [Learner(name, c, spec, CPU, 5 + p, gradients="autograd") for p, c in enumerate(self.configs)]

    def step(self, seq: int) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
        """One iteration of all on the same data; the metrics of both."""
        rollout = self.actor.roll_out(self.horizon)
        found = self.learner.update(rollout)
        return found, [learner.update([part_of(rollout, p, seq)]) for p, learner in enumerate(self.alone)]


def part_of(rollout: Rollout, member: int, seq: int) -> Fragment:
    own = tree.map_leaves(lambda x: x[:, member].contiguous(), rollout)
    return Fragment(0, seq, seq, own, Episodes(np.empty(0), np.empty(0, dtype=np.int64)))


def learned(agent: Agent) -> dict[str, torch.Tensor]:
    """Everything that an update changes."""
    found = {name: tensor.detach() for name, tensor in agent.state_dict().items()}
    for name, step in agent.grad_steps().items():
        found |= {f"{name}.{part}": getattr(step, part) for part in ("lr", "mean", "square", "count")}
    found |= {name: value.flat for name, value in vars(agent).items() if isinstance(value, Target)}
    if agent.obs_stats is not None:
        found |= {f"stats.{name}": value for name, value in agent.obs_stats.state_dict().items()}
    return found


@pytest.mark.parametrize(("name", "env", "settings"), CASES)
def test_members_learn_what_they_would_learn_alone(name: str, env: str, settings: dict[str, Any]) -> None:
    case = Case(name, env, settings)
    start = policy_rows(case.learner.agent)
    for seq in range(6):
        found, expected = case.step(seq)
    assert found.keys() == expected[0].keys()
    for p, (member, alone) in enumerate(zip(case.learner.members, case.alone, strict=True)):
        torch.testing.assert_close(learned(member), learned(alone.agent), rtol=1e-4, atol=2e-6)
        assert case.learner.agent.num_updates == alone.agent.num_updates > 0
        torch.testing.assert_close({k: x[p] for k, x in found.items()}, expected[p], rtol=1e-3, atol=1e-4)
    assert not torch.isclose(policy_rows(case.learner.agent), start).all(1).any()  # every member has learned


def test_recorded_kernels_leave_the_results_of_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Case(*CASES[0])
    for seq in range(3):
        recorded.step(seq)
    monkeypatch.setattr(mapped, "import_fast", lambda _: None)
    plain = Case(*CASES[0])
    for seq in range(3):
        plain.step(seq)
    torch.testing.assert_close(policy_rows(plain.learner.agent), policy_rows(recorded.learner.agent))


def test_a_record_drops_and_overwrites_nothing_that_is_needed() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = torch.bmm(x.view(x.shape), weight)  # two narrow columns: computed transposed
        twice = product * 1 + product
        total = x.clone()
        total[:, 0].add_(total[:, 1])  # written through a view
        return twice.tanh(), product, total, x.transpose(1, 2).transpose(1, 2)

    inputs = [torch.randn(2, 5, 3), torch.randn(2, 3, 2), torch.randn(1)]
    run = traced.traced(function, inputs)
    assert run is not function
    other = [torch.randn_like(x) for x in inputs]
    kept = [x.clone() for x in other]
    torch.testing.assert_close(run(*other), function(*other))
    assert all(torch.equal(x, y) for x, y in zip(other, kept, strict=True))


def test_a_function_that_a_record_does_not_repeat_runs_itself(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(1)
        return (x + len(calls),)

    assert traced.traced(function, [torch.zeros(2)]) is function
    assert [r.getMessage() for r in caplog.records] == [
        "the recorded kernels of a function do not give its results: it runs unrecorded"
    ]

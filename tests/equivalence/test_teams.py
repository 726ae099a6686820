"""Agents for teams: hot functions mapped over agents equal a loop, and resumed runs equal uninterrupted ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from elegantrl.envs import make_env
from elegantrl.registry import find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.runtime.run import RunResult
from tests.equivalence.test_hot import Hot
from tests.equivalence.test_resume import learned
from tests.names import TEAM_AGENTS
from tests.teams import Aims, LeavingSigns, PlainSigns

CPU = torch.device("cpu")
REPLAY: dict[str, Any] = {"buffer_size": 240, "learning_starts": 24, "batch_size": 4, "updates_per_step": 0.25}
SMALL: dict[str, Any] = {"hidden": (8,), "horizon": 6}
WORLDS = {"discrete": [PlainSigns, LeavingSigns], "continuous": [Aims]}
CASES: list[tuple[str, Any, dict[str, Any]]] = [
    (name, world, {}) for name in TEAM_AGENTS for kind in WORLDS if kind in find_agent(name).agent.actions
    for world in WORLDS[kind]
]  # fmt: skip
CASES += [
    ("mappo", LeavingSigns, {"memory": "gru", "memory_size": 6, "team_reward": True, "normalize_obs": True}),
    ("ippo", LeavingSigns, {"memory": "lstm", "memory_size": 6, "separate": True}),
    ("vdn", LeavingSigns, {"memory": "gru", "memory_size": 6, "tau": 1.0, "target_interval": 3}),
    ("vdn", PlainSigns, {"normalize_obs": True, "separate": True}),
    ("qmix", LeavingSigns, {"prioritized": True, "lr_schedule": "linear"}),
    ("qmix", LeavingSigns, {"memory": "lstm", "memory_size": 6, "double": False}),
    ("matd3", LeavingSigns, {"prioritized": True, "n_step": 2, "normalize_obs": True}),
    ("maddpg", Aims, {"noise": "ou", "warm_up_hold": 3, "layer_norm": True}),
]


def settings(name: str) -> dict[str, Any]:
    """Settings that make every update small."""
    return SMALL | (REPLAY if find_agent(name).agent.memory != "rollout" else {"batch_size": 12})


def config(name: str, extra: dict[str, Any]) -> Any:
    entry = find_agent(name)
    return entry.config(**entry.preset | settings(name) | extra)


@pytest.mark.parametrize(("name", "world", "extra"), CASES)
def test_gradients_mapped_over_agents_equal_a_loop(name: str, world: Any, extra: dict[str, Any]) -> None:
    env = make_env(world, 4)
    learners = [Learner(name, config(name, extra), env.spec, CPU, seed, gradients="autograd") for seed in range(2)]
    first, *_ = agents = [learner.agent for learner in learners]
    actor = GroupActor(env, first.policy_spec, seed=0)
    calls: dict[str, tuple[Any, ...]] = {}
    descend = first.descend

    def record(hot: str, step: Any, *args: Any) -> Any:
        calls[hot] = args
        return descend(hot, step, *args)

    first.descend = record  # type: ignore[method-assign]
    for seq in range(6):
        learners[0].update([actor.sample(learners[0].weights(), 6, seq)])
    assert set(calls) == set(first.hot)
    for hot, args in calls.items():
        modules = [Hot(agent, hot) for agent in agents]

        def loss(params: Any, buffers: Any, hot: Any = modules[0], args: Any = args) -> Tensor:
            found: Tensor = functional_call(hot, (params, buffers), args)
            return found

        params, buffers = stack_module_state(modules)  # type: ignore[arg-type]
        mapped = vmap(grad(loss))(params, buffers)
        for i, module in enumerate(modules):
            learned_params = {key: p for key, p in module.named_parameters() if p.requires_grad}
            expected = torch.autograd.grad(module(*args), list(learned_params.values()), allow_unused=True)
            for key, gradient in zip(learned_params, expected, strict=True):
                found = mapped[key][i]
                wanted = torch.zeros_like(found) if gradient is None else gradient
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "world", "extra"), CASES)
def test_resumed_run_equals_uninterrupted_run(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    tmp_path: Path,
    name: str,
    world: Any,
    extra: dict[str, Any],
) -> None:
    path = f"{world.__module__}:{world.__name__}"
    common: dict[str, Any] = {"seed": 7, "eval": {"interval": 10**9, "episodes": 2}, "num_envs": 3}
    common |= settings(name) | extra
    run_quietly(name, path, run_dir=tmp_path / "whole", max_steps=144, **common)
    run_quietly(name, path, run_dir=tmp_path / "parts", max_steps=72, **common)
    half = learned(load_commit(tmp_path / "parts"))
    run_quietly(name, path, run_dir=tmp_path / "parts", max_steps=144, resume=True, **common)
    whole, parts = (learned(load_commit(tmp_path / folder)) for folder in ("whole", "parts"))
    for part in whole:
        assert hash_state(parts[part]) == hash_state(whole[part]), part
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0


@pytest.mark.parametrize("name", TEAM_AGENTS)
def test_workers_in_processes_leave_the_same_bits(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    tmp_path: Path,
    name: str,
) -> None:
    path = f"{LeavingSigns.__module__}:{LeavingSigns.__name__}"
    common: dict[str, Any] = {"seed": 3, "eval": {"interval": 10**9, "episodes": 2}, "max_steps": 96, **settings(name)}
    found = []
    for executor, workers in (("inline", None), ("process", 2)):
        layout = {"executor": executor, "num_workers": workers} if workers else {"executor": executor}
        run_quietly(name, path, run_dir=tmp_path / executor, num_envs=4, num_groups=2, **layout, **common)
        found.append(hash_state(load_commit(tmp_path / executor)["learner"]))
    assert found[0] == found[1]

"""Masks and several choices at once: resumed runs and runs in other layouts leave the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from choosing import DictCorridor, Levers, MaskedLever, MaskedLevers, MethodCorridor

from elegantrl.registry import find_agent
from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

CASES: list[Any] = [
    pytest.param("ppo", MaskedLever, {"entropy_coef": 0.01}, id="ppo-mask"),
    pytest.param("ppo", MaskedLever, {"h_term": True, "h_store": 60, "vtrace": True}, id="ppo-mask-h"),
    pytest.param("ppo", MaskedLever, {"memory": "gru", "memory_size": 8}, id="ppo-mask-gru"),
    pytest.param("ppo", MaskedLevers, {}, id="ppo-masks-choices"),
    pytest.param("a2c", Levers, {}, id="a2c-choices"),
    pytest.param("ppo", MethodCorridor, {}, id="ppo-gym-mask"),
    pytest.param("dqn", DictCorridor, {"n_step": 3}, id="dqn-gym-mask"),
    pytest.param("d3qn", MaskedLever, {"prioritized": True, "n_step": 2}, id="d3qn-mask"),
    pytest.param("dqn", MaskedLevers, {"prioritized": True}, id="dqn-masks-choices"),
    pytest.param("recurrent_dqn", MaskedLevers, {"burn_in": 2, "memory_size": 8}, id="recurrent_dqn-masks-choices"),
    pytest.param("discrete_sac", MaskedLever, {}, id="discrete_sac-mask"),
]


def arguments(agent: str, settings: dict[str, Any]) -> dict[str, Any]:
    common: dict[str, Any] = {"seed": 7, "hidden": [8], "num_envs": 4, "max_restarts": 0}
    if find_agent(agent).agent.memory != "rollout":
        common |= {"buffer_size": 120, "learning_starts": 30, "batch_size": 8, "horizon": 4, "updates_per_step": 0.3}
    else:
        common |= {"horizon": 20, "batch_size": 16, "lr": 0.01}
    return {**common, "eval": {"interval": 10**9, "episodes": 2}, **settings}


def learned(parts: dict[str, Any]) -> dict[str, Any]:
    """All that decides the rest of a run; scores of the extra evaluation at a stop do not."""
    names = ("env_steps", "seq", "episodes", "recent_returns")
    return {**parts, "supervisor": {name: parts["supervisor"][name] for name in names}}


@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_a_resumed_run_equals_an_uninterrupted_one_in_any_layout(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: Any,
    settings: dict[str, Any],
) -> None:
    settings = arguments(agent, settings | {"num_groups": 2})
    process = {"executor": "process", "num_workers": 2}
    run_quietly(agent, env, run_dir=tmp_path / "whole", max_steps=240, executor="inline", **settings)
    run_quietly(agent, env, run_dir=tmp_path / "process", max_steps=240, **process, **settings)
    for i, (steps, layout) in enumerate([(80, {"executor": "inline"}), (160, process), (240, {"executor": "inline"})]):
        run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=steps, resume=i > 0, **layout, **settings)
    whole, process_run, parts = (learned(load_commit(tmp_path / name)) for name in ("whole", "process", "parts"))
    assert whole["learner"]["agent"]["num_updates"] > 0 and whole["supervisor"]["env_steps"] == 240
    for part in whole:
        assert hash_state(process_run[part]) == hash_state(whole[part]), part
        assert hash_state(parts[part]) == hash_state(whole[part]), part

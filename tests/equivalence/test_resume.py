"""Running N steps, stopping, and running N more equals running 2 N steps, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "lr": 0.01, "lr_schedule": "linear"}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 90, "learning_starts": 30, "batch_size": 8, "horizon": 4}

CASES = [
    pytest.param("ppo", "CartPole-v1", {**ON_POLICY, "num_epochs": 2, "normalize_obs": True}, id="ppo-1"),
    pytest.param("ppo", "CartPole-v1", {**ON_POLICY, "num_envs": 3, "num_epochs": 2}, id="ppo-3"),
    pytest.param("ppo", "Pendulum-v1", {**ON_POLICY, "num_envs": 2, "num_epochs": 2, "h_term": True, "h_store": 50,
                 "entropy_coef": 0.01, "entropy_schedule": "linear", "normalize_value": True, "layer_norm": True},
                 id="ppo-h"),
    pytest.param("sac", "Pendulum-v1", {**REPLAY, "num_envs": 2, "h_term": True, "h_store": 50, "layer_norm": True,
                 "num_critics": 3, "target_critics": "subset"}, id="sac-h"),
    pytest.param("ppo", "TensorCartPole", {**ON_POLICY, "num_envs": 3, "num_epochs": 2, "target_kl": 0.01}, id="ppo-t"),
    pytest.param("a2c", "Pendulum-v1", {**ON_POLICY, "num_envs": 2, "vtrace": True}, id="a2c-2"),
    pytest.param("a2c", "TensorPendulum", {**ON_POLICY, "num_envs": 3, "normalize_obs": True}, id="a2c-t"),
    pytest.param("dqn", "CartPole-v1", {**REPLAY, "num_envs": 1, "n_step": 3, "double": True}, id="dqn-1"),
    pytest.param("dqn", "TensorCartPole", {**REPLAY, "num_envs": 3, "dueling": True, "tau": 1, "target_interval": 7},
                 id="dqn-t"),
    pytest.param("sac", "Pendulum-v1", {**REPLAY, "num_envs": 2, "updates_per_step": 0.3}, id="sac-2"),
    pytest.param("sac", "TensorPendulum", {**REPLAY, "num_envs": 3, "n_step": 3, "normalize_obs": True,
                 "updates_per_step": 0.5}, id="sac-t"),
    pytest.param("ppo", "CartPole-v1", {**ON_POLICY, "num_envs": 3, "num_epochs": 2, "memory": "lstm", "memory_size": 6,
                 "normalize_obs": True, "executor": "process"}, id="ppo-lstm", marks=pytest.mark.slow),
    pytest.param("a2c", "Pendulum-v1", {**ON_POLICY, "num_envs": 2, "memory": "gru", "memory_size": 6}, id="a2c-gru"),
    pytest.param("recurrent_dqn", "CartPole-v1", {**REPLAY, "num_envs": 3, "n_step": 2, "memory_size": 6, "burn_in": 6,
                 "updates_per_step": 0.3}, id="recurrent-dqn"),
]  # fmt: skip


def learned(parts: dict[str, Any]) -> dict[str, Any]:
    """All that decides the rest of a run; scores of the extra evaluation at a stop do not."""
    names = ("env_steps", "seq", "episodes", "recent_returns")
    return {**parts, "supervisor": {name: parts["supervisor"][name] for name in names}}


def arguments(settings: dict[str, Any]) -> dict[str, Any]:
    return {"seed": 7, "eval": {"interval": 10**9, "episodes": 2}, **settings}


@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_resumed_run_equals_uninterrupted_run(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: Any,
) -> None:
    # Guards against: R2, a resumed run that differs from an uninterrupted one, or an optimiser that holds dead
    # parameters.
    steps = 120
    run_quietly(agent, env, run_dir=tmp_path / "whole", max_steps=2 * steps, **arguments(settings))
    run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=steps, **arguments(settings))
    half = learned(load_commit(tmp_path / "parts"))
    run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=2 * steps, resume=True, **arguments(settings))
    whole, parts = (learned(load_commit(tmp_path / name)) for name in ("whole", "parts"))
    for part in whole:
        assert hash_state(parts[part]) == hash_state(whole[part]), part
    assert whole["supervisor"]["env_steps"] >= 2 * steps
    assert hash_state(half["learner"]) != hash_state(whole["learner"])  # there was something left to learn
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0


def test_resuming_at_several_places(
    run_quietly: Run, load_commit: LoadCommit, hash_state: HashState, tmp_path: Path
) -> None:
    """In the middle of the warm-up, of an episode, and once the ring has wrapped."""
    settings = arguments({**REPLAY, "num_envs": 2, "n_step": 3, "horizon": 5})
    run_quietly("dqn", "CartPole-v1", run_dir=tmp_path / "whole", max_steps=200, **settings)
    for i, stop in enumerate((20, 70, 130, 200)):
        run_quietly("dqn", "CartPole-v1", run_dir=tmp_path / "parts", max_steps=stop, resume=i > 0, **settings)
    whole, parts = (learned(load_commit(tmp_path / name)) for name in ("whole", "parts"))
    assert hash_state(parts) == hash_state(whole)
    assert whole["learner"]["memory"]["reward"].shape[0] == 45


def test_a_second_process_starts_from_files_alone(
    run_quietly: Run, load_commit: LoadCommit, hash_state: HashState, tmp_path: Path
) -> None:
    """A run folder that was moved continues as it would have where it was."""
    settings = arguments({**ON_POLICY, "num_envs": 2})
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "a", max_steps=80, **settings)
    (tmp_path / "a").rename(tmp_path / "moved")
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "moved", max_steps=160, resume=True, **settings)
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "whole", max_steps=160, **settings)
    assert hash_state(learned(load_commit(tmp_path / "moved"))) == hash_state(learned(load_commit(tmp_path / "whole")))


def vector_cartpole(num_envs: int = 1) -> gym.vector.VectorEnv[Any, Any, Any]:
    """An environment whose episodes begin anew on resume."""
    return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")


def rows_fit(replay: dict[str, Any]) -> bool:
    """Whether each row's successor is the next row's observation wherever no episode ended."""
    ended = (replay["terminated"] | replay["truncated"])[:-1]
    return bool((replay["obs"][1:] == replay["next_obs"][:-1])[~ended].all())


def test_no_replay_row_leads_across_a_resume_that_restarts_episodes(
    run_quietly: Run, load_commit: LoadCommit, tmp_path: Path
) -> None:
    settings = arguments({**REPLAY, "num_envs": 2, "n_step": 3})
    run_quietly("dqn", vector_cartpole, run_dir=tmp_path / "r", max_steps=40, **settings)
    assert rows_fit(load_commit(tmp_path / "r")["learner"]["memory"])
    run_quietly("dqn", vector_cartpole, run_dir=tmp_path / "r", max_steps=80, resume=True, **settings)
    assert rows_fit(load_commit(tmp_path / "r")["learner"]["memory"])

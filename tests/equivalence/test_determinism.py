"""One seed fixes everything random; what is only watched changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elegantrl.runtime.run import RunResult
from elegantrl.store.runlog import read_metrics
from elegantrl.store.tensors import load_weights

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

REPLAY: dict[str, Any] = {"buffer_size": 200, "learning_starts": 30, "batch_size": 8, "horizon": 4}
CASES = [
    ("ppo", "CartPole-v1", {"horizon": 20, "batch_size": 16, "num_epochs": 2, "num_envs": 2, "normalize_obs": True}),
    ("a2c", "TensorPendulum", {"num_envs": 4}),
    ("a2c", "CartPole-v1", {"num_envs": 3, "memory": "lstm", "memory_size": 6}),
    ("recurrent_dqn", "CartPole-v1", {**REPLAY, "num_envs": 2, "burn_in": 2, "updates_per_step": 0.3}),
    ("dqn", "CartPole-v1", {**REPLAY, "num_envs": 1}),
    ("sac", "Pendulum-v1", {**REPLAY, "num_envs": 1, "updates_per_step": 0.3}),
]


def common(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return {"run_dir": folder, "hidden": [8], "max_steps": 160, "eval": {"interval": 60, "episodes": 2}, **settings}


@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_a_seed_fixes_every_part_of_a_commit(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: Any,
) -> None:
    # Guards against: R6, randomness that the one seed does not fix, or workers and lanes that share a stream.
    hashes = []
    for i, seed in enumerate((4, 4, 5)):
        random.seed(i)
        np.random.seed(i)  # whatever others do with the global generators
        torch.manual_seed(i)
        run_quietly(agent, env, seed=seed, **common(tmp_path / str(i), settings))
        parts = load_commit(tmp_path / str(i))
        assert set(parts) == {"learner", "supervisor", "group0"}
        hashes.append({name: hash_state(part) for name, part in parts.items()})
    assert hashes[0] == hashes[1]
    assert all(hashes[0][name] != hashes[2][name] for name in hashes[0])


def records(folder: Path) -> list[dict[str, Any]]:
    """The rows of evaluations, which are timed by steps, without what a clock says."""
    rows = [row for row in read_metrics(folder) if row["kind"] == "eval"]
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def test_two_runs_write_identical_records(run_quietly: Run, hash_state: HashState, tmp_path: Path) -> None:
    # Guards against: R6, randomness that the one seed does not fix, or workers and lanes that share a stream.
    for name in ("a", "b"):
        run_quietly("ppo", "TensorCartPole", seed=4, **common(tmp_path / name, {"num_envs": 3, "horizon": 20}))
    assert records(tmp_path / "a") == records(tmp_path / "b") and len(records(tmp_path / "a")) == 3
    a, b = (np.load(tmp_path / name / "recorder.npy") for name in ("a", "b"))
    assert np.array_equal(a, b, equal_nan=True)
    (best_a, about_a), (best_b, about_b) = (load_weights(tmp_path / name / "best.safetensors") for name in ("a", "b"))
    assert about_a == about_b and hash_state(best_a) == hash_state(best_b)


def test_evaluations_and_commits_do_not_change_what_is_learned(
    run_quietly: Run, load_commit: LoadCommit, hash_state: HashState, tmp_path: Path
) -> None:
    settings = {**REPLAY, "num_envs": 2}
    hashes = set()
    for i, (interval, episodes, every) in enumerate(((10**6, 1, 10**6), (16, 3, 24))):
        arguments = common(tmp_path / str(i), settings)
        arguments |= {"eval": {"interval": interval, "episodes": episodes}, "checkpoint": {"interval": every}}
        run_quietly("dqn", "CartPole-v1", seed=1, **arguments)
        parts = load_commit(tmp_path / str(i))
        hashes.add(hash_state({name: parts[name] for name in ("learner", "group0")}))
    assert len(hashes) == 1


def test_a_run_leaves_the_global_generators_alone(run_quietly: Run, tmp_path: Path) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    run_quietly("ppo", "TensorCartPole", seed=4, **common(tmp_path / "a", {"horizon": 20}))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[union-attr]

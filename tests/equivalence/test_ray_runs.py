"""Actors of Ray change no bit either, and a run may go from one executor to another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_layouts import CASES, ON_POLICY, arguments

from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]


@pytest.fixture
def bits(load_commit: LoadCommit, hash_state: HashState) -> Callable[[Path], dict[str, str]]:
    def hashes(folder: Path) -> dict[str, str]:
        return {name: hash_state(part) for name, part in load_commit(folder).items()}

    return hashes


def test_a_run_goes_on_in_ray(
    local_ray: None, run_quietly: Run, bits: Callable[[Path], dict[str, str]], tmp_path: Path
) -> None:
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "whole", **arguments(ON_POLICY, "inline", 1))
    first = arguments(ON_POLICY, "inline", 1) | {"max_steps": 160}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "parts", **first)
    result = run_quietly(
        "ppo", "CartPole-v1", run_dir=tmp_path / "parts", resume=True, **arguments(ON_POLICY, "ray", 2)
    )
    assert result.summary["executor"] == "ray" and result.summary["restarts"] == 0
    assert bits(tmp_path / "parts") == bits(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize(("agent", "env", "settings"), [CASES[0], CASES[2]])
def test_ray_leaves_the_same_bits(
    local_ray: None,
    run_quietly: Run,
    bits: Callable[[Path], dict[str, str]],
    tmp_path: Path,
    agent: str,
    env: str,
    settings: dict[str, Any],
    max_lag: int,
) -> None:
    for name, layout in {"inline": ("inline", 1), "one": ("ray", 1), "two": ("ray", 2)}.items():
        run_quietly(agent, env, run_dir=tmp_path / name, max_lag=max_lag, **arguments(settings, *layout))
    assert bits(tmp_path / "one") == bits(tmp_path / "two") == bits(tmp_path / "inline")


@pytest.mark.slow
def test_two_learners_in_ray_equal_two_in_processes(
    local_ray: None, run_quietly: Run, bits: Callable[[Path], dict[str, str]], tmp_path: Path
) -> None:
    """They meet at a port of the first one, as on several machines."""
    for executor in ("process", "ray"):
        settings = arguments(ON_POLICY, executor, 1) | {"num_learners": 2, "max_steps": 320}
        run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / executor, **settings)
    assert bits(tmp_path / "ray") == bits(tmp_path / "process")

"""Pictures, stacks, dicts and masks: every layout and every resume leaves the same bits, with every kind of replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 32, "num_epochs": 1}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 200, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.1, "n_step": 3, "prioritized": True}
CASES = [
    pytest.param("ppo", "MinAtar/Breakout-v1", {**ON_POLICY, "frame_stack": 2}, id="ppo-stack", marks=pytest.mark.slow),
    pytest.param("dqn", "MinAtar/Breakout-v1", {**REPLAY, "frame_stack": 3}, id="dqn-stack", marks=pytest.mark.slow),
    pytest.param("dqn", "MinAtar/Breakout-v1", REPLAY, id="dqn-picture", marks=pytest.mark.slow),
    pytest.param("ppo", "MiniGrid-Empty-5x5-v0", ON_POLICY, id="ppo-dict", marks=pytest.mark.slow),
    pytest.param("dqn", "MiniGrid-Empty-5x5-v0", REPLAY, id="dqn-dict"),
    pytest.param("ppo", "Doors", ON_POLICY, id="ppo-mask"),
    pytest.param("dqn", "Doors", REPLAY, id="dqn-mask"),
]


def arguments(settings: dict[str, Any], executor: str, num_workers: int, max_steps: int = 480) -> dict[str, Any]:
    layout = {"executor": executor, "num_workers": num_workers, "num_groups": 4, "num_envs": 8}
    limits = {"interval": 160, "episodes": 2, "max_episode_steps": 20}
    return {"seed": 7, "eval": limits, "max_steps": max_steps, **layout, **settings}


@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_layouts_and_resumes_leave_the_same_bits(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: dict[str, Any],
) -> None:
    run_quietly(agent, env, run_dir=tmp_path / "inline", **arguments(settings, "inline", 1))
    for i, (steps, *layout) in enumerate([(160, "process", 4), (320, "process", 1), (480, "process", 2)]):
        stop = arguments(settings, *layout, max_steps=steps)  # type: ignore[arg-type]
        run_quietly(agent, env, run_dir=tmp_path / "parts", resume=i > 0, **stop)
    hashes = [
        {name: hash_state(part) for name, part in load_commit(tmp_path / folder).items()}
        for folder in ("inline", "parts")
    ]
    assert hashes[0] == hashes[1]
    assert load_commit(tmp_path / "inline")["learner"]["agent"]["num_updates"] > 3

"""Pictures and dicts of observations: resumed runs and other layouts leave the same bits, also with priorities, n-step
returns, normalised leaves and the H-term."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]


class Grid(gym.Env[Any, Any]):
    """A dot moves over a small picture."""

    observation_space: gym.Space[Any] = spaces.Box(0, 255, (6, 5, 2), np.uint8)
    action_space: gym.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(30)), 0
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        change = int(action) if isinstance(self.action_space, spaces.Discrete) else round(float(action[0]))
        self.place, self.time = (self.place + change) % 30, self.time + 1
        return self.show(), float(self.place % 7), self.place == 29, self.time == 9, {}

    def show(self) -> Any:
        picture = np.zeros((6, 5, 2), np.uint8)
        picture[self.place // 5, self.place % 5] = 100, self.time
        return picture


class Parts(Grid):
    """The picture beside a vector and a choice."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (6, 5, 2), np.uint8),
            "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "choice": spaces.Discrete(4),
        }
    )

    def show(self) -> Any:
        vector = np.array([self.place, self.time, 1], np.float32)
        return {"picture": super().show(), "vector": vector, "choice": np.int64(self.time % 4)}


class Numbers(Parts):
    """The same with continuous actions."""

    action_space = spaces.Box(-2, 2, (1,), np.float32)


ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 2, "normalize_obs": True}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 96, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.2}
CASES = [
    pytest.param("ppo", Grid, {**ON_POLICY, "frame_stack": 2}, id="ppo-picture"),
    pytest.param("ppo", Parts, {**ON_POLICY, "h_term": True, "h_store": 64}, id="ppo-dict"),
    pytest.param("dqn", Grid, {**REPLAY, "prioritized": True, "n_step": 3, "frame_stack": 3}, id="dqn-picture"),
    pytest.param("d3qn", Parts, {**REPLAY, "prioritized": True, "n_step": 2, "normalize_obs": True}, id="d3qn-dict"),
    pytest.param("sac", Numbers, {**REPLAY, "normalize_obs": True}, id="sac-dict"),
]


def arguments(settings: dict[str, Any]) -> dict[str, Any]:
    lanes = {"num_envs": 4, "num_groups": 2}
    return {"seed": 7, "eval": {"interval": 10**9, "episodes": 2}, "encoder": "embedding", **lanes, **settings}


@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_layouts_and_resumes_leave_the_same_bits(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: Any,
    settings: dict[str, Any],
) -> None:
    given = arguments(settings)
    run_quietly(agent, env, run_dir=tmp_path / "inline", max_steps=240, executor="inline", **given)
    layout = {"executor": "process", "num_workers": 2}
    run_quietly(agent, env, run_dir=tmp_path / "process", max_steps=240, **layout, **given)
    run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=120, executor="inline", **given)
    half = load_commit(tmp_path / "parts")
    run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=240, resume=True, **layout, **given)
    whole, process, parts = (load_commit(tmp_path / name) for name in ("inline", "process", "parts"))
    for name in ("learner", "group0", "group1"):
        assert hash_state(process[name]) == hash_state(whole[name]), name
        assert hash_state(parts[name]) == hash_state(whole[name]), name
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0

"""Runs with masks from end to end: conventions of other libraries, evaluation, trained policies, ensembles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from choosing import DictCorridor, InfoCorridor, MaskedLevers, MethodCorridor, wrapped_corridor

from elegantrl.errors import SpecError
from elegantrl.registry import find_agent
from elegantrl.runtime.run import RunResult
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import Obs

Run = Callable[..., RunResult]
DISCRETE = ["ppo", "a2c", "dqn", "double_dqn", "dueling_dqn", "d3qn", "recurrent_dqn", "discrete_sac"]


def arguments(name: str, **more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_restarts": 0}  # a forbidden action, which is an error, ends the run
    settings |= {"hidden": [8], "num_envs": 4, "max_steps": 800, "eval": {"episodes": 5}, "lr": 0.01}
    if find_agent(name).agent.memory != "rollout":
        settings |= {"buffer_size": 1000, "learning_starts": 100, "batch_size": 16, "updates_per_step": 0.1}
    else:
        settings["horizon"] = 20
    return settings | more


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize("env", [MethodCorridor, DictCorridor])
def test_every_discrete_agent_obeys_masks_from_training_to_the_trained_policy(
    run_quietly: Run, tmp_path: Path, name: str, env: Any
) -> None:
    result = run_quietly(name, env, run_dir=tmp_path, **arguments(name))
    assert result.summary["env_steps"] >= 800
    policy = TrainedPolicy.load(tmp_path)
    assert policy.policy.has_mask
    assert len(policy.evaluate(episodes=6, seed=1, env=env).returns) == 6
    for stochastic in (False, True):
        lane = env()
        obs, _ = lane.reset(seed=3)
        for _ in range(10):
            mask = {} if env is DictCorridor else {"mask": lane.action_masks()}
            obs, *_ = lane.step(policy.act(obs, stochastic=stochastic, seed=1, **mask))


@pytest.mark.parametrize("env", [InfoCorridor, wrapped_corridor])
def test_masks_come_from_infos_and_wrappers_too(run_quietly: Run, tmp_path: Path, env: Any) -> None:
    run_quietly("ppo", env, run_dir=tmp_path, **arguments("ppo"))
    assert TrainedPolicy.load(tmp_path).policy.has_mask


def test_masks_can_be_switched_off(run_quietly: Run, tmp_path: Path) -> None:
    class Tolerant(MethodCorridor):
        def step(self, action: Any) -> Any:
            return super().step(action if self.action_masks()[action] else 1)

    run_quietly("ppo", Tolerant, masks=False, run_dir=tmp_path, **arguments("ppo"))
    policy = TrainedPolicy.load(tmp_path)
    assert not policy.policy.has_mask
    with pytest.raises(SpecError, match="was trained without action masks; leave the mask out"):
        policy.act(np.zeros(1, np.float32), mask=[True, True, True])


def test_a_trained_policy_needs_the_mask_of_each_observation(run_quietly: Run, tmp_path: Path) -> None:
    run_quietly("ppo", MethodCorridor, run_dir=tmp_path, **arguments("ppo"))
    policy, obs = TrainedPolicy.load(tmp_path), np.zeros(1, np.float32)
    with pytest.raises(SpecError, match=r"takes only actions that a mask allows; pass .* mask=env\.action_masks\(\)"):
        policy.act(obs)
    with pytest.raises(SpecError, match=r"is of int64 and shape \(2,\), expected 3 flags for each of 1 observations"):
        policy.act(obs, mask=[1, 0])
    with pytest.raises(SpecError, match="forbids every action; allow at least one"):
        policy.act(obs, mask=[0, 0, 0])
    for only in range(3):
        mask = np.arange(3) == only
        assert policy.act(obs, mask=mask) == only == policy.act(obs, mask=mask, stochastic=True)
    every = np.eye(3, dtype=np.int8)
    assert policy.act(np.zeros((3, 1), np.float32), mask=every).tolist() == [0, 1, 2]
    ensemble = TrainedPolicy.ensemble([tmp_path, tmp_path])
    assert ensemble.act(np.zeros((3, 1), np.float32), mask=every).tolist() == [0, 1, 2]


def test_a_trained_policy_of_a_tensor_environment_takes_its_observations(run_quietly: Run, tmp_path: Path) -> None:
    run_quietly("ppo", MaskedLevers, run_dir=tmp_path, **arguments("ppo"))
    policy, env = TrainedPolicy.load(tmp_path), MaskedLevers(6)
    obs = env.reset(0)
    for _ in range(10):
        action = policy.act(obs)
        assert isinstance(obs, Obs) and action.tolist() == policy.act(obs.seen, mask=obs.mask).tolist()
        obs = env.step(torch.as_tensor(action)).obs

"""A trained policy acts in the units of its environment, and needs no environment for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from elegantrl.envs import make_env
from elegantrl.envs.space_text import describe_spaces, spaces_from
from elegantrl.errors import CheckpointError, ConfigError, SpecError
from elegantrl.runtime.run import RunResult
from elegantrl.store.best import BEST_FILE
from elegantrl.store.tensors import load_weights, save_weights
from elegantrl.store.trained import TrainedPolicy

Run = Callable[..., RunResult]
SHORT: dict[str, Any] = {"hidden": [8], "horizon": 8, "max_steps": 32, "eval": {"episodes": 1}}


class Made(gym.Env[Any, Any]):
    """An environment of any spaces that insists on its action space."""

    def __init__(self, shown: Any, taken: Any) -> None:
        self.observation_space, self.action_space, self.num_steps = shown, taken, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.num_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.num_steps += 1
        return self.observation_space.sample(), 1.0, False, self.num_steps >= 5, {}


class Shifted(Made):
    def __init__(self) -> None:
        super().__init__(spaces.Discrete(4, start=7), spaces.Discrete(3, start=-5))


class Matrix(Made):
    def __init__(self) -> None:
        low = np.array([[-1.0, 0.0], [10.0, -3.0]])
        shown = spaces.Box(-1, 1, (6,), np.float32)
        super().__init__(shown, spaces.Box(low, low + np.array([[2.0, 0.5], [5.0, 6.0]]), dtype=np.float64))


@pytest.mark.parametrize("agent", ["ppo", "sac", "dqn"])
@pytest.mark.parametrize("make", [Shifted, Matrix, "Pendulum-v1", "CartPole-v1", "FrozenLake-v1"], ids=str)
def test_an_action_is_what_the_environment_takes(run_quietly: Run, tmp_path: Path, agent: str, make: Any) -> None:
    # C2: `act` returned unit actions, of Gaussian policies beyond [-1, 1], and choices without their offset.
    env = gym.make(make) if isinstance(make, str) else make()
    if agent == ("dqn" if isinstance(env.action_space, spaces.Box) else "sac"):
        pytest.skip("the agent is for other actions")
    run_quietly(agent, make, run_dir=tmp_path, **SHORT)
    policy = TrainedPolicy.load(tmp_path)
    obs, _ = env.reset(seed=0)
    seen = [obs]
    for step in range(5):
        obs, *_ = env.step(checked(env, policy.act(obs, stochastic=step % 2 == 1)))
        seen.append(obs)
    batch = np.stack(seen)
    actions = policy.act(batch)
    assert len(actions) == 6
    for one, action in zip(seen, actions, strict=True):
        assert env.action_space.contains(checked(env, action))
        np.testing.assert_allclose(policy.act(one), action, rtol=1e-5, atol=1e-6)


def checked(env: Any, action: Any) -> Any:
    assert env.action_space.contains(action), action
    return action


def test_continuous_actions_have_the_units_of_the_environment(run_quietly: Run, tmp_path: Path) -> None:
    # C2: env.step(policy.act(obs)) on Pendulum played with half of the torque.
    run_quietly("ppo", "Pendulum-v1", run_dir=tmp_path, **SHORT)
    policy = TrainedPolicy.load(tmp_path)
    policy.policy.state_dict()["net.2.bias"].fill_(9.0)  # far beyond 1: a Gaussian policy may be
    obs = np.array([1.0, 0.0, 0.0], np.float32)
    assert policy.act(obs).tolist() == [2.0] and policy.act(obs).dtype == np.float32
    assert policy.act(np.stack([obs, obs])).tolist() == [[2.0], [2.0]]


def test_a_stochastic_action_is_repeatable_by_its_seed(run_quietly: Run, tmp_path: Path) -> None:
    run_quietly("ppo", "Pendulum-v1", run_dir=tmp_path, **SHORT)
    policy, obs = TrainedPolicy.load(tmp_path), np.zeros((64, 3), np.float32)
    first = policy.act(obs, stochastic=True, seed=3)
    assert np.array_equal(first, policy.act(obs, stochastic=True, seed=3))
    assert not np.array_equal(first, policy.act(obs, stochastic=True, seed=4))
    generator = torch.Generator().manual_seed(3)
    assert np.array_equal(first, policy.act(obs, stochastic=True, seed=generator))
    assert not np.array_equal(first, policy.act(obs, stochastic=True, seed=generator))
    fresh = [TrainedPolicy.load(tmp_path).act(obs, stochastic=True) for _ in range(2)]
    assert np.array_equal(*fresh) and first.std() > 0.1


def test_an_ensemble_has_nothing_to_sample(run_quietly: Run, tmp_path: Path) -> None:
    run_quietly("ppo", "Pendulum-v1", run_dir=tmp_path, **SHORT)
    ensemble = TrainedPolicy.ensemble([tmp_path, tmp_path])
    obs = np.zeros(3, np.float32)
    np.testing.assert_allclose(ensemble.act(obs), TrainedPolicy.load(tmp_path).act(obs), atol=1e-6)
    with pytest.raises(ConfigError, match="an ensemble averages decisions"):
        ensemble.act(obs, stochastic=True)


BAD: list[tuple[Any, str]] = [
    (np.zeros(5), r"has the shape \(5,\), expected \(4,\), or \('N', 4\)"),
    (np.zeros((2, 3, 4)), r"has the shape \(2, 3, 4\)"),
    (3.0, r"has the shape \(\)"),
    (np.array(["a"] * 4), "has the dtype <U1, expected numbers"),
    (np.array([None] * 4), "has the dtype object"),
    ([1.0, float("nan"), 0.0, 0.0], "has NaN or infinity"),
    ([[0.0] * 4, [float("inf")] * 4], "has NaN or infinity"),
    ([[0.0] * 4, [0.0] * 3], "is no array"),
]


@pytest.mark.parametrize(("obs", "message"), BAD)
def test_what_is_no_observation_is_refused_in_a_sentence(
    run_quietly: Run, tmp_path: Path, obs: Any, message: str
) -> None:
    # C2: wrong shapes were reshaped, and NaN acted on.
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, **SHORT)
    with pytest.raises(SpecError, match=message):
        TrainedPolicy.load(tmp_path).act(obs)


@pytest.mark.parametrize("obs", [16, -1, 0.5, [3, 99]])
def test_a_choice_that_is_none_is_refused(run_quietly: Run, tmp_path: Path, obs: Any) -> None:
    run_quietly("ppo", "FrozenLake-v1", run_dir=tmp_path, **SHORT)
    with pytest.raises(SpecError, match=r"expected (numbers from 0 to 15|whole numbers)"):
        TrainedPolicy.load(tmp_path).act(obs)


def test_a_tensor_environment_keeps_its_units(run_quietly: Run, tmp_path: Path) -> None:
    run_quietly("ppo", "TensorPendulum", run_dir=tmp_path, **SHORT)
    policy = TrainedPolicy.load(tmp_path)
    policy.policy.state_dict()["net.2.bias"].fill_(9.0)
    assert policy.act(torch.zeros(2, 3)).tolist() == [[1.0], [1.0]]


SPACES = [
    spaces.Box(-2.0, 2.0, (3,)),
    spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (8, 8, 3), np.uint8),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(-1, 1, (1,))])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_survives_its_description(space: Any) -> None:
    text = describe_spaces(space, spaces.Discrete(2))
    assert len(text) < 500 and spaces_from(text) == (space, spaces.Discrete(2))


@pytest.mark.parametrize(
    "shown",
    [
        {"kind": "box", "shape": [10**6, 10**6], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "box", "shape": [-1], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "box", "shape": [4], "dtype": "object", "low": 0, "high": 1},
        {"kind": "discrete", "n": 10**7, "start": 0},
        {"kind": "pickle"},
        {},
        7,
    ],
    ids=str,
)
def test_a_hostile_description_is_refused(run_quietly: Run, tmp_path: Path, shown: Any) -> None:
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, **SHORT)
    tensors, about = load_weights(tmp_path / BEST_FILE)
    described = json.loads(about["spaces"]) | {"observation": shown}
    save_weights(tmp_path / BEST_FILE, tensors, about | {"spaces": json.dumps(described)})
    with pytest.raises(CheckpointError, match="does not hold a policy of this version"):
        TrainedPolicy.load(tmp_path)


def test_a_policy_keeps_the_frames_that_it_sees_in_its_carry(run_quietly: Run, tmp_path: Path) -> None:
    small = {
        "hidden": [8],
        "horizon": 8,
        "max_steps": 16,
        "num_envs": 2,
        "eval": {"episodes": 1, "max_episode_steps": 9},
    }
    run_quietly("ppo", "MinAtar/Breakout-v1", run_dir=tmp_path / "run", frame_stack=3, **small)
    policy = TrainedPolicy.load(tmp_path / "run")
    env, single = make_env("MinAtar/Breakout-v1", 1, frame_stack=3), make_env("MinAtar/Breakout-v1", 1)
    obs, frame, carry = env.reset(0), single.reset(0), dict[str, Any]()
    for _ in range(6):
        action = policy.act(frame[0].numpy(), carry)
        expected, _ = policy.policy.act(obs, ())
        assert int(action) == int(expected)
        assert torch.equal(carry["frames"][""], obs)
        obs, frame = (each.step(expected).obs for each in (env, single))
    assert policy.evaluate(2).returns

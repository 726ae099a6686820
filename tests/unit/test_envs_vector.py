"""Vector environments of others as sources: Gymnasium's, Stable-Baselines3's, and those of the documents' tutorial."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv
from torch import Tensor

from elegantrl.envs import GymVectorVecEnv, TutorialVecEnv, VectorEntryEnv, check_env, make_env
from elegantrl.errors import ConfigError, SpecError
from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
pendulum = partial(gym.make, "Pendulum-v1", max_episode_steps=20)


@pytest.mark.parametrize("mode", [None, "sync", "async", "vector_entry_point"])
@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1"])
def test_vector_environments_of_make_vec(name: str, mode: str | None) -> None:
    # N10: the default mode of CartPole failed at the first end of an episode.
    if mode == "vector_entry_point" and name != "CartPole-v1":
        pytest.skip("it has no such entry point")
    env = make_env(gym.make_vec(name, 3, vectorization_mode=mode))
    assert env.spec.num_envs == 3 and env.spec.name == name
    own_class = name == "CartPole-v1" and mode in (None, "vector_entry_point")
    assert isinstance(env, VectorEntryEnv if own_class else GymVectorVecEnv)
    check_env(env, steps=60)
    env.close()


@pytest.mark.parametrize("make", [partial(AsyncVectorEnv, [pendulum] * 2), partial(gym.make_vec, "Pendulum-v1", 2)])
def test_training_in_a_vector_instance(run_quietly: Run, tmp_path: Path, make: Any) -> None:
    # N10: an instance with processes cannot be copied for evaluation, so that is made from its functions.
    env = make()
    settings = {"max_steps": 80, "horizon": 20, "num_envs": 2, "eval": {"interval": 40, "episodes": 2}}
    run = run_quietly("ppo", env, run_dir=tmp_path, **settings)
    assert run.summary["env_steps"] >= 80 and np.isfinite(run.summary["best_return"])
    env.close()


def test_others_are_refused_in_a_sentence() -> None:
    class DummyVecEnv:
        num_envs = 2
        observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

        def step_async(self, actions: Any) -> None: ...
        def step_wait(self) -> Any: ...
        def reset(self) -> Any: ...
        def step(self, actions: Any) -> Any: ...

    with pytest.raises(SpecError, match=r"'DummyVecEnv' is a vector environment of Stable-Baselines3, .* pass the id"):
        make_env(DummyVecEnv())


class Counter:
    """As the tutorial has it: lane n terminates after n + 3 steps, or is cut after 4; draws from global generators."""

    def __init__(self, env_num: int = 3, as_numpy: bool = False):
        self.env_name, self.state_dim, self.action_dim, self.if_discrete = "Counter", 2, 1, False
        self.max_step, self.env_num, self.as_numpy, self.target_return = 4, env_num, as_numpy, 1.5

    def reset(self) -> Any:
        self.age = torch.zeros(self.env_num)
        self.start = torch.rand(self.env_num) + float(np.random.rand())
        return self.state()

    def state(self) -> Any:
        state = torch.stack([self.age, self.start], dim=1)
        return state.numpy() if self.as_numpy else state

    def step(self, action: Any) -> Any:
        self.age += 1
        dones = torch.zeros(self.env_num)
        for lane in range(self.env_num):
            if self.age[lane] == lane + 3 or self.age[lane] == self.max_step:
                self.age[lane], self.start[lane], dones[lane] = 0, torch.rand(()), 1
        rewards = torch.ones(self.env_num)
        return (
            (self.state(), rewards.numpy(), dones.numpy(), None)
            if self.as_numpy
            else (self.state(), rewards, dones, {})
        )


@pytest.mark.parametrize("as_numpy", [False, True])
def test_an_environment_as_the_tutorial_writes_it(as_numpy: bool) -> None:
    # N11: it was refused.
    env = make_env(Counter, 3, as_numpy=as_numpy)
    assert isinstance(env, TutorialVecEnv)
    assert (env.spec.num_envs, env.spec.obs_dim, env.spec.max_episode_steps) == (3, 2, 4)
    assert env.spec.target_return == 1.5 and env.exactness == "episode"
    check_env(env, steps=30)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    env.reset(0)
    seen: list[Tensor] = []
    ends = []
    for _ in range(5):
        step = env.step(torch.zeros(3, 1))
        ends.append((step.terminated.int() + 2 * step.truncated.int()).tolist())
        seen.append(step.next_obs[:, 0])
    assert ends == [[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 2, 2], [0, 0, 0]], "only an end at max_step is a truncation"
    assert seen[2].tolist() == [2, 3, 3], "the state before the last action stands for the unknown one"
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == np.random.get_state()[1].tolist()


def test_a_tutorial_instance_has_its_lanes() -> None:
    assert make_env(Counter(4)).spec.num_envs == 4
    with pytest.raises(ConfigError, match="'Counter' comes with num_envs=4, but num_envs=3 was asked for"):
        make_env(Counter(4), 3)
    broken = Counter(2)
    broken.state_dim = 5
    with pytest.raises(SpecError, match=r"reset returned states of shape \(2, 2\), expected \(2, 5\)"):
        make_env(broken).reset(0)


def test_training_in_a_tutorial_environment(run_quietly: Run, tmp_path: Path) -> None:
    run = run_quietly("ppo", Counter, run_dir=tmp_path, num_envs=3, horizon=8, max_steps=48)
    assert run.summary["env_steps"] == 48 and 3 <= run.best_return <= 4


def test_cartpole_is_the_same_without_its_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = make_env("CartPole-v1", 4, max_episode_steps=30)
    monkeypatch.setattr("elegantrl.envs.vector.import_fast", lambda _: None)
    plain = make_env("CartPole-v1", 4, max_episode_steps=30)
    assert torch.equal(fast.reset(3), plain.reset(3))
    ended, generator = torch.zeros(2), torch.Generator().manual_seed(0)
    for _ in range(300):
        action = torch.randint(2, (4,), generator=generator)
        step, expected = fast.step(action), plain.step(action)
        assert all(torch.equal(x, y) for x, y in zip(step[:5], expected[:5], strict=True))
        ended += torch.stack([step.terminated.sum(), step.truncated.sum()])
    assert ended.all(), "both kinds of end were met"

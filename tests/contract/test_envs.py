"""One suite for every way in which an environment can stand behind the ``VecEnv`` contract."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from elegantrl.envs import VecEnv, check_env, make_env
from elegantrl.types import Step


class Counting(gym.Env[Any, Any]):
    """Sees [steps of the episode, its length]. Lengths 3 and 6 terminate, 4 is cut, 5 says both at once."""

    observation_space = gym.spaces.Box(0, 10, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.length = int(self.np_random.integers(3, 7))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        over = self.count == self.length
        return self._obs(), float(self.count), over and self.length != 4, over and self.length in (4, 5), {}

    def _obs(self) -> Any:
        return np.array([self.count, self.length], dtype=np.float32)


class OldCounting:
    """The same with the interface of former days: no base class, no seed in reset, one ``done``."""

    observation_space = Counting.observation_space
    action_space = Counting.action_space
    max_step = 6

    def __init__(self) -> None:
        self.env = Counting()

    def seed(self, seed: int) -> None:
        self.env.np_random = np.random.default_rng(seed)

    def reset(self) -> Any:
        return self.env.reset()[0]

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, {**info, "TimeLimit.truncated": truncated and not terminated}


def cartpole() -> Any:
    return gym.make("CartPole-v1", disable_env_checker=True)


def sync(single: Callable[[], Any], mode: AutoresetMode) -> VecEnv:
    return make_env(SyncVectorEnv([single] * 3, autoreset_mode=mode))


ENVS: dict[str, Callable[[], VecEnv]] = {
    "gymnasium one lane": lambda: make_env("CartPole-v1"),
    "gymnasium lanes": lambda: make_env(CartPoleEnv, 3),
    "gymnasium continuous": lambda: make_env("Pendulum-v1", 3, max_episode_steps=30),
    "LunarLander": lambda: make_env("LunarLander-v3", 2),
    "Hopper": lambda: make_env("Hopper-v5", 2),
    "FrozenLake": lambda: make_env("FrozenLake-v1", 3),
    "Taxi": lambda: make_env("Taxi-v4", 2, max_episode_steps=25),
    "four-tuple": lambda: make_env(OldCounting, 3),
    "instance": lambda: make_env(gym.make("Acrobot-v1", max_episode_steps=40), 2),
    "vector entry": lambda: make_env("CartPole-v1", 5),
    "sync next-step": lambda: sync(cartpole, AutoresetMode.NEXT_STEP),
    "sync same-step": lambda: sync(cartpole, AutoresetMode.SAME_STEP),
    "sync disabled": lambda: sync(cartpole, AutoresetMode.DISABLED),
    "async": lambda: make_env(AsyncVectorEnv([cartpole] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)),
    "envpool": lambda: make_env("envpool:CartPole-v1", 3),
    "envpool continuous": lambda: make_env("envpool:Pendulum-v1", 3, max_episode_steps=30),
    "TensorCartPole": lambda: make_env("TensorCartPole", 5),
    "TensorPendulum": lambda: make_env("TensorPendulum", 3, max_episode_steps=30),
    "Chasing": lambda: make_env("Chasing", 3, max_episode_steps=30),
}

COUNTING: dict[str, Callable[[], VecEnv]] = {
    "lanes": lambda: make_env(Counting, 4),
    "instance": lambda: make_env(Counting(), 3),
    "four-tuple": lambda: make_env(OldCounting, 4),
    "sync next-step": lambda: sync(Counting, AutoresetMode.NEXT_STEP),
    "sync same-step": lambda: sync(Counting, AutoresetMode.SAME_STEP),
    "sync disabled": lambda: sync(Counting, AutoresetMode.DISABLED),
    "async same-step": lambda: make_env(AsyncVectorEnv([Counting] * 2, autoreset_mode=AutoresetMode.SAME_STEP)),
    "async disabled": lambda: make_env(AsyncVectorEnv([Counting] * 2, autoreset_mode=AutoresetMode.DISABLED)),
}


@pytest.fixture(params=ENVS)
def factory(request: pytest.FixtureRequest) -> Iterator[Callable[[], VecEnv]]:
    made: list[VecEnv] = []

    def make() -> VecEnv:
        made.append(ENVS[request.param]())
        return made[-1]

    yield make
    for env in made:
        env.close()


def actions_of(env: VecEnv, steps: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return env.spec.action.random((steps, env.spec.num_envs), generator)


def run(env: VecEnv, actions: Tensor) -> list[Step]:
    return [env.step(action) for action in actions]


def same(left: list[Step], right: list[Step]) -> bool:
    return all(torch.equal(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x[:5], y[:5], strict=True))


def test_contract(factory: Callable[[], VecEnv]) -> None:
    check_env(factory(), seed=3, steps=120)


def test_two_instances_agree_and_seeds_matter(factory: Callable[[], VecEnv]) -> None:
    env, other = factory(), factory()
    actions = actions_of(env, 40)
    assert torch.equal(env.reset(7), other.reset(7))
    history = run(env, actions)
    assert same(history, run(other, actions))
    other.reset(8)
    assert not same(history, run(other, actions))


def test_lanes_have_streams_of_their_own(factory: Callable[[], VecEnv]) -> None:
    env = factory()
    if env.spec.num_envs == 1:
        pytest.skip("one lane")
    obs = env.reset(0)
    actions = actions_of(env, 40)
    history = run(env, actions[:, :1].expand_as(actions))
    seen = torch.stack([obs, *(step.next_obs for step in history)])
    for lane in range(1, env.spec.num_envs):
        assert not torch.equal(seen[:, 0], seen[:, lane])


def test_a_fresh_instance_continues_from_a_state(factory: Callable[[], VecEnv]) -> None:
    env, fresh, third = factory(), factory(), factory()
    env.reset(1)
    # 33 steps leave most lanes inside an episode, with some episodes behind them.
    last = run(env, actions_of(env, 33))[-1]
    state = env.state_dict()
    later = actions_of(env, 60, seed=1)
    obs = fresh.load_state_dict(state)
    assert fresh.exactness == env.exactness
    if env.exactness == "episode":
        assert not torch.equal(obs, env.reset(1)), "a resume must not repeat the first episodes"
        assert torch.equal(obs, third.load_state_dict(state))
        assert same(run(fresh, later), run(third, later))
    else:
        assert torch.equal(obs, last.obs)
        middle = run(env, later[:20])
        assert same(middle, run(fresh, later[:20]))
        # The state of a resumed instance is as good as that of the first.
        third.load_state_dict(fresh.state_dict())
        assert same(run(env, later[20:]), run(third, later[20:]))


def test_no_global_generator_is_touched(factory: Callable[[], VecEnv]) -> None:
    env = factory()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    env.reset(0)
    run(env, actions_of(env, 20))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


@pytest.mark.parametrize("name", COUNTING)
def test_every_transition_of_a_counting_env(name: str) -> None:
    # Guards against: E9, names that fail with a foreign import error, and wrappers that step or reset twice.
    # Guards against: E10, environments with four values per step that are refused or lose their time limit.
    env = COUNTING[name]()
    obs = env.reset(0)
    lengths = set()
    for action in actions_of(env, 60):
        count, length = (obs[:, 0] + 1), obs[:, 1]
        step = env.step(action)
        over = count == length
        assert torch.equal(step.next_obs, torch.stack([count, length], dim=1)), "the true successor, ended or not"
        assert torch.equal(step.reward, count), "no step is spent on a reset"
        assert torch.equal(step.terminated, over & (length != 4)), "terminated wins where both are said"
        assert torch.equal(step.truncated, over & (length == 4))
        assert torch.equal(step.obs[:, 0], torch.where(over, 0.0, count)), "the policy sees the next episode"
        lengths |= set(length[over].tolist())
        obs = step.obs
    assert lengths == {3, 4, 5, 6}
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "envpool:CartPole-v1", "TensorCartPole"])
def test_cartpole_ends_where_the_pole_falls(name: str) -> None:
    env = make_env(name, 6, max_episode_steps=12)
    obs = env.reset(0)
    assert env.spec.max_episode_steps == 12
    age = torch.zeros(6)
    kinds = set()
    for action in actions_of(env, 150):
        step = env.step(action)
        age += 1
        fallen = (step.next_obs[:, 0].abs() > 2.4) | (step.next_obs[:, 2].abs() > 0.20943951)
        # EnvPool calls a fall on the last step a truncation; the two are told apart before it.
        early = age < 12 if name.startswith("envpool") else torch.ones(6, dtype=torch.bool)
        assert torch.equal(step.terminated[early], fallen[early])
        assert torch.equal(step.truncated[early], ((age == 12) & ~fallen)[early])
        done = step.terminated | step.truncated
        assert torch.equal(done, fallen | (age == 12))
        assert (step.obs[done].abs() <= 0.05).all(), "where it ended the policy sees a first state"
        assert (step.reward == 1).all()
        # One step moves a position by 0.02 of its velocity, whichever lane was reset before.
        torch.testing.assert_close(step.next_obs[:, 0], obs[:, 0] + 0.02 * obs[:, 1], atol=1e-5, rtol=0)
        kinds |= {"terminated"} if step.terminated.any() else set()
        kinds |= {"truncated"} if step.truncated.any() else set()
        age[done] = 0
        obs = step.obs
    assert kinds == {"terminated", "truncated"}
    env.close()


@pytest.mark.parametrize("name", ["Pendulum-v1", "envpool:Pendulum-v1", "TensorPendulum"])
def test_a_time_limit_truncates_and_keeps_the_successor(name: str) -> None:
    env = make_env(name, 2, max_episode_steps=5)
    obs = env.reset(0)
    for index in range(1, 16):
        step = env.step(torch.zeros(2, 1))
        assert step.truncated.tolist() == [index % 5 == 0] * 2
        assert not step.terminated.any()
        speed = (obs[:, 2] + 0.75 * obs[:, 1]).clamp(-8, 8)
        torch.testing.assert_close(step.next_obs[:, 2], speed, atol=1e-4, rtol=1e-4)
        assert torch.equal(step.obs, step.next_obs) == (index % 5 != 0)
        obs = step.obs
    env.close()

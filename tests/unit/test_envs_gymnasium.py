"""The Gymnasium adapters: spaces, lanes, replay of open episodes, and the vector entry point."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from elegantrl.envs import GymVecEnv, GymVectorVecEnv, VectorEntryEnv, check_env, make_env
from elegantrl.envs import gymnasium as lane_module
from elegantrl.rng import derive_seed
from elegantrl.types import Leaf


class Echo(gym.Env[Any, Any]):
    """Keeps the actions it was given; the observation is a random number of this episode plus the steps taken."""

    observation_space: Any = gym.spaces.Box(-9, 9, (1,))

    def __init__(self, action_space: Any = None, noise: bool = False, length: int = 1000):
        self.action_space = gym.spaces.Discrete(3) if action_space is None else action_space
        self.noise = noise
        self.length = length
        self.taken: list[Any] = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=None if self.noise else seed)
        self.seeds.append(seed)
        self.count = 0
        self.offset = self.np_random.random()
        return np.array([self.offset], dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.taken.append(action)
        self.count += 1
        obs = np.array([self.offset + 0.01 * self.count], dtype=np.float32)
        return obs, 0.0, self.count == self.length, False, {}


def go(env: Any, steps: int) -> Any:
    step = None
    for _ in range(steps):
        step = env.step(torch.zeros(env.spec.num_envs, dtype=torch.int64))
    return step


def test_bounded_actions_are_rescaled_and_clipped_and_unbounded_ones_pass() -> None:
    low = np.array([-2, 0, -np.inf, 0], dtype=np.float32)
    high = np.array([2, 10, np.inf, np.inf], dtype=np.float32)
    echo = Echo(gym.spaces.Box(low, high))
    env = make_env(echo)
    env.reset(0)
    for value in (0.0, 1.0, -1.0, 3.0, -3.0):
        env.step(torch.full((1, 4), value))
    assert [row.tolist() for row in echo.taken] == [
        [0, 5, 0, 0],
        [2, 10, 1, 1],
        [-2, 0, -1, 0],
        [2, 10, 3, 3],
        [-2, 0, -3, 0],
    ]


def test_bounds_as_large_as_the_type_do_not_overflow() -> None:
    limit = np.finfo(np.float32).max
    echo = Echo(gym.spaces.Box(-limit, limit, (1,)))
    env = make_env(echo)
    env.reset(0)
    env.step(torch.tensor([[1.0]]))
    assert echo.taken[0][0] == limit


def test_a_box_of_any_shape_is_flat_outside_and_whole_inside() -> None:
    echo = Echo(gym.spaces.Box(-1, 1, (2, 3)))
    env = make_env(echo)
    assert env.spec.action.num_outputs == 6
    env.reset(0)
    env.step(torch.arange(6.0).reshape(1, 6) / 10)
    assert echo.taken[0].tolist() == pytest.approx(np.arange(6).reshape(2, 3).astype(np.float32) / 10)


def test_a_discrete_space_may_start_anywhere() -> None:
    echo = Echo(gym.spaces.Discrete(3, start=5))
    env = make_env(echo)
    env.reset(0)
    go(env, 1)
    assert echo.taken == [5]


PICTURE = gym.spaces.Box(0, 255, (2, 2), np.uint8)


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (gym.spaces.Discrete(3), 1, [0, 1, 0]),
        (gym.spaces.Discrete(3, start=-1), 1, [0, 0, 1]),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
        (gym.spaces.MultiBinary(3), np.array([1, 0, 1], dtype=np.int8), [1, 0, 1]),
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([1, 2], dtype=np.uint8), [1, 2]),
        (gym.spaces.Box(0, 9, (2,), np.float64), np.array([1.5, 2.5]), [1.5, 2.5]),
        (gym.spaces.Box(0, 9, (), np.float32), np.array(1.5, dtype=np.float32), [1.5]),
        (gym.spaces.Box(0, 9, (2, 1), np.float64), np.array([[1.5], [2.5]]), [[1.5], [2.5]]),
        # N4: pictures were flattened to floats without a word.
        (PICTURE, np.array([[1, 2], [3, 4]], dtype=np.uint8), [[1, 2], [3, 4]]),
    ],
)
def test_shapes_and_types_of_observations(space: Any, obs: Any, expected: list[Any]) -> None:
    class Fixed(Echo):
        observation_space = space

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            return obs, {}

        def step(self, action: Any) -> tuple[Any, ...]:
            return obs, 0.0, True, False, {}

    for env in (make_env(Fixed, 2), make_env(gym.vector.SyncVectorEnv([Fixed] * 2))):
        leaf = Leaf(np.shape(expected), "uint8" if space is PICTURE else "float32")
        assert env.spec.obs == leaf
        assert env.reset(0).tolist() == [expected] * 2
        step = go(env, 1)
        assert step.obs.dtype == leaf.torch_dtype
        assert step.obs.tolist() == step.next_obs.tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("space", "choices", "action", "taken"),
    [
        (gym.spaces.MultiDiscrete([3, 2]), (3, 2), [2, 1], [2, 1]),
        (gym.spaces.MultiDiscrete([3, 2], start=[1, -1]), (3, 2), [2, 1], [3, 0]),
        (gym.spaces.MultiDiscrete([[2], [4]]), (2, 4), [1, 3], [[1], [3]]),
        (gym.spaces.MultiDiscrete([4]), (4,), 3, [3]),
        (gym.spaces.MultiBinary(3), (2, 2, 2), [1, 0, 1], [1, 0, 1]),
    ],
)
def test_several_choices(space: Any, choices: tuple[int, ...], action: Any, taken: Any) -> None:
    echo = Echo(space)
    env = make_env(echo)
    assert env.spec.action.choices == choices
    env.reset(0)
    env.step(torch.tensor([action]))
    assert echo.taken[0].tolist() == taken and space.contains(echo.taken[0])


def test_each_episode_of_each_lane_has_a_seed_of_its_own() -> None:
    # Guards against: R6, randomness that the one seed does not fix, or workers and lanes that share a stream.
    env = make_env(lambda: Echo(length=4), 3, masks=False)  # or a reset would look for masks
    env.reset(0)
    go(env, 12)
    seeds = [seed for lane in env.envs for seed in lane.seeds]  # type: ignore[attr-defined]
    assert len(seeds) == len(set(seeds)) == 3 * 4


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1", "Acrobot-v1", "LunarLander-v3", "Hopper-v5"])
def test_rewards_and_observations_are_those_of_the_bare_environment(name: str) -> None:
    """Guards against: E6, a wrapper that changes rewards unannounced or keeps the seed to itself."""
    # Guards against: R6, randomness that the one seed does not fix, or workers and lanes that share a stream.
    bare = gym.make(name, disable_env_checker=True)
    env = make_env(name)
    first = env.reset(5)
    seed = derive_seed(5, "episode", 0, 0) & 0x7FFF_FFFF
    assert np.array_equal(bare.reset(seed=seed)[0].astype(np.float32), first[0].numpy())
    bare.action_space.seed(0)
    for _ in range(40):
        action = bare.action_space.sample()
        if isinstance(bare.action_space, gym.spaces.Box):
            high = bare.action_space.high
            action = (action / high).round(2) * high  # the same number after rescaling there and back
            step = env.step(torch.from_numpy(action / high).unsqueeze(0))
        else:
            step = env.step(torch.tensor([int(action)]))
        obs, reward, terminated, truncated, _ = bare.step(action)
        assert step.reward.item() == np.float32(reward)
        assert np.array_equal(step.next_obs[0].numpy(), obs.astype(np.float32))
        assert (step.terminated.item(), step.truncated.item()) == (terminated, truncated)
        if terminated or truncated:
            break


def test_more_than_64_lanes() -> None:
    """Guards against: R15, vector environments that end at 64 lanes."""
    env = make_env("Pendulum-v1", 130, max_episode_steps=4)
    check_env(env, steps=10)
    assert env.reset(0).unique(dim=0).shape == (130, 3)


def test_an_instance_becomes_lane_zero_and_its_likenesses_the_others() -> None:
    bare, made = Echo(length=7), gym.make("Acrobot-v1", max_episode_steps=9)
    for instance in (bare, made):
        env = make_env(instance, 3)
        assert isinstance(env, GymVecEnv)
        assert env.envs[0] is instance and len({id(lane.unwrapped) for lane in env.envs}) == 3
    assert env.spec.max_episode_steps == 9 and env.envs[2].spec.max_episode_steps == 9
    assert make_env(bare, 2).envs[1].length == 7  # type: ignore[attr-defined]


def test_ways_to_name_an_environment() -> None:
    assert isinstance(make_env("CartPole-v1"), GymVecEnv)
    assert isinstance(make_env("CartPole-v1", 2), VectorEntryEnv)
    assert isinstance(make_env("CartPole-v1", 2, sutton_barto_reward=True), GymVecEnv)
    assert isinstance(make_env("gymnasium.envs.classic_control.cartpole:CartPoleEnv", 2), GymVecEnv)
    assert isinstance(make_env("gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv", 2), GymVectorVecEnv)
    assert isinstance(make_env("gymnasium:Pendulum-v1", 2), GymVecEnv)
    env = make_env("elegantrl.envs:ChasingVecEnv", 3, dim=4)
    assert (env.spec.num_envs, env.spec.obs_dim) == (3, 16)
    assert make_env(env) is env
    assert make_env("CartPole-v1").spec.target_return == 475


def test_the_action_log_reaches_back_to_the_oldest_open_episode_only() -> None:
    env = make_env(lambda: Echo(length=5), 2)
    env.reset(0)
    for steps, kept in ((4, 4), (1, 0), (13, 3)):
        go(env, steps)
        assert [len(actions) for actions in env.state_dict()["actions"].values()] == [kept] * 2
        assert env._log.end - env._log.first == kept  # type: ignore[attr-defined]


def test_an_episode_longer_than_the_log_restarts(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(lane_module, "MAX_LOG_STEPS", 10)
    env, fresh = make_env(lambda: Echo(length=30), 2), make_env(lambda: Echo(length=30), 2)
    first = env.reset(0)
    go(env, 10)
    assert env.exactness == "replayed"
    last = go(env, 1)
    assert env.exactness == "episode"
    with caplog.at_level(logging.WARNING):
        obs = fresh.load_state_dict(env.state_dict())
    assert torch.equal(obs, first) and not torch.equal(obs, last.obs)
    assert "2 of 2 lanes restart" in caplog.text and len(caplog.records) == 1
    go(env, 25)
    assert env.exactness == "replayed", "the next episode fits again"


def test_an_env_that_does_not_repeat_itself_restarts(caplog: Any) -> None:
    env, fresh = make_env(lambda: Echo(noise=True)), make_env(lambda: Echo(noise=True))
    env.reset(0)
    go(env, 5)
    with caplog.at_level(logging.WARNING):
        obs = fresh.load_state_dict(env.state_dict())
    assert fresh.exactness == "episode" and "came out differently" in caplog.text
    step = go(fresh, 1)
    assert step.obs[0, 0].item() == pytest.approx(obs[0, 0].item() + 0.01, abs=1e-6), "at the start of an episode"


def test_a_replay_that_ends_too_early_is_not_stepped_further() -> None:
    class Strict(Echo):
        def step(self, action: Any) -> tuple[Any, ...]:
            assert self.count < self.length, "stepped beyond the end"
            return super().step(action)

    env, fresh = make_env(lambda: Strict(length=9)), make_env(lambda: Strict(length=3))
    first = env.reset(0)
    go(env, 6)
    assert torch.equal(fresh.load_state_dict(env.state_dict()), first)
    assert fresh.exactness == "episode"


def test_lanes_of_different_age_are_all_replayed() -> None:
    lengths = iter([50, 7, 20] * 2)
    env, fresh = (make_env(lambda: Echo(length=next(lengths)), 3) for _ in range(2))
    env.reset(0)
    last = go(env, 27)
    state = env.state_dict()
    assert [len(actions) for actions in state["actions"].values()] == [27, 6, 7]
    assert torch.equal(fresh.load_state_dict(state), last.obs)
    left, right = go(env, 30), go(fresh, 30)
    assert torch.equal(left.next_obs, right.next_obs) and fresh.exactness == "replayed"


def test_the_vector_entry_point_moves_like_gymnasiums_own() -> None:
    env = make_env("CartPole-v1", 6)
    reference = gym.make_vec("CartPole-v1", 6)
    obs = env.reset(0)
    reference.reset(seed=0)
    actions = torch.randint(2, (200, 6), generator=torch.Generator().manual_seed(0))
    ends = 0
    for action in actions:
        # The reference spends a step on a reset, so it is set to our state before each step.
        state = env.state_dict()
        reference.state, reference.steps = state["state"].numpy(), state["steps"].numpy()  # type: ignore[attr-defined]
        reference.prev_done[:] = False  # type: ignore[attr-defined]
        expected = reference.step(action.numpy())
        step = env.step(action)
        found = (step.next_obs, step.reward, step.terminated, step.truncated)
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected[:4], strict=True))
        done = step.terminated | step.truncated
        assert torch.equal(step.obs[~done], step.next_obs[~done]) and (step.obs[done].abs() <= 0.05).all()
        ends += int(done.sum())
        obs = step.obs
    assert ends > 20 and obs.is_contiguous()

"""State that outlives an episode: compared when an episode is replayed, saved where an environment offers it."""

from __future__ import annotations

import json
import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from torch import Tensor

from elegantrl.envs import VecEnv, make_env
from elegantrl.envs.episode_log import EpisodeLog, digest
from elegantrl.envs.lane_state import LaneState, decode, encode
from elegantrl.envs.lanes import seeded_reset
from elegantrl.errors import SpecError
from elegantrl.runtime.requests import last_results
from elegantrl.types import Episodes, Fragment, Rollout, Step


class Drifting(gym.Env[Any, Any]):
    """Rewards grow with the number of episodes and carry noise of a generator made in the constructor."""

    observation_space = gym.spaces.Box(0, 99, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.rng, self.episodes, self.count = np.random.default_rng(0), 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes, self.count = self.episodes + 1, 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.count += 1
        reward = self.episodes + self.rng.random()
        return np.full(1, self.count, dtype=np.float32), reward, self.count == 7, False, {}


class Saved(Drifting):
    def get_state(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state, "episodes": self.episodes}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state, self.episodes = state["rng"], state["episodes"]


def take(env: VecEnv, steps: int) -> list[Step]:
    return [env.step(torch.zeros(env.spec.num_envs, dtype=torch.int64)) for _ in range(steps)]


def rewards(steps: list[Step]) -> Tensor:
    return torch.stack([step.reward for step in steps])


def test_rewards_that_come_out_differently_restart_the_episode(caplog: Any) -> None:
    # R4: the observations agree, so this state was lost without a word and the commit said "replayed".
    env, fresh, third = (make_env(Drifting, 2) for _ in range(3))
    env.reset(0)
    take(env, 17)
    assert env.exactness == "replayed"
    with caplog.at_level(logging.WARNING):
        obs = fresh.load_state_dict(env.state_dict())
    assert obs.tolist() == [[0], [0]] and fresh.restarted_lanes().tolist() == [True, True]
    (record,) = caplog.records
    assert "2 of 2 lanes restart" in record.message and "get_state() and set_state(state)" in record.message
    # R5: what was seen once stays known, also to the next one that resumes.
    assert fresh.exactness == "episode"
    take(fresh, 3)
    third.load_state_dict(fresh.state_dict())
    assert third.exactness == "episode"


def normalized() -> gym.Env[Any, Any]:
    return NormalizeReward(TimeLimit(gym.make("Pendulum-v1").unwrapped, 9))


def twice_normalized() -> gym.Env[Any, Any]:
    return NormalizeObservation(NormalizeReward(TimeLimit(gym.make("CartPole-v1").unwrapped, 9)))


@pytest.mark.parametrize("make", [Saved, lambda: TimeLimit(Saved(), 5), twice_normalized, normalized])
@pytest.mark.parametrize("steps", [0, 5, 18, 33])
def test_a_state_that_is_offered_makes_the_resume_exact(make: Any, steps: int, caplog: Any) -> None:
    env, fresh = make_env(make, 3), make_env(make, 3)
    dim = env.spec.action.dim
    generator = torch.Generator().manual_seed(0)
    discrete = env.spec.action.kind == "discrete"
    actions = torch.randint(2, (80, 3), generator=generator) if discrete else torch.rand(80, 3, dim) * 2 - 1
    env.reset(0)
    for action in actions[:steps]:
        env.step(action)
    state = json_round_trip(env.state_dict())
    # What the other instance went through before must not matter.
    fresh.reset(5)
    for action in actions[:20]:
        fresh.step(action)
    fresh.load_state_dict(state)
    assert fresh.exactness == "replayed" and not fresh.restarted_lanes().any() and not caplog.records
    for action in actions[steps:]:
        assert all(map(torch.equal, env.step(action)[:5], fresh.step(action)[:5]))


@pytest.mark.parametrize("name", ["BipedalWalker-v3", "CarRacing-v3"])
def test_every_episode_of_box2d_has_a_world_of_its_own(name: str) -> None:
    env: Any = gym.make(name)
    reset, worlds = seeded_reset(env), []
    for seed in range(3):
        reset(seed)
        env.step(env.action_space.sample())
        worlds.append(env.unwrapped.world)
    assert len({id(world) for world in worlds}) == 3
    env.close()


def test_box2d_resumes_exactly_after_many_episodes(caplog: Any) -> None:
    env = make_env("BipedalWalker-v3", 3)
    actions = torch.rand(650, 3, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    env.reset(seed=1)
    for action in actions[:600]:
        env.step(action)
    resumed = make_env("BipedalWalker-v3", 3)
    resumed.load_state_dict(env.state_dict())
    assert not caplog.records
    for action in actions[600:]:
        step, again = env.step(action), resumed.step(action)
        assert torch.equal(step.next_obs, again.next_obs) and torch.equal(step.reward, again.reward)  # type: ignore[arg-type]


def json_round_trip(value: Any) -> Any:
    """A state as a commit would give it back."""
    if isinstance(value, dict):
        return {key: json_round_trip(item) for key, item in value.items()}
    return value.clone() if isinstance(value, Tensor) else json.loads(json.dumps(value))


def test_states_come_back_as_they_were() -> None:
    state = {
        "numbers": (1, 2.5, True, None, "text", 2**100),
        "arrays": [np.arange(3, dtype=np.uint8), np.float32(1.5), np.array(2)],
        "tensor": torch.ones(2),
        "bytes": b"\x00\x01",
        "empty": ([], (), {}, b""),
    }
    there = decode(json_round_trip(encode(state, "Env")))
    assert repr(there) == repr(state)
    with pytest.raises(SpecError, match=r"'Env': its saved state\['rng'\]\[1\] is of type Generator, expected"):
        encode({"rng": [0, np.random.default_rng()]}, "Env")


def test_methods_of_the_same_name_with_other_arguments_are_left_alone() -> None:
    class Observing(Drifting):
        def get_state(self) -> Any:  # as tutorials name what gives the observation
            return np.zeros(1)

    class Physics(Observing):
        def set_state(self, qpos: Any, qvel: Any) -> None:  # as MuJoCo environments have it
            pass

    assert [LaneState(env, "Env").layers for env in (Observing(), Physics(), Drifting())] == [[], [], []]


def test_the_log_holds_arrays_and_releases_whole_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # R13: a list of small objects per step made snapshots of old episodes slow.
    monkeypatch.setattr("elegantrl.envs.episode_log.CHUNK_STEPS", 4)
    steps = [(np.array([i, -i]), np.array([i / 2, 0], dtype=np.float32)) for i in range(30)]
    log = EpisodeLog(max_steps=20)
    for i, step in enumerate(steps, start=1):
        log.append(*step)
        assert log.first == max(0, i - 20) and len(log._chunks) <= 6 and len(log._actions) < 4
    kept = log.actions_of(1, 13, np.dtype(np.int64))
    assert kept is not None and kept.tolist() == list(range(-13, -30, -1))
    assert log.reward_digest(0, 13) == digest([i / 2 for i in range(13, 30)])
    assert log.actions_of(1, 9, np.dtype(np.int64)) is None and log.reward_digest(0, 9) == 0
    log.drop_before(29)
    assert log.actions_of(0, 29, np.dtype(np.int64)).tolist() == [29] and not log._chunks  # type: ignore[union-attr]
    log.drop_before(30)
    assert log.actions_of(0, 30, np.dtype(np.int64)).tolist() == []  # type: ignore[union-attr]


def test_a_replaced_worker_is_compared_by_rewards_too() -> None:
    # R4: a worker that repeated its steps with other rewards counted as the same.
    obs, flags = torch.zeros(3, 2, 4), torch.zeros(3, 2, dtype=torch.bool)
    rollouts = [
        Rollout(obs, flags.long(), reward, flags, flags, obs) for reward in (torch.zeros(3, 2), torch.ones(3, 2))
    ]
    one, other = ([Fragment(0, 0, 0, rollout, Episodes(np.empty(0), np.empty(0)))] for rollout in rollouts)
    assert all(map(torch.equal, last_results(one), last_results(one)))
    assert not all(map(torch.equal, last_results(one), last_results(other)))

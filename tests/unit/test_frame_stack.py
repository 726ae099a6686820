"""Frame stacks: what they show at resets, ends, faults and after a resume; refusals; settings."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from elegantrl import tree
from elegantrl.config.resolve import resolve_config
from elegantrl.envs import FrameStackVecEnv, check_env, env_settings, make_env
from elegantrl.envs.frame_stack import stack_frames
from elegantrl.errors import ConfigError, SpecError
from elegantrl.types import ActionSpec, EnvSpec, Leaf, from_state, to_state


class Clock(gym.Env[Any, Any]):
    """A picture and a vector that show the step of the episode; lanes have other lengths, which the seed decides."""

    observation_space = gym.spaces.Dict(
        {"picture": gym.spaces.Box(0, 255, (2, 3), np.uint8), "time": gym.spaces.Box(0, 99, (1,))}
    )
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fail_at: int = 0):
        self.fail_at = fail_at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(2, 9))
        self.base = int(self.np_random.integers(100))
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.time == self.fail_at:
            raise ValueError("as asked for")
        over = self.time == self.length
        return self.show(), 1.0, over and self.length % 2 == 0, over, {}

    def show(self) -> Any:
        picture = np.full((2, 3), self.base + self.time, np.uint8)
        return {"picture": picture, "time": np.array([self.time], np.float32)}


def still(env: Any) -> Tensor:
    return torch.zeros(env.spec.num_envs, dtype=torch.int64)


def test_a_stack_holds_the_newest_frames_of_its_episode() -> None:
    env, plain = make_env(Clock, 3, frame_stack=4), make_env(Clock, 3)
    assert env.spec.obs == {"picture": Leaf((4, 2, 3), "uint8", stack=4), "time": Leaf((1,))}
    obs, raw = env.reset(5), plain.reset(5)
    history = [[raw["picture"][lane]] * 4 for lane in range(3)]
    num_ended = 0
    for _ in range(30):
        for lane in range(3):
            assert torch.equal(obs["picture"][lane], torch.stack(history[lane][-4:]))
        step, expected = env.step(still(env)), plain.step(still(plain))
        ended = expected.terminated | expected.truncated
        for lane in range(3):
            successor = [*history[lane], expected.next_obs["picture"][lane]]
            assert torch.equal(step.next_obs["picture"][lane], torch.stack(successor[-4:])), "also where it ended"
            history[lane] = [expected.obs["picture"][lane]] * 4 if ended[lane] else successor
        assert torch.equal(step.obs["time"], expected.obs["time"])
        num_ended += int(ended.sum())
        obs = step.obs
    assert num_ended > 5


def test_the_wrapper_keeps_the_contract() -> None:
    check_env(make_env(Clock, 3, frame_stack=3), steps=60)
    check_env(make_env(Clock, 1, frame_stack=2), steps=60)


def test_a_lane_that_is_reset_or_fails_begins_a_new_stack() -> None:
    env = make_env(Clock, 2, frame_stack=3)
    env.reset(0)
    before = env.step(still(env)).obs["picture"]
    lanes = torch.tensor([False, True])
    obs = env.reset_lanes(lanes)
    assert obs is not None
    assert torch.equal(obs["picture"][0], before[0])
    assert (obs["picture"][1] == obs["picture"][1, :1]).all() and obs["time"][1] == 0
    faulty = make_env(Clock, 2, frame_stack=3, fail_at=2)
    faulty.reset(0)
    last = faulty.step(still(faulty)).obs["picture"]
    step = faulty.step(still(faulty))
    assert len(step.faults) == 2 and step.truncated.all()
    assert torch.equal(step.next_obs["picture"], torch.cat([last[:, 1:], last[:, -1:]], 1))
    assert (step.obs["picture"] == step.obs["picture"][:, :1]).all()


def test_a_restarted_lane_does_not_keep_the_frames_of_the_old_episode() -> None:
    env = make_env("envpool:CartPole-v1", 1)  # an environment that cannot continue an episode

    class Picture(type(env)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("CartPole-v1", 2)
            self.spec = EnvSpec("Picture", Leaf((4, 1), "uint8"), self.spec.action, 2)

        def _start(self, seed: int) -> Tensor:
            return self.picture(super()._start(seed))

        def step(self, action: Tensor) -> Any:
            step = super().step(action)
            return step._replace(obs=self.picture(step.obs), next_obs=self.picture(step.next_obs))

        def picture(self, obs: Tensor) -> Tensor:
            return (obs * 1000).to(torch.uint8).unsqueeze(-1)

    stacked = make_env(Picture(), 2, frame_stack=3)
    stacked.reset(0)
    for _ in range(4):
        stacked.step(still(stacked))
    obs = stacked.load_state_dict(stacked.state_dict())
    assert stacked.restarted_lanes().all() and (obs == obs[:, :1]).all()
    stacked.close()
    env.close()


def test_what_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'CartPole-v1' shows no picture .* leave frame_stack=4 out"):
        make_env("CartPole-v1", 2, frame_stack=4)
    with pytest.raises(ConfigError, match="frame_stack=0 is too small"):
        make_env(Clock, frame_stack=0)
    with pytest.raises(ConfigError, match=r"env.kwargs has 'frame_stack', which is a setting of its own"):
        resolve_config("ppo", "CartPole-v1", {"env": {"kwargs": {"frame_stack": 4}}})
    with pytest.raises(SpecError, match=r"stack=4 has that many frames; got shape=\(3, 2\)"):
        Leaf((3, 2), "uint8", stack=4)


def test_an_instance_that_is_stacked_is_not_stacked_again() -> None:
    env = make_env(Clock, 2, frame_stack=4)
    assert make_env(env, 2, **env_settings(env.spec.obs)) is env
    assert isinstance(make_env(make_env(Clock, 2), 2, frame_stack=4), FrameStackVecEnv)


def test_the_stack_is_part_of_what_a_policy_is_built_from() -> None:
    obs = {"picture": Leaf((4, 2, 3), "uint8", stack=4), "time": Leaf((1,))}
    assert from_state(to_state(obs)) == obs
    assert from_state({"leaf": [[4], "float32"]}) == Leaf((4,)), "as older files say it"
    assert obs["picture"].frame == Leaf((2, 3), "uint8") and obs["time"].frame == Leaf((1,))
    assert env_settings(obs)["frame_stack"] == 4
    config, _ = resolve_config("ppo", "CartPole-v1", {"env": {"frame_stack": 3}})
    assert config.env.arguments["frame_stack"] == 3


def test_a_caller_that_steps_the_environment_itself_gets_the_same_stacks() -> None:
    env, plain = make_env(Clock, 1, frame_stack=4), make_env(Clock, 1)
    obs, raw, carry = env.reset(3), plain.reset(3), dict[str, Any]()
    for _ in range(12):
        same = stack_frames(raw, env.spec.obs, carry)
        assert all(map(torch.equal, tree.leaves(same), tree.leaves(obs)))
        step, expected = env.step(still(env)), plain.step(still(plain))
        if step.terminated | step.truncated:
            carry = {}
        obs, raw = step.obs, expected.obs


def test_a_leaf_without_a_stack_is_left_alone() -> None:
    spec = EnvSpec("Made", Leaf((3,)), ActionSpec(choices=(2,)), 1)
    carry: dict[str, Any] = {}
    obs = torch.zeros(1, 3)
    assert stack_frames(obs, spec.obs, carry) is obs and carry == {}

"""Atari, MinAtar and MiniGrid by their ids: preprocessing, what only training does, and exact continuation."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from elegantrl import tree
from elegantrl.envs import VecEnv, make_env
from elegantrl.errors import ConfigError
from elegantrl.types import Leaf, Step

PICTURE = Leaf((4, 84, 84), "uint8", stack=4)


def take(env: VecEnv, num_steps: int, seed: int = 0) -> list[Step]:
    generator = torch.Generator().manual_seed(seed)
    return [env.step(env.spec.action.random((env.spec.num_envs,), generator)) for _ in range(num_steps)]


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4", "envpool:Pong-v5"])
def test_atari_shows_four_grey_frames(name: str) -> None:
    env = make_env(name, 2)
    assert env.spec.obs == PICTURE and env.spec.action.choices == (6,)
    obs = env.reset(0)
    assert (obs == obs[:, :1]).all(), "a first frame is repeated"
    env.close()
    single = make_env(name, 2, frame_stack=1)
    assert single.spec.obs == Leaf((84, 84), "uint8")
    single.close()


def test_every_part_of_the_preprocessing_can_be_switched() -> None:
    small = make_env("ALE/Pong-v5", 1, screen_size=42, frame_skip=2, noop_max=0, frame_stack=2)
    assert small.spec.obs == Leaf((2, 42, 42), "uint8", stack=2)
    colour = make_env("ALE/Pong-v5", 1, grayscale_obs=False)
    assert colour.spec.obs == Leaf((4, 84, 84, 3), "uint8", stack=4)
    raw = make_env("ALE/Pong-v5", 1, preprocess=False)
    assert raw.spec.obs == Leaf((210, 160, 3), "uint8")
    stacked = make_env("envpool:Pong-v5", 1, stack_num=3)
    assert stacked.spec.obs == Leaf((3, 84, 84), "uint8")
    for env in (small, colour, raw, stacked):
        env.close()
    with pytest.raises(ConfigError, match=r"'ALE/Pong-v5' cannot be made with .*frame_skip"):
        make_env("ALE/Pong-v5", frame_skip=0)
    with pytest.raises(ConfigError, match=r"'ALE/Pong-v5' cannot be made with .*frameskip"):
        make_env("ALE/Pong-v5", frameskip=4)


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "envpool:Breakout-v5"])
def test_an_episode_ends_with_a_life_in_training_alone(name: str) -> None:
    training, evaluation = make_env(name, 1, first_slot=0), make_env(name, 1)
    lengths = []
    for env in (training, evaluation):
        env.reset(0)
        ended = [bool(step.terminated | step.truncated) for step in take(env, 400)]
        lengths.append(ended.count(True))
        env.close()
    assert lengths[0] > 3 * max(lengths[1], 1), "five lives in a game"


def test_the_next_episode_goes_on_with_the_game() -> None:
    env: Any = make_env("ALE/Breakout-v5", 1, first_slot=0, frame_stack=1)
    env.reset(0)
    lives = [(take(env, 1, seed)[0].terminated.item(), env.envs[0].unwrapped.ale.lives()) for seed in range(600)]
    after = [left for has_ended, left in lives if has_ended]
    assert after[:6] == [4, 3, 2, 1, 5, 4], "and begins anew after the last life"
    whole: Any = make_env("ALE/Breakout-v5", 1, first_slot=0, terminal_on_life_loss=False)
    whole.reset(0)
    assert sum(bool(step.terminated) for step in take(whole, 120)) <= 1


@pytest.mark.parametrize("kwargs", [{}, {"clip_reward": False}])
def test_rewards_are_clipped_in_training_alone(kwargs: dict[str, Any]) -> None:
    largest = []
    for slot in (0, None):
        env = make_env("ALE/BeamRider-v5", 2, first_slot=slot, **kwargs)
        env.reset(0)
        largest.append(max(float(step.reward.max()) for step in take(env, 300)))
        env.close()
    assert largest[1] >= 44, "the worth of an enemy"
    assert (largest[0] == 1) == (not kwargs)


def test_a_game_continues_exactly_in_a_later_life() -> None:
    env = make_env("ALE/Breakout-v5", 2, first_slot=0)
    env.reset(3)
    ends = sum(int(step.terminated.sum()) for step in take(env, 130))
    assert ends >= 3
    other = make_env("ALE/Breakout-v5", 2, first_slot=0)
    other.load_state_dict(env.state_dict())
    assert not other.restarted_lanes().any() and other.exactness == "replayed"
    for one, again in zip(take(env, 150, 1), take(other, 150, 1), strict=True):
        assert all(map(torch.equal, tree.leaves(one[:5]), tree.leaves(again[:5])))


def test_minatar_keeps_its_cells_boolean_and_continues_exactly() -> None:
    env = make_env("MinAtar/SpaceInvaders-v1", 3)
    assert env.spec.obs == Leaf((10, 10, 6), "bool")
    env.reset(0)
    take(env, 60)  # several episodes: a game does not remember the last action of the one before
    other = make_env("MinAtar/SpaceInvaders-v1", 3)
    other.load_state_dict(env.state_dict())
    assert not other.restarted_lanes().any()
    for one, again in zip(take(env, 60, 1), take(other, 60, 1), strict=True):
        assert all(map(torch.equal, one[:5], again[:5]))


def test_minigrid_leaves_its_text_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        env = make_env("MiniGrid-DoorKey-5x5-v0", 2)
    assert env.spec.obs == {"direction": Leaf((4,)), "image": Leaf((7, 7, 3), "uint8")}
    assert "the text 'mission' is left out of the observation; ['direction', 'image'] are kept" in caplog.text

"""One suite for every way in which an environment can stand behind the ``VecEnv`` contract."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from team_worlds import Battle, Pair, Relay
from torch import Tensor

from elegantrl import tree
from elegantrl.envs import TensorEnv, VecEnv, check_env, make_env
from elegantrl.envs.masks import allowed_actions
from elegantrl.errors import SpecError
from elegantrl.testing import (
    FakeIsaacLabEnv,
    FakeIsaacLabTeam,
    FakeLeggedRobot,
    FakeMjlabEnv,
    FakeRslVecEnv,
    FakeVecTask,
)
from elegantrl.types import ActionSpec, Leaf, Obs, Step


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


class Tree(Counting):
    """``Counting`` with a space, an observation and actions of choice; its infos may hold the mask of its actions.

    At the end of an episode a mask forbids every action.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        picture, vector = gym.spaces.Box(0, 255, (3, 4, 2), np.uint8), Counting.observation_space
        mask = gym.spaces.Box(0, 1, (3,), np.int8)
        parts = {"picture": picture, "place": gym.spaces.Discrete(11), "pair": gym.spaces.Tuple([vector, vector])}
        self.observation_space: Any = {
            "picture": picture,
            "cells": gym.spaces.Box(0, 1, (3, 4), np.bool_),
            "dict": gym.spaces.Dict(parts),
            "tuple": gym.spaces.Tuple([picture, gym.spaces.MultiBinary(2)]),
            "mask key": gym.spaces.Dict({"observation": vector, "action_mask": mask}),
        }.get(kind, vector)
        many = kind in ("choices", "mask choices")
        self.action_space: Any = gym.spaces.MultiDiscrete([3, 2]) if many else gym.spaces.Discrete(3)

    def mask(self) -> Any:
        if self.count == self.length:
            return np.zeros(5 if self.kind == "mask choices" else 3, dtype=np.bool_)
        allowed = [True, self.count % 2 == 0, False]
        return np.array([*allowed, self.count % 2 == 0, True] if self.kind == "mask choices" else allowed)

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask()} if self.kind in ("mask info", "mask choices") else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        *result, _ = super().step(action)
        return *result, self.info()  # type: ignore[return-value]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], self.info()

    def _obs(self) -> Any:
        vector = super()._obs()
        picture = np.full((3, 4, 2), 10 * self.count + self.length, dtype=np.uint8)
        return {
            "picture": picture,
            "cells": np.arange(12).reshape(3, 4) < self.count + self.length,
            "dict": {"place": self.count, "picture": picture, "pair": (vector, vector + 1)},
            "tuple": (picture, np.array([self.count % 2, 1], dtype=np.int8)),
            "mask key": {"observation": vector, "action_mask": self.mask().astype(np.int8)},
        }.get(self.kind, vector)


class MaskMethod(Tree):
    def action_masks(self) -> Any:
        return self.mask()


class TensorTree(TensorEnv):
    """Two agents with a picture each, masks, a global state and a reward for each agent."""

    obs: Any = Obs(
        {"picture": Leaf((2, 3, 3), "uint8"), "id": Leaf((2,), "int64")},
        Leaf((2, 5), "bool"),  # type: ignore[arg-type]
        Leaf((4,)),  # type: ignore[arg-type]
        Leaf((2,), "bool"),  # type: ignore[arg-type]
    )
    action = ActionSpec(choices=(3, 2))
    num_agents = 2
    max_episode_steps = 9

    def initial(self, num_rows: int) -> Tensor:
        return torch.rand(num_rows, 4, generator=self.generator)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = (state + 0.1 + 0.1 * action.float().mean((1, 2)).unsqueeze(1)).remainder(2)
        return state, state[:, :2], state[:, 0] > 1.9

    def observe(self, state: Tensor) -> Obs:
        picture = (state[:, :2] * 99).to(torch.uint8)[..., None, None].expand(-1, 2, 3, 3)
        mask = (state.sum(1) > 2)[:, None, None] | torch.tensor([True, False, False, True, False]).expand(2, 5)
        ones = torch.ones(len(state), 2, dtype=torch.bool)
        return Obs({"picture": picture, "id": ones.long().cumsum(1)}, mask, state, ones)


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
    "Doors": lambda: make_env("Doors", 3, num_keys=5, num_fitting=2, max_episode_steps=13),
    "position only": lambda: make_env("PositionOnlyCartPole-v1", 3),
    "position only continuous": lambda: make_env("PositionOnlyPendulum-v1", 3, max_episode_steps=30),
}

ENVS |= {
    "atari": lambda: make_env("ALE/Breakout-v5", 2, first_slot=0),
    "envpool atari": lambda: make_env("envpool:Pong-v5", 2, first_slot=0),
    "MinAtar": lambda: make_env("MinAtar/Breakout-v1", 3),
    "MiniGrid": lambda: make_env("MiniGrid-DoorKey-5x5-v0", 2, max_episode_steps=25),
    "Blackjack": lambda: make_env("Blackjack-v1", 3),
}

for _kind in ("picture", "cells", "dict", "tuple", "choices", "mask choices"):
    ENVS[f"{_kind} lanes"] = partial(make_env, Tree, 3, kind=_kind)
    ENVS[f"{_kind} sync"] = partial(sync, partial(Tree, _kind), AutoresetMode.SAME_STEP)
    ENVS[f"{_kind} processes"] = lambda kind=_kind: make_env(  # type: ignore[misc]
        AsyncVectorEnv([partial(Tree, kind)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    )

MASKED: dict[str, Callable[[], VecEnv]] = {
    "mask key": lambda: make_env(Tree, 3, kind="mask key"),
    "mask method": lambda: make_env(MaskMethod, 3, kind="vector"),
    "mask info": lambda: make_env(Tree, 3, kind="mask info"),
    "mask key sync": lambda: sync(partial(Tree, "mask key"), AutoresetMode.NEXT_STEP),
    "mask key sync same-step": lambda: sync(partial(Tree, "mask key"), AutoresetMode.SAME_STEP),
    "mask method sync": lambda: sync(partial(MaskMethod, "vector"), AutoresetMode.DISABLED),
    "mask info sync": lambda: sync(partial(Tree, "mask info"), AutoresetMode.NEXT_STEP),
    "mask info sync same-step": lambda: sync(partial(Tree, "mask info"), AutoresetMode.SAME_STEP),
}
ENVS |= MASKED
ENVS["mask envpool"] = lambda: make_env("envpool:Maze-v0", 2)
ENVS["picture stack"] = lambda: make_env(Tree, 3, kind="picture", frame_stack=3)
ENVS["dict stack sync"] = lambda: make_env(
    SyncVectorEnv([partial(Tree, "dict")] * 3, autoreset_mode=AutoresetMode.SAME_STEP), frame_stack=2
)
ENVS["tensor team"] = lambda: make_env(TensorTree, 3)
ENVS |= {
    "mpe2": lambda: make_env("mpe2:simple_spread_v3", 2, N=2, max_cycles=9),
    "mpe2 unlike agents": lambda: make_env("mpe2:simple_speaker_listener_v4", 2, max_cycles=9),
    "mpe2 continuous": lambda: make_env("mpe2:simple_speaker_listener_v4", 2, max_cycles=9, continuous_actions=True),
    "foraging": lambda: make_env("Foraging-5x5-2p-1f-coop-v3", 2),
    "warehouse": lambda: make_env("rware-tiny-2ag-v2", 2, max_steps=13),
    "PettingZoo": lambda: make_env(Relay, 3),
    "PettingZoo continuous": lambda: make_env(Relay, 3, continuous=True, whole=True),
    "PettingZoo instance": lambda: make_env(Relay(whole=True), 3),
    "tuples": lambda: make_env(Pair, 3),
    "SMAC": lambda: make_env(Battle, 3),
}

SIMULATORS: dict[str, Callable[[], VecEnv]] = {
    "Isaac Gym": lambda: make_env(FakeVecTask, 3),
    "Isaac Gym states": lambda: make_env(FakeVecTask, 3, num_states=4),
    "Isaac Gym same-step": lambda: make_env(FakeVecTask, 3, num_states=4, same_step=True),
    "legged_gym": lambda: make_env(FakeLeggedRobot, 3),
    "RSL-RL": lambda: make_env(FakeRslVecEnv, 3),
    "Isaac Lab": lambda: make_env(FakeIsaacLabEnv, 3),
    "mjlab": lambda: make_env(FakeMjlabEnv, 3),
    "mjlab auto-reset": lambda: make_env(FakeMjlabEnv(3, auto_reset=True)),
    "Isaac Lab team": lambda: make_env(FakeIsaacLabTeam, 3),
}
for _form in ("tensor", "groups", "flags", "array"):
    SIMULATORS[f"Isaac Lab {_form}"] = partial(make_env, FakeIsaacLabEnv, 3, final_obs=_form)
ENVS |= SIMULATORS

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


def mjlab_task() -> VecEnv:
    pytest.importorskip("mjlab", reason="needs mjlab in an environment of its own: pip install 'elegantrl[mjlab]'")
    return make_env("mjlab:Mjlab-Cartpole-Balance", 3, episode_length_s=1.2)


ENVS["mjlab task"] = mjlab_task


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "mjlab task")) for name in ENVS])
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
    return env.spec.action.random((steps, env.spec.num_envs, *env.spec.team), generator)


def run(env: VecEnv, actions: Tensor, obs: Any) -> list[Step]:
    """Steps from ``obs``, with other actions where masks forbid those."""
    steps: list[Step] = []
    for action in actions:
        steps.append(env.step(allowed_actions(action, obs, env.spec.action)))
        obs = steps[-1].obs
    return steps


def same(left: list[Step], right: list[Step]) -> bool:
    return all(equal((*x[:5], x.won), (*y[:5], y.won)) for x, y in zip(left, right, strict=True))


def equal(one: Any, other: Any) -> bool:
    return all(map(torch.equal, tree.leaves(one), tree.leaves(other)))


def test_shapes_types_and_values_of_trees() -> None:
    env = make_env(Tree, 2, kind="dict")
    vector = Leaf((2,))
    place = Leaf((11,))
    assert env.spec.obs == {"picture": Leaf((3, 4, 2), "uint8"), "place": place, "pair": (vector, vector)}
    env.reset(0)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.obs["picture"].dtype == torch.uint8 and step.obs["place"].argmax(1).tolist() == [1, 1]
    length = step.obs["pair"][0][:, 1]
    assert torch.equal(step.obs["picture"][:, 0, 0, 0], 10 + length.byte())
    assert torch.equal(step.obs["pair"][1][:, 1], length + 1)


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_part_of_the_observation_if_the_environment_gives_them(name: str) -> None:
    env = MASKED[name]()
    assert env.spec.obs == Obs(Leaf((2,)), Leaf((3,), "bool"))  # type: ignore[arg-type]
    env.reset(0)
    num_ended = 0
    for _ in range(9):
        step = env.step(torch.zeros(3, dtype=torch.int64))
        ended = step.terminated | step.truncated
        count = step.obs.seen[:, 0]
        assert torch.equal(step.obs.mask, torch.stack([count >= 0, count % 2 == 0, count < 0], 1))
        assert torch.equal(step.next_obs.mask[~ended], step.obs.mask[~ended])
        assert not step.next_obs.mask[ended].any(), "a mask may forbid all where the episode ends"
        num_ended += int(ended.sum())
    assert num_ended
    env.close()


def test_masks_are_left_out_where_the_caller_says_so() -> None:
    for kind in ("mask key", "mask info"):
        assert make_env(Tree, 3, kind=kind, masks=False).spec.obs == Leaf((2,)), "the observation alone is left"
    env = make_env(Tree, 3, kind="vector", masks=True)
    assert env.reset(0).mask.all(), "an environment that gives none allows everything"
    assert make_env("Taxi-v4", 2).spec.obs.mask == Leaf((6,), "bool")
    assert make_env("CartPole-v1", 2).spec.obs == Leaf((4,))


class Blocked(Tree):
    """Forbids every action after some steps of an episode, or at a reset."""

    def __init__(self, at: int = 2) -> None:
        super().__init__("mask info")
        self.at = at

    def mask(self) -> Any:
        return super().mask() & (self.count != self.at)


def test_a_mask_that_forbids_all_is_an_error_that_names_environment_lane_and_step() -> None:
    env = make_env(Blocked, 2)
    env.reset(1)
    for step in (1, 2):
        faults = env.step(torch.zeros(2, dtype=torch.int64)).faults
        assert [fault.lane for fault in faults] == ([0, 1] if step == 2 else [])
    assert all(fault.is_breach for fault in faults)
    assert "'Blocked': the action mask of lane 1 forbids every action at step 2; allow at least one" in faults[1].what
    with pytest.raises(SpecError, match="'Blocked': the action mask of lane 0 forbids every action at step 0"):
        make_env(Blocked, 2, at=0).reset(0)
    vector = make_env(SyncVectorEnv([Blocked] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    obs = vector.reset(1)
    with pytest.raises(SpecError, match="the action mask of lane 0 forbids every action at step 2"):
        run(vector, torch.zeros(2, 2, dtype=torch.int64), obs)

    class Stuck(TensorTree):
        def observe(self, state: Tensor) -> Obs:
            obs = super().observe(state)
            assert obs.mask is not None
            return obs._replace(mask=obs.mask & torch.tensor([True, True, True, False, False]))

    tensor = Stuck(2)
    tensor.reset(0)
    with pytest.raises(SpecError, match="'Stuck': the action mask of lane 0 forbids every action at step 1"):
        tensor.step(torch.zeros(2, 2, 2, dtype=torch.int64))


def test_contract(factory: Callable[[], VecEnv]) -> None:
    check_env(factory(), seed=3, steps=120)


def test_two_instances_agree_and_seeds_matter(factory: Callable[[], VecEnv]) -> None:
    env, other = factory(), factory()
    actions = actions_of(env, 40)
    obs = env.reset(7)
    assert equal(obs, other.reset(7))
    history = run(env, actions, obs)
    assert same(history, run(other, actions, obs))
    assert not same(history, run(other, actions, other.reset(8)))


def test_lanes_have_streams_of_their_own(factory: Callable[[], VecEnv]) -> None:
    env = factory()
    if env.spec.num_envs == 1:
        pytest.skip("one lane")
    obs = env.reset(0)
    actions = actions_of(env, 40)
    history = run(env, actions[:, :1].expand_as(actions).contiguous(), obs)
    seen = tree.stack([obs, *(step.next_obs for step in history)])
    for lane in range(1, env.spec.num_envs):
        assert not equal(*(tree.rows(seen, (slice(None), i)) for i in (0, lane)))


def test_a_fresh_instance_continues_from_a_state(factory: Callable[[], VecEnv]) -> None:
    env, fresh, third = factory(), factory(), factory()
    # 33 steps leave most lanes inside an episode, with some episodes behind them.
    last = run(env, actions_of(env, 33), env.reset(1))[-1]
    state = env.state_dict()
    later = actions_of(env, 60, seed=1)
    obs = fresh.load_state_dict(state)
    assert fresh.exactness == env.exactness
    if env.exactness == "episode":
        assert equal(obs, third.load_state_dict(state))
        history = run(fresh, later, obs)
        assert same(history, run(third, later, obs))
        assert not same(history, run(env, later, env.reset(1))), "a resume must not repeat the first episodes"
    else:
        assert equal(obs, last.obs)
        middle = run(env, later[:20], obs)
        assert same(middle, run(fresh, later[:20], obs))
        # The state of a resumed instance is as good as that of the first.
        obs = third.load_state_dict(fresh.state_dict())
        assert same(run(env, later[20:], obs), run(third, later[20:], obs))


def test_no_global_generator_is_touched(factory: Callable[[], VecEnv]) -> None:
    env = factory()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    run(env, actions_of(env, 20), env.reset(0))
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

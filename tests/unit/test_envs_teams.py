"""Teams of PettingZoo, Gymnasium and SMAC: the numbers of the environment itself, and one sentence for mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from team_worlds import Battle, Pair, Relay, Turns

from elegantrl.envs import check_env, make_env
from elegantrl.envs.masks import allowed_actions
from elegantrl.envs.space_text import spaces_from
from elegantrl.envs.vec_env import raise_faults
from elegantrl.errors import ElegantRLError
from elegantrl.rng import derive_seed
from elegantrl.types import ActionSpec, Leaf, Obs


def first_seed(seed: int) -> int:
    """The seed of the first episode of lane 0."""
    return derive_seed(seed, "episode", 0, 0) & 0x7FFF_FFFF


def padded(parts: Any, size: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(torch.from_numpy(part), (0, size - len(part))) for part in parts])


@pytest.mark.parametrize("continuous", [False, True])
def test_every_number_is_that_of_pettingzoo(continuous: bool) -> None:
    from mpe2 import simple_speaker_listener_v4

    kwargs = {"continuous_actions": continuous, "max_cycles": 7}
    env, raw = make_env("mpe2:simple_speaker_listener_v4", **kwargs), simple_speaker_listener_v4.parallel_env(**kwargs)
    names = ("speaker_0", "listener_0")
    assert env.spec.agent_names == names and env.spec.max_episode_steps == 7 and env.spec.num_agents == 2
    assert env.spec.action == (ActionSpec(dim=5, sizes=(3, 5)) if continuous else ActionSpec(choices=(5,)))
    obs, (raw_obs, _) = env.reset(3), raw.reset(seed=first_seed(3))
    generator = torch.Generator().manual_seed(0)
    for index in range(1, 8):
        assert torch.equal(obs.seen[0], padded([raw_obs[name] for name in names], 11))
        assert torch.equal(obs.state[0], torch.from_numpy(raw.state()))
        if not continuous:
            assert obs.mask[0].int().tolist() == [[1, 1, 1, 0, 0], [1] * 5]
        action = allowed_actions(env.spec.action.random((1, 2), generator), obs, env.spec.action)
        if continuous:  # from [-1, 1] to the bounds 0 and 1; the speaker has three numbers
            taken: Any = {"speaker_0": action[0, 0, :3] / 2 + 0.5, "listener_0": action[0, 1] / 2 + 0.5}
            taken = {name: numbers.numpy() for name, numbers in taken.items()}
        else:
            taken = dict(zip(names, action[0].tolist(), strict=True))
        step = raise_faults(env, env.step(action))
        raw_obs, rewards, *_ = raw.step(taken)
        torch.testing.assert_close(step.reward[0], torch.tensor([rewards[name] for name in names]).float())
        assert torch.equal(step.next_obs.seen[0], padded([raw_obs[name] for name in names], 11))
        assert step.truncated.tolist() == [index == 7] and not step.terminated.any() and step.won is None
        assert step.next_obs.active.all(), "all agents end with their team"
        obs = step.obs


def test_agents_that_end_early() -> None:
    env = make_env(Relay, 2, max_cycles=8)
    assert env.spec.obs == Obs(Leaf((3, 5)), Leaf((3, 4), "bool"), Leaf((2,)), Leaf((3,), "bool"))  # type: ignore[arg-type]
    obs = env.reset(0)
    for count in range(1, 9):
        active = obs.active
        action = torch.tensor([[1, 2, 2]] * 2)
        step = raise_faults(env, env.step(action))
        # The lifter's options start at 1.
        assert torch.equal(step.reward, torch.where(active, torch.tensor([0.0 + 1, 1 + 3, 2 + 2]), 0.0))
        length = step.next_obs.state[:, 1]
        going = torch.stack([count < length, count < length + 2, count <= 8 * torch.ones(2)], 1)
        assert torch.equal(step.next_obs.active, going), "the scout was only cut: its successor has a value"
        numbers = torch.tensor([1.0, 2, 3])
        assert torch.equal(step.next_obs.seen[..., 0], torch.where(going, numbers, 0))
        assert not step.next_obs.seen[~going].any() and not step.next_obs.mask[~going].any()
        lifter = torch.tensor([count % 2 == 0, True, True, count % 2 == 1])
        assert torch.equal(step.next_obs.mask[:, 1], lifter & going[:, 1:2])
        assert torch.equal(step.next_obs.mask[:, 2], torch.tensor([[True, True, True, False]] * 2))
        assert step.truncated.tolist() == [count == 8] * 2 and not step.terminated.any()
        obs = step.obs
    assert obs.active.all(), "the next episode has begun"


def test_a_team_whose_last_agents_end_terminates() -> None:
    env = make_env(Relay, 1, whole=True, max_cycles=99)
    obs = env.reset(0)
    for count in range(1, int(obs.state[0, 1]) + 3):
        step = raise_faults(env, env.step(torch.tensor([[0, 1, 0]])))
        over = count == obs.state[0, 1] + 2
        assert step.terminated.item() == over and not step.truncated.item()
    assert step.next_obs.active.tolist() == [[False, True, True]], "these ended with their team"


def test_an_option_that_an_agent_lacks_is_a_fault() -> None:
    env = make_env(Relay, 2)
    env.reset(0)
    faults = env.step(torch.tensor([[3, 1, 0], [0, 1, 0]])).faults
    assert len(faults) == 1 and faults[0].lane == 0 and "'runner' was given option [3] of [2]" in faults[0].what


def test_forbidden_options_are_replaced_by_allowed_ones() -> None:
    mask = torch.tensor([[[0, 1, 1, 1, 0], [1, 0, 0, 0, 1]]]).bool()  # choices of three and of two options
    obs = Obs(torch.zeros(1, 2, 1), mask)
    taken = [[[0, 0], [2, 1]], [[1, 1], [1, 0]], [[2, 0], [0, 1]]]
    found = [allowed_actions(torch.tensor([action]), obs, ActionSpec(choices=(3, 2)))[0].tolist() for action in taken]
    assert found == [[[1, 0], [0, 1]], [[2, 0], [0, 1]], [[1, 0], [0, 1]]]


def test_check_env_refuses_rewards_of_agents_that_have_ended() -> None:
    env: Any = make_env(Relay, 2)
    for lane in env.envs:
        lane._rewards = lambda rewards, acted: np.ones(3, np.float32)
    assert "reward is expected to be 0 for agents that have ended" in message_of(lambda: check_env(env))


def test_spaces_are_kept_by_the_names_of_agents() -> None:
    shows, takes = spaces_from(make_env(Relay).spec.spaces)
    assert list(shows.spaces) == list(takes.spaces) == ["runner", "lifter", "scout"], "in the order of agents"
    assert takes["lifter"] == spaces.Discrete(4, start=1) and shows["scout"].shape == (4,)


def test_foraging_ends_by_food_and_is_cut_by_time() -> None:
    env: Any = make_env("Foraging-5x5-2p-1f-v3", 4)
    assert env.spec.max_episode_steps == 50 and env.spec.obs == Leaf((2, 9))
    env.reset(0)
    kinds, age = set(), torch.zeros(4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        step = raise_faults(env, env.step(env.spec.action.random((4, 2), generator)))
        age += 1
        assert torch.equal(step.truncated, (age == 50) & ~step.terminated)
        # All food is eaten together, and the rewards of both for it are 1 in sum.
        torch.testing.assert_close(step.reward.sum(1), step.terminated.float())
        ended = step.terminated | step.truncated
        kinds |= {"eaten"} if step.terminated.any() else set()
        kinds |= {"cut"} if step.truncated.any() else set()
        age[ended] = 0
    assert kinds == {"eaten", "cut"}


def test_the_warehouse_is_cut_by_time() -> None:
    env = make_env(gym.make("rware:rware-tiny-2ag-v2", max_steps=5, disable_env_checker=True), 2)
    env.reset(0)
    assert env.spec.max_episode_steps == 5
    for index in range(1, 11):
        step = raise_faults(env, env.step(torch.zeros(2, 2, dtype=torch.int64)))
        assert step.truncated.tolist() == [index % 5 == 0] * 2 and not step.terminated.any()


@pytest.mark.parametrize("shared", [True, False])
def test_one_reward_is_shared_and_many_are_kept(shared: bool) -> None:
    env = make_env(Pair, 2, shared=shared)
    assert env.spec.obs == Obs(Leaf((2, 4)), Leaf((2, 3), "bool"))  # type: ignore[arg-type]
    obs = env.reset(0)
    assert obs.seen[0, 0, 0] == 0 and obs.seen[0, 1].tolist() == [1, 0, 0, 0], "a choice is one-hot"
    reward = env.step(torch.tensor([[2, 1], [0, 1]])).reward
    assert reward.tolist() == ([[1.5, 1.5], [0.5, 0.5]] if shared else [[2, 1], [0, 1]])


@pytest.mark.parametrize("explains", [True, False])
def test_battles_are_won_lost_or_cut(explains: bool) -> None:
    env: Any = make_env(Battle, 4, episode_limit=6, explains=explains)
    assert env.spec.max_episode_steps == 6 and env.spec.obs.state == Leaf((6,))
    obs = env.reset(0)
    generator = torch.Generator().manual_seed(0)
    ends = {"won": 0, "lost": 0, "cut": 0}
    for _ in range(200):
        action = allowed_actions(env.spec.action.random((4, 3), generator), obs, env.spec.action)
        step = raise_faults(env, env.step(action))
        health, enemies = step.next_obs.state[:, :3], step.next_obs.state[:, 3:5]
        won, lost = ~enemies.any(1), ~health.any(1)
        late = (step.next_obs.state[:, 5] == 6) & ~won & ~lost
        assert torch.equal(step.next_obs.active, health > 0)
        assert torch.equal(step.won, won) and torch.equal(step.terminated, won | lost)
        assert torch.equal(step.truncated, late)
        hits = (obs.state[:, 3:5] - enemies).sum(1)
        torch.testing.assert_close(step.reward.sum(1), hits)
        assert not step.reward[~obs.active].any()
        ends = {
            kind: num + int(flags.sum()) for (kind, num), flags in zip(ends.items(), (won, lost, late), strict=True)
        }
        obs = step.obs
    assert all(ends.values()), ends


def test_a_lane_that_fails_does_not_affect_the_others() -> None:
    class Shaky(Relay):
        def step(self, actions: Any) -> tuple[Any, ...]:
            if self.count == 1 and self.length == 4:
                raise RuntimeError("out of order")
            return super().step(actions)

    env, sound = make_env(Shaky, 6), make_env(Relay, 6)
    obs = env.reset(1)
    sound.reset(1)
    shaky = obs.state[:, 1] == 4
    assert shaky.any() and not shaky.all()
    for _ in range(2):
        step, other = env.step(torch.tensor([[0, 1, 0]] * 6)), sound.step(torch.tensor([[0, 1, 0]] * 6))
    assert [fault.lane for fault in step.faults] == shaky.nonzero().flatten().tolist()
    assert torch.equal(step.truncated, shaky) and not step.reward[shaky].any()
    assert torch.equal(step.next_obs.seen[~shaky], other.next_obs.seen[~shaky])


class Growing(Relay):
    def step(self, actions: Any) -> tuple[Any, ...]:
        result = super().step(actions)
        self.agents = [*self.agents, "stranger"]
        return result


class Returning(Relay):
    def step(self, actions: Any) -> tuple[Any, ...]:
        gone = set(self.possible_agents) - set(self.agents)
        result = super().step({agent: action for agent, action in actions.items() if agent in self.agents})
        self.agents = [*self.agents, *sorted(gone)]
        return result


class Forbidding(Relay):
    def told(self) -> dict[str, Any]:
        return {agent: {"action_mask": np.zeros(4, np.int8)} if agent == "lifter" else {} for agent in self.agents}


class Mixed(Relay):
    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2,)) if agent == "scout" else super().action_space(agent)


class Nameless(Relay):
    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


class Silent(Relay):
    def observed(self) -> dict[str, Any]:
        obs = super().observed()
        return {agent: part for agent, part in obs.items() if agent != "scout"}


class Misshapen(Relay):
    def observed(self) -> dict[str, Any]:
        return super().observed() | {"scout": np.zeros(3, np.float32)}


class Unpaid(Relay):
    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, *rest = super().step(actions)
        return obs, rewards | {"scout": "much"}, *rest


class Alone(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = self.observation_space[0]


class FourValues(Battle):
    def step(self, actions: Any) -> Any:
        return (*super().step(actions), None)


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        (Growing, ["'Growing'", "agent 'stranger' appears that possible_agents does not name", "the same agents"]),
        (Returning, ["'Returning'", "appears in the middle of an episode"]),
        (Forbidding, ["'Forbidding'", "forbids every action to agent 'lifter' at step 0", "allow at least one"]),
        (Mixed, ["'Mixed'", "'runner' are choices", "'scout' are numbers", "all of them Discrete"]),
        (Nameless, ["'Nameless'", "has no possible_agents"]),
        (Silent, ["'Silent'", "reset returned no observation of agent 'scout'"]),
        (Misshapen, ["'Misshapen'", "an observation of agent 'scout' of shape (3,), expected (4,)"]),
        (Unpaid, ["'Unpaid'", "reward 'much' for agent 'scout', expected a number"]),
        (Turns, ["'Turns'", "act in turn", "pettingzoo.utils.aec_to_parallel(env)"]),
        (Alone, ["'Alone'", "a tuple of 2", "observation_space is Box"]),
        (FourValues, ["'FourValues'", "expected reward, terminated, info"]),
    ],
)
def test_one_sentence_names_the_mistake(env: Any, parts: list[str]) -> None:
    message = message_of(lambda: check_env(make_env(env, 2)))
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: make_env("mpe2:simple_spread_v9"), ["'mpe2:simple_spread_v9'", "did you mean 'simple_spread_v3'"]),
        (lambda: make_env("mpe2:simple_spread_v3", M=2), ["'mpe2:simple_spread_v3'", "'M'"]),
        (lambda: make_env(Relay, masks=False), ["'Relay'", "different numbers of options", "masks=False"]),
        (lambda: make_env("team_worlds:Relay").step(torch.zeros(1, 2)), ["shape (1, 2), expected (1, 3)"]),
    ],
)
def test_settings(call: Callable[[], Any], parts: list[str]) -> None:
    message = message_of(call)
    assert all(part in message for part in parts), message


def message_of(call: Callable[[], Any]) -> str:
    """The one line that a user sees; a warning on the way to it would be a second one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ElegantRLError) as caught:
            call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_environment_of_turns_is_converted_where_that_is_safe() -> None:
    from mpe2 import simple_spread_v3

    env, named = make_env(simple_spread_v3.env(N=2)), make_env("mpe2:simple_spread_v3", N=2)
    assert torch.equal(env.reset(0).seen, named.reset(0).seen)
    actions = torch.tensor([[1, 3]])
    assert torch.equal(env.step(actions).reward, named.step(actions).reward)


def test_an_instance_is_copied_into_lanes() -> None:
    env, named = make_env(Relay(max_cycles=4), 3), make_env("team_worlds:Relay", 3, max_cycles=4)
    check_env(env, steps=30)
    assert torch.equal(env.reset(5).seen, named.reset(5).seen)

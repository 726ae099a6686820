"""The tensor worlds of a team: contract, forces by hand, scripted prey, the rules of a skirmish, pictures, oracles."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from elegantrl.envs import TensorEnv, check_env, make_env
from elegantrl.envs.tensor import SkirmishVecEnv, SpreadVecEnv, TagVecEnv
from elegantrl.envs.tensor.particles import VIEW, rows
from elegantrl.envs.tensor.skirmish import ENEMY_HEALTH, FIRST_ATTACK, HALF_WIDTH, HEALTH, RANGE, SIGHT
from elegantrl.errors import ConfigError
from elegantrl.types import Obs, Step, seen_part

WORLDS = ["TensorSpread", "TensorTag", "TensorSpeakerListener", "TensorForaging", "TensorSkirmish"]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("TensorSpread", {}),
    ("TensorSpread", {"num_agents": 1}),
    ("TensorSpread", {"num_agents": 5, "continuous_actions": True}),
    ("TensorTag", {}),
    ("TensorTag", {"num_good": 2, "num_obstacles": 0, "continuous_actions": True}),
    ("TensorTag", {"prey": "learned", "num_good": 2}),
    ("TensorSpeakerListener", {}),
    ("TensorSpeakerListener", {"continuous_actions": True}),
    ("TensorForaging", {}),
    ("TensorForaging", {"size": 6, "num_agents": 4, "foods": 3, "coop": False}),
    ("TensorSkirmish", {}),
    ("TensorSkirmish", {"allies": 1, "enemies": 2, "max_episode_steps": 9}),
    ("TensorSkirmish", {"allies": 4, "enemies": 3, "enemy_aim": "weakest"}),
]


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_contract(name: str, settings: dict[str, Any]) -> None:
    check_env(make_env(name, 5, **settings))


@pytest.mark.parametrize("name", WORLDS)
def test_a_step_takes_as_many_operations_for_many_lanes_as_for_two(name: str) -> None:
    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for lanes in (2, 300):
        env = make_env(name, lanes, max_episode_steps=3)
        env.reset(0)
        with Count() as count:
            for _ in range(3):  # the last step resets every lane
                env.step(torch.zeros(lanes, *env.spec.team, dtype=torch.int64))
        counts.append(count.calls)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", WORLDS)
def test_lanes_are_reset_by_mask_and_the_others_go_on(name: str) -> None:
    env = make_env(name, 6)
    env.reset(0)
    for _ in range(3):
        before = env.step(torch.zeros(6, *env.spec.team, dtype=torch.int64)).obs
    lanes = torch.tensor([True, False, False, True, False, False])
    after = env.reset_lanes(lanes)
    same = (seen_part(before) == seen_part(after)).flatten(1).all(1)
    assert same.tolist() == (~lanes).tolist()
    limit = env.spec.max_episode_steps
    assert limit is not None
    steps = [env.step(torch.zeros(6, *env.spec.team, dtype=torch.int64)).truncated for _ in range(limit - 3)]
    if name != "TensorSkirmish":
        assert steps[-1].tolist() == (~lanes).tolist() and not torch.stack(steps[:-1]).any()


@pytest.mark.parametrize("name", WORLDS)
def test_lanes_do_not_depend_on_each_other(name: str) -> None:
    """The same states in another order give the same steps in that order."""
    env = make_env(name, 8)
    env.reset(3)
    start, order = env.state_dict()["state"], torch.randperm(8, generator=torch.Generator().manual_seed(0))
    action = env.spec.action.random((8, *env.spec.team), torch.Generator().manual_seed(1))
    step = env.step(action)
    env.load_state_dict({**env.state_dict(), "state": start[order]})
    other = env.step(action[order])
    torch.testing.assert_close(other.reward, step.reward[order])
    torch.testing.assert_close(seen_part(other.next_obs), seen_part(step.next_obs)[order])


# ---- particles


def place(env: TensorEnv, entities: list[tuple[float, float]]) -> None:
    """Put the entities of the only lane at rest to these places."""
    env.reset(0)
    columns = torch.zeros_like(env.state_dict()["state"]).t().contiguous()
    env.positions(columns)[..., 0] = torch.tensor(entities).t()  # type: ignore[attr-defined]
    env.load_state_dict({**env.state_dict(), "state": rows(columns)})


def test_two_agents_that_overlap_are_pushed_apart_as_computed_by_hand() -> None:
    env = SpreadVecEnv(1, num_agents=2)
    place(env, [(0.0, 0.0), (0.2, 0.0), (0.0, 0.3), (0.2, -0.3)])
    seen = env.step(torch.tensor([[0, 4]])).next_obs[0]
    # The overlap is 0.3 - 0.2; the force 100 * 0.1 acts for 0.1 s. The push upwards has the acceleration 5.
    assert seen[0, :4].tolist() == pytest.approx([-1.0, 0, 0, 0], abs=1e-5)
    assert seen[1, :4].tolist() == pytest.approx([1.0, 0.5, 0.2, 0], abs=1e-5)
    step = env.step(torch.tensor([[0, 0]]))
    # Places change by the velocity before the step, so the overlap was the same once more; damping takes a quarter.
    assert step.next_obs[0, 0, :4].tolist() == pytest.approx([-1.75, 0, -0.1, 0], abs=1e-5)
    assert step.next_obs[0, 1, :4].tolist() == pytest.approx([1.75, 0.375, 0.3, 0.05], abs=1e-5)
    distance = math.hypot(0.1, 0.3) + math.hypot(0.1, 0.35)  # of each landmark to the agent nearest to it
    assert step.reward[0].tolist() == pytest.approx([-distance / 2] * 2, abs=1e-5)


def test_a_contact_costs_both_agents_their_local_reward() -> None:
    env = SpreadVecEnv(1, num_agents=3, local_ratio=1.0)
    place(env, [(0, 0), (0.25, 0), (3, 3), (0, 0), (0, 0), (0, 0)])
    assert env.step(torch.zeros(1, 3, dtype=torch.int64)).reward.tolist() == [[-1, -1, 0]]


def test_bodies_at_the_same_place_stay_finite() -> None:
    env = SpreadVecEnv(1, num_agents=3)
    place(env, [(0, 0)] * 6)
    assert torch.isfinite(env.step(torch.tensor([[0, 1, 2]])).next_obs).all()


def test_tag_counts_every_contact_for_every_predator() -> None:
    env = TagVecEnv(1, num_obstacles=0)
    place(env, [(0.1, 0), (-0.1, 0), (3, 3), (0, 0)])
    assert env.step(torch.zeros(1, 3, dtype=torch.int64)).reward.tolist() == [[20, 20, 20]]


@pytest.mark.parametrize(
    ("predator", "prey", "direction"),
    [((-0.5, 0.1), (0, 0), (1, 0)), ((0.1, 0.5), (0, 0), (0, -1)), ((-3, 0.1), (0.97, 0), (-1, 0))],
)
def test_a_scripted_prey_flees_from_predators_and_from_the_edge(
    predator: tuple[float, float], prey: tuple[float, float], direction: tuple[float, float]
) -> None:
    env = TagVecEnv(1, num_adversaries=1, num_obstacles=0)
    place(env, [predator, prey])
    seen = env.step(torch.zeros(1, 1, dtype=torch.int64)).next_obs[0, 0]
    assert seen[-2:].tolist() == pytest.approx([0.4 * direction[0], 0.4 * direction[1]], abs=1e-5)


def test_a_scripted_prey_stays_near_the_arena() -> None:
    env = TagVecEnv(200)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(24):
        env.step(env.spec.action.random((200, 3), generator))
        columns = env.state_dict()["state"].t().contiguous()
        assert env.positions(columns)[:, 3].abs().max() < 1.4


def test_speaker_and_listener_share_the_reward_and_the_message_arrives() -> None:
    env = make_env("TensorSpeakerListener", 2)
    obs = env.reset(0)
    assert obs.mask.sum(2).tolist() == [[3, 5], [3, 5]]
    assert (obs.seen[:, 1, 8:] == 0).all()
    step = env.step(torch.tensor([[2, 0], [4, 0]]))
    assert step.next_obs.seen[:, 1, 8:].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert (step.reward[:, 0] == step.reward[:, 1]).all() and (step.reward < 0).all()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("TensorSpread", {"local_ratio": 2}, "local_ratio=2"),
        ("TensorSpread", {"num_agents": 0}, "num_agents=0"),
        ("TensorTag", {"prey": "wild"}, "scripted, learned"),
        ("TensorTag", {"num_obstacles": -1}, "num_obstacles=-1"),
        ("TensorForaging", {"size": 4}, "choose at least 5"),
        ("TensorForaging", {"foods": 9}, "choose at least size=9"),
        ("TensorSkirmish", {"allies": 0}, "allies=0"),
        ("TensorSkirmish", {"enemy_aim": "all"}, "nearest, weakest"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env(name, **settings)


# ---- skirmish


def battle(*units: tuple[float, float, float, float], allies: int = 1, **settings: Any) -> SkirmishVecEnv:
    """One lane with these units: x, y, health, steps until the weapon is ready."""
    env = SkirmishVecEnv(1, allies=allies, enemies=len(units) - allies, **settings)
    env.reset(0)
    env.load_state_dict({**env.state_dict(), "state": torch.tensor(units, dtype=torch.float32).t().reshape(1, -1)})
    return env


def units_of(obs: Tensor) -> list[list[float]]:
    return obs.view(4, -1).t().tolist()


def test_a_shot_takes_health_and_a_weapon_must_cool_down() -> None:
    env = battle((0, 0, 8, 0), (4, 0, 7, 0))
    attack = torch.tensor([[FIRST_ATTACK]])
    health = []
    for _ in range(4):
        state = units_of(env.step(attack).next_obs.state[0])
        health.append((round(state[0][2] * HEALTH), round(state[1][2] * HEALTH)))
    assert health == [(7, 6), (7, 6), (7, 6), (6, 5)]


def test_masks_name_what_can_be_done() -> None:
    env = battle((HALF_WIDTH, 0, 8, 0), (0, 0, 0, 0), (HALF_WIDTH - RANGE, 0, 7, 0), (HALF_WIDTH, 6, 7, 0), allies=2)
    obs = env.load_state_dict(env.state_dict())
    assert isinstance(obs, Obs) and obs.mask is not None and obs.active is not None
    # no-op, stop, north, south, east, west, attack 0, attack 1
    assert obs.mask[0, 0].tolist() == [False, True, True, True, False, True, True, False]
    assert obs.mask[0, 1].tolist() == [True, *[False] * 7]
    assert obs.active[0].tolist() == [True, False]
    assert (obs.seen[0, 1] == 0).all(), "a dead unit sees nothing"


def test_an_ally_sees_units_alive_within_sight_only() -> None:
    env = battle((0, 0, 4, 2), (0, 3, 8, 0), (0, -SIGHT + 1, 7, 0), (SIGHT - 0.5, 5, 7, 0), (1, 1, 0, 0), allies=2)
    seen = env.load_state_dict(env.state_dict()).seen[0, 0]
    assert seen[:4].tolist() == [0, 0, 0.5, 1]
    assert seen[4:9].tolist() == pytest.approx([1, 3 / SIGHT, 0, 3 / SIGHT, 1])
    assert seen[9:15].tolist() == pytest.approx([1, 8 / SIGHT, 0, -8 / SIGHT, 7 / 8, 0])
    assert (seen[15:] == 0).all()


def test_units_that_are_dead_neither_move_nor_shoot() -> None:
    env = battle((0, 0, 0, 0), (1, 0, 8, 0), (2, 0, 0, 0), (-7, 0, 7, 0), allies=2)
    step = env.step(torch.tensor([[FIRST_ATTACK + 1, 1]]))
    state = env.state_dict()["state"][0].view(4, -1).t().tolist()
    assert state[0] == [0, 0, 0, 0] and state[2] == [2, 0, 0, 0]
    assert state[1][2] == 8 and state[3] == [-6, 0, 7, 0], "out of range: the enemy approaches and the rest is unhurt"
    assert step.reward.sum() == 0


def test_enemies_aim_at_the_nearest_or_the_weakest_ally_within_range() -> None:
    units = [(0.0, 0.0, 8.0, 0.0), (0.0, 3.0, 2.0, 0.0), (0.0, 6.0, 1.0, 0.0), (0.0, -1.0, 7.0, 0.0)]
    for aim, expected in (("nearest", [7, 2, 1]), ("weakest", [8, 1, 1])):
        env = battle(*units, allies=3, enemy_aim=aim)
        env.step(torch.ones(1, 3, dtype=torch.int64))
        assert env.state_dict()["state"][0].view(4, -1)[2, :3].tolist() == expected


def test_the_last_hit_wins_and_a_draw_does_not() -> None:
    win, draw = battle((0, 0, 8, 0), (1, 0, 1, 0)), battle((0, 0, 1, 0), (1, 0, 1, 0))
    attack = torch.tensor([[FIRST_ATTACK]])
    step = win.step(attack)
    assert step.won is not None and step.won.tolist() == step.terminated.tolist() == [True]
    assert step.reward.item() == pytest.approx(8 / ENEMY_HEALTH + 2 + 10)
    step = draw.step(attack)
    assert step.won is not None and step.won.tolist() == [False] and step.terminated.tolist() == [True]
    assert step.reward.item() == pytest.approx(8 / ENEMY_HEALTH + 2)


def test_other_worlds_cannot_be_won() -> None:
    env = make_env("TensorSpread")
    env.reset(0)
    assert env.step(torch.zeros(1, 3, dtype=torch.int64)).won is None


@pytest.fixture
def oracles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    for name in ("team_oracles", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import team_oracles

    return team_oracles


def test_rules_of_a_skirmish_hold_over_whole_battles(oracles: ModuleType) -> None:
    """Focused fire in half of the lanes, random play in the others."""
    env = SkirmishVecEnv(60)
    obs, random = env.reset(0), oracles.random_team(env, 0)
    health, total = torch.full((60, 6), torch.inf), torch.zeros(60)
    returns: list[tuple[float, bool]] = []
    for _ in range(120):
        assert (obs.mask.any(2)).all()
        assert (obs.mask[..., 0] == ~obs.active).all()
        action = torch.where((torch.arange(60) < 30).unsqueeze(1), oracles.focus_fire(obs), random(obs))
        assert obs.mask.gather(2, action.unsqueeze(2)).all()
        step: Step = env.step(action)
        left = step.next_obs.state.view(60, 4, 6)[:, 2]
        assert (left >= 0).all() and (left <= health).all()
        enemies_dead, allies_dead = (left[:, 3:] == 0).all(1), (left[:, :3] == 0).all(1)
        assert step.won is not None
        assert (step.won == (enemies_dead & ~allies_dead)).all() and (
            step.terminated == enemies_dead | allies_dead
        ).all()
        share = step.reward.amax(1, keepdim=True)
        assert (step.reward >= 0).all() and (step.reward == torch.where(obs.active, share, 0.0)).all()
        total += step.reward.sum(1)
        done = step.terminated | step.truncated
        returns += zip(total[done].tolist(), step.won[done].tolist(), strict=True)
        total[done] = 0
        obs, health = step.obs, torch.where(done.unsqueeze(1), torch.inf, left)
    wins = [value for value, won in returns if won]
    assert len(wins) > 30 and wins == pytest.approx([20.0] * len(wins), abs=1e-4)
    assert all(value < 10.01 for value, won in returns if not won)


def test_focused_fire_wins_and_random_play_does_not(oracles: ModuleType) -> None:
    env = SkirmishVecEnv(300)
    assert oracles.play(env, oracles.focus_fire, 300)["win_rate"] > 0.9
    assert oracles.play(env, oracles.random_team(env, 0), 300)["win_rate"] < 0.05


@pytest.mark.parametrize(("name", "gain"), [("TensorSpread", 40), ("TensorSpeakerListener", 40), ("TensorTag", 20)])
def test_scripted_teams_are_far_better_than_random_ones(oracles: ModuleType, name: str, gain: float) -> None:
    env = make_env(name, 300)
    scripted, random = (
        oracles.play(env, oracles.ORACLES[name], 300),
        oracles.play(env, oracles.random_team(env, 0), 300),
    )
    assert scripted["episodes"] == random["episodes"] == 300
    assert scripted["return"] > random["return"] + gain


# ---- pictures


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_draws_one_of_its_lanes(name: str) -> None:
    env = make_env(name, 2)
    env.reset(0)
    first, second = env.draw(), env.draw(lane=1)  # type: ignore[attr-defined]
    assert first.ndim == 3 and first.shape[2] == 3 and first.dtype == np.uint8
    assert first.shape == second.shape and (first != second).any()
    _, counts = np.unique(first.reshape(-1, 3), axis=0, return_counts=True)
    assert counts.max() > 0.5 * counts.sum()  # the ground is most of a picture


def test_an_agent_is_drawn_where_it_is() -> None:
    env = SpreadVecEnv(1, num_agents=1)
    place(env, [(0.75, 0.75), (-0.75, -0.75)])
    picture = env.draw()
    far = round((1 + 0.75 / VIEW) / 2 * len(picture))
    near = len(picture) - far
    red, _, blue = picture[near, far].tolist()  # right of the middle and above it
    assert blue > red + 80
    assert len(set(picture[far, near].tolist())) == 1 and picture[far, near, 0] < 200, "the landmark is grey"

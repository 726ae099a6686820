"""TensorForaging equals ``lbforaging`` step by step, from the same places and with the same actions.

Axes: N lanes, G agents.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from elegantrl.envs.tensor import ForagingVecEnv
from elegantrl.envs.tensor.foraging import LOAD

pytest.importorskip("lbforaging")

LANES, EPISODES = 16, 3


def reference_of(size: int, agents: int, foods: int, coop: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Gymnasium about the package's own checks
        name = f"Foraging-{size}x{size}-{agents}p-{foods}f{'-coop' if coop else ''}-v3"
        return gym.make(name, disable_env_checker=True).unwrapped


def follow(game: Any, food_F3: list[list[float]], agent_G3: list[list[float]], total: float) -> None:
    """Put food and players of ``game`` where those of a lane are."""
    game.reset(seed=0)
    game.field[:] = 0
    for row, column, level in food_F3:
        game.field[int(row), int(column)] += int(level)
    for player, (row, column, level) in zip(game.players, agent_G3, strict=True):
        player.position, player.level = (int(row), int(column)), int(level)
    game._food_spawned = total
    game._gen_valid_moves()


def near_food(env: ForagingVecEnv, action_NG: torch.Tensor) -> torch.Tensor:
    """Every second lane goes to the first food and loads it, so that food is eaten."""
    seen = env.observe(env.state_dict()["state"])
    offset = seen[..., :2] - seen[..., 3 * env._foods : 3 * env._foods + 2]
    axis = offset.abs().argmax(-1, keepdim=True)
    step = offset.gather(-1, axis).squeeze(-1)
    go = 1 + 2 * axis.squeeze(-1) + (step > 0)
    purposeful = torch.where(offset.abs().sum(-1) == 1, LOAD, go)
    is_random = torch.arange(len(action_NG)).unsqueeze(1) % 2 == 0
    return torch.where(is_random | (torch.rand(action_NG.shape) < 0.2), action_NG, purposeful)


@pytest.mark.parametrize(
    ("size", "agents", "foods", "coop"), [(8, 2, 2, True), (8, 2, 2, False), (6, 4, 3, False), (10, 3, 3, True)]
)
def test_steps_equal_those_of_lbforaging(size: int, agents: int, foods: int, coop: bool) -> None:
    pytest.importorskip("lbforaging")
    env = ForagingVecEnv(LANES, size=size, num_agents=agents, foods=foods, coop=coop)
    games = [reference_of(size, agents, foods, coop) for _ in range(LANES)]
    generator = torch.Generator().manual_seed(1)
    eaten = 0.0
    obs, is_new = env.reset(0), torch.ones(LANES, dtype=torch.bool)
    for _ in range(50 * EPISODES):
        food, agent, total = env._parts(env.state_dict()["state"])
        for lane in is_new.nonzero().flatten().tolist():
            follow(games[lane], food[lane].tolist(), agent[lane].tolist(), float(total[lane]))
            np.testing.assert_array_equal(np.stack(games[lane]._make_gym_obs()), obs[lane])
        action = near_food(env, env.spec.action.random((LANES, agents), generator))
        result = env.step(action)
        for lane, game in enumerate(games):
            seen, reward, *_ = game.step(action[lane].tolist())
            np.testing.assert_array_equal(np.stack(seen), result.next_obs[lane])
            np.testing.assert_allclose(reward, result.reward[lane], rtol=1e-6)
            assert (not game.field.any()) == bool(result.terminated[lane])
            eaten += sum(reward)
        obs, is_new = result.obs, result.terminated | result.truncated
    assert eaten > 3


def test_first_states_are_those_that_lbforaging_allows() -> None:
    env = ForagingVecEnv(3000, size=6, num_agents=3, foods=2, coop=False)
    env.reset(0)
    food, agent, total = env._parts(env.state_dict()["state"])
    assert (food[..., :2] >= 1).all() and (food[..., :2] <= 4).all()
    gap = (food[:, 0, :2] - food[:, 1, :2]).abs()
    placed = (food[..., 2] > 0).all(1)
    assert ((gap.amax(1) > 1) & ((gap.amin(1) > 0) | (gap.amax(1) > 2)))[placed].all()
    places = torch.cat([food[..., :2], agent[..., :2]], dim=1)
    same = (places.unsqueeze(1) == places.unsqueeze(2)).all(3).sum((1, 2))
    assert (same == places.shape[1])[placed].all()
    assert set(agent[..., 2].unique().tolist()) == {1.0, 2.0}
    assert (total.squeeze(1) == food[..., 2].sum(1)).all()
    # As often as there: the share of lanes in which an agent stands in a corner.
    corner = ((agent[..., :2] == 0) | (agent[..., :2] == 5)).all(2).float().mean()
    assert abs(float(corner) - 4 / 36) < 0.015


def test_levels_of_food() -> None:
    """With ``coop`` the levels of all agents together, otherwise anything up to that."""
    for coop in (True, False):
        env = ForagingVecEnv(500, coop=coop)
        env.reset(0)
        food, agent, _ = env._parts(env.state_dict()["state"])
        most = agent[..., 2].sum(1, keepdim=True)
        assert (food[..., 2] == most).all() == coop
        assert (food[..., 2] >= 1).all() and (food[..., 2] <= most).all()

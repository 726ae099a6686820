"""Small environments of teams with the interfaces of PettingZoo, Gymnasium and SMAC, for tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Relay(ParallelEnv[str, Any, Any]):
    """Three unlike agents count steps. The runner ends after ``length`` steps of its own, the lifter two steps later;
    the scout, and with it the team, is cut after ``max_cycles`` steps unless ``whole`` lets it end with the lifter.

    Each sees [its number, steps, length] and zeros; the reward of an agent is its number plus its action.
    """

    metadata: Any = {"name": "relay"}  # noqa: RUF012

    def __init__(self, continuous: bool = False, max_cycles: int = 8, whole: bool = False, masks: bool = True) -> None:
        self.possible_agents = ["runner", "lifter", "scout"]
        self.max_cycles, self.whole, self.masks = max_cycles, whole, masks and not continuous
        sizes = {"runner": 3, "lifter": 5, "scout": 4}
        self.shows = {agent: spaces.Box(-9, 99, (size,), np.float32) for agent, size in sizes.items()}
        options = {"runner": spaces.Discrete(2), "lifter": spaces.Discrete(4, start=1), "scout": spaces.Discrete(3)}
        numbers = {agent: spaces.Box(0, 4, (i + 1,), np.float32) for i, agent in enumerate(sizes)}
        self.takes: dict[str, Any] = dict(numbers if continuous else options)  # type: ignore[arg-type]

    def observation_space(self, agent: str) -> Any:
        return self.shows[agent]

    def action_space(self, agent: str) -> Any:
        return self.takes[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.count = list(self.possible_agents), 0
        self.length = int(np.random.default_rng(seed).integers(1, 5))
        return self.observed(), self.told()

    def step(self, actions: Any) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents)
        assert all(self.takes[agent].contains(action) for agent, action in actions.items()), actions
        self.count += 1
        acted = list(self.agents)
        ends = {"runner": self.count == self.length, "lifter": self.count == self.length + 2}
        ends["scout"] = self.whole and ends["lifter"]
        over = {agent: ends[agent] for agent in acted}
        cut = {agent: self.count == self.max_cycles for agent in acted}
        rewards = {agent: self.possible_agents.index(agent) + float(np.sum(actions[agent])) for agent in acted}
        result = self.observed(), rewards, over, cut, self.told()
        self.agents = [agent for agent in acted if not over[agent] and not cut[agent]]
        return result

    def state(self) -> Any:
        return np.array([self.count, self.length], np.float32)

    def observed(self) -> dict[str, Any]:
        number = self.possible_agents.index
        return {
            agent: np.array([number(agent) + 1, self.count, self.length, 0, 0], np.float32)[
                : self.shows[agent].shape[0]
            ]
            for agent in self.agents
        }

    def told(self) -> dict[str, Any]:
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if self.masks and "lifter" in infos:
            infos["lifter"]["action_mask"] = np.array([self.count % 2 == 0, True, True, self.count % 2 == 1])
        return infos


class Turns(AECEnv[str, Any, Any]):
    """Agents that act in turn."""

    def __init__(self) -> None:
        self.metadata = {"name": "turns"}
        self.possible_agents = ["one", "two"]


class Pair(gym.Env[Any, Any]):
    """Two agents with tuples of spaces; one reward for both, or one for each."""

    def __init__(self, shared: bool = True) -> None:
        self.shared = shared
        self.observation_space = spaces.Tuple([spaces.Box(0, 9, (2,), np.float32), spaces.Discrete(4)])
        self.action_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.length = 0, int(self.np_random.integers(2, 5))
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.count += 1
        rewards = [float(action[0]), float(action[1])]
        return self.shown(), sum(rewards) if self.shared else rewards, self.count == self.length, False, {}

    def shown(self) -> Any:
        return np.array([self.count, self.length], np.float32), self.count % 4


class Battle:
    """Two soldiers and a medic against two enemies, with the interface of SMAC.

    Actions: 0 no-op, for the dead alone; 1 wait; 2 and 3 hit an enemy that is alive; 4 heal, the medic's alone. Each
    enemy that is alive hits a unit at random.
    """

    def __init__(self, episode_limit: int = 9, explains: bool = True) -> None:
        self.episode_limit, self.explains = episode_limit, explains
        self.generator = np.random.default_rng(0)

    def get_env_info(self) -> dict[str, Any]:
        sizes = {"n_agents": 3, "n_actions": 5, "obs_shape": 4, "state_shape": 6}
        return sizes | {"episode_limit": self.episode_limit}

    def seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def reset(self) -> tuple[Any, Any]:
        self.health, self.enemies, self.count = np.array([3, 3, 2]), self.generator.integers(2, 7, 2), 0
        return self.get_obs(), self.get_state()

    def get_obs(self) -> list[Any]:
        return [np.array([i, self.health[i], *self.enemies], np.float32) * (self.health[i] > 0) for i in range(3)]

    def get_state(self) -> Any:
        return np.array([*self.health, *self.enemies, self.count], np.float32)

    def get_avail_actions(self) -> list[list[int]]:
        hits = [int(health > 0) for health in self.enemies]
        return [[0, 1, *hits, int(i == 2)] if self.health[i] > 0 else [1, 0, 0, 0, 0] for i in range(3)]

    def step(self, actions: Any) -> tuple[float, bool, dict[str, Any]]:
        available = self.get_avail_actions()
        assert all(available[i][action] for i, action in enumerate(actions)), (actions, available)
        self.count += 1
        before = self.enemies.sum()
        for action in actions:
            if action in (2, 3):
                self.enemies[action - 2] = max(self.enemies[action - 2] - 1, 0)
            self.health += (action == 4) * (self.health > 0)
        for _ in range(int((self.enemies > 0).sum())):
            target = self.generator.integers(3)
            self.health[target] = max(self.health[target] - 2, 0)
        won, lost, late = not self.enemies.any(), not self.health.any(), self.count >= self.episode_limit
        info: dict[str, Any] = {"battle_won": won}
        if late and not won and not lost and self.explains:
            info["episode_limit"] = True
        return float(before - self.enemies.sum()), won or lost or late, info

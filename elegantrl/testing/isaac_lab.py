"""Fakes of environments of Isaac Lab, with one agent or a team, and of mjlab.

Their buffers are overwritten in place by every step, and hold NaN while it runs.

Axes: N environment lanes.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector.utils import batch_space
from torch import Tensor

from . import rail

FinalObs = Literal["none", "tensor", "groups", "flags", "array"]


class FakeIsaacLabEnv(gym.Env[Any, Any]):
    """Resets a lane within the step that ends it.

    ``final_obs``: the form in which ``extras`` hold the last observations, as some forks have it; rows of lanes whose
    episode goes on are NaN then, and so is every second row of "tensor", whose observation is lost. With ``critic`` the
    value network may see the wind.
    """

    group = "policy"

    def __init__(
        self,
        num_envs: int = 4,
        device: str = "cpu",
        critic: bool = True,
        final_obs: FinalObs = "none",
        is_finite_horizon: bool = False,
        auto_reset: bool = True,
    ):
        self.num_envs, self.device, self.form = num_envs, str(device), final_obs
        self.cfg = SimpleNamespace(is_finite_horizon=is_finite_horizon, auto_reset=auto_reset)
        self.max_episode_length = rail.LIMIT
        sizes = {self.group: rail.NUM_SEEN} | ({"critic": rail.NUM_STATE} if critic else {})
        self.single_observation_space = Dict({key: Box(-np.inf, np.inf, (size,)) for key, size in sizes.items()})
        self.single_action_space = Box(-np.inf, np.inf, (1,))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.sim = torch.zeros(num_envs, rail.NUM_STATE, device=self.device)
        self.obs_buf = {key: torch.zeros(num_envs, size, device=self.device) for key, size in sizes.items()}
        self.reward_buf = torch.zeros(num_envs, device=self.device)
        self.reset_terminated = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.reset_time_outs = torch.zeros_like(self.reset_terminated)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.extras: dict[str, Any] = {}

    @staticmethod
    def seed(seed: int = -1) -> int:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if seed is not None:
            self.seed(seed)
        self.reset_idx(torch.arange(self.num_envs, device=self.device))
        self.observe()
        return self.obs_buf, self.extras

    def reset_idx(self, env_ids: Tensor) -> None:
        self.sim[env_ids] = rail.first_states(len(env_ids), self.sim.device)
        self.episode_length_buf[env_ids] = 0

    def observe(self) -> None:
        self.obs_buf[self.group].copy_(rail.seen_of(self.sim))
        if "critic" in self.obs_buf:
            self.obs_buf["critic"].copy_(self.sim)

    def step(self, action: Tensor) -> Any:
        for buffer in (*self.obs_buf.values(), self.reward_buf):
            buffer.fill_(float("nan"))
        self.sim.copy_(rail.advance(self.sim, action[:, 0]))
        self.episode_length_buf += 1
        self.reset_terminated.copy_(rail.has_ended(self.sim))
        self.reset_time_outs.copy_(self.episode_length_buf >= self.max_episode_length)
        self.reward_buf.copy_(rail.reward_of(self.sim, action[:, 0]))
        done = self.reset_terminated | self.reset_time_outs
        self.extras = {"log": {}} | self.final_extras(done)
        if self.cfg.auto_reset:
            self.reset_idx(done.nonzero().flatten())
        self.observe()
        return self.obs_buf, self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras

    def final_extras(self, done: Tensor) -> dict[str, Any]:
        """The last observations of lanes [N] that are done, in the chosen form."""
        if self.form == "none":
            return {}
        lost = torch.full_like(self.sim, float("nan"))
        state = torch.where(done.unsqueeze(1), self.sim, lost)
        groups = {self.group: rail.seen_of(state), "critic": state}
        if self.form == "tensor":
            groups[self.group][1::2] = float("nan")
            return {"final_obs": groups[self.group]}
        if self.form == "array":
            rows = [{key: x[lane] for key, x in groups.items()} for lane in range(self.num_envs)]
            array = np.empty(self.num_envs, dtype=object)
            array[:] = [row if is_done else None for row, is_done in zip(rows, done.tolist(), strict=True)]
            return {"final_obs": array}
        if self.form == "flags":  # what the flags do not mark is finite and wrong
            return {"final_obs": {key: x.nan_to_num(7.0) for key, x in groups.items()}, "_final_obs": done.clone()}
        return {"final_obs": groups}


class FakeMjlabEnv(FakeIsaacLabEnv):
    """Calls the group of the policy ``actor``. With ``auto_reset=False`` a step returns the last observations, and the
    caller resets the lanes that ended before the next step."""

    group = "actor"

    def __init__(self, num_envs: int = 4, device: str = "cpu", auto_reset: bool = False):
        super().__init__(num_envs, device, auto_reset=auto_reset)
        self.pending = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, env_ids: Tensor | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if env_ids is None:
            env_ids = torch.arange(self.num_envs, device=self.device)
        if seed is not None:
            self.seed(seed)
        self.reset_idx(env_ids)
        self.reward_buf[env_ids] = float("nan")  # what is not copied before the reset is lost
        self.pending[env_ids] = False
        self.observe()
        return self.obs_buf, self.extras

    def step(self, action: Tensor) -> Any:
        if self.pending.any():
            raise RuntimeError(f"environments {self.pending.nonzero().flatten().tolist()} must be reset first")
        result = super().step(action)
        if not self.cfg.auto_reset:
            self.pending |= self.reset_terminated | self.reset_time_outs
        return result


class FakeIsaacLabTeam(gym.Env[Any, Any]):
    """Two agents push one cart: ``left`` sees its place and speed, ``right`` its place, speed and the time.

    Their forces add up, and each has half of the reward. With ``state`` there is a global state with the wind.
    """

    possible_agents = ("left", "right")

    def __init__(self, num_envs: int = 4, device: str = "cpu", state: bool = True):
        self.num_envs, self.device, self.has_state = num_envs, str(device), state
        self.agents = list(self.possible_agents)
        self.cfg = SimpleNamespace()
        self.max_episode_length = rail.LIMIT
        self.observation_spaces = {"left": Box(-np.inf, np.inf, (2,)), "right": Box(-np.inf, np.inf, (3,))}
        self.action_spaces = {"left": Box(-1.0, 1.0, (1,)), "right": Box(-0.5, 0.5, (2,))}
        self.sim = torch.zeros(num_envs, rail.NUM_STATE, device=self.device)
        self.state_buf = torch.zeros_like(self.sim)
        self.obs_dict = {"left": torch.zeros_like(self.sim[:, :2]), "right": torch.zeros_like(self.sim[:, :3])}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=self.device)

    def state(self) -> Tensor | None:
        return self.state_buf if self.has_state else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if seed is not None:
            FakeIsaacLabEnv.seed(seed)
        self.sim.copy_(rail.first_states(self.num_envs, self.sim.device))
        self.episode_length_buf.zero_()
        self.observe()
        return self.obs_dict, {agent: {} for agent in self.possible_agents}

    def observe(self) -> None:
        self.obs_dict["left"].copy_(self.sim[:, :2])
        self.obs_dict["right"].copy_(rail.seen_of(self.sim))
        self.state_buf.copy_(self.sim)

    def step(self, actions: dict[str, Tensor]) -> Any:
        for buffer in (*self.obs_dict.values(), self.state_buf):
            buffer.fill_(float("nan"))
        force = actions["left"][:, 0] + actions["right"].sum(1)
        self.sim.copy_(rail.advance(self.sim, force))
        self.episode_length_buf += 1
        share = rail.reward_of(self.sim, force) / 2
        ended, late = rail.has_ended(self.sim), self.episode_length_buf >= self.max_episode_length
        done = (ended | late).nonzero().flatten()
        self.sim[done] = rail.first_states(len(done), self.sim.device)
        self.episode_length_buf[done] = 0
        self.observe()
        rewards, terminated, truncated = ({agent: x for agent in self.possible_agents} for x in (share, ended, late))
        return self.obs_dict, rewards, terminated, truncated, {agent: {} for agent in self.possible_agents}

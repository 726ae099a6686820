"""Fakes of tasks for Isaac Gym: the ``VecTask`` of IsaacGymEnvs and a robot of legged_gym, on a cart instead.

Their buffers are overwritten in place by every step, and hold NaN while it runs.

Axes: N environment lanes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from . import rail


class FakeVecTask:
    """Resets a lane in the step after the one that ended it, whose action is lost.

    With ``same_step`` it is reset at once, as some tasks do: then the last observation is lost, and the flags of time
    limits, which are computed from a counter that is 0 again, are false. With ``num_states`` the value network may see
    the wind.
    """

    clip_obs = 50.0
    clip_actions = 1.0
    max_episode_length = rail.LIMIT + 1  # a task resets a lane after one step less

    def __init__(self, num_envs: int = 4, device: str = "cpu", num_states: int = 0, same_step: bool = False):
        self.num_envs, self.num_obs, self.num_acts, self.num_states = num_envs, rail.NUM_SEEN, 1, num_states
        self.device = self.rl_device = str(device)
        self.observation_space = Box(-np.inf, np.inf, (self.num_obs,))
        self.action_space = Box(-1.0, 1.0, (1,))
        self.same_step = same_step
        self.sim = torch.zeros(num_envs, rail.NUM_STATE, device=self.device)
        self.obs_buf = torch.zeros(num_envs, self.num_obs, device=self.device)
        self.states_buf = torch.zeros(num_envs, num_states, device=self.device)
        self.rew_buf = torch.zeros(num_envs, device=self.device)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long, device=self.device)
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.extras: dict[str, Any] = {}
        self.obs_dict: dict[str, Tensor] = {}

    def zero_actions(self) -> Tensor:
        return torch.zeros(self.num_envs, self.num_acts, device=self.device)

    def reset(self) -> dict[str, Tensor]:
        """The buffers as they are: all lanes are marked, and the first step resets them."""
        return self.observed()

    def reset_done(self) -> tuple[dict[str, Tensor], Tensor]:
        ids = self.reset_buf.nonzero().flatten()
        if len(ids):
            self.reset_idx(ids)
        return self.observed(), ids

    def observed(self) -> dict[str, Tensor]:
        self.obs_dict["obs"] = torch.clamp(self.obs_buf, -self.clip_obs, self.clip_obs)
        if self.num_states:
            self.obs_dict["states"] = self.get_state()
        return self.obs_dict

    def get_state(self) -> Tensor:
        return torch.clamp(self.states_buf, -self.clip_obs, self.clip_obs)

    def reset_idx(self, env_ids: Tensor) -> None:
        """New states; observations are not computed here."""
        self.sim[env_ids] = rail.first_states(len(env_ids), self.sim.device)
        self.reset_buf[env_ids] = int(self.same_step)
        self.progress_buf[env_ids] = 0
        if not self.same_step:
            self.rew_buf[env_ids] = float("nan")  # what is not copied before the reset is lost

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        for buffer in (self.obs_buf, self.states_buf, self.rew_buf):
            buffer.fill_(float("nan"))
        self.force = torch.clamp(actions, -self.clip_actions, self.clip_actions)[:, 0]
        self.sim.copy_(rail.advance(self.sim, self.force))
        self.post_physics_step()
        self.extras["time_outs"] = (self.progress_buf >= self.max_episode_length - 1) & (self.reset_buf != 0)
        return self.observed(), self.rew_buf, self.reset_buf, self.extras

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        if self.same_step:
            self.compute_reward()
        ids = self.reset_buf.nonzero().flatten()
        if len(ids):
            self.reset_idx(ids)
        self.compute_observations()
        if not self.same_step:
            self.compute_reward()

    def compute_observations(self) -> None:
        self.obs_buf.copy_(rail.seen_of(self.sim))
        self.states_buf.copy_(self.sim[:, : self.num_states])

    def compute_reward(self) -> None:
        self.rew_buf.copy_(rail.reward_of(self.sim, self.force))
        late = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf.copy_((rail.has_ended(self.sim) | late).long())


class FakeLeggedRobot:
    """Resets a lane at once; ``step`` returns five values, of which the second are privileged observations or None.

    Flags of time limits are those of the last step that reset a lane.
    """

    max_episode_length = rail.LIMIT

    def __init__(self, num_envs: int = 4, device: str = "cpu", privileged: bool = True):
        self.num_envs, self.num_obs, self.num_actions = num_envs, rail.NUM_SEEN, 1
        self.num_privileged_obs = rail.NUM_STATE if privileged else None
        self.device = str(device)
        self.cfg = SimpleNamespace(env=SimpleNamespace(send_timeouts=True))
        self.sim = torch.zeros(num_envs, rail.NUM_STATE, device=self.device)
        self.obs_buf = torch.zeros(num_envs, self.num_obs, device=self.device)
        self.privileged_obs_buf = torch.zeros(num_envs, rail.NUM_STATE, device=self.device) if privileged else None
        self.rew_buf = torch.zeros(num_envs, device=self.device)
        self.reset_buf = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.extras: dict[str, Any] = {}

    def get_observations(self) -> Tensor:
        return self.obs_buf

    def get_privileged_observations(self) -> Tensor | None:
        return self.privileged_obs_buf

    def reset_idx(self, env_ids: Tensor) -> None:
        self.sim[env_ids] = rail.first_states(len(env_ids), self.sim.device)
        self.episode_length_buf[env_ids] = 0

    def reset(self) -> tuple[Tensor, Tensor | None]:
        self.reset_idx(torch.arange(self.num_envs, device=self.device))
        obs, privileged, *_ = self.step(torch.zeros(self.num_envs, self.num_actions, device=self.device))
        return obs, privileged

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, dict[str, Any]]:
        for buffer in (self.obs_buf, self.privileged_obs_buf, self.rew_buf):
            if buffer is not None:
                buffer.fill_(float("nan"))
        force = torch.clip(actions, -100, 100)[:, 0]
        self.sim.copy_(rail.advance(self.sim, force))
        self.episode_length_buf += 1
        late = self.episode_length_buf >= self.max_episode_length
        self.reset_buf.copy_(rail.has_ended(self.sim) | late)
        self.rew_buf.copy_(rail.reward_of(self.sim, force))
        ids = self.reset_buf.nonzero().flatten()
        if len(ids):
            self.reset_idx(ids)
            self.extras["time_outs"] = late
        self.obs_buf.copy_(rail.seen_of(self.sim))
        if self.privileged_obs_buf is not None:
            self.privileged_obs_buf.copy_(self.sim)
        return self.obs_buf, self.privileged_obs_buf, self.rew_buf, self.reset_buf, self.extras

"""A fake of what RSL-RL trains: groups of observations, dones as integers, time limits under ``time_outs``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import rail


class FakeRslVecEnv:
    """Has exactly the methods of the abstract class, which has no ``reset``: the runner of RSL-RL never calls one."""

    max_episode_length = rail.LIMIT
    num_actions = 1

    def __init__(self, num_envs: int = 4, device: str = "cpu"):
        self.num_envs, self.device = num_envs, str(device)
        self.cfg: dict[str, Any] = {}
        self.sim = rail.first_states(num_envs, torch.device(self.device))
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.reward_buf = torch.zeros(num_envs, device=self.device)
        self.obs_buf = {"policy": torch.zeros(num_envs, 3, device=self.device), "critic": torch.zeros_like(self.sim)}
        self.observe()

    def observe(self) -> None:
        self.obs_buf["policy"].copy_(rail.seen_of(self.sim))
        self.obs_buf["critic"].copy_(self.sim)

    def get_observations(self) -> dict[str, Tensor]:
        return self.obs_buf

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        for buffer in (*self.obs_buf.values(), self.reward_buf):
            buffer.fill_(float("nan"))
        self.sim.copy_(rail.advance(self.sim, actions[:, 0]))
        self.episode_length_buf = self.episode_length_buf + 1
        time_outs = self.episode_length_buf >= self.max_episode_length
        done = rail.has_ended(self.sim) | time_outs
        self.reward_buf.copy_(rail.reward_of(self.sim, actions[:, 0]))
        self.sim[done] = rail.first_states(int(done.sum()), self.sim.device)
        self.episode_length_buf[done] = 0
        self.observe()
        return self.obs_buf, self.reward_buf, done.long(), {"time_outs": time_outs, "log": {}}

"""Environments whose step costs a chosen time, asleep or busy; a module of its own so that worker processes find it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Costly(gym.Env[np.ndarray, np.ndarray]):
    """Observations and actions of HalfCheetah's size; an episode has 200 steps."""

    observation_space = gym.spaces.Box(-1, 1, (17,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self, seconds: float, is_busy: bool = False):
        self.seconds, self.is_busy, self.time = seconds, is_busy, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.look(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.is_busy:  # processor time: two that share a core take twice as long
            end = time.thread_time() + self.seconds
            while time.thread_time() < end:
                pass
        else:
            time.sleep(self.seconds)
        self.time += 1
        return self.look(), float(1.0 - np.square(action).mean()), False, self.time >= 200, {}

    def look(self) -> np.ndarray:
        return np.full(17, self.time / 200, np.float32)

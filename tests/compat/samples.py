"""Environments as documents write them, and a short budget."""

import gymnasium as gym
import numpy as np


def short(args):
    args.break_step = 600
    args.eval_times = 2
    args.gpu_id = -1
    return args


class Line:
    """A documented custom environment: attributes instead of spaces, ``reset`` without info, four values per step."""

    env_name = "Line"
    state_dim, action_dim, if_discrete = 1, 2, True
    max_step = 20
    target_return = 19.0

    def __init__(self, start=0.0, table=None):
        self.start, self.table = start, table

    def reset(self):
        self.x, self.steps = self.start, 0
        return np.array([self.x], dtype=np.float32)

    def step(self, action):
        self.x += 0.1 * (2 * action - 1)
        self.steps += 1
        return np.array([self.x], dtype=np.float32), float(action), False, {}


class Point(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-3, 3, (1,), np.float32)

    def __init__(self, size=1.0, max_step=8):
        self.size, self.max_step = size, max_step

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.last_action = action
        return np.zeros(2, np.float32), -abs(float(action[0])), False, self.steps >= self.max_step, {}

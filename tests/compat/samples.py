"""Environments as documents write them, and a short budget."""

import gymnasium as gym
import numpy as np
import torch


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


class Chase:
    """The vector environment of the tutorial: all lanes in tensors, ended ones reset within ``step``."""

    def __init__(self, dim=2, env_num=4096, device_id=-1):
        self.dim, self.env_num = dim, env_num
        self.env_name, self.state_dim, self.action_dim, self.if_discrete = "Chase", 4 * dim, dim, False
        self.max_step, self.target_return = 2**5, 6.3
        self.device = torch.device("cpu" if device_id < 0 else f"cuda:{device_id}")

    def reset(self):
        self.place = torch.zeros(2, self.env_num, self.dim)  # of the hunted and of the hunter
        self.speed = torch.zeros(2, self.env_num, self.dim)
        self.steps = np.zeros(self.env_num, dtype=int)
        for lane in range(self.env_num):
            self.reset_lane(lane)
        self.distance = (self.place[0] - self.place[1]).norm(dim=1)
        return self.state()

    def reset_lane(self, lane):
        self.place[:, lane] = torch.randn(2, self.dim) * float(np.random.rand())
        self.speed[:, lane] = 0.0
        self.steps[lane] = 0

    def state(self):
        return torch.cat([*self.place, *self.speed], dim=1)

    def step(self, actions):
        flight = torch.rand(self.env_num, self.dim)
        for i, (push, drag) in enumerate(((flight, 0.5), (actions, 0.75))):
            push = push / push.norm(dim=1, keepdim=True).clamp_min(1.0)
            self.speed[i] *= drag
            self.speed[i] += push
            self.place[i] += self.speed[i] * 0.01
        distance = (self.place[0] - self.place[1]).norm(dim=1)
        rewards = self.distance - distance - actions.norm(dim=1) * 0.02
        self.distance = distance
        self.steps += 1
        dones = torch.zeros(self.env_num)
        for lane in range(self.env_num):
            if distance[lane] < 0.1 or self.steps[lane] == self.max_step:
                dones[lane] = 1
                self.reset_lane(lane)
        return self.state(), rewards, dones, None

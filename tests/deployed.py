"""Policies of every agent for every kind of space, with random weights: what is exported and served in tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from choosing import DictCorridor, Levers, MaskedLever, MaskedLevers, MethodCorridor
from gymnasium import spaces
from team_worlds import Relay
from teams import Aims, LeavingSigns, Signs

from elegantrl.config.resolve import resolve_config
from elegantrl.config.run import RunConfig
from elegantrl.envs import make_env
from elegantrl.envs.space_text import describe_tensors
from elegantrl.nets.normalize import ObsNorm
from elegantrl.registry import build_agent, find_agent
from elegantrl.store.best import BestFile
from elegantrl.store.side_files import SideFiles
from elegantrl.store.team_units import units_of
from elegantrl.store.trained import TrainedPolicy
from elegantrl.store.untrusted import CONFIG_FILE
from elegantrl.types import EnvSpec


class Made(gym.Env[Any, Any]):
    """An environment of any spaces."""

    def __init__(self, shown: Any, taken: Any) -> None:
        self.observation_space, self.action_space = shown, taken

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


@dataclass(frozen=True)
class Case:
    """An agent, its environment, and settings of both."""

    agent: str
    env: Any
    settings: dict[str, Any] = field(default_factory=dict)
    frame_stack: int | None = None

    def spec(self) -> EnvSpec:
        return make_env(self.env, 1, frame_stack=self.frame_stack).spec

    def load(self) -> TrainedPolicy:
        """The policy as ``TrainedPolicy.load`` returns it, without a run."""
        spec, entry = self.spec(), find_agent(self.agent)
        short = {"burn_in": 2, "horizon": 6} if self.agent == "recurrent_dqn" else {}
        config = entry.config(**{"hidden": (16, 16), **short, **entry.preset, **self.settings})
        agent = build_agent(entry, spec, config, torch.device("cpu"), 0)
        policy = agent.policy.requires_grad_(False)
        generator = torch.Generator().manual_seed(3)
        for module in policy.modules():
            if isinstance(module, ObsNorm):  # as of observations around 0.3 with a deviation of 2
                module.mean.fill_(0.3)
                module.inv_std.fill_(0.5)
        for x in policy.parameters():  # far from the small first weights of a head
            fan_in = max(1, x[0].numel()) if x.dim() > 1 else 25
            x.add_(torch.randn(x.shape, generator=generator) / math.sqrt(fan_in))
        units = units_of(spec.spaces or describe_tensors(spec), agent.policy_spec, spec.name)
        return TrainedPolicy(policy, agent.policy_spec, units, run_config(self.agent), Path("run"))

    def write(self, folder: Path) -> Path:
        """The same as a run folder."""
        trained, spec = self.load(), self.spec()
        folder.mkdir(parents=True)
        BestFile(folder, trained.spec, spec, SideFiles()).save(trained.policy.to_flat(), 0, 0.0)
        (folder / CONFIG_FILE).write_text(trained.config.to_yaml())
        return folder


def run_config(agent: str) -> RunConfig:
    env = "TensorSpread" if find_agent(agent).agent.teams else "CartPole-v1"
    if "discrete" not in find_agent(agent).agent.actions:
        env = "Pendulum-v1"
    config, _ = resolve_config(agent, env)
    return config


VECTOR, TWO = spaces.Box(-np.inf, np.inf, (5,), np.float32), spaces.Discrete(2)
NUMBERS = spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 30, np.inf], np.float32))
PICTURE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
CAR = spaces.Dict({"camera": PICTURE, "speed": spaces.Box(-9, 9, (), np.float64), "gear": spaces.Discrete(4, start=-1)})
NORMED = {"normalize_obs": True}

AGENTS = {
    "a2c": Case("a2c", "CartPole-v1", NORMED),
    "d3qn": Case("d3qn", "CartPole-v1", NORMED),
    "ddpg": Case("ddpg", "Pendulum-v1", NORMED | {"noise": "ou"}),
    "discrete_sac": Case("discrete_sac", "CartPole-v1", NORMED),
    "double_dqn": Case("double_dqn", "CartPole-v1"),
    "dqn": Case("dqn", "CartPole-v1", NORMED),
    "dueling_dqn": Case("dueling_dqn", "CartPole-v1"),
    "mod_sac": Case("mod_sac", "Pendulum-v1", NORMED),
    "ppo": Case("ppo", "CartPole-v1", NORMED),
    "recurrent_dqn": Case("recurrent_dqn", "CartPole-v1", NORMED),
    "redq": Case("redq", "Pendulum-v1"),
    "sac": Case("sac", "Pendulum-v1", {"warm_up_hold": 4}),
    "td3": Case("td3", "Pendulum-v1", NORMED),
    "ippo": Case("ippo", Signs, NORMED),
    "maddpg": Case("maddpg", Aims),
    "mappo": Case("mappo", Relay),
    "matd3": Case("matd3", partial(Relay, continuous=True)),
    "qmix": Case("qmix", LeavingSigns),
    "vdn": Case("vdn", Signs),
}
"""Every agent once."""

KINDS = {
    "box float64": Case("ppo", partial(Made, spaces.Box(-1, 1, (4,), np.float64), NUMBERS)),
    "box scalar": Case("ppo", partial(Made, spaces.Box(-1, 1, (), np.float32), TWO)),
    "box matrix": Case("ppo", partial(Made, spaces.Box(-1, 1, (3, 4), np.float32), TWO), NORMED),
    "box whole numbers": Case("ppo", partial(Made, spaces.Box(-9, 9, (4,), np.int16), TWO), NORMED),
    "choice": Case("ppo", partial(Made, spaces.Discrete(5, start=2), TWO)),
    "choices": Case("dqn", partial(Made, spaces.MultiDiscrete([[3, 4], [2, 5]], start=[[0, 1], [-1, 9]]), TWO)),
    "flags": Case("ppo", partial(Made, spaces.MultiBinary([2, 3]), TWO)),
    "picture": Case("ppo", partial(Made, PICTURE, TWO)),
    "picture, impala": Case("ppo", partial(Made, PICTURE, TWO), {"encoder": "impala_cnn"}),
    "picture of flags": Case("dqn", partial(Made, spaces.Box(0, 1, (4, 10, 10), np.bool_), TWO)),
    "cells": Case("ppo", partial(Made, spaces.Box(0, 255, (7, 7, 3), np.uint8), TWO)),
    "dict": Case("ppo", partial(Made, CAR, NUMBERS), NORMED),
    "nested": Case("a2c", partial(Made, spaces.Dict({"a": spaces.Tuple([VECTOR, TWO]), "b": VECTOR}), TWO), NORMED),
    "tuple": Case("sac", partial(Made, spaces.Tuple([VECTOR, spaces.Discrete(3)]), NUMBERS)),
    "actions float64": Case("td3", partial(Made, VECTOR, spaces.Box(-3.0, 7.0, (2, 2), np.float64))),
    "actions unbounded": Case("ppo", partial(Made, VECTOR, spaces.Box(-np.inf, np.inf, (2,), np.float32))),
    "actions shifted": Case("dqn", partial(Made, VECTOR, spaces.Discrete(3, start=-5))),
    "multi-discrete": Case(
        "ppo", partial(Made, VECTOR, spaces.MultiDiscrete([[3, 2], [4, 2]], start=[[1, 0], [0, -2]]))
    ),
    "multi-discrete values": Case("d3qn", partial(Made, VECTOR, spaces.MultiDiscrete([3, 2]))),
    "multi-binary": Case("a2c", partial(Made, VECTOR, spaces.MultiBinary(4))),
    "tensor multi-discrete": Case("ppo", Levers),
    "mask": Case("ppo", MethodCorridor),
    "mask in the observation": Case("dqn", DictCorridor),
    "mask of several choices": Case("ppo", MaskedLevers),
    "mask of several choices, values": Case("d3qn", MaskedLevers),
    "mask, soft": Case("discrete_sac", MaskedLever),
    "frames": Case("ppo", partial(Made, PICTURE, TWO), frame_stack=3),
    "frames of flags": Case("dqn", partial(Made, spaces.Box(0, 1, (10, 10, 4), np.bool_), TWO), frame_stack=2),
    "frames in a dict": Case("ppo", partial(Made, CAR, NUMBERS), NORMED, frame_stack=2),
    "gru": Case("ppo", "Pendulum-v1", NORMED | {"memory": "gru", "memory_size": 12}),
    "lstm": Case("ppo", MethodCorridor, {"memory": "lstm", "memory_size": 12}),
    "gru and frames": Case("ppo", partial(Made, CAR, TWO), {"memory": "gru"}, frame_stack=2),
    "team with memory": Case("mappo", Relay, {"memory": "gru", "memory_size": 8}),
    "team of separate weights": Case("mappo", Relay, {"separate": True, "memory": "lstm"}),
}
"""Every kind of observation, action, mask and state."""

CASES = AGENTS | KINDS

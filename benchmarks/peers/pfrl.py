"""PFRL, written for gym before it had truncations."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import FOREVER, Ppo, make, network
from torch import nn


def train(env: str, seed: int, settings: Ppo) -> None:
    from pfrl.agents import PPO
    from pfrl.envs import SerialVectorEnv
    from pfrl.experiments import train_agent_batch
    from pfrl.nn import Branched, EmpiricalNormalization
    from pfrl.policies import GaussianHeadWithStateIndependentCovariance, SoftmaxCategoricalHead

    random.seed(seed)  # its minibatches
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = SerialVectorEnv([Old(make(env), seed + number, settings) for number in range(settings.envs)])
    space, shape = envs.action_space, envs.observation_space.shape
    head: nn.Module
    if isinstance(space, gym.spaces.Discrete):
        outputs, head = int(space.n), SoftmaxCategoricalHead()
    else:
        outputs = space.shape[0]
        head = GaussianHeadWithStateIndependentCovariance(outputs, var_type="diagonal", var_func=torch.exp)
    policy = nn.Sequential(network(shape[0], outputs, 0.01), head)
    model = Branched(policy, network(shape[0], 1, 1.0))
    agent = PPO(
        model,
        torch.optim.Adam(model.parameters(), lr=settings.learning_rate, eps=1e-5),
        obs_normalizer=EmpiricalNormalization(shape, clip_threshold=5) if settings.normalize else None,
        gamma=settings.gamma,
        lambd=settings.gae_lambda,
        value_func_coef=settings.value,
        entropy_coef=settings.entropy,
        update_interval=settings.envs * settings.steps,
        minibatch_size=settings.batch,
        epochs=settings.epochs,
        clip_eps=0.2,
        max_grad_norm=0.5,
    )
    with tempfile.TemporaryDirectory() as folder:  # it saves the agent when the rule ends it
        train_agent_batch(agent, envs, FOREVER, folder)


class Old(gym.Wrapper[Any, Any, Any, Any]):
    """An environment as PFRL knows it: what is not terminal but has to be reset is said beside."""

    def __init__(self, env: gym.Env[Any, Any], seed: int, settings: Ppo) -> None:
        super().__init__(gym.wrappers.NormalizeReward(env, gamma=settings.gamma) if settings.normalize else env)
        self.env.reset(seed=seed)

    def reset(self) -> Any:  # type: ignore[override]
        return np.float32(self.env.reset()[0])

    def step(self, action: Any) -> tuple[Any, ...]:  # type: ignore[override]
        seen, reward, terminated, truncated, _ = self.env.step(action)
        return np.float32(seen), float(reward), terminated, {"needs_reset": truncated}

"""Tianshou."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import FOREVER, HIDDEN, Ppo, make
from torch import nn


def train(env: str, seed: int, settings: Ppo) -> None:
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv, VectorEnvNormObs
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = DummyVectorEnv([partial(make, env, clip=False)] * settings.envs)
    envs = VectorEnvNormObs(envs) if settings.normalize else envs
    envs.seed(seed)
    space, shape = envs.action_space[0], envs.observation_space[0].shape
    nets = [Net(state_shape=shape, hidden_sizes=HIDDEN, activation=nn.Tanh) for _ in range(2)]
    policy: Any
    if isinstance(space, gym.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=nets[0], action_shape=space.n, softmax_output=False)
        critic = DiscreteCritic(preprocess_net=nets[1])
        last, policy = actor.last, DiscreteActorPolicy(actor=actor, action_space=space)
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=nets[0], action_shape=space.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=nets[1])
        nn.init.constant_(actor.sigma_param, -0.5)
        last, policy = actor.mu, ProbabilisticActorPolicy(actor=actor, dist_fn=normal, action_space=space)
    for layer in [*actor.modules(), *critic.modules()]:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)
    for layer in last.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 0.01
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=settings.learning_rate),
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        vf_coef=settings.value,
        ent_coef=settings.entropy,
        max_grad_norm=0.5,
        return_scaling=settings.normalize,
        recompute_advantage=settings.normalize,
    )
    collected = settings.envs * settings.steps
    collector = Collector(algorithm, envs, VectorReplayBuffer(2 * collected, settings.envs))
    params = OnPolicyTrainerParams(
        training_collector=collector,
        max_epochs=FOREVER,
        epoch_num_steps=50 * collected,
        collection_step_num_env_steps=collected,
        update_step_num_repetitions=settings.epochs,
        batch_size=settings.batch,
        verbose=False,
        show_progress=False,
    )
    algorithm.run_training(params)


def normal(location_and_scale: tuple[torch.Tensor, torch.Tensor]) -> torch.distributions.Distribution:
    return torch.distributions.Independent(torch.distributions.Normal(*location_and_scale), 1)

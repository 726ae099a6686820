"""MushroomRL, which acts in one environment only: it takes all the steps of a round there.

Policy and values are learnt one after the other, each with an optimiser of its own: there is no coefficient of the
values. Nor does it clip gradients.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers import common
from peers.common import FOREVER, Ppo, make
from torch import nn


def train(env: str, seed: int, settings: Ppo) -> None:
    from mushroom_rl.algorithms.actor_critic import PPO
    from mushroom_rl.core import Core, Environment, MDPInfo
    from mushroom_rl.policy import BoltzmannTorchPolicy, GaussianTorchPolicy
    from mushroom_rl.utils import spaces
    from mushroom_rl.utils.preprocessors import StandardizationPreprocessor

    class One(Environment):  # type: ignore[misc]
        def __init__(self) -> None:
            made = make(env)
            self.made = gym.wrappers.NormalizeReward(made, gamma=settings.gamma) if settings.normalize else made
            self.made.reset(seed=seed)
            assert made.spec is not None
            seen, space = made.observation_space, made.action_space
            self.discrete = isinstance(space, gym.spaces.Discrete)
            actions = spaces.Discrete(space.n) if self.discrete else spaces.Box(space.low, space.high)
            # The library ends episodes by this horizon, which is the time limit of the environment
            horizon = made.spec.max_episode_steps
            super().__init__(MDPInfo(spaces.Box(seen.low, seen.high), actions, settings.gamma, horizon))

        def reset(self, state: Any = None) -> Any:
            return self.made.reset()[0]

        def step(self, action: Any) -> tuple[Any, ...]:
            seen, reward, terminated, _, _ = self.made.step(action[0] if self.discrete else action)
            return seen, reward, terminated, {}

    np.random.seed(seed)
    torch.manual_seed(seed)
    mdp = One()
    shape, space = mdp.info.observation_space.shape, mdp.info.action_space
    if mdp.discrete:
        policy = BoltzmannTorchPolicy(network, shape, (space.n,), beta=1.0, gain=0.01)
    else:
        policy = GaussianTorchPolicy(network, shape, space.shape, gain=0.01)
    optimizer = {"class": torch.optim.Adam, "params": {"lr": settings.learning_rate, "eps": 1e-5}}
    critic = {
        "network": network,
        "gain": 1.0,
        "input_shape": shape,
        "output_shape": (1,),
        "optimizer": optimizer,
        "loss": nn.functional.mse_loss,
        "batch_size": settings.batch,
    }
    agent = PPO(
        mdp.info,
        policy,
        actor_optimizer=optimizer,
        critic_params=critic,
        n_epochs_policy=settings.epochs,
        batch_size=settings.batch,
        eps_ppo=0.2,
        lam=settings.gae_lambda,
        ent_coeff=settings.entropy,
        critic_fit_params={"n_epochs": settings.epochs},
    )
    if settings.normalize:
        agent.add_preprocessor(StandardizationPreprocessor(mdp.info))
    Core(agent, mdp).learn(n_steps=FOREVER, n_steps_per_fit=settings.envs * settings.steps, quiet=True)


def network(inputs: tuple[int, ...], outputs: tuple[int, ...], gain: float, **_: Any) -> nn.Sequential:
    return common.network(inputs[0], outputs[0], gain)

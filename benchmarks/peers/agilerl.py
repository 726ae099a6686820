"""AgileRL."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import FOREVER, HIDDEN, Ppo, make


def train(env: str, seed: int, settings: Ppo) -> None:
    """One agent, no evolution."""
    from agilerl.algorithms import PPO
    from agilerl.training.train_on_policy import train_on_policy

    np.random.seed(seed)
    torch.manual_seed(seed)

    def one() -> gym.Env[Any, Any]:
        made = make(env, clip=False)  # the library clips
        # It also clips by how much values change in an update, always and at 0.2, so that returns have to be small
        made = gym.wrappers.TransformReward(made, lambda reward: 0.01 * reward)
        return gym.wrappers.NormalizeObservation(made) if settings.normalize else made

    # The library takes every step for one of an episode, which those that only reset are not
    vector = gym.vector.SyncVectorEnv([one] * settings.envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    if settings.normalize:
        for each in vector.envs:  # gymnasium's wrapper for all at once does not know this mode
            each.obs_rms = vector.envs[0].obs_rms
    vector.reset(seed=seed)  # the library resets again, without a seed
    layers = {"hidden_size": [HIDDEN[0]], "activation": "Tanh", "layer_norm": False}
    agent = PPO(
        vector.single_observation_space,
        vector.single_action_space,
        # The encoder's output is the second hidden layer; a head must have one of its own as well
        net_config={
            "encoder_config": layers | {"output_vanish": False},
            "latent_dim": HIDDEN[1],
            "head_config": layers,
        },
        share_encoders=False,
        num_envs=settings.envs,
        learn_step=settings.envs * settings.steps,
        batch_size=settings.batch,
        update_epochs=settings.epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        lr=settings.learning_rate,
        ent_coef=settings.entropy,
        vf_coef=2 * settings.value,  # it halves the squared error
        clip_coef=0.2,
        max_grad_norm=0.5,
        action_std_init=0.0,  # a logarithm
    )
    train_on_policy(vector, env, "PPO", [agent], max_steps=FOREVER, evo_steps=FOREVER, verbose=False)

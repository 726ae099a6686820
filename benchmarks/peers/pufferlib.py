"""PufferLib."""

from __future__ import annotations

import contextlib
import tempfile
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import FOREVER, Ppo, make, network
from torch import nn

SEGMENT = 32
"""Steps that are learnt from together: advantages do not reach over the end of them, nor is there one at the end."""


def train(env: str, seed: int, settings: Ppo) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # it leaves a link where it is imported
        from pufferlib import pufferl, vector
        from pufferlib.emulation import GymnasiumPufferEnv

    # It cuts rewards at -1 and 1, so they are scaled as in its own environments of MuJoCo; those of CartPole are 1
    scaled = env != "CartPole-v1"

    def one() -> gym.Env[Any, Any]:
        made = make(env, clip=False)  # the library clips
        made = gym.wrappers.NormalizeObservation(made) if settings.normalize else made
        return gym.wrappers.NormalizeReward(made, gamma=settings.gamma) if scaled else made

    class Policy(nn.Module):
        def __init__(self, inputs: int, space: gym.Space[Any]) -> None:
            super().__init__()
            self.discrete = isinstance(space, gym.spaces.Discrete)
            outputs = int(space.n) if isinstance(space, gym.spaces.Discrete) else space.shape[0]
            self.policy, self.value = network(inputs, outputs, 0.01), network(inputs, 1, 1.0)
            self.log_std = nn.Parameter(torch.zeros(outputs))

        def forward(self, seen: torch.Tensor, state: Any = None) -> tuple[Any, torch.Tensor]:
            seen = seen.float()
            found = self.policy(seen)
            if not self.discrete:
                found = torch.distributions.Normal(found, self.log_std.exp().expand_as(found))
            return found, self.value(seen)

        forward_eval = forward

    class Quiet(pufferl.PuffeRL):  # type: ignore[misc]
        def print_dashboard(self, *_: Any, **__: Any) -> None:
            pass

    np.random.seed(seed)
    torch.manual_seed(seed)
    creator = partial(GymnasiumPufferEnv, env_creator=one)
    envs = vector.make(creator, num_envs=settings.envs, backend=vector.Serial, seed=seed)
    for each in envs.envs:
        if scaled:
            each.env.return_rms = envs.envs[0].env.return_rms
        if settings.normalize:
            each.env.env.obs_rms = envs.envs[0].env.env.obs_rms
    config = {
        "env": env,
        "seed": seed,
        "device": "cpu",
        "torch_deterministic": True,
        "cpu_offload": False,
        "precision": "float32",
        "compile": False,
        "use_rnn": False,
        "batch_size": settings.envs * settings.steps,
        "bptt_horizon": SEGMENT,
        "minibatch_size": settings.batch,
        "max_minibatch_size": settings.batch,
        "update_epochs": settings.epochs,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "optimizer": "adam",
        "learning_rate": settings.learning_rate,
        "anneal_lr": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "ent_coef": settings.entropy,
        "vf_coef": 2 * settings.value,  # the library halves it
        "clip_coef": 0.2,
        "vf_clip_coef": FOREVER,
        "max_grad_norm": 0.5,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.8,
        "prio_beta0": 0.2,
        "total_timesteps": FOREVER,
        "checkpoint_interval": FOREVER,
    }
    trainer = Quiet(config, envs, Policy(envs.single_observation_space.shape[0], envs.single_action_space))
    try:
        while True:
            trainer.evaluate()  # acts
            trainer.train()
    finally:
        trainer.utilization.stop()  # a thread of its own

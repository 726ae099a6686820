"""skrl."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from peers.common import FOREVER, Ppo, make, network
from torch import nn


def train(env: str, seed: int, settings: Ppo) -> None:
    from skrl import logger
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils import set_seed

    logger.setLevel("ERROR")
    set_seed(seed)
    envs = wrap_env(gym.vector.SyncVectorEnv([partial(make, env)] * settings.envs), verbose=False)
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    discrete = isinstance(envs.action_space, gym.spaces.Discrete)

    class Policy(CategoricalMixin if discrete else GaussianMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            (CategoricalMixin if discrete else GaussianMixin).__init__(self)
            self.net = network(self.num_observations, self.num_actions, 0.01)
            self.log_std = nn.Parameter(torch.zeros(self.num_actions))

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.net(inputs["observations"]), {} if discrete else {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = network(self.num_observations, 1, 1.0)

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.net(inputs["observations"]), {}

    cfg = PPO_CFG(
        rollouts=settings.steps,
        learning_epochs=settings.epochs,
        mini_batches=settings.envs * settings.steps // settings.batch,
        discount_factor=settings.gamma,
        gae_lambda=settings.gae_lambda,
        learning_rate=settings.learning_rate,
        entropy_loss_scale=settings.entropy,
        value_loss_scale=settings.value,
        value_clip=0.2 if settings.normalize else 0.0,
        time_limit_bootstrap=True,
        experiment={"write_interval": 0, "checkpoint_interval": 0},
    )
    if settings.normalize:
        cfg.observation_preprocessor = cfg.value_preprocessor = RunningStandardScaler
        cfg.observation_preprocessor_kwargs = {"size": envs.observation_space, "device": "cpu"}
        cfg.value_preprocessor_kwargs = {"size": 1, "device": "cpu"}
    memory = RandomMemory(memory_size=settings.steps, num_envs=settings.envs, device="cpu")
    agent = PPO(models={"policy": Policy(), "value": Value()}, memory=memory, cfg=cfg, **spaces)
    trainer = {"timesteps": FOREVER, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(cfg=trainer, env=envs, agents=agent).train()

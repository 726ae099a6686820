"""TorchRL."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import Ppo, make, network
from torch import nn


def train(env: str, seed: int, settings: Ppo) -> None:
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper
    from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    np.random.seed(seed)
    torch.manual_seed(seed)
    mode = gym.vector.AutoresetMode.DISABLED  # TorchRL resets, and then knows the last observations

    def one() -> gym.Env[Any, Any]:
        return gym.wrappers.NormalizeObservation(make(env)) if settings.normalize else make(env)

    vector = gym.vector.SyncVectorEnv([one] * settings.envs, autoreset_mode=mode)
    if settings.normalize:
        for each in vector.envs:  # TorchRL's own VecNormV2 makes NaN of a vector of environments
            each.obs_rms = vector.envs[0].obs_rms
    envs: Any = GymWrapper(vector, categorical_action_encoding=True)
    envs.set_seed(seed)
    space, inputs = vector.single_action_space, vector.single_observation_space.shape[0]
    if isinstance(space, gym.spaces.Discrete):
        policy, keys = network(inputs, int(space.n), 0.01), ["logits"]
        distribution: Any = torch.distributions.Categorical
    else:
        width = space.shape[0]
        policy = nn.Sequential(network(inputs, width, 0.01), AddStateIndependentNormalScale(width))
        keys, distribution = ["loc", "scale"], IndependentNormal
    actor = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=envs.action_spec_unbatched,
        distribution_class=distribution,
        return_log_prob=True,
    )
    critic = ValueOperator(network(inputs, 1, 1.0), in_keys=["observation"])
    advantage = GAE(gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_bonus=settings.entropy > 0,
        entropy_coeff=settings.entropy,
        critic_coeff=settings.value,
        loss_critic_type="l2",
        normalize_advantage=True,
        log_explained_variance=False,
        functional=False,  # faster, and nothing here needs the other
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=settings.learning_rate, eps=1e-5)
    collected = settings.envs * settings.steps
    quiet = {"auto_register_policy_transforms": False}
    for batch in Collector(envs, actor, frames_per_batch=collected, total_frames=-1, **quiet):
        with torch.no_grad():
            advantage(batch)
        data = batch.reshape(-1)
        for _ in range(settings.epochs):
            for rows in torch.randperm(collected).split(settings.batch):
                losses = loss(data[rows])
                total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()

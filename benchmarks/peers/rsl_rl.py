"""RSL-RL, which has continuous actions only."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from peers.common import FOREVER, HIDDEN, Ppo, make


def train(env: str, seed: int, settings: Ppo) -> None:
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    mode = gym.vector.AutoresetMode.SAME_STEP
    envs: Any = gym.vector.SyncVectorEnv([partial(make, env)] * settings.envs, autoreset_mode=mode)
    if not isinstance(envs.single_action_space, gym.spaces.Box):
        raise ValueError(f"RSL-RL has no policy for the discrete actions of {env}.")
    if settings.normalize:  # rewards only: the models normalise what they see
        envs = gym.wrappers.vector.NormalizeReward(envs, gamma=settings.gamma)

    class Envs(VecEnv):  # type: ignore[misc]
        num_envs = settings.envs
        num_actions = envs.single_action_space.shape[0]
        device = "cpu"

        def __init__(self) -> None:
            self.cfg: dict[str, Any] = {}
            self.seen = self.observations(envs.reset(seed=seed)[0])

        def observations(self, seen: Any) -> TensorDict:
            return TensorDict({"policy": torch.as_tensor(seen).float()}, batch_size=[settings.envs])

        def get_observations(self) -> TensorDict:
            return self.seen

        def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
            seen, rewards, terminated, truncated, _ = envs.step(actions.numpy())
            self.seen = self.observations(seen)
            ended, limits = torch.as_tensor(terminated | truncated), torch.as_tensor(truncated)
            return self.seen, torch.as_tensor(rewards).float(), ended, {"time_outs": limits}

    model = {
        "class_name": "MLPModel",
        "hidden_dims": list(HIDDEN),
        "activation": "tanh",
        "obs_normalization": settings.normalize,
    }
    config = {
        "num_steps_per_env": settings.steps,
        "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": model | {"distribution_cfg": {"class_name": "GaussianDistribution", "std_type": "log"}},
        "critic": model,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": settings.epochs,
            "num_mini_batches": settings.envs * settings.steps // settings.batch,
            "clip_param": 0.2,
            "gamma": settings.gamma,
            "lam": settings.gae_lambda,
            "value_loss_coef": settings.value,
            "entropy_coef": settings.entropy,
            "learning_rate": settings.learning_rate,
            "max_grad_norm": 0.5,
            "use_clipped_value_loss": False,
            "schedule": "fixed",
            "normalize_advantage_per_mini_batch": True,
        },
    }
    torch.manual_seed(seed)
    runner = OnPolicyRunner(Envs(), config)  # without a folder it logs nothing
    for each, gain in ((runner.alg.actor, 0.01), (runner.alg.critic, 1.0)):
        each.mlp.init_weights([2**0.5] * 2 * len(HIDDEN) + [gain])
    runner.learn(FOREVER)

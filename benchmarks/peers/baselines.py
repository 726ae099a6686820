"""Stable-Baselines3 and SBX, which share one interface."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from peers.common import FOREVER

if TYPE_CHECKING:
    from threshold_run import Rule

CARTPOLE_PPO = {
    "n_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98, "ent_coef": 0.0,
    "learning_rate": ("linear", 1e-3), "clip_range": ("linear", 0.2), "total": 100_000,
}  # fmt: skip
PENDULUM_PPO = {
    "n_envs": 4, "n_steps": 1024, "batch_size": 64, "n_epochs": 10, "gae_lambda": 0.95, "gamma": 0.9, "ent_coef": 0.0,
    "learning_rate": 1e-3, "clip_range": 0.2,
}  # fmt: skip
LUNARLANDER_PPO = {
    "n_envs": 16, "n_steps": 1024, "batch_size": 64, "n_epochs": 4, "gae_lambda": 0.98, "gamma": 0.999,
    "ent_coef": 0.01,
}  # fmt: skip
HOPPER_PPO_ZOO = {
    "n_envs": 1, "normalize": True, "n_steps": 512, "batch_size": 32, "n_epochs": 5, "gae_lambda": 0.99,
    "gamma": 0.999, "learning_rate": 9.80828e-05, "ent_coef": 0.00229519, "clip_range": 0.2, "max_grad_norm": 0.7,
    "vf_coef": 0.835671,
    "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "activation_fn": "relu", "net_arch": [256, 256]},
}  # fmt: skip
HOPPER_PPO = {"n_envs": 8, "normalize": True, "n_steps": 256, "batch_size": 64, "n_epochs": 10}
WALKER_PPO_ZOO = {
    "n_envs": 1, "normalize": True, "n_steps": 512, "batch_size": 32, "n_epochs": 20, "gae_lambda": 0.95,
    "gamma": 0.99, "learning_rate": 5.05041e-05, "ent_coef": 0.000585045, "clip_range": 0.1, "max_grad_norm": 1.0,
    "vf_coef": 0.871923,
}  # fmt: skip
CHEETAH_SAC = {"n_envs": 1, "learning_starts": 10_000}
CHEETAH_TD3 = {"n_envs": 1, "learning_starts": 10_000, "noise_std": 0.1}
BIPEDAL_SAC = {
    "n_envs": 1, "learning_rate": 7.3e-4, "buffer_size": 300_000, "gamma": 0.98, "tau": 0.02, "learning_starts": 10_000,
    "train_freq": 64, "gradient_steps": 64, "use_sde": True,
    "policy_kwargs": {"log_std_init": -3, "net_arch": [400, 300]},
}  # fmt: skip
BIPEDAL_TD3 = {
    "n_envs": 1, "learning_rate": 1e-3, "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000,
    "noise_std": 0.1, "policy_kwargs": {"net_arch": [400, 300]},
}  # fmt: skip
PENDULUM_SAC = {"n_envs": 1, "learning_rate": 1e-3}
PENDULUM_TD3 = {
    "n_envs": 1, "learning_rate": 1e-3, "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000,
    "noise_std": 0.1, "policy_kwargs": {"net_arch": [400, 300]},
}  # fmt: skip

BASELINES: dict[str, dict[str, dict[str, Any]]] = {
    "CartPole-v1": {"ppo": CARTPOLE_PPO},
    "Pendulum-v1": {"ppo": PENDULUM_PPO, "sac": PENDULUM_SAC, "td3": PENDULUM_TD3},
    "LunarLander-v3": {"ppo": LUNARLANDER_PPO},
    "Hopper-v5": {"ppo": HOPPER_PPO, "ppo-zoo": HOPPER_PPO_ZOO},
    "Walker2d-v5": {"ppo": HOPPER_PPO, "ppo-zoo": WALKER_PPO_ZOO},
    "HalfCheetah-v5": {"sac": CHEETAH_SAC, "td3": CHEETAH_TD3},
    "BipedalWalker-v3": {"sac": BIPEDAL_SAC, "td3": BIPEDAL_TD3},
}
"""The settings of RL Baselines3 Zoo, and for Hopper and Walker2d, whose zoo settings use one environment, also the
libraries' own defaults with eight."""
SDE = {"use_sde": True, "sde_sample_freq": 4}
"""State-dependent exploration, which the zoo asks for on Pendulum and SBX does not have for PPO."""


def train(library: str, name: str, env: str, seed: int, rule: Rule) -> None:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    class Watch(BaseCallback):
        def _on_training_start(self) -> None:
            rule.start()

        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            due = rule.is_due(self.num_timesteps)
            rule.see(ended, self.num_timesteps)
            if due:
                began, worked = time.perf_counter(), time.process_time()
                returns, _ = evaluate_policy(self.model, judge, rule.episodes, return_episode_rewards=True)
                rule.judge(returns, time.perf_counter() - began, time.process_time() - worked)
            return True

    settings = dict(BASELINES[env][name])
    if library == "sb3" and (env, name) == ("Pendulum-v1", "ppo"):
        settings |= SDE
    total = settings.pop("total", FOREVER)
    envs = make_vec_env(env, settings.pop("n_envs"), seed=seed)  # in this process, as DummyVecEnv
    judge = make_vec_env(env, 1, seed=seed + 1000)
    if settings.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    model = build_baseline(library, name.split("-")[0], envs, settings, seed)
    model.learn(total, callback=Watch())


def build_baseline(library: str, algorithm: str, envs: Any, settings: dict[str, Any], seed: int) -> Any:
    import numpy as np
    import torch
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    if library == "sbx":
        import flax.linen
        import sbx as package

        activations: dict[str, Any] = {"relu": flax.linen.relu, "tanh": flax.linen.tanh}
    else:
        import stable_baselines3 as package

        activations = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}
    for key, value in settings.items():
        if isinstance(value, tuple):
            settings[key] = linear(value[1])
    policy = dict(settings.pop("policy_kwargs", {}))
    if "activation_fn" in policy:
        policy["activation_fn"] = activations[policy["activation_fn"]]
    if noise_std := settings.pop("noise_std", None):
        width = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, noise_std))
    kind = getattr(package, algorithm.upper())
    return kind("MlpPolicy", envs, policy_kwargs=policy, seed=seed, device="cpu", **settings)


def linear(start: float) -> Callable[[float], float]:
    return lambda left: left * start

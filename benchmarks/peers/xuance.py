"""XuanCe."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from typing import Any

import gymnasium as gym
from peers.common import FOREVER, HIDDEN, Ppo, make


def train(env: str, seed: int, settings: Ppo) -> None:
    from xuance.environment import DummyVecEnv, XuanCeEnvWrapper
    from xuance.torch.agents.policy_gradient import ppo_agent

    ppo_agent.tqdm = iter  # no progress bar

    def one(env_seed: int) -> Any:
        made = make(env, clip=False)
        if isinstance(made.action_space, gym.spaces.Box):  # the library's means end with tanh, and it does not scale
            made = gym.wrappers.ClipAction(gym.wrappers.RescaleAction(made, -1.0, 1.0))
        made.reset(seed=env_seed)
        wrapped = XuanCeEnvWrapper(made)
        wrapped.max_episode_steps = made.spec.max_episode_steps
        return wrapped

    class Quiet(ppo_agent.PPO_Agent):  # type: ignore[misc]
        def log_infos(self, *_: Any) -> None:
            """Not every episode to TensorBoard."""

    envs = DummyVecEnv([one] * settings.envs, seed)
    discrete = isinstance(envs.action_space, gym.spaces.Discrete)
    config: dict[str, Any] = {
        "agent": "PPO",
        "env_name": "watched",
        "env_id": env,
        "dl_toolbox": "torch",
        "device": "cpu",
        "distributed_training": False,
        "seed": seed,
        "learner": "PPO_Learner",
        "policy": "Categorical_AC" if discrete else "Gaussian_AC",
        "representation": "Basic_Identical",
        "actor_hidden_size": HIDDEN,
        "critic_hidden_size": HIDDEN,
        "activation": "tanh",
        "activation_action": "tanh",
        "parallels": settings.envs,
        "running_steps": FOREVER,
        "horizon_size": settings.steps,
        "n_epochs": settings.epochs,
        "n_minibatch": settings.envs * settings.steps // settings.batch,
        "learning_rate": settings.learning_rate,
        "vf_coef": settings.value,
        "ent_coef": settings.entropy,
        "clip_range": 0.2,
        "gamma": settings.gamma,
        "use_gae": True,
        "gae_lambda": settings.gae_lambda,
        "use_advnorm": True,
        "use_grad_clip": True,
        "grad_clip_norm": 0.5,
        "use_obsnorm": settings.normalize,
        "obsnorm_range": 10,
        "use_rewnorm": False,
        "rewnorm_range": 10,
        "render": False,
        "fps": 0,
        "logger": "tensorboard",
        "model_dir": "",
    }
    with tempfile.TemporaryDirectory() as config["log_dir"]:
        Quiet(Namespace(**config), envs).train(FOREVER)

"""rl_games."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import FOREVER, HIDDEN, Ppo, make


def train(env: str, seed: int, settings: Ppo) -> None:
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv
    from rl_games.torch_runner import Runner

    class Envs(IVecEnv):  # type: ignore[misc]
        def __init__(self) -> None:
            makers = [partial(make, env, clip=False)] * settings.envs  # the library clips and scales
            self.envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)

        def reset(self) -> Any:
            return np.float32(self.envs.reset(seed=seed)[0])

        def step(self, actions: Any) -> tuple[Any, ...]:
            seen, rewards, terminated, truncated, _ = self.envs.step(actions)
            return np.float32(seen), rewards, terminated | truncated, {"time_outs": np.float32(truncated)}

        def get_env_info(self) -> dict[str, Any]:
            spaces = self.envs.single_observation_space, self.envs.single_action_space
            return dict(zip(("observation_space", "action_space"), spaces, strict=True))

    vecenv.register("WATCHED", lambda *_, **__: Envs())
    env_configurations.register("watched", {"vecenv_type": "WATCHED"})
    discrete = isinstance(gym.make(env).action_space, gym.spaces.Discrete)
    kind = "discrete" if discrete else "continuous"
    sigma = {"sigma_init": {"name": "const_initializer", "val": 0.0}, "sigma_activation": "None", "fixed_sigma": True}
    mean = {"mu_init": {"name": "orthogonal_initializer", "gain": 0.01}, "mu_activation": "None"}
    units = {"units": list(HIDDEN), "activation": "tanh", "initializer": {"name": "default"}}
    config: dict[str, Any] = {
        "name": "watched",
        "env_name": "watched",
        "device": "cpu",
        "num_actors": settings.envs,
        "horizon_length": settings.steps,
        "minibatch_size": settings.batch,
        "mini_epochs": settings.epochs,
        "gamma": settings.gamma,
        "tau": settings.gae_lambda,
        "learning_rate": settings.learning_rate,
        "lr_schedule": None,
        "entropy_coef": settings.entropy,
        "critic_coef": 2 * settings.value,  # the library halves it
        "e_clip": 0.2,
        "clip_value": settings.normalize,
        "truncate_grads": True,
        "grad_norm": 0.5,
        "bounds_loss_coef": 0.0,
        "normalize_advantage": True,
        "normalize_input": settings.normalize,
        "normalize_value": settings.normalize,
        "reward_shaper": {},
        "torch_compile": False,  # with it CartPole had not ended after 100 s on a busy machine
        "print_stats": False,
        "save_best_after": FOREVER,
    }
    network = {
        "name": "actor_critic",
        "separate": True,
        "space": {kind: {} if discrete else mean | sigma},
        "mlp": units,
    }
    model = {"name": "discrete_a2c" if discrete else "continuous_a2c_logstd"}
    torch.manual_seed(seed)  # the library takes a seed of 0 for none
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as config["train_dir"]:
        params = {"algo": {"name": f"a2c_{kind}"}, "model": model, "network": network, "config": config}
        runner = Runner()
        runner.load_config(params | {"seed": seed, "torch_threads": 1})
        runner.run({"train": True})

"""RLlib."""

from __future__ import annotations

import os
import secrets

from peers.common import HIDDEN, Ppo, make


def train(env: str, seed: int, settings: Ppo) -> None:
    """Everything in this process: with two cores RLlib's own processes only take them from each other."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else one is left in the home directory
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("watched", lambda _: make(env))
    model = DefaultModelConfig(fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False)
    filters = {"env_to_module_connector": lambda *_, **__: MeanStdFilter()} if settings.normalize else {}
    config = (
        PPOConfig()
        .environment("watched")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=settings.envs, **filters)
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .training(
            train_batch_size_per_learner=settings.envs * settings.steps,
            minibatch_size=settings.batch,
            num_epochs=settings.epochs,
            gamma=settings.gamma,
            lambda_=settings.gae_lambda,
            lr=settings.learning_rate,
            entropy_coeff=settings.entropy,
            vf_loss_coeff=settings.value,
            vf_clip_param=float("inf"),
            clip_param=0.2,
            use_kl_loss=False,
            grad_clip=0.5,
            grad_clip_by="global_norm",
        )
        .debugging(seed=seed, log_level="ERROR")
    )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm = config.build_algo()
    while True:
        algorithm.train()

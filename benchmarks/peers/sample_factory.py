"""Sample Factory."""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium as gym
from peers.common import FOREVER, HIDDEN, Ppo, make


def train(env: str, seed: int, settings: Ppo) -> None:
    """In its serial mode: everything in this process, but for one that only looks at the spaces."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl
    from sample_factory.utils.utils import log

    log.setLevel("ERROR")
    register_env(env, make_for_factory)
    options = {
        "env": env,
        "seed": seed,
        "device": "cpu",
        "serial_mode": True,
        "async_rl": False,
        "batched_sampling": True,  # the other way assigns arrays of one element to numbers, which numpy has no more
        "num_workers": 1,
        "num_envs_per_worker": settings.envs,
        "worker_num_splits": 1,
        "rollout": min(settings.steps, settings.batch),  # a minibatch has to hold at least one
        "batch_size": settings.batch,
        "num_batches_per_epoch": settings.envs * settings.steps // settings.batch,
        "num_epochs": settings.epochs,
        "shuffle_minibatches": True,
        "max_policy_lag": FOREVER,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "learning_rate": settings.learning_rate,
        "adam_eps": 1e-5,
        "exploration_loss_coeff": settings.entropy,
        "value_loss_coeff": settings.value,
        "value_bootstrap": True,
        "ppo_clip_ratio": 0.2,
        "ppo_clip_value": 0.2 if settings.normalize else FOREVER,
        "max_grad_norm": 0.5,
        "normalize_input": settings.normalize,
        "normalize_returns": settings.normalize,
        "use_rnn": False,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "train_for_env_steps": FOREVER,
        "decorrelate_envs_on_one_worker": False,
        "set_workers_cpu_affinity": False,
        "log_to_file": False,
    }
    words = [f"--{name}={value}" for name, value in options.items()] + ["--encoder_mlp_layers", *map(str, HIDDEN)]
    with tempfile.TemporaryDirectory() as folder:
        words.append(f"--train_dir={folder}")
        run_rl(parse_full_cfg(parse_sf_args(words)[0], words))
    raise RuntimeError("Sample Factory logs what the environment raises and returns")


def make_for_factory(env: str, *_: Any, **__: Any) -> gym.Env[Any, Any]:
    """Here, for another process has to find it."""
    return make(env)

"""Ray Tune's population based training of Stable-Baselines3 PPO members, as its guide describes it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

ZOO = {"n_steps": 32, "batch_size": 256, "n_epochs": 20}
"""Settings of RL Baselines3 Zoo for CartPole, with 8 environments; those that are tuned start around the others."""
SPACE = {
    "learning_rate": tune.loguniform(1e-3 / 3, 3e-3),
    "gamma": tune.uniform(0.95, 0.999),
    "gae_lambda": tune.uniform(0.7, 0.95),
    "clip_range": tune.uniform(0.1, 0.3),
}


class Member(tune.Trainable):  # type: ignore[misc]
    """One member; a step is a period."""

    def setup(self, config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        self.env = make_vec_env(config["env"], n_envs=8, seed=config["seed"])
        self.model = PPO("MlpPolicy", self.env, **ZOO, **self.tuned(config), device="cpu", seed=config["seed"])

    def tuned(self, config: dict[str, Any]) -> dict[str, float]:
        return {name: config[name] for name in SPACE}

    def step(self) -> dict[str, float]:
        self.model.learn(self.config["period_steps"], reset_num_timesteps=False)
        busy = Path(self.config["busy"]) / str(os.getpid())
        busy.write_text(str(time.process_time()))
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        return {"score": float(np.mean(returns)) if returns else 0.0}

    def save_checkpoint(self, folder: str) -> None:
        self.model.save(Path(folder) / "model")

    def load_checkpoint(self, folder: str) -> None:
        self.model = PPO.load(
            Path(folder) / "model", env=self.env, custom_objects=self.tuned(self.config), device="cpu"
        )

    def reset_config(self, new: dict[str, Any]) -> bool:
        self.config = new  # a checkpoint is loaded next
        return True


def evolve(env: str, members: int, periods: int, period_steps: int, fresh: int, seed: int) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    np.random.seed(seed)
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    ray.init(
        num_cpus=cores, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.mkdtemp(dir="/tmp"),
        _system_config={"worker_niceness": 0},  # otherwise other programs come first
    )  # fmt: skip
    pbt = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", perturbation_interval=1, quantile_fraction=0.25,
        hyperparam_mutations=SPACE,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        busy = Path(folder) / "busy"
        busy.mkdir()
        fixed = {"env": env, "period_steps": period_steps, "seed": seed, "busy": str(busy)}
        tuner = tune.Tuner(
            tune.with_resources(Member, {"cpu": cores / members}),  # all at a time: to pause them would cost more
            param_space=SPACE | fixed,
            tune_config=tune.TuneConfig(scheduler=pbt, num_samples=members, reuse_actors=True),
            run_config=tune.RunConfig(
                stop={"training_iteration": periods}, storage_path=folder, verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            ),
        )  # fmt: skip
        wall, own = time.monotonic(), time.process_time()
        results = tuner.fit()
        wall, own = time.monotonic() - wall, time.process_time() - own
        processor = own + sum(float(file.read_text()) for file in busy.iterdir())
        best = results.get_best_result("score", "max")
        steps = sum(int(result.metrics["training_iteration"]) * period_steps for result in results)
        assert best.checkpoint is not None
        with best.checkpoint.as_directory() as place:
            model = PPO.load(Path(place) / "model", device="cpu")
        one = gym.make(env)
        one.reset(seed=10**6 + seed)
        score, _ = evaluate_policy(model, one, n_eval_episodes=fresh, warn=False)
    ray.shutdown()
    return {"score": float(score), "env_steps": steps, "wall_seconds": wall, "processor_seconds": processor}

"""ElegantRL as it is on PyPI, where the name is that of this project: it needs an environment of its own."""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium as gym
import torch
from peers.common import HIDDEN, Ppo, make


class Silent:
    """Neither evaluates nor saves; the library's own does after the first round, and fails if actions are discrete."""

    total_step = 0

    def __init__(self, **_: Any) -> None:
        pass

    def evaluate_and_save(self, **_: Any) -> None:
        pass


class One:
    """As environments were when gym was young."""

    def __init__(self, env: str, seed: int | None) -> None:
        self.env, self.seed = make(env), seed

    def reset(self) -> Any:
        seed, self.seed = self.seed, None
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[Any, ...]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, reward, terminated or truncated, info


class Several:
    """As the library's own vector of environments, but in this process."""

    def __init__(self, env: str, seed: int, num_envs: int, normalize: bool) -> None:
        def one() -> gym.Env[Any, Any]:
            made = gym.wrappers.RescaleAction(make(env, clip=False), -1.0, 1.0)  # the library ends with tanh
            return gym.wrappers.NormalizeObservation(made) if normalize else made

        self.envs = gym.vector.SyncVectorEnv([one] * num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        if normalize:
            for each in self.envs.envs:  # the deviation of the library's own means hardly leaves 1
                each.obs_rms = self.envs.envs[0].obs_rms
        self.seed = seed

    def reset(self) -> torch.Tensor:
        return torch.tensor(self.envs.reset(seed=self.seed)[0], dtype=torch.float32)

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        seen, rewards, terminated, truncated, info = self.envs.step(actions.numpy())
        tensors = torch.tensor(seen, dtype=torch.float32), torch.tensor(rewards), torch.tensor(terminated | truncated)
        return *tensors, info


def train(env: str, seed: int, settings: Ppo) -> None:
    """The networks are as the library makes them, with ReLU."""
    from elegantrl.train import run

    from elegantrl import Config
    from elegantrl.agents import AgentDiscretePPO, AgentPPO

    run.Evaluator = Silent
    space = gym.make(env).action_space
    discrete = isinstance(space, gym.spaces.Discrete)
    if discrete:  # with several environments the library's actions have the wrong shape
        settings = settings._replace(envs=1, steps=settings.envs * settings.steps)
    args = Config(
        AgentDiscretePPO if discrete else AgentPPO,
        One if discrete else Several,
        {
            "env_name": env,
            "env": env,
            "seed": seed,
            "normalize": settings.normalize,
            "num_envs": settings.envs,
            "max_step": 0,
            "state_dim": gym.make(env).observation_space.shape[0],
            "action_dim": int(space.n) if discrete else space.shape[0],
            "if_discrete": discrete,
        },
    )
    args.net_dims = HIDDEN
    args.horizon_len = settings.steps
    args.batch_size = settings.batch
    args.repeat_times = settings.epochs * settings.envs  # it counts the steps of one environment
    args.gamma = settings.gamma
    args.lambda_gae_adv = settings.gae_lambda
    args.lambda_entropy = settings.entropy
    args.learning_rate = settings.learning_rate
    args.ratio_clip = 0.2
    args.clip_grad_norm = 0.5
    args.random_seed = seed
    args.num_threads = 1
    args.gpu_id = -1
    with tempfile.TemporaryDirectory() as args.cwd:
        run.train_agent(args)

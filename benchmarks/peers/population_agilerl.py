"""AgileRL's evolution of PPO members, with the selection of its tutorial for PPO.

Mutations are those of the tutorial without changes of the architecture, after which its PPO ends with an error of the
optimiser here (2.58.0 with torch 2.13).
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from peers.common import HIDDEN, ZOO


def evolve(env: str, members: int, periods: int, period_steps: int, fresh: int, seed: int) -> dict[str, Any]:
    from agilerl.algorithms import PPO
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_on_policy import train_on_policy

    torch.set_num_threads(1)
    np.random.seed(seed)
    torch.manual_seed(seed)
    settings = ZOO[env]

    def one() -> gym.Env[Any, Any]:
        # The library always clips by how much values change in an update, so that returns have to be small
        return gym.wrappers.TransformReward(gym.make(env), lambda reward: 0.01 * reward)

    mode = gym.vector.AutoresetMode.SAME_STEP
    vector = gym.vector.SyncVectorEnv([one] * settings.envs, autoreset_mode=mode)
    vector.reset(seed=seed)
    layers = {"hidden_size": [HIDDEN[0]], "activation": "Tanh"}
    network = {"encoder_config": layers, "latent_dim": HIDDEN[1], "head_config": layers}
    tuned = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2), batch_size=RLParameter(min=64, max=256, dtype=int))
    agents = [
        PPO(
            vector.single_observation_space, vector.single_action_space, index=i, hp_config=tuned,
            net_config=copy.deepcopy(network),  # the library writes into it
            num_envs=settings.envs, learn_step=settings.envs * settings.steps,
            batch_size=settings.batch, update_epochs=settings.epochs, gamma=settings.gamma,
            gae_lambda=settings.gae_lambda, ent_coef=settings.entropy, vf_coef=2 * settings.value,
            lr=float(settings.learning_rate * 3.0 ** np.random.uniform(-1, 1)),
        )
        for i in range(members)
    ]  # fmt: skip
    selection = TournamentSelection(2, True, members)
    mutation = Mutations(
        no_mutation=0.5, architecture=0.0, new_layer_prob=0.0, parameters=0.2, activation=0.0, rl_hp=0.3,
        rand_seed=seed, mutate_elite=False,
    )  # fmt: skip
    wall, busy = time.monotonic(), processor_seconds()
    agents, fitnesses = train_on_policy(
        vector, env, "PPO", agents, max_steps=periods * period_steps, evo_steps=period_steps, eval_loop=2,
        tournament=selection, mutation=mutation, verbose=False,
    )  # fmt: skip
    wall, busy = time.monotonic() - wall, processor_seconds() - busy
    # After the last selection the elite comes first
    lanes = gym.vector.SyncVectorEnv([lambda: gym.make(env)] * (fresh // 4), autoreset_mode=mode)
    lanes.reset(seed=10**6 + seed)
    score = float(agents[0].test(lanes, loop=4))
    return {
        "score": score, "env_steps": members * periods * period_steps, "wall_seconds": wall, "processor_seconds": busy,
        "fitnesses": np.asarray(fitnesses, dtype=float).ravel().tolist(),
    }  # fmt: skip


def processor_seconds() -> float:
    times = os.times()
    return times.user + times.system

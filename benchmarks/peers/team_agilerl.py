"""AgileRL for teams. It has no example of this task; the settings are those of its example of IPPO for particles.

Agents whose names differ only in their number share networks in AgileRL. Its IPPO (2.58.0) then has the observations
and actions of a rollout in the order agent, time, environment, but log-probabilities, rewards and values in the order
time, agent, environment, and learns nothing. Here each agent has a name and networks of its own, as in that example.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from agilerl.algorithms import IPPO
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector.pz_vec_env import PettingZooVecEnv
from peers.common import FOREVER
from peers.team_common import WatchedTeam, make

NUM_ENVS = 16
NAMES = {"first_0": "agent_0", "second_0": "agent_1", "third_0": "agent_2"}


class Lanes(PettingZooVecEnv):  # type: ignore[misc]
    """Environments in this process that reset themselves, as those in processes of the library do."""

    def __init__(self, envs: list[WatchedTeam], seed: int):
        self.envs, first = envs, envs[0]
        spaces = [
            {name: space(agent) for name, agent in NAMES.items()}
            for space in (first.observation_space, first.action_space)
        ]
        super().__init__(len(envs), *spaces, list(NAMES))
        for number, env in enumerate(envs):  # the library resets again, without a seed
            env.reset(seed + number)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        return self._joined([env.reset()[0] for env in self.envs]), self._infos()

    def step_async(self, actions: list[dict[str, Any]]) -> None:
        self.actions = actions

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, Any]:
        results = []
        for env, action in zip(self.envs, self.actions, strict=True):
            obs, *rest, _ = env.step({agent: action[name] for name, agent in NAMES.items()})
            results.append((obs if env.agents else env.reset()[0], *rest))
        return *map(self._joined, zip(*results, strict=True)), self._infos()

    def _joined(self, values: Any) -> dict[str, Any]:
        """One array per agent, a row per environment."""
        return {name: np.stack([each[agent] for each in values]) for name, agent in NAMES.items()}

    def _infos(self) -> dict[str, Any]:
        return {name: {} for name in NAMES}


def train(algorithm: str, seed: int) -> None:
    """One team, no evolution."""
    assert algorithm == "ippo"
    np.random.seed(seed)
    torch.manual_seed(seed)
    lanes = Lanes([make() for _ in range(NUM_ENVS)], NUM_ENVS * seed)
    layers = {"hidden_size": [64], "layer_norm": True}
    agent = IPPO(
        [lanes.single_observation_space(name) for name in lanes.agents],
        [lanes.single_action_space(name) for name in lanes.agents],
        agent_ids=lanes.agents,
        net_config={
            "latent_dim": 64,
            "encoder_config": layers | {"activation": "Tanh"},
            "head_config": layers | {"activation": "ReLU", "output_vanish": False},
        },
        batch_size=128,
        lr=1e-4,
        learn_step=2048,
        gamma=0.99,
        gae_lambda=0.95,
        clip_coef=0.2,
        ent_coef=0.05,
        vf_coef=0.5,
        max_grad_norm=0.5,
        update_epochs=4,
    )
    train_multi_agent_on_policy(
        lanes, "simple_spread_v3", "IPPO", [agent], max_steps=FOREVER, evo_steps=FOREVER, verbose=False
    )

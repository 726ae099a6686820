"""XuanCe for teams, with the settings that it ships for this task: continuous actions for MAPPO and IPPO."""

from __future__ import annotations

import sys
import tempfile
from types import ModuleType
from typing import Any

from peers.common import FOREVER
from peers.team_common import make

ENV_ID = "simple_spread_v3"


def train(algorithm: str, seed: int) -> None:
    # XuanCe imports the task from pettingzoo.mpe, which PettingZoo has moved to the package mpe2
    moved = ModuleType(f"pettingzoo.mpe.{ENV_ID}")
    moved.parallel_env = make  # type: ignore[attr-defined]
    sys.modules[moved.__name__] = moved

    from xuance import get_arguments, make_envs
    from xuance.environment import REGISTRY_MULTI_AGENT_ENV
    from xuance.environment.multi_agent_env.mpe import MPE_Env
    from xuance.torch.agents import REGISTRY_Agents
    from xuance.torch.agents.core import on_policy_marl

    class Env(MPE_Env):  # type: ignore[misc]
        def step(self, actions: dict[str, Any]) -> Any:
            """Of a copy: the library clips actions in place, and in this process that would be the actions it keeps."""
            return super().step(dict(actions))

    REGISTRY_MULTI_AGENT_ENV["mpe"] = Env
    on_policy_marl.tqdm = iter  # no progress bar
    config = get_arguments(algo=algorithm, env="mpe", env_id=ENV_ID)
    config.device, config.seed, config.env_seed, config.render_mode = "cpu", seed, config.parallels * seed, None
    config.vectorize = "DummyVecMultiAgentEnv"  # processes would share one core

    class Quiet(REGISTRY_Agents[config.agent]):  # type: ignore[misc]
        def log_infos(self, *_: Any) -> None:
            """Not every episode to TensorBoard."""

    with tempfile.TemporaryDirectory() as config.log_dir:
        Quiet(config, make_envs(config)).train(FOREVER)

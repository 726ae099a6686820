"""The four demonstrations of the introductory package, each for three environments by number."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..runtime.run import RunResult
from .agents import documented_agent
from .config import Config
from .run import train_and_evaluate

CONTINUOUS = {1: "Pendulum-v1", 2: "LunarLanderContinuous-v3", 3: "BipedalWalker-v3"}
DISCRETE = {1: "CartPole-v1", 2: "LunarLander-v3", 3: "Acrobot-v1"}


def demo_continuous_action_off_policy(env_id: int = 1, **settings: Any) -> RunResult:
    """SAC."""
    return _demo("AgentSAC", CONTINUOUS, env_id, settings)


def demo_continuous_action_on_policy(env_id: int = 1, **settings: Any) -> RunResult:
    """PPO with numbers as actions."""
    return _demo("AgentPPO", CONTINUOUS, env_id, settings)


def demo_discrete_action_off_policy(env_id: int = 1, **settings: Any) -> RunResult:
    """DQN."""
    return _demo("AgentDQN", DISCRETE, env_id, settings)


def demo_discrete_action_on_policy(env_id: int = 1, **settings: Any) -> RunResult:
    """PPO with choices as actions."""
    return _demo("AgentDiscretePPO", DISCRETE, env_id, settings)


def _demo(agent: str, envs: dict[int, str], env_id: int, settings: dict[str, Any]) -> RunResult:
    if env_id not in envs:
        raise ConfigError(f"there is no demonstration {env_id!r}; choose one of {envs}")
    args = Config(documented_agent(agent), envs[env_id])
    for name, value in settings.items():
        setattr(args, name, value)
    return train_and_evaluate(args)

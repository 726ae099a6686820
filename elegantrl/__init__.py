"""Massively parallel deep reinforcement learning: an environment in, a trained agent out."""

__version__ = "0.1.0"

from importlib import import_module
from typing import Any

from .config.run import RunConfig
from .envs import make_env
from .envs.vec_env import check_env
from .errors import ElegantRLError
from .registry import register_agent
from .runtime.run import RunResult
from .runtime.train import train
from .store.trained import TrainedPolicy

__all__ = [
    "ElegantRLError",
    "RunConfig",
    "RunResult",
    "TrainedPolicy",
    "check_env",
    "make_env",
    "register_agent",
    "train",
    # Names of the public ElegantRL, loaded from .compat at their first use.
    "AgentA2C",
    "AgentD3QN",
    "AgentDDPG",
    "AgentDDPGHterm",
    "AgentDQN",
    "AgentDiscreteA2C",
    "AgentDiscretePPO",
    "AgentDiscreteSAC",
    "AgentDoubleDQN",
    "AgentDuelingDQN",
    "AgentModSAC",
    "AgentPPO",
    "AgentPPOHterm",
    "AgentPPO_H",
    "AgentREDQ",
    "AgentReSACHtermK",
    "AgentSAC",
    "AgentSAC_H",
    "AgentTD3",
    "Arguments",
    "ChasingVecEnv",
    "Config",
    "Evaluator",
    "ReplayBuffer",
    "build_env",
    "get_gym_env_args",
    "kwargs_filter",
    "train_agent",
    "train_and_evaluate",
    "train_and_evaluate_mp",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # what Python asks of any module
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".compat", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

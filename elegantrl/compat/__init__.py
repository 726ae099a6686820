"""The names that documents of the public ElegantRL use, on top of this library; docs/migration.md lists them.

Nothing of the library imports this package. To add an agent, add its line to ``AGENTS``; to add anything else, import
it here; then name it in ``elegantrl.__all__``.
"""

from __future__ import annotations

from typing import Any

from ..errors import did_you_mean
from ..roles.evaluator import Evaluator
from .agents import AGENTS, documented_agent
from .config import Config, train_agent, train_and_evaluate, train_and_evaluate_mp
from .envs import ChasingVecEnv, build_env, get_gym_env_args, kwargs_filter
from .replay import ReplayBuffer

Arguments = Config

LATER = {
    "AgentMADDPG", "AgentMATD3", "AgentMAPPO", "AgentQMix", "AgentVDN", "StockTradingEnv", "StockTradingVecEnv",
    "IsaacVecEnv", "IsaacOneEnv",
}  # fmt: skip
"""Documented names that are not here yet."""

__all__ = [
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
    *AGENTS,
]


def __getattr__(name: str) -> Any:
    if name in AGENTS:
        return documented_agent(name)
    if name in LATER:
        # Not an AttributeError: ``from elegantrl import`` would replace its text by one of Python's own.
        raise ImportError(f"{name} is not available in this version of elegantrl")
    raise AttributeError(f"elegantrl has no {name}; {did_you_mean(name, __all__)}")

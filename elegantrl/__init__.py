"""Massively parallel deep reinforcement learning: an environment in, a trained agent out."""

__version__ = "0.1.0"

from .config import RunConfig
from .envs import make_env
from .envs.vec_env import check_env
from .errors import ElegantRLError
from .registry import register_agent
from .train.run import RunResult, TrainedPolicy, train

__all__ = [
    "ElegantRLError",
    "RunConfig",
    "RunResult",
    "TrainedPolicy",
    "check_env",
    "make_env",
    "register_agent",
    "train",
]

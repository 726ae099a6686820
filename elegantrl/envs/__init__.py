"""Environments behind one contract: ``make_env`` takes a name, a class, a function or an instance.

make_env("CartPole-v1", 8)                  Gymnasium, eight lanes in this process
make_env("TensorCartPole", 4096)            tensor operations on any device
make_env("envpool:Hopper-v4", 64)           EnvPool
make_env("mpe2:simple_spread_v3", 8)        a team of agents, here of PettingZoo
make_env("my_package.reach:Reach", 16)      anything importable
"""

from .check import check_env
from .envpool import EnvPoolVecEnv
from .frame_stack import FrameStackVecEnv
from .gymnasium import GymVecEnv
from .make import env_names, env_settings, make_env, register_env
from .team_env import TeamVecEnv
from .tensor import CartPoleVecEnv, ChasingVecEnv, DoorsVecEnv, PendulumVecEnv, TensorEnv
from .tutorial import TutorialVecEnv
from .vec_env import Exactness, VecEnv
from .vector import GymVectorVecEnv, VectorEntryEnv

__all__ = [
    "make_env",
    "env_names",
    "env_settings",
    "register_env",
    "check_env",
    "VecEnv",
    "Exactness",
    "TensorEnv",
    "CartPoleVecEnv",
    "PendulumVecEnv",
    "ChasingVecEnv",
    "DoorsVecEnv",
    "GymVecEnv",
    "GymVectorVecEnv",
    "VectorEntryEnv",
    "EnvPoolVecEnv",
    "FrameStackVecEnv",
    "TeamVecEnv",
    "TutorialVecEnv",
]

"""Environments made of tensor operations: any number of lanes on any device, saved exactly."""

from .base import TensorEnv
from .cartpole import CartPoleVecEnv
from .chasing import ChasingVecEnv
from .doors import DoorsVecEnv
from .foraging import ForagingVecEnv
from .pendulum import PendulumVecEnv
from .skirmish import SkirmishVecEnv
from .speaker_listener import SpeakerListenerVecEnv
from .spread import SpreadVecEnv
from .tag import TagVecEnv

__all__ = [
    "CartPoleVecEnv",
    "ChasingVecEnv",
    "DoorsVecEnv",
    "ForagingVecEnv",
    "PendulumVecEnv",
    "SkirmishVecEnv",
    "SpeakerListenerVecEnv",
    "SpreadVecEnv",
    "TagVecEnv",
    "TensorEnv",
]

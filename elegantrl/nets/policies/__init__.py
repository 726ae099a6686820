"""Policies: the part of an agent that is sent to workers. A group actor needs only this package and an environment."""

from .base import Acted, Draw, NetPolicy, Policy, joined
from .categorical import CategoricalPolicy
from .deterministic import DeterministicPolicy, NoiseKind
from .ensemble import EnsemblePolicy
from .gaussian import GaussianPolicy
from .gumbel import GumbelPolicy
from .joint_q import JointQPolicy
from .multi_categorical import MultiCategoricalPolicy
from .q import QPolicy
from .spec import POLICIES, FlatPolicy, PolicySpec
from .squashed import SquashedPolicy
from .warm_up import WarmUpPolicy

__all__ = [
    "POLICIES",
    "Acted",
    "CategoricalPolicy",
    "DeterministicPolicy",
    "Draw",
    "EnsemblePolicy",
    "FlatPolicy",
    "GaussianPolicy",
    "GumbelPolicy",
    "JointQPolicy",
    "MultiCategoricalPolicy",
    "NetPolicy",
    "NoiseKind",
    "Policy",
    "PolicySpec",
    "QPolicy",
    "SquashedPolicy",
    "WarmUpPolicy",
    "joined",
]

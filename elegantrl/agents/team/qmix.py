"""QMIX (arXiv:1803.11485): the value of a team's actions is a monotonic function of its agents' values.

A network mixes them with weights that depend on the state of the whole environment, or on all observations joined where
there is none. It is needed for learning only: an agent acts by its own values of its own observation.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...config.fields import setting
from ...errors import SpecError
from ...nets.mixers import Mixer
from ...tree import Tree
from ...types import EnvSpec, Obs, active_of, vector_dim
from ..optim import Target
from .vdn import AgentVDN, VDNConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class QMixConfig(VDNConfig):
    """Settings of QMIX."""

    mixing_size: int = setting(32, ge=1)
    """Units of the mixing network's hidden layer."""


class AgentQMix(AgentVDN):
    config: QMixConfig

    def __init__(self, spec: EnvSpec, config: QMixConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.mixer = Mixer(spec.team[0], self.state_dim(spec), config.mixing_size).to(device)
        self.mixer_target = deepcopy(self.mixer)
        # The optimiser and the target of both networks replace those of the agents' network alone.
        self.step = self.optimizer([*self.policy.parameters(), *self.mixer.parameters()])
        self.target = Target(nn.ModuleList([self.policy_target, self.mixer_target]), self.step)

    def state_dim(self, spec: EnvSpec) -> int:
        """The length of ``whole_state``."""
        if isinstance(spec.obs, Obs) and spec.obs.state is not None:
            leaf: Any = spec.obs.state
            if len(leaf.shape) != 1 or leaf.dtype != "float32":
                raise SpecError(f"the state of {spec.name} is {leaf}, but QMIX takes a vector of floats; flatten it")
            return int(leaf.shape[0])
        core = self.policy.core
        num_features: int = vector_dim(self.policy.feature_leaves) if core is None else core.input.in_features
        return spec.team[0] * num_features

    def mix(self, q: Tensor, obs: Tree, features: Tensor, is_target: bool) -> Tensor:
        mixer = self.mixer_target if is_target else self.mixer
        return mixer(q, whole_state(obs, features))


def whole_state(obs: Tree, features: Tensor) -> Tensor:
    """The global state [..., S] of observations; where there is none the features [..., G, F] of all agents joined."""
    if isinstance(obs, Obs) and obs.state is not None:
        return obs.state
    active = active_of(obs)
    return (features if active is None else torch.where(active.unsqueeze(-1), features, 0.0)).flatten(-2)

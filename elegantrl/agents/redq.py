"""Randomised ensembled double Q-learning. Chen et al. 2021 (arXiv:2101.05982).

SAC with E critics and many updates per step: the target takes the minimum over a random subset of M critics, the actor
climbs the mean of all E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConfigError
from ..settings import setting
from ..types import EnvSpec, Metrics, Transition
from .off_policy import ReplayConfig
from .sac import AgentSAC, SACConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class REDQConfig(SACConfig):
    """Settings of REDQ."""

    num_critics: int = setting(10, ge=1)
    num_target_critics: int = setting(2, ge=1)
    """Critics in the random subset whose minimum is the target."""
    updates_per_step: float = setting(20.0, gt=0.0)
    actor_interval: int = setting(20, ge=1)

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        if self.num_target_critics > self.num_critics:
            raise ConfigError(
                f"agent.num_target_critics={self.num_target_critics} is more than agent.num_critics={self.num_critics};"
                f" lower it"
            )


class AgentREDQ(AgentSAC):
    config: REDQConfig
    subset: Tensor

    def __init__(self, spec: EnvSpec, config: REDQConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        # A buffer, so that the loss stays a function of (parameters, buffers, batch).
        self.register_buffer("subset", torch.arange(config.num_target_critics, device=device))

    def update(self, batch: Transition) -> Metrics:
        order = torch.randperm(self.config.num_critics, generator=self.generator, device=self.subset.device)
        self.subset.copy_(order[: len(self.subset)])
        return super().update(batch)

    def target_q(self, q_EB: Tensor) -> Tensor:
        return q_EB[self.subset].amin(0)

    def actor_q(self, q_EB: Tensor) -> Tensor:
        return q_EB.mean(0)

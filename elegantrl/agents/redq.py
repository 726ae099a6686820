"""Randomised ensembled double Q-learning. Chen et al. 2021 (arXiv:2101.05982).

SAC with many critics and many updates per step: the target takes the minimum over a random subset of the critics, the
actor maximises the mean of all.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..config.fields import setting
from .off_policy import Aggregate
from .sac import AgentSAC, SACConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class REDQConfig(SACConfig):
    """Settings of REDQ."""

    num_critics: int = setting(10, ge=1)
    target_critics: Aggregate = "subset"
    updates_per_step: float = setting(20.0, gt=0.0)
    actor_interval: int = setting(20, ge=1)


class AgentREDQ(AgentSAC):
    config: REDQConfig

    def actor_q(self, q_EB: Tensor) -> Tensor:
        return q_EB.mean(0)

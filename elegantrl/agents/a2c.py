"""Advantage actor-critic: one step along the policy gradient per rollout. Mnih et al. 2016 (arXiv:1602.01783)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..config.fields import setting, tunable
from ..nets.distributions import Categorical, DiagGaussian
from ..types import Metrics
from .on_policy import AgentOnPolicy, Batch, OnPolicyConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C."""

    lr: float = tunable(7e-4, 1e-5, 1e-2, "log", gt=0.0)
    horizon: int = setting(16, ge=1)
    entropy_coef: float = tunable(0.0, 0.0, 0.05, ge=0.0)


class AgentA2C(AgentOnPolicy):
    def policy_loss(self, dist: Categorical | DiagGaussian, b: Batch) -> tuple[Tensor, Metrics]:
        return -(dist.log_prob(b.action) * b.advantage).mean(), {}

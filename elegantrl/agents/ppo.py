"""Proximal policy optimisation with a clipped surrogate. Schulman et al. 2017 (arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.fields import setting, tunable
from ..nets.critics import mean_of
from ..nets.distributions import Categorical, DiagGaussian
from ..types import Metrics
from .h_term import HTermConfig
from .on_policy import AgentOnPolicy, Batch, OnPolicyConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedConfig(OnPolicyConfig):
    """Settings of the clipped surrogate."""

    horizon: int = setting(128, ge=1)
    num_epochs: int = setting(10, ge=1)
    batch_size: int = setting(256, ge=1)
    clip: float = tunable(0.2, 0.05, 0.4, gt=0.0, le=1.0)
    """How far a probability ratio may move from 1 before its gradient becomes 0."""
    target_kl: float | None = setting(None, gt=0.0)
    """Skip the remaining epochs once the policy has moved this far, on average over an epoch's minibatches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig(ClippedConfig, HTermConfig):
    """Settings of PPO."""


class AgentPPO(AgentOnPolicy):
    ratio_in_loss = True
    config: PPOConfig

    def policy_loss(self, dist: Categorical | DiagGaussian, b: Batch) -> tuple[Tensor, Metrics]:
        # In log space: a ratio beyond e^20 means nothing, and inf * 0 would be NaN.
        log_ratio_B = (dist.log_prob(b.action) - b.logp).clamp(-20, 20)
        # The clipped term is (1 + clip) A for a positive advantage and (1 - clip) A for a negative one.
        limit_B = torch.addcmul(b.advantage, self.hypers.clip, b.advantage.abs())
        gain_B = torch.minimum(log_ratio_B.exp() * b.advantage, limit_B)
        return -mean_of(gain_B, b.active), {"log_ratio": log_ratio_B.detach()}

    def diagnose(self, metrics: Metrics) -> Metrics:
        log_ratio_B = metrics.pop("log_ratio")
        change_B = log_ratio_B.expm1()
        return metrics | {
            "policy/kl": (change_B - log_ratio_B).mean(),  # unbiased and never negative: E[r - 1 - log r]
            "policy/clip_frac": (change_B.abs() > self.hypers.clip).float().mean(),
        }

    def may_stop(self) -> bool:
        return self.config.target_kl is not None

    def should_stop(self, epoch: Sequence[Metrics]) -> bool:
        assert self.config.target_kl is not None
        kl = torch.stack([self.diagnose(dict(metrics))["policy/kl"] for metrics in epoch]).mean()
        return bool(self.averaging.average(kl) > self.config.target_kl)  # one host read per epoch

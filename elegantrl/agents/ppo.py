"""Proximal policy optimisation with a clipped surrogate. Schulman et al. 2017 (arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..nets.distributions import Categorical, DiagGaussian
from ..settings import setting, tunable
from ..types import Metrics
from .on_policy import AgentOnPolicy, Batch, OnPolicyConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    horizon: int = setting(128, ge=1)
    num_epochs: int = setting(10, ge=1)
    batch_size: int = setting(256, ge=1)
    clip: float = tunable(0.2, 0.05, 0.4, gt=0.0, le=1.0)
    """How far a probability ratio may move from 1 before its gradient is cut."""
    target_kl: float | None = setting(None, gt=0.0)
    """Skip the remaining epochs once the policy has moved this far."""


class AgentPPO(AgentOnPolicy):
    config: PPOConfig

    def policy_loss(self, dist: Categorical | DiagGaussian, b: Batch) -> tuple[Tensor, Metrics]:
        clip = self.hypers.clip
        log_ratio_B = dist.log_prob(b.action) - b.logp
        ratio_B = log_ratio_B.exp()
        surrogate_B = torch.minimum(ratio_B * b.advantage, ratio_B.clamp(1 - clip, 1 + clip) * b.advantage)
        with torch.no_grad():
            change_B = ratio_B - 1
            metrics = {
                "policy/kl": (change_B - log_ratio_B).mean(),  # unbiased and never negative: E[r - 1 - log r]
                "policy/clip_frac": (change_B.abs() > clip).float().mean(),
            }
        return -surrogate_B.mean(), metrics

    def should_stop(self, metrics: Metrics) -> bool:
        # One host read per epoch, and only if asked for.
        return self.config.target_kl is not None and bool(metrics["policy/kl"] > self.config.target_kl)

"""Soft actor-critic for discrete actions: expectations over all actions replace samples.

Christodoulou 2019 (arXiv:1910.07207). Axes: B minibatch rows, E critics, A actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config.fields import Hidden, setting, unused
from ..nets.distributions import opened
from ..nets.layers import Stack
from ..tree import Tree
from ..types import EnvSpec, Metrics, Transition, mask_of, seen_part, vector_dim
from .off_policy import ActionNoise
from .sac import AgentSAC, SACConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteSACConfig(SACConfig):
    """Settings of discrete SAC."""

    hidden: tuple[int, ...] = setting((64, 64), ge=1)
    target_entropy_frac: float = setting(0.3, ge=0.0, le=1.0)
    """Target entropy of the temperature, as a fraction of the maximum entropy."""
    alpha_init: float = setting(0.2, gt=0.0)
    target_entropy_per_dim: Hidden[float] = unused(-1.0)
    warm_up_hold: Hidden[int] = unused(1)


class AgentDiscreteSAC(AgentSAC):
    actions = frozenset({"discrete"})
    config: DiscreteSACConfig
    policy: Any

    def __init__(self, spec: EnvSpec, config: DiscreteSACConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.target_entropy = config.target_entropy_frac * math.log(spec.action.num_outputs)

    def make_policy(self, spec: EnvSpec, device: torch.device) -> Any:
        return self.build_policy("categorical", spec, device)

    def build_critic(self, spec: EnvSpec) -> Stack:
        c = self.config
        encoder = c.net().build_encoder(seen_part(spec.obs), needs_vector=True)
        num_features = vector_dim(seen_part(spec.obs), spec.name) if encoder is None else encoder.num_features
        # -> [E, B, A]
        critics = c.net().build_ensemble(num_features, spec.action.num_outputs, c.num_critics, c.layer_norm)
        return critics if encoder is None else Stack(encoder, *critics)

    def draw_noise(self, batch: Transition) -> ActionNoise:
        return ActionNoise(batch.reward[:0], batch.reward[:0])  # nothing is sampled

    def warm_up(self, env_steps: int) -> None:
        """Do nothing: the initial policy is almost uniform, so its own actions are random enough."""

    def target_entropy_of(self, batch: Transition) -> float | Tensor:
        mask_BA = mask_of(batch.obs)
        if mask_BA is None:
            return self.target_entropy
        # The maximum entropy is that of the allowed actions: where only one is, there is nothing to choose.
        return self.config.target_entropy_frac * opened(mask_BA).sum(-1).log().mean()

    def q_taken(self, b: Transition) -> Tensor:
        q_EBA = self.critic(self.policy.normed(b.obs))
        return q_EBA.gather(-1, b.action.expand(q_EBA.shape[0], -1).unsqueeze(-1)).squeeze(-1)

    def state_values(self, obs: Tree) -> Tensor:
        return (self.policy.dist(obs).log_probs.exp() * self.target_q(self.policy.normed(obs))).sum(-1)

    def next_value(self, next_obs: Tree, noise_BA: Tensor) -> Tensor:
        log_probs_BA = self.policy.dist(next_obs).log_probs
        q_BA = self.target_q(self.policy.normed(next_obs))
        return (log_probs_BA.exp() * (q_BA - self.log_alpha.exp() * log_probs_BA)).sum(-1)

    def actor_loss(self, b: Transition, noise_BA: Tensor) -> tuple[Tensor, Metrics]:
        dist = self.policy.dist(b.obs)
        with torch.no_grad():
            q_BA = self.actor_q(self.critic(self.policy.normed(b.obs)))
        cost_BA = self.log_alpha.exp().detach() * dist.log_probs - q_BA
        loss = (dist.log_probs.exp() * cost_BA).sum(-1).mean()
        return loss, {"loss/actor": loss.detach(), "policy/entropy": dist.entropy().detach().mean()}

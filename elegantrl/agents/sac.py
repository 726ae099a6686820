"""Soft actor-critic with a learned temperature. Haarnoja et al. 2018 (arXiv:1812.05905)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config.fields import setting
from ..nets.policies import SquashedPolicy
from ..tree import Tree
from ..types import EnvSpec, Metrics, Transition
from .off_policy import ActionNoise, ActorCriticConfig, AgentActorCritic
from .optim import GradStep


@dataclass(frozen=True, kw_only=True, slots=True)
class SACConfig(ActorCriticConfig):
    """Settings of SAC."""

    target_entropy_per_dim: float = -1.0
    """Target entropy of the temperature, per action dimension."""
    alpha_init: float = setting(1.0, gt=0.0)
    """Temperature at the start."""


class AgentSAC(AgentActorCritic):
    config: SACConfig
    policy: SquashedPolicy

    def __init__(self, spec: EnvSpec, config: SACConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.policy = self.make_policy(spec, device)
        self.actor_step = self.optimizer(self.policy.parameters())
        self.log_alpha = nn.Parameter(torch.tensor(config.alpha_init, device=device).log())
        self.alpha_step = GradStep([self.log_alpha], self.hypers.lr, epsilon=config.adam_epsilon)
        self.target_entropy = config.target_entropy_per_dim * spec.action.num_outputs

    def make_policy(self, spec: EnvSpec, device: torch.device) -> SquashedPolicy:
        return self.build_policy("squashed", spec, device, warm_up_hold=self.config.warm_up_hold)

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        self.warm_up(env_steps)

    def warm_up(self, env_steps: int) -> None:
        """Actions are uniform until learning starts."""
        self.policy.random_frac.fill_(float(env_steps < self.config.learning_starts))

    def next_value(self, next_obs: Tree, noise_BA: Tensor) -> Tensor:
        action_BA, logp_B = self.policy.sample(next_obs, noise_BA)
        q_B = self.target_q(self.policy.normed(next_obs), action_BA)
        return q_B - self.log_alpha.exp() * logp_B

    def actor_loss(self, b: Transition, noise_BA: Tensor) -> tuple[Tensor, Metrics]:
        action_BA, logp_B = self.policy.sample(b.obs, noise_BA)
        q_EB = self.critic(self.policy.normed(b.obs), action_BA)
        loss = (self.log_alpha.exp().detach() * logp_B - self.actor_q(q_EB)).mean()
        return loss, {"loss/actor": loss.detach(), "policy/entropy": -logp_B.detach().mean()}

    def update_actor(self, batch: Transition, noise: ActionNoise) -> Metrics:
        metrics = super().update_actor(batch, noise)
        return metrics | self.update_temperature(metrics["policy/entropy"] - self.target_entropy_of(batch))

    def target_entropy_of(self, batch: Transition) -> float | Tensor:
        """The mean entropy that the policy should have on a minibatch."""
        return self.target_entropy

    def update_temperature(self, excess: Tensor) -> Metrics:
        # The gradient of log_alpha * (entropy - target): with too little entropy it is negative, and alpha rises.
        self.alpha_step.follow(excess.view_as(self.alpha_step.flat))
        return {"policy/alpha": self.log_alpha.detach().exp()}

    def actor_q(self, q_EB: Tensor) -> Tensor:
        """The value that the actor maximises [B]."""
        return q_EB.amin(0)

"""What replay agents share: cadence settings, and the actor-critic skeleton of the continuous ones.

A member of the actor-critic family says two things: ``next_value`` and ``actor_loss``.
Axes: B minibatch rows, E critics, O obs, A action.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from ..nets.critics import EnsembleCritic
from ..settings import setting, tunable
from ..types import EnvSpec, Metrics, Transition
from .base import Agent, AgentConfig
from .optim import GradStep, Target


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig(AgentConfig):
    """Settings of every agent that learns from a replay buffer."""

    horizon: int = setting(1, ge=1)
    batch_size: int = setting(256, ge=1)
    """Transitions per gradient step."""
    buffer_size: int = setting(1_000_000, ge=1)
    """Transitions kept, over all environments."""
    learning_starts: int = setting(1000, ge=0)
    """Environment steps of random actions before the first update."""
    updates_per_step: float = setting(1.0, gt=0.0)
    """Gradient steps per environment step, constant over the run."""
    n_step: int = setting(1, ge=1)
    """Rewards summed before bootstrapping."""
    tau: float = tunable(0.005, 0.001, 0.1, "log", gt=0.0, le=1.0)
    """How far the target network moves towards the online one; 1 copies it."""
    target_interval: int = setting(1, ge=1)
    """Updates between two moves of the target network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticConfig(ReplayConfig):
    """Settings of continuous actor-critics with replay."""

    hidden: tuple[int, ...] = setting((256, 256), ge=1)
    num_critics: int = setting(2, ge=1)
    """Independent critics in the ensemble."""
    actor_interval: int = setting(1, ge=1)
    """Critic updates per actor update."""


class AgentActorCritic(Agent):
    data = "replay"
    hot = ("critic_loss", "actor_loss")
    actions = frozenset({"continuous"})
    config: ActorCriticConfig
    actor_step: GradStep

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.critic = EnsembleCritic(
            spec.obs_dim, spec.action_dim, config.hidden, config.activation, config.num_critics
        ).to(device)
        self.critic_step = GradStep(self.critic.parameters(), self.hypers.lr, config.max_grad_norm)
        self.critic_target = deepcopy(self.critic)
        self.target = Target(self.critic_target, self.critic_step)

    def update(self, batch: Transition) -> Metrics:
        """One critic step, an actor step if due, and target tracking."""
        loss, metrics = self.critic_loss(batch, self.normal_like_action(batch))
        metrics["critic/grad_norm"] = self.critic_step(loss)
        if self.num_updates % self.config.actor_interval == 0:
            metrics |= self.update_actor(batch)
        self.num_updates += 1
        if self.num_updates % self.config.target_interval == 0:
            self.target.track(self.hypers.tau)
        return metrics

    def update_actor(self, batch: Transition) -> Metrics:
        loss, metrics = self.actor_loss(batch, self.normal_like_action(batch))
        metrics["actor/grad_norm"] = self.actor_step(loss)
        return metrics

    def normal_like_action(self, batch: Transition) -> Tensor:
        return self.normal_like(batch.action)

    def critic_loss(self, b: Transition, noise_BA: Tensor) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            target_B = b.reward + b.discount * self.next_value(b.next_obs, noise_BA)
        q_EB = self.critic(self.policy.norm(b.obs), b.action)
        loss = 0.5 * (q_EB - target_B).square().mean(-1).sum()  # each critic has its own mean-square error
        return loss, {"loss/critic": loss.detach(), "critic/q": q_EB.detach().mean()}

    @abstractmethod
    def next_value(self, next_obs_BO: Tensor, noise_BA: Tensor) -> Tensor:
        """Value of the successor state [B]."""

    @abstractmethod
    def actor_loss(self, b: Transition, noise_BA: Tensor) -> tuple[Tensor, Metrics]: ...

"""Twin delayed DDPG (Fujimoto et al. 2018, arXiv:1802.09477); DDPG (Lillicrap et al. 2015, arXiv:1509.02971) in it.

Axes: B minibatch rows, E critics, O obs, A action.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.fields import setting, tunable
from ..nets.critics import EnsembleCritic
from ..nets.policies import DeterministicPolicy, NoiseKind
from ..tree import Tree
from ..types import EnvSpec, Metrics, Transition, Update
from .off_policy import ActionNoise, ActorCriticConfig, AgentActorCritic
from .optim import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class TD3Config(ActorCriticConfig):
    """Settings of TD3."""

    lr: float = tunable(1e-3, 1e-5, 1e-2, "log", gt=0.0)
    actor_interval: int = setting(2, ge=1)
    target_interval: int = setting(2, ge=1)
    noise: NoiseKind = "gaussian"
    """Exploration noise of actions: `gaussian`, independent at every step, or `ou` (Ornstein-Uhlenbeck), correlated."""
    noise_std: float = setting(0.1, ge=0.0)
    """Standard deviation of that noise, in units of half the action range; with `ou` that of its increments."""
    smooth_std: float = setting(0.2, ge=0.0)
    """Standard deviation of the noise on the target's next action; 0 leaves that action as it is."""
    smooth_clip: float = setting(0.5, ge=0.0, only_with={"smooth_std": True})
    """The noise on the target's next action is clipped at plus and minus this."""


class AgentTD3(AgentActorCritic):
    config: TD3Config
    critic: EnsembleCritic
    policy: DeterministicPolicy

    def __init__(self, spec: EnvSpec, config: TD3Config, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.policy = self.build_actor(spec, device)
        self.actor_step = self.optimizer(self.policy.parameters())
        self.policy_target = deepcopy(self.policy)
        self.actor_target = Target(self.policy_target, self.actor_step)
        self.actor_metrics: Metrics = {}

    def build_actor(self, spec: EnvSpec, device: torch.device) -> DeterministicPolicy:
        c = self.config
        noise = {"noise": c.noise, "noise_std": c.noise_std, "warm_up_hold": c.warm_up_hold}
        policy: DeterministicPolicy = self.build_policy("deterministic", spec, device, **noise)
        return policy

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        self.policy.random_frac.fill_(float(env_steps < self.config.learning_starts))

    def update(self, batch: Transition) -> Update:
        """One update of the base class; the target actor moves whenever the target critics do."""
        update = super().update(batch)
        if self.num_updates % self.config.target_interval == 0:
            self.actor_target.track(self.hypers.tau)
        # Updates without an actor step report the latest one.
        return update._replace(metrics=self.actor_metrics | update.metrics)

    def update_actor(self, batch: Transition, noise: ActionNoise) -> Metrics:
        self.actor_metrics = super().update_actor(batch, noise)
        return self.actor_metrics

    def next_value(self, next_obs: Tree, noise_BA: Tensor) -> Tensor:
        clip = self.config.smooth_clip
        # The target actor's own normaliser is a stale copy: all networks use the policy's.
        normed = self.policy.normed(next_obs)
        smooth_BA = (self.config.smooth_std * noise_BA).clamp(-clip, clip)
        action_BA = (self.policy_target.action(normed) + smooth_BA).clamp(-1, 1)
        return self.target_q(normed, action_BA)

    def actor_loss(self, b: Transition, noise_BA: Tensor) -> tuple[Tensor, Metrics]:
        normed = self.policy.normed(b.obs)
        # One critic is enough: the minimum is only needed in targets, against over-estimation.
        loss = -self.critic.subset(slice(1), normed, self.policy.action(normed)).mean()
        return loss, {"loss/actor": loss.detach()}


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPGConfig(TD3Config):
    """Settings of DDPG."""

    num_critics: int = setting(1, ge=1)
    actor_interval: int = setting(1, ge=1)
    target_interval: int = setting(1, ge=1)
    smooth_std: float = setting(0.0, ge=0.0)


class AgentDDPG(AgentTD3):
    """TD3 with one critic, no delay and no smoothing."""

    config: DDPGConfig

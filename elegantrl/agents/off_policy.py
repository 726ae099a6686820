"""Base classes of replay agents: settings of the update cadence, and the actor-critic for continuous actions.

A subclass of the actor-critic defines two methods: ``next_value`` and ``actor_loss``.
Axes: B minibatch rows, E critics, O obs, A action.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..config.fields import Section, setting, tunable
from ..errors import ConfigError
from ..nets.critics import EnsembleCritic
from ..nets.layers import Stack
from ..tree import Tree
from ..types import EnvSpec, Metrics, Rollout, Transition, Update
from .base import Agent, AgentConfig
from .h_term import HTermConfig
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
    """Fraction by which the target network moves towards the online one; 1 copies it."""
    target_interval: int = setting(1, ge=1)
    """Updates between two moves of the target network."""
    prioritized: bool = False
    """Replay transitions in proportion to their temporal-difference error."""
    priority_alpha: float = setting(0.6, ge=0.0, le=1.0, only_with={"prioritized": True})
    """Exponent of the error in a priority: 0 replays uniformly, 1 in full proportion."""
    priority_beta: float = setting(0.4, ge=0.0, le=1.0, only_with={"prioritized": True})
    """Exponent of the importance weights that correct that bias; rises to 1 over `schedule_steps`."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.batch_size > self.buffer_size:
            raise ConfigError(
                f"agent.batch_size={self.batch_size} is more than agent.buffer_size={self.buffer_size}; lower it"
            )


def td_loss(error: Tensor, loss: Tensor, b: Transition) -> tuple[Tensor, Metrics]:
    """Mean of the losses [..., B]; for prioritised replay weighted, with the absolute errors [B] as a metric."""
    if b.weight is None:
        return loss.mean(-1), {}
    priority_B = error.detach().abs()
    return (loss * b.weight).mean(-1), {TD_ERROR: priority_B.mean(0) if priority_B.dim() > 1 else priority_B}


TD_ERROR = "td_error"
"""The metric of a loss that holds its absolute errors [B] for ``Update.td_error``."""


Aggregate = Literal["min", "mean", "subset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticConfig(ReplayConfig, HTermConfig):
    """Settings of continuous actor-critics with replay."""

    hidden: tuple[int, ...] = setting((256, 256), ge=1)
    num_critics: int = setting(2, ge=1)
    """Independent critics in the ensemble."""
    target_critics: Aggregate = "min"
    """How critics form a target: the `min` of all (against over-estimation), the `mean` of all (against variance), or
    the minimum of a random `subset`, drawn for every update."""
    subset_size: int = setting(2, ge=1, only_with={"target_critics": "subset"})
    """Critics in that random subset."""
    actor_interval: int = setting(1, ge=1)
    """Critic updates per actor update."""
    warm_up_hold: int = setting(1, ge=1)
    """Mean number of steps for which a random action of the warm-up is held: held actions explore further than
    independent ones."""

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        if self.target_critics == "subset" and self.subset_size > self.num_critics:
            raise ConfigError(
                f"agent.subset_size={self.subset_size} is more than agent.num_critics={self.num_critics}; lower it"
            )


class ActionNoise(NamedTuple):
    """Standard normal numbers of one update, drawn before it, so that hot functions draw no random numbers."""

    next_action: Tensor  # [B, A] for the action at the successor
    action: Tensor  # [B, A] for the action at the observation


class ReplayAgent(Agent):
    """Learns from minibatches of stored transitions."""

    memory = "replay"
    config: ReplayConfig

    def memory_name(self) -> str:
        return "prioritized" if self.config.prioritized else self.memory

    def see(self, rollout: Rollout) -> None:
        super().see(rollout)
        self.observe(rollout.obs)


class AgentActorCritic(ReplayAgent):
    hot = ("critic_loss", "policy_loss")
    actions = frozenset({"continuous"})
    config: ActorCriticConfig
    critic: EnsembleCritic | Stack
    critic_target: EnsembleCritic | Stack
    subset: Tensor
    actor_step: GradStep

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.critic = self.build_critic(spec).to(device)
        self.critic_step = self.optimizer(self.critic.parameters())
        self.critic_target = deepcopy(self.critic)
        self.target = Target(self.critic_target, self.critic_step)
        if config.target_critics == "subset":
            # A buffer, so that the loss stays a function of (parameters, buffers, batch).
            self.register_buffer("subset", torch.arange(config.subset_size, device=device))

    def build_critic(self, spec: EnvSpec) -> EnsembleCritic | Stack:
        c = self.config
        return EnsembleCritic(spec.obs, spec.action.num_outputs, c.net(), c.num_critics, c.layer_norm)

    def update(self, batch: Transition) -> Update:
        """One critic step, an actor step if due, and target tracking."""
        if self.config.target_critics == "subset":
            order = torch.randperm(self.config.num_critics, generator=self.common, device=self.subset.device)
            self.subset.copy_(order[: len(self.subset)])
        noise = self.draw_noise(batch)
        metrics_of, norm = self.descend("critic_loss", self.critic_step, batch, noise)
        metrics = metrics_of() | {"critic/grad_norm": norm}
        if self.actor_is_due(metrics):
            metrics |= self.update_actor(batch, noise)
        self.num_updates += 1
        if self.num_updates % self.config.target_interval == 0:
            self.target.track(self.hypers.tau)
        return Update(metrics, metrics.pop(TD_ERROR, None))

    def actor_is_due(self, metrics: Metrics) -> bool:
        """Whether this update moves the actor too: every ``actor_interval``-th one does."""
        return (self.num_updates + 1) % self.config.actor_interval == 0

    def draw_noise(self, batch: Transition) -> ActionNoise:
        """The noise of the next update."""
        return ActionNoise(self.normal_like(batch.action), self.normal_like(batch.action))

    def update_actor(self, batch: Transition, noise: ActionNoise) -> Metrics:
        """One descent step on the policy's loss."""
        metrics_of, norm = self.descend_policy("policy_loss", self.actor_step, batch, noise)
        return metrics_of() | {"actor/grad_norm": norm}

    def policy_loss(self, b: Transition, noise: ActionNoise) -> tuple[Tensor, Metrics]:
        """The actor's loss with the noise of this update."""
        return self.actor_loss(b, noise.action)

    def state_values(self, obs: Tree) -> Tensor:
        action_BA, _ = self.policy.act(obs, ())
        return self.target_q(self.policy.normed(obs), action_BA)

    def critic_loss(self, b: Transition, noise: ActionNoise) -> tuple[Tensor, Metrics]:
        """Mean-square errors of all critics against one target."""
        with torch.no_grad():
            target_B = b.reward + b.discount * self.next_value(b.next_obs, noise.next_action)
        q_EB = self.q_taken(b)
        error_EB = q_EB - target_B
        loss_E, metrics = td_loss(error_EB, 0.5 * error_EB.square(), b)  # each critic has its own mean-square error
        loss = loss_E.sum()
        return loss, metrics | {"loss/critic": loss.detach(), "critic/q": q_EB.detach().mean()}

    def q_taken(self, b: Transition) -> Tensor:
        """The critics' values [E, B] of the actions that were taken."""
        return self.critic(self.policy.normed(b.obs), b.action)

    def target_q(self, *inputs: Tree) -> Tensor:
        """The target critics' values of inputs [B, ...], combined by ``target_critics``."""
        if self.config.target_critics == "subset":
            return self.critic_target.subset(self.subset, *inputs).amin(0)
        q_EB: Tensor = self.critic_target(*inputs)
        return q_EB.mean(0) if self.config.target_critics == "mean" else q_EB.amin(0)

    @abstractmethod
    def next_value(self, next_obs: Tree, noise_BA: Tensor) -> Tensor:
        """Value of the successor state [B]."""

    @abstractmethod
    def actor_loss(self, b: Transition, noise_BA: Tensor) -> tuple[Tensor, Metrics]: ...

"""Actors of a team with centralised critics: MATD3 (Ackermann et al. 2019, arXiv:1910.01465), and MADDPG (Lowe et al.
2017, arXiv:1706.02275) in it.

Each agent has an actor, which sees its own observation, and critics of its own reward, which see the observations and
actions of all. The networks of all agents are stacked: an update is one program for the whole team.
Axes: B minibatch rows, G agents, E critics of an agent, A action.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...config.fields import Hidden, setting, unused
from ...nets.distributions import FORBIDDEN
from ...nets.networks import NetSpec
from ...nets.policies import DeterministicPolicy, GumbelPolicy, NoiseKind
from ...nets.policies.gumbel import gumbel_noise
from ...nets.team_critics import TeamCritic
from ...tree import Tree
from ...types import EnvSpec, Metrics, Transition, active_of
from ..off_policy import TD_ERROR, ActionNoise
from ..td3 import AgentTD3, TD3Config


@dataclass(frozen=True, kw_only=True, slots=True)
class MATD3Config(TD3Config):
    """Settings of MATD3."""

    noise: NoiseKind = setting("gaussian", actions="continuous")
    noise_std: float = setting(0.1, ge=0.0, actions="continuous")
    warm_up_hold: int = setting(1, ge=1, actions="continuous")
    smooth_std: float = setting(0.2, ge=0.0)
    """Scale of the noise on the target's next action: normal noise on continuous actions, Gumbel noise on the logits of
    discrete ones; 0 leaves that action as it is."""
    temperature: float = setting(1.0, gt=0.0, actions="discrete")
    """Temperature of the relaxed samples that carry the actor's gradient: a lower one has less bias, more variance."""
    epsilon: float = setting(0.05, ge=0.0, le=1.0, actions="discrete")
    """Fraction of uniform random actions after the warm-up, besides the samples of the policy."""
    output_penalty: float = setting(1e-3, ge=0.0)
    """Weight of the mean square of the actors' outputs before tanh or softmax, which keeps these from saturating."""
    h_term: Hidden[bool] = unused(False)
    h_lambda: Hidden[float] = unused(2**-3)
    h_ratio: Hidden[float] = unused(2.0)
    h_select: Hidden[Literal["advantage", "reward"]] = unused("advantage")
    h_length: Hidden[int] = unused(4)
    h_windows: Hidden[int] = unused(64)
    h_gamma: Hidden[float] = unused(0.8)
    h_store: Hidden[int] = unused(32_768)

    def net(self) -> NetSpec:
        return replace(TD3Config.net(self), separate=True)


class AgentMATD3(AgentTD3):
    teams = True
    actions = frozenset({"discrete", "continuous"})
    config: MATD3Config
    critic: TeamCritic  # type: ignore[assignment]
    critic_target: TeamCritic  # type: ignore[assignment]
    policy: DeterministicPolicy | GumbelPolicy  # type: ignore[assignment]
    policy_target: DeterministicPolicy | GumbelPolicy  # type: ignore[assignment]

    def build_critic(self, spec: EnvSpec) -> TeamCritic:  # type: ignore[override]
        c = self.config
        net = replace(c.net(), num_agents=spec.num_agents)
        return TeamCritic(spec.obs, spec.action.num_outputs, net, c.num_critics, c.layer_norm)

    def build_actor(self, spec: EnvSpec, device: torch.device) -> DeterministicPolicy | GumbelPolicy:  # type: ignore[override]
        if spec.action.kind == "continuous":
            return super().build_actor(spec, device)
        policy: GumbelPolicy = self.build_policy("gumbel", spec, device, temperature=self.config.temperature)
        return policy

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        if isinstance(self.policy, GumbelPolicy):
            self.policy.random_frac.clamp_(min=self.config.epsilon)

    def draw_noise(self, batch: Transition) -> ActionNoise:
        """The noise of the next update; what has no effect is not drawn."""
        none = torch.zeros(*batch.reward.shape, self.policy.action_dim, device=batch.reward.device)
        smooths = self.config.smooth_std > 0
        if isinstance(self.policy, DeterministicPolicy):
            return ActionNoise(self.normal_like(none) if smooths else none, none)
        first = gumbel_noise(none.shape, self.generator) if smooths else none
        return ActionNoise(first, gumbel_noise(none.shape, self.generator))

    def critic_loss(self, b: Transition, noise: ActionNoise) -> tuple[Tensor, Metrics]:
        """Mean-square errors of all critics, each agent's against a target of its own reward."""
        with torch.no_grad():
            next_BG = b.discount.unsqueeze(1) * self.next_value(b.next_obs, noise.next_action)
            target_BG = b.reward + next_BG
        q_EBG = self.q_taken(b)
        error_EBG = q_EBG - target_BG
        active_BG = active_of(b.obs)
        square_EBG = 0.5 * error_EBG.square()
        if b.weight is not None:
            square_EBG = square_EBG * b.weight.unsqueeze(1)
        loss = mean_of_each(square_EBG, active_BG).sum()
        metrics = {"loss/critic": loss.detach(), "critic/q": q_EBG.detach().mean()}
        if b.weight is not None:
            error_GB = error_EBG.detach().abs().mean(0).t()
            metrics[TD_ERROR] = mean_of_each(error_GB, None if active_BG is None else active_BG.t())
        return loss, metrics

    def q_taken(self, b: Transition) -> Tensor:
        """The values [E, B, G] of the actions that were taken."""
        return self.critic(*self.seen_by_critics(b))

    def seen_by_critics(self, b: Transition) -> tuple[Tensor, Tensor]:
        """Features [B, F] and the actions that were taken [B, G, A], one-hot if they are discrete."""
        action = self.policy.one_hot(b.action) if isinstance(self.policy, GumbelPolicy) else b.action
        return self.critic.features(b.obs, self.policy.normed(b.obs)), of_active(action, b.obs)

    def next_value(self, next_obs: Tree, noise_BGA: Tensor) -> Tensor:
        """Values of the successors [B, G]; 0 for agents that have ended."""
        # The target actor's own normaliser is a stale copy: all networks use the policy's.
        normed, actor = self.policy.normed(next_obs), self.policy_target
        clip = self.config.smooth_clip
        smooth_BGA = (self.config.smooth_std * noise_BGA).clamp(-clip, clip)
        if isinstance(actor, GumbelPolicy):
            action_BGA = actor.hard(actor.logits(next_obs, normed) + smooth_BGA)
        else:
            action_BGA = used_part(actor, (actor.action(normed) + smooth_BGA).clamp(-1, 1))
        value_BG = self.target_q(self.critic.features(next_obs, normed), of_active(action_BGA, next_obs))
        active_BG = active_of(next_obs)
        return value_BG if active_BG is None else value_BG * active_BG

    def actor_loss(self, b: Transition, noise_BGA: Tensor) -> tuple[Tensor, Metrics]:
        """The negative values of fresh actions of each agent, beside the actions that the others took."""
        features, taken_BGA = self.seen_by_critics(b)
        out_BGA, action_BGA = self.fresh_actions(b.obs, noise_BGA)
        # One critic is enough: the minimum is only needed in targets, against over-estimation.
        q_BG = self.critic.of_own(features, taken_BGA, action_BGA)
        loss = -mean_of_each(q_BG, active_of(b.obs)).sum()
        metrics = {"loss/actor": loss.detach()}
        if self.config.output_penalty > 0:
            square_BG = torch.where(out_BGA > FORBIDDEN / 2, out_BGA, 0.0).square().mean(-1)
            loss = loss + self.config.output_penalty * mean_of_each(square_BG, active_of(b.obs)).sum()
        return loss, metrics

    def fresh_actions(self, obs: Tree, noise_BGA: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the actors and the actions made of them, both [B, G, A]."""
        normed = self.policy.normed(obs)
        if isinstance(self.policy, GumbelPolicy):
            logits_BGA = self.policy.logits(obs, normed)
            return logits_BGA, self.policy.relaxed(logits_BGA, noise_BGA)
        out_BGA = used_part(self.policy, self.policy.net(self.policy.encode(normed)))
        return out_BGA, out_BGA.tanh()


def used_part(policy: DeterministicPolicy, x_BGA: Tensor) -> Tensor:
    """Numbers [B, G, A], 0 for those that an agent does not have."""
    return x_BGA if policy.used is None else x_BGA * policy.used


def of_active(action_BGA: Tensor, obs: Tree) -> Tensor:
    """Actions [B, G, A], 0 for agents that have ended."""
    active_BG = active_of(obs)
    return action_BGA if active_BG is None else action_BGA * active_BG.unsqueeze(-1)


def mean_of_each(x: Tensor, active: Tensor | None) -> Tensor:
    """The mean over the rows of ``x`` [..., B, G] for each agent [..., G], over its ``active`` rows [B, G] if given."""
    if active is None:
        return x.mean(-2)
    return (x * active).sum(-2) / active.sum(-2).clamp(min=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MADDPGConfig(MATD3Config):
    """Settings of MADDPG."""

    num_critics: int = setting(1, ge=1)
    actor_interval: int = setting(1, ge=1)
    target_interval: int = setting(1, ge=1)
    smooth_std: float = setting(0.0, ge=0.0)


class AgentMADDPG(AgentMATD3):
    """MATD3 with one critic per agent, no delay and no smoothing."""

    config: MADDPGConfig

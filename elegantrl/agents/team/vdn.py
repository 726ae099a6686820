"""Value decomposition (VDN, arXiv:1706.05296): the value of a team's actions is the sum of its agents' values.

An agent acts by its own values of its own observation. Only their sum is learned, from the reward of the whole team, so
every agent learns its share of it. Targets are TD(lambda), over whole episodes.
Axes: L steps of the longest episode, K = L + 1 observations, B episodes, G agents, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ... import tree
from ...config.fields import Hidden, setting, tunable, unused
from ...data.episodes import EpisodeBatch
from ...nets.distributions import choice, masked
from ...nets.networks import NetSpec
from ...nets.policies import QPolicy
from ...nets.recurrent import MemoryKind
from ...tree import Tree
from ...types import Metrics, active_of, mask_of
from ..base import AgentConfig
from ..dqn import AgentDQN, DQNConfig
from ..off_policy import TD_ERROR
from ..returns import td_lambda_targets


@dataclass(frozen=True, kw_only=True, slots=True)
class VDNConfig(DQNConfig):
    """Settings of VDN."""

    horizon: int = setting(8, ge=1)
    batch_size: int = setting(32, ge=1)
    """Episodes per gradient step."""
    updates_per_step: float = setting(0.01, gt=0.0)
    lr: float = tunable(5e-4, 1e-5, 1e-2, "log", gt=0.0)
    max_grad_norm: float | None = setting(10.0, gt=0.0)
    td_lambda: float = tunable(0.6, 0.0, 1.0, ge=0.0, le=1.0)
    """Weight of longer returns in a target: 0 bootstraps after one step, 1 at the end of the episode."""
    double: bool = True
    prioritized: bool = False
    """Replay episodes in proportion to the mean of their temporal-difference errors."""
    separate: bool = False
    """Each agent has weights of its own; otherwise all share them."""
    memory: MemoryKind = "none"
    """Recurrent core between encoder and head."""
    memory_size: int = setting(64, ge=1, only_with={"memory": ("gru", "lstm")})
    """Units of that core."""
    dueling: Hidden[bool] = unused(False)
    n_step: Hidden[int] = unused(1)

    def net(self) -> NetSpec:
        net = AgentConfig.net(self)
        return replace(net, memory=self.memory, memory_size=self.memory_size, separate=self.separate)


class TeamValues(NamedTuple):
    """What a network makes of all observations of some episodes."""

    q: Tensor  # [K, B, G, A]
    features: Tensor  # [K, B, G, F] the input of its memory or head


class AgentVDN(AgentDQN):
    memory = "episodes"
    actions = frozenset({"discrete"})
    teams = True
    config: VDNConfig

    def memory_name(self) -> str:
        return "prioritized_episodes" if self.config.prioritized else self.memory

    def mix(self, q: Tensor, obs: Tree, features: Tensor, is_target: bool) -> Tensor:
        """The team's value [L, B] of its agents' values [L, B, G], where an agent that has ended has 0.

        ``obs`` and ``features`` are those of the same steps; ``is_target`` asks for that of the target network.
        """
        return q.sum(-1)

    def loss(self, b: EpisodeBatch) -> tuple[Tensor, Metrics]:  # type: ignore[override]
        obs = all_observations(b)
        before, after = tree.rows(obs, slice(0, -1)), tree.rows(obs, slice(1, None))
        online = self.values(self.policy, obs)
        q_LBG = chosen(online.q[:-1], b.action, before)
        q_LB = self.mix(q_LBG, before, online.features[:-1], is_target=False)
        with torch.no_grad():
            target = self.values(self.policy_target, obs)
            next_q_LBG = chosen(target.q[1:], self.best(online.q[1:], target.q[1:], after), after)
            next_value_LB = self.mix(next_q_LBG, after, target.features[1:], is_target=True)
            ends = (b.terminated, b.truncated)
            target_LB = td_lambda_targets(
                b.reward.sum(-1), next_value_LB, *ends, self.hypers.gamma, self.hypers.td_lambda
            )
        error_LB = torch.where(b.valid, q_LB - target_LB, 0.0)
        num_steps = b.valid.sum()
        square_B = error_LB.square().sum(0)
        loss = (square_B if b.weight is None else square_B * b.weight).sum() / num_steps
        mean_q = torch.where(b.valid, q_LB.detach(), 0.0).sum() / num_steps
        metrics = {"loss/critic": loss.detach(), "critic/q": mean_q}
        if b.weight is not None:
            metrics[TD_ERROR] = error_LB.detach().abs().sum(0) / b.valid.sum(0)
        return loss, metrics

    def values(self, net: QPolicy, obs: Tree) -> TeamValues:
        """All action values; with memory the states of ``net`` itself, from the beginning of the episodes."""
        # The target network's own normaliser is a stale copy: both networks use the policy's.
        features_KBGF = net.encode(self.policy.normed(obs))
        if net.core is None:
            return TeamValues(net.q_from(features_KBGF), features_KBGF)
        num_steps, num_episodes = features_KBGF.shape[:2]
        first_KB = torch.zeros(num_steps, num_episodes, dtype=torch.bool, device=features_KBGF.device)
        states = net.core.unroll(features_KBGF, net.initial_carry(num_episodes), first_KB)
        return TeamValues(net.q_from(states[0]), features_KBGF)

    def best(self, online_q: Tensor, target_q: Tensor, obs: Tree) -> Tensor:
        """The best allowed actions [L, B, G]: by the online network, or without ``double`` by the target network."""
        return choice(masked(online_q.detach() if self.config.double else target_q, mask_of(obs)))


def all_observations(b: EpisodeBatch) -> Tree:
    """The observations [L + 1, B, ...] of episodes with that after their last steps.

    The successor of a step is the next step's observation, so networks compute both at once.
    """
    return tree.map_leaves(lambda x, successor: torch.cat([x[:1], successor]), b.obs, b.next_obs)


def chosen(q: Tensor, action: Tensor, obs: Tree) -> Tensor:
    """The values [L, B, G] of actions [L, B, G] among all [L, B, G, A]; 0 for agents that have ended."""
    q_LBG = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    active_LBG = active_of(obs)
    return q_LBG if active_LBG is None else torch.where(active_LBG, q_LBG, 0.0)

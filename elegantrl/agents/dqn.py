"""Deep Q-learning (Mnih et al. 2015) with two switches: double (arXiv:1509.06461) and dueling (arXiv:1511.06581).

Axes: B minibatch rows, O obs, A actions.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from ..config.fields import setting
from ..nets.distributions import masked
from ..nets.policies import QPolicy
from ..tree import Tree
from ..types import EnvSpec, Metrics, Transition, Update, mask_of
from .off_policy import TD_ERROR, ReplayAgent, ReplayConfig, td_loss
from .optim import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN."""

    batch_size: int = setting(64, ge=1)
    buffer_size: int = setting(100_000, ge=1)
    double: bool = False
    """The online network selects the next action, the target network evaluates it."""
    dueling: bool = False
    """Split Q into a state value and advantages."""
    epsilon_end: float = setting(0.05, ge=0.0, le=1.0)
    """Final fraction of random actions; it starts at 1."""
    explore_steps: int = setting(10_000, ge=1)
    """Environment steps over which the fraction of random actions falls to `epsilon_end`."""


class AgentDQN(ReplayAgent):
    hot = ("loss",)
    actions = frozenset({"discrete", "multi_discrete"})
    config: DQNConfig
    policy: QPolicy

    def __init__(self, spec: EnvSpec, config: DQNConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        kind = "q" if spec.action.kind == "discrete" else "joint_q"
        self.policy = self.build_policy(kind, spec, device, dueling=config.dueling, layer_norm=config.layer_norm)
        self.step = self.optimizer(self.policy.parameters())
        self.policy_target = deepcopy(self.policy)
        self.target = Target(self.policy_target, self.step)

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        c = self.config
        explored = max(0, env_steps - c.learning_starts) / c.explore_steps
        self.policy.epsilon.fill_(max(c.epsilon_end, 1.0 - (1.0 - c.epsilon_end) * explored))

    def update(self, batch: Transition) -> Update:
        metrics_of, norm = self.descend("loss", self.step, batch)
        metrics = metrics_of() | {"loss/grad_norm": norm}
        self.num_updates += 1
        if self.num_updates % self.config.target_interval == 0:
            self.target.track(self.hypers.tau)
        return Update(metrics, metrics.pop(TD_ERROR, None))

    def loss(self, b: Transition) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            target_B = b.reward + b.discount * self.next_value(b.next_obs)
        q_B = self.policy.q(b.obs).gather(1, self.policy.index(b.action).unsqueeze(1)).squeeze(1)
        loss, metrics = td_loss(q_B - target_B, smooth_l1_loss(q_B, target_B, reduction="none"), b)
        return loss, metrics | {"loss/critic": loss.detach(), "critic/q": q_B.detach().mean()}

    def next_value(self, next_obs: Tree) -> Tensor:
        """Value of the best next action that is allowed [B]."""
        # The target network's own normaliser is a stale copy: both networks use the policy's.
        normed, allowed_BA = self.policy.normed(next_obs), self.policy.allowed(mask_of(next_obs))
        next_q_BA = masked(self.policy_target.values(normed), allowed_BA)
        if not self.config.double:
            return next_q_BA.amax(1)
        best_B = masked(self.policy.values(normed), allowed_BA).argmax(1, keepdim=True)
        return next_q_BA.gather(1, best_B).squeeze(1)

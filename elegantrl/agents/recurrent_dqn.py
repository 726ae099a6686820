"""Deep Q-learning with memory, from sequences with their stored state (R2D2: Kapturowski et al. 2019, ICLR).

A sequence begins with the state that the acting policy had. Newer weights would have come to another state, so the
first ``burn_in`` steps only refresh it, in the online and in the target network; the loss covers the other steps.
Axes: S steps of a sequence, T steps of it with a loss, B sequences, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from .. import tree
from ..config.fields import Hidden, setting, unused
from ..data.fragments import Sequences
from ..nets.distributions import masked
from ..nets.networks import NetSpec
from ..nets.policies import QPolicy
from ..nets.recurrent import first_steps
from ..tree import Tree
from ..types import Metrics, mask_of
from .base import AgentConfig
from .dqn import AgentDQN, DQNConfig
from .returns import n_step_targets


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentDQNConfig(DQNConfig):
    """Settings of the recurrent DQN."""

    horizon: int = setting(16, ge=1)
    batch_size: int = setting(32, ge=1)
    """Sequences per gradient step; each has a loss at `horizon` steps."""
    updates_per_step: float = setting(0.0625, gt=0.0)
    double: bool = True
    memory: Literal["gru", "lstm"] = "gru"
    """Recurrent core between encoder and head."""
    memory_size: int = setting(64, ge=1)
    """Units of that core."""
    burn_in: int = setting(8, ge=0)
    """Steps at the beginning of a sequence that refresh the stored state and have no loss."""
    prioritized: Hidden[bool] = unused(False)
    priority_alpha: Hidden[float] = unused(0.6)
    priority_beta: Hidden[float] = unused(0.4)

    def net(self) -> NetSpec:
        return replace(AgentConfig.net(self), memory=self.memory, memory_size=self.memory_size)


class AgentRecurrentDQN(AgentDQN):
    memory = "fragments"
    config: RecurrentDQNConfig

    def loss(self, b: Sequences) -> tuple[Tensor, Metrics]:  # type: ignore[override]
        c = self.config
        first_SB = first_steps(b.terminated | b.truncated)
        with torch.no_grad():
            before = self.states(self.policy, b, first_SB, slice(0, c.burn_in), b.carry)
            carry = tree.rows(before, -1) if c.burn_in else b.carry
            target_states = self.states(self.policy_target, b, first_SB, slice(0, None), b.carry)
            target_states = tree.rows(target_states, slice(c.burn_in, None))
        learned: Sequences = tree.rows(b._replace(carry=()), slice(c.burn_in, None))
        states = self.states(self.policy, b, first_SB, slice(c.burn_in, None), carry)
        index_TB = self.policy.index(learned.action)
        q_TB = self.policy.q_from(states[0]).gather(-1, index_TB.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            next_value_TB = self.next_values(learned.next_obs, states, target_states)
            ends = (learned.terminated, learned.truncated)
            target_TB = n_step_targets(learned.reward, next_value_TB, *ends, self.hypers.gamma, c.n_step)
        loss = smooth_l1_loss(q_TB, target_TB)
        return loss, {"loss/critic": loss.detach(), "critic/q": q_TB.detach().mean()}

    def states(self, net: QPolicy, b: Sequences, first_SB: Tensor, steps: slice, carry: Tree) -> Tree:
        """The states [.., B, H] of a network after each of some steps, from the state before them."""
        assert net.core is not None
        if steps.stop == 0:
            return ()
        # The target network's own normaliser is a stale copy: both networks use the policy's.
        features = net.encode(self.policy.normed(tree.rows(b.obs, steps)))
        return net.core.unroll(features, carry, first_SB[steps])

    def next_values(self, next_obs: Tree, states: Tree, target_states: Tree) -> Tensor:
        """Values [T, B] of the best next actions, in the states one step after those given."""
        allowed_TBA = self.policy.allowed(mask_of(next_obs))
        next_q_TBA = masked(self.next_q(self.policy_target, next_obs, target_states), allowed_TBA)
        if not self.config.double:
            return next_q_TBA.amax(-1)
        best_TB1 = masked(self.next_q(self.policy, next_obs, states), allowed_TBA).argmax(-1, keepdim=True)
        return next_q_TBA.gather(-1, best_TB1).squeeze(-1)

    def next_q(self, net: QPolicy, next_obs: Tree, states: Tree) -> Tensor:
        """Action values [T, B, A] of successors: all steps at once, because the states before them are known."""
        assert net.core is not None
        features = net.encode(self.policy.normed(next_obs))
        after = net.core(features.flatten(0, 1), tree.flatten(states, 0, 1))
        return net.q_from(after[0]).view(*features.shape[:2], -1)

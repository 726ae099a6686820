"""The skeleton shared by A2C and PPO: advantages for a fresh rollout, then minibatch steps on it.

A subclass defines one method: ``policy_loss``.
A minibatch is B rows drawn from the T*N steps. For a policy with memory it is a number of lanes over all T steps: the
state before the first step comes with the rollout, and the axes B below are T and lanes.
Axes: T rollout steps, N lanes, B minibatch rows, O obs, A action.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from .. import tree
from ..config.fields import setting, tunable
from ..errors import ConfigError
from ..nets.critics import ScaledValueNet, ValueNet, mean_of, weight_of
from ..nets.distributions import Categorical, DiagGaussian
from ..nets.encoders import ENCODER_ROWS
from ..nets.layers import BLOCK_ROWS, Init
from ..nets.networks import NetSpec
from ..nets.normalize import StateNorm
from ..nets.policies import CategoricalPolicy, GaussianPolicy
from ..nets.recurrent import MemoryKind, first_steps
from ..tree import Tree
from ..types import EnvSpec, Metrics, Rollout, Update, active_of, mask_of, state_of, vector_dim
from .base import Agent, AgentConfig, Schedule
from .returns import gae, vtrace


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyConfig(AgentConfig):
    """Settings of the on-policy family."""

    init: Init = "orthogonal"
    max_grad_norm: float | None = setting(0.5, gt=0.0)
    num_epochs: int = setting(1, ge=1)
    """Passes over each rollout."""
    batch_size: int = setting(1 << 30, ge=1)
    """Rows per gradient step; a rollout that is not larger is one full batch."""
    gae_lambda: float = tunable(0.95, 0.8, 1.0, ge=0.0, le=1.0)
    """Trade between bias (0) and variance (1) of advantages."""
    value_coef: float = setting(0.5, ge=0.0)
    """Weight of the value loss."""
    entropy_coef: float = tunable(0.0, 0.0, 0.05, ge=0.0)
    """Weight of the entropy bonus; a larger weight explores more, 0 skips its computation."""
    entropy_schedule: Schedule = setting("constant", only_with={"entropy_coef": True})
    """`linear` lets that weight fall to zero over `schedule_steps`."""
    normalize_value: bool = False
    """Normalise the targets of the value network by their mean and deviation, so that their scale does not matter."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and variance 1."""
    normalize_advantage_over: Literal["rollout", "minibatch"] = setting(
        "rollout", only_with={"normalize_advantage": True}
    )
    """Over the whole `rollout`, or over each `minibatch`, which gives all minibatches steps of like size."""
    recompute_advantage: bool = False
    """Compute advantages and value targets again before each further epoch, with the values learned by then."""
    vtrace: bool = False
    """Correct targets for the policy that acted (V-trace), for data that is a few versions old."""
    log_std_init: float = setting(0.0, actions="continuous")
    """Initial log standard deviation of continuous actions."""
    memory: MemoryKind = "none"
    """Recurrent core that policy and value share, between encoder and head; a minibatch is then a number of lanes over
    the whole horizon."""
    memory_size: int = setting(64, ge=1, only_with={"memory": ("gru", "lstm")})
    """Units of that core."""

    def net(self) -> NetSpec:
        return replace(AgentConfig.net(self), memory=self.memory, memory_size=self.memory_size)


class Batch(NamedTuple):
    obs: Tree  # [B, ...]
    action: Tensor  # [B] or [B, A]
    logp: Tensor  # [B] under the policy that acted
    advantage: Tensor  # [B]
    value_target: Tensor  # [B]
    first: Tensor | None = None  # [B] which steps begin an episode, for a policy with memory
    carry: Tree = ()  # [lanes, ...] its state before the first step
    active: Tensor | None = None  # [B, G] the agents of a team that have not ended; None if all count


class AgentOnPolicy(Agent):
    memory = "rollout"
    hot = ("loss",)
    actions = frozenset({"discrete", "multi_discrete", "continuous"})
    ratio_in_loss: ClassVar[bool] = False
    """Whether ``policy_loss`` corrects for the policy that acted."""
    config: OnPolicyConfig
    entropy_left: Tensor
    policy: CategoricalPolicy | GaussianPolicy
    state_norm: StateNorm | None
    """Normalises the state that the value network of one agent reads, if observations are normalised."""

    def __init__(self, spec: EnvSpec, config: OnPolicyConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        if self.h_term is not None and config.memory != "none":
            raise ConfigError(
                f"agent.h_term=True learns from single windows, which have no state for agent.memory={config.memory};"
                f" switch one of them off"
            )
        if spec.action.kind == "continuous":
            self.policy = self.build_policy("gaussian", spec, device, log_std_init=config.log_std_init)
        else:
            kind = "categorical" if spec.action.kind == "discrete" else "multi_categorical"
            self.policy = self.build_policy(kind, spec, device)
        self.reads_state = not self.teams and state_of(spec.obs) is not None
        """Whether the value network reads ``Obs.state`` instead of the policy's features."""
        self.state_norm = None
        if self.reads_state and config.normalize_obs:
            self.state_norm = StateNorm(vector_dim(state_of(spec.obs))).to(device)
        self.value = self.build_value(spec).to(device)
        self.register_buffer("entropy_left", torch.ones((), device=device))
        params = [*self.policy.parameters(), *self.value.parameters()]
        self.step = self.optimizer(params)

    def build_value(self, spec: EnvSpec) -> ValueNet:
        """The value network on what ``value_inputs`` returns."""
        build = ScaledValueNet if self.config.normalize_value else ValueNet
        leaves = state_of(spec.obs) if self.reads_state else self.policy.feature_leaves
        return build(leaves, self.policy_spec.net, self.config.layer_norm)

    def observe(self, obs: Tree) -> None:
        super().observe(obs)
        if self.state_norm is not None:
            self.state_norm.update(state_of(obs), self.averaging.average, self.averaging.size)

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        self.entropy_left.fill_(self.schedule_factor(self.config.entropy_schedule, env_steps))

    def update(self, batch: Rollout) -> Update:
        """Several epochs of minibatch steps on one rollout [T, N]."""
        is_first = self.num_updates == 0
        if is_first:  # the first inputs of the networks must have the same scale as later ones
            self.observe(batch.obs)
        rows = self.targets(batch)
        if isinstance(self.value, ScaledValueNet):
            self.value.observe(*self.moments(rows.value_target, rows.active))
        for number in range(self.config.num_epochs):
            if number > 0 and self.config.recompute_advantage:
                rows = self.targets(batch)
            epoch: list[Metrics] = []
            for part in self.minibatches(rows):
                metrics_of, norm = self.descend_policy("loss", self.step, part)
                if self.may_stop():
                    epoch.append(metrics_of())
                self.num_updates += 1
            if self.may_stop() and self.should_stop(epoch):
                break
        if not is_first:  # after learning: the policy that acted had the statistics before this rollout
            self.observe(batch.obs)
        metrics = metrics_of() | {"loss/grad_norm": norm}
        return Update(self.diagnose(metrics))  # of the last minibatch only: metrics of all would cost time

    def minibatches(self, rows: Batch) -> list[Batch]:
        """Minibatches of rows or lanes, shuffled without replacement; a full batch needs no shuffling."""
        parts = self.shuffled(rows)
        if not self.normalizes_minibatches():
            return parts
        return [part._replace(advantage=self.normalized(part.advantage, part.active)) for part in parts]

    def shuffled(self, rows: Batch) -> list[Batch]:
        has_time = rows.first is not None
        num_rows = rows.logp.shape[int(has_time)]
        size = max(1, self.config.batch_size // (len(rows.logp) if has_time else 1))
        if num_rows <= size:
            return [rows]
        order = torch.randperm(num_rows, device=rows.logp.device, generator=self.generator)
        if not has_time:
            return tree.split(tree.rows(rows, order), size)
        return [lanes_of(rows, lanes) for lanes in torch.split(order, size)]

    def may_stop(self) -> bool:
        """Whether ``update`` calls ``should_stop`` after each epoch."""
        return False

    def should_stop(self, epoch: Sequence[Metrics]) -> bool:
        """Whether to skip the remaining epochs, given the metrics of this epoch's minibatches."""
        return False

    def diagnose(self, metrics: Metrics) -> Metrics:
        """The metrics to log, computed from those that the loss returned."""
        return metrics

    def rewards(self, r: Rollout) -> Tensor:
        """The rewards [T, N] to learn from."""
        return self.config.learned_rewards(r.reward)

    def ends(self, r: Rollout) -> tuple[Tensor, Tensor]:
        """Which steps terminate and which truncate an episode, both [T, N]."""
        return r.terminated, r.truncated

    def value_inputs(self, obs: Tree, features: Tree) -> Tree:
        """The input of the value network: the state that only training sees, or what the head of the policy reads."""
        if not self.reads_state:
            return features
        state = state_of(obs)
        return state if self.state_norm is None else self.state_norm(state)

    def moments(self, x: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``x`` over all learners, of its ``active`` elements if given."""
        if active is None:
            return self.averaging.mean(x), self.averaging.variance(x)
        weight = weight_of(x, active)
        total = self.averaging.mean(weight).clamp(min=1e-8)
        mean = self.averaging.mean(x * weight) / total
        return mean, self.averaging.mean((x - mean).square() * weight) / total

    def normalized(self, advantage: Tensor, active: Tensor | None) -> Tensor:
        """Advantages with mean 0 and variance 1 over all learners, of the ``active`` elements if given."""
        mean, std = self.averaging.mean(advantage), self.averaging.std(advantage)
        if active is not None:
            mean, variance = self.moments(advantage, active)
            std = variance.sqrt()
        return (advantage - mean) / (std + 1e-8)

    def normalizes_minibatches(self) -> bool:
        return self.config.normalize_advantage and self.config.normalize_advantage_over == "minibatch"

    @torch.no_grad()
    def targets(self, r: Rollout) -> Batch:
        """Advantages and value targets; flattened from [T, N] to [T*N] rows unless the policy has memory."""
        h, active = self.hypers, active_of(r.obs)
        reward_TN = self.rewards(r)
        first_TN = None if self.policy.core is None else first_steps(r.terminated | r.truncated)
        value_TN, carry = self.rollout_values(r, first_TN)
        next_value_TN = self.next_values(r, value_TN, carry)
        ends = self.ends(r)
        if self.config.vtrace:
            features, _ = self.policy.unroll(r.obs, r.carry, first_TN)
            log_ratio_TN = self.policy.dist_from(features, mask_of(r.obs)).log_prob(r.action) - r.kept
            target_TN, advantage_TN = vtrace(
                reward_TN, value_TN, next_value_TN, *ends, log_ratio_TN, h.gamma, h.gae_lambda,
                weigh_advantage=not self.ratio_in_loss,
            )  # fmt: skip
        else:
            advantage_TN = gae(reward_TN, value_TN, next_value_TN, *ends, h.gamma, h.gae_lambda)
            target_TN = advantage_TN + value_TN
        if self.config.normalize_advantage and self.config.normalize_advantage_over == "rollout":
            advantage_TN = self.normalized(advantage_TN, active)
        rows = Batch(r.obs, r.action, r.kept, advantage_TN, target_TN, first_TN, r.carry, active)
        flat: Batch = tree.flatten(rows, 0, 1) if self.policy.core is None else rows
        return flat

    def rollout_values(self, r: Rollout, first_TN: Tensor | None) -> tuple[Tensor, Tree]:
        """Values [T, N] of a rollout's observations, and the policy's carry after each step [T, N, ...]."""
        if self.policy.core is None:
            value_B = self.values(tree.flatten(r.obs, 0, 1), ())
            return value_B.view(*r.terminated.shape, *value_B.shape[1:]), ()
        features, carry = self.policy.unroll(r.obs, r.carry, first_TN)
        return self.value(self.value_inputs(r.obs, features)), carry

    def values(self, obs: Tree, carry: Tree) -> Tensor:
        """Values [B] of observations [B, ...] one step after ``carry``; on a CPU in blocks that fit into its cache."""
        if self.entropy_left.device.type != "cpu":
            return self.values_of_block(obs, carry)
        blocks = tree.split((obs, carry), BLOCK_ROWS if self.policy.encoder is None else ENCODER_ROWS)
        return torch.cat([self.values_of_block(*block) for block in blocks])

    def state_values(self, obs: Tree) -> Tensor:
        return self.values(obs, ())

    def values_of_block(self, obs: Tree, carry: Tree) -> Tensor:
        return self.value(self.value_inputs(obs, self.policy.advance(obs, carry)[0]))

    def next_values(self, r: Rollout, value_TN: Tensor, carry: Tree) -> Tensor:
        """Values of the true successors. Only the last row and truncated steps need another forward pass."""
        last_N = self.values(tree.rows(r.next_obs, -1), tree.rows(carry, -1))
        next_value_TN = torch.cat([value_TN[1:], last_N.unsqueeze(0)])
        cut = r.truncated.nonzero(as_tuple=True)  # one host sync per rollout, outside the minibatch loop
        if cut[0].numel():
            next_value_TN[cut] = self.values(tree.rows(r.next_obs, cut), tree.rows(carry, cut))
        return next_value_TN

    def loss(self, b: Batch) -> tuple[Tensor, Metrics]:
        features, _ = self.policy.unroll(b.obs, b.carry, b.first)
        dist = self.policy.dist_from(features, mask_of(b.obs))
        policy_loss, metrics = self.policy_loss(dist, b)
        value_loss = self.value.loss(self.value_inputs(b.obs, features), b.value_target, b.active)
        loss = policy_loss + self.config.value_coef * value_loss
        metrics |= {"loss/policy": policy_loss.detach(), "loss/value": value_loss.detach()}
        if self.config.entropy_coef > 0:  # the entropy takes a tenth of the update
            entropy = mean_of(dist.entropy(), b.active)
            loss = loss - self.hypers.entropy_coef * self.entropy_left * entropy
            metrics["policy/entropy"] = entropy.detach()
        return loss, metrics

    @abstractmethod
    def policy_loss(self, dist: Categorical | DiagGaussian, b: Batch) -> tuple[Tensor, Metrics]:
        """The policy's loss on a minibatch, and metrics."""


def lanes_of(rows: Batch, lanes: Tensor) -> Batch:
    """All T steps of some lanes."""
    carry = tree.rows(rows.carry, lanes)
    return tree.map_leaves(lambda x: x[:, lanes], rows._replace(carry=()))._replace(carry=carry)  # type: ignore[no-any-return]

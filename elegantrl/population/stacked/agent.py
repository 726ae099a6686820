"""P agents of one kind as one agent whose tensors have a leading axis P.

The members are ordinary agents whose tensors are rows of the stacked ones. The stacked agent is another one of their
class: its ``update`` is the agent's own, which calls losses, targets and diagnoses mapped over members, and random
numbers come from the stream of each member. A member therefore learns what it would learn alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import tree
from ...agents.base import Agent, AgentConfig
from ...agents.dqn import AgentDQN
from ...agents.off_policy import ActionNoise, AgentActorCritic
from ...agents.on_policy import AgentOnPolicy, Batch
from ...agents.optim import Target
from ...errors import ConfigError
from ...nets.critics import ScaledValueNet
from ...nets.normalize import RunningStats
from ...tree import Tree
from ...types import EnvSpec, Rollout, Transition
from .mapped import Mapped, StackedGradients
from .optim import StackedStep, StackedTarget

STATISTICS = ("count", "mean", "m2")


def stack_agents(agent: Agent, members: Sequence[Agent]) -> Agent:
    """Make ``agent`` the stack of ``members``, which are of the same class and sizes."""
    stack_tensors(agent, members)
    agent.gradients = StackedGradients()
    if members[0].obs_stats is not None:
        agent.observe = Observe(members)  # type: ignore[method-assign]
    if isinstance(agent, AgentOnPolicy):
        stack_on_policy(agent, members)
    if isinstance(agent, AgentActorCritic):
        agent.draw_noise = DrawNoise(members)  # type: ignore[method-assign]
    return agent


def stack_on_policy(agent: AgentOnPolicy, members: Sequence[Any]) -> None:
    """Replace what ``AgentOnPolicy.update`` calls besides the loss."""
    # Values of all successors are computed: selecting those of truncated steps would wait for the device.
    agent.next_values = NextValues(agent)  # type: ignore[method-assign]
    agent.targets = Mapped(agent, "targets", axis=1)  # type: ignore[method-assign]
    agent.diagnose = Mapped(agent, "diagnose")  # type: ignore[method-assign]
    agent.minibatches = Minibatches(members)  # type: ignore[method-assign]
    if isinstance(agent.value, ScaledValueNet):
        agent.moments = Mapped(agent, "moments")  # type: ignore[method-assign]
        agent.value.observe = ObserveTargets([m.value for m in members])  # type: ignore[method-assign]


# ---- storage


def stack_tensors(agent: Agent, members: Sequence[Agent]) -> None:
    """Move the tensors of ``members`` into stacked ones, which become those of ``agent``."""
    steps: dict[int, StackedStep] = {}
    for name, step in agent.grad_steps().items():
        steps[id(step)] = StackedStep([member.grad_steps()[name] for member in members], step.params)
        setattr(agent, name, steps[id(step)])
    for name, target in vars(agent).items():
        if isinstance(target, Target):
            own = [getattr(member, name) for member in members]
            setattr(agent, name, StackedTarget(own, target.params, steps[id(target.source)]))
    buffers = [dict(member.named_buffers()) for member in members]
    for name, buffer in agent.named_buffers():
        stacked = torch.stack([own[name] for own in buffers])
        buffer.data = stacked
        for own, row in zip(buffers, stacked, strict=True):
            own[name].data = row
    if isinstance(agent.obs_stats, RunningStats):
        for name in STATISTICS:
            stacked = torch.stack([getattr(member.obs_stats, name) for member in members])
            setattr(agent.obs_stats, name, stacked)
            for member, row in zip(members, stacked, strict=True):
                setattr(member.obs_stats, name, row)


def rows_of(agent: Agent) -> list[Tensor]:
    """All tensors [P, ...] of a stacked agent that a copy of a member takes over."""
    rows = [tensor for step in agent.grad_steps().values() for tensor in step.rows()]  # type: ignore[attr-defined]
    rows += [target.flat for target in vars(agent).values() if isinstance(target, Target)]
    rows += agent.buffers()
    if agent.obs_stats is not None:
        rows += [getattr(agent.obs_stats, name) for name in STATISTICS]
    return rows


def is_finite(agent: Agent) -> Tensor:
    """Whether all gradients of a member were finite [P]; a device tensor."""
    return torch.stack([step.sum_of_squares for step in agent.grad_steps().values()]).isfinite().all(0)


def policy_rows(agent: Agent) -> Tensor:
    """A copy of the weights of all policies [P, n], each as ``Policy.to_flat`` orders them."""
    return torch.cat([tensor.detach().reshape(len(tensor), -1) for tensor in agent.policy.tensors()], 1)


# ---- what an update calls, for all members


class Observe:
    """``Agent.observe`` of each member, with its part of observations [T, P, N, ...]."""

    def __init__(self, members: Sequence[Agent]):
        self.members = members

    def __call__(self, obs: Tree) -> None:
        for p, member in enumerate(self.members):
            member.observe(tree.map_leaves(lambda x, p=p: x[:, p], obs))


class ObserveTargets:
    """``ScaledValueNet.observe`` of each member."""

    def __init__(self, values: Sequence[ScaledValueNet]):
        self.values = values

    def __call__(self, target_mean: Tensor, target_variance: Tensor) -> None:
        for value, mean, variance in zip(self.values, target_mean, target_variance, strict=True):
            value.observe(mean, variance)


class NextValues:
    """``AgentOnPolicy.next_values`` without a selection of rows."""

    def __init__(self, agent: AgentOnPolicy):
        self.agent = agent

    def __call__(self, r: Rollout, value_TN: Tensor, carry: Tree) -> Tensor:
        successor_TN = self.agent.values(tree.flatten(r.next_obs, 0, 1), ()).view(value_TN.shape)
        next_value_TN = torch.cat([value_TN[1:], successor_TN[-1:]])
        return torch.where(r.truncated, successor_TN, next_value_TN)


class Minibatches:
    """``AgentOnPolicy.minibatches`` of each member, joined to minibatches [P, B, ...]."""

    def __init__(self, members: Sequence[AgentOnPolicy]):
        self.members = members

    def __call__(self, rows: Batch) -> list[Batch]:
        num_members, num_rows = rows.logp.shape
        size = self.members[0].config.batch_size
        if num_rows <= size:
            return [rows]
        device = rows.logp.device
        orders = [torch.randperm(num_rows, device=device, generator=member.generator) for member in self.members]
        first = num_rows * torch.arange(num_members, device=device).unsqueeze(1)
        parts = torch.split(torch.stack(orders) + first, size, 1)  # places among the rows of all members
        shuffled = tree.rows(tree.flatten(rows, 0, 1), torch.cat([part.flatten() for part in parts]))
        found, start = [], 0
        for part in parts:
            batch = tree.map_leaves(lambda x, i=start, k=part.shape: x[i : i + k.numel()].unflatten(0, k), shuffled)
            found.append(batch)
            start += part.numel()
        return found


class DrawNoise:
    """``AgentActorCritic.draw_noise`` of each member."""

    def __init__(self, members: Sequence[AgentActorCritic]):
        self.members = members

    def __call__(self, batch: Transition) -> ActionNoise:
        noise: ActionNoise = tree.stack([m.draw_noise(tree.rows(batch, p)) for p, m in enumerate(self.members)])
        return noise


# ---- which agents can be stacked


def check_stackable(agent: Agent, spec: EnvSpec, config: AgentConfig) -> None:
    """Refuse agents and settings whose updates are not the same program for every member."""
    reason = ""
    settings = vars_of(config)
    if spec.team or len(tree.leaves(spec.obs)) != 1 or agent.policy.encoder is not None:
        reason = f"observations of {spec.name} are not one vector of floats"
    elif agent.policy.core is not None or agent.h_term is not None or settings.get("prioritized"):
        name = next(name for name in ("memory", "h_term", "prioritized") if settings.get(name) not in (None, "none"))
        reason = f"agent.{name}={settings[name]} keeps data for each member in another way"
    elif settings.get("target_kl") is not None:
        reason = f"agent.target_kl={settings['target_kl']} ends the epochs of each member at another time"
    elif settings.get("target_critics") == "subset" or not has_known_update(agent):
        reason = f"the updates of {type(agent).__name__} are not the same steps for every member"
    if reason:
        raise ConfigError(f"members cannot be stacked because {reason}; train them as separate runs")


def has_known_update(agent: Agent) -> bool:
    """Whether every step of ``update`` is a hot function, elementwise, or replaced here."""
    if isinstance(agent, AgentActorCritic):
        return type(agent).actor_is_due is AgentActorCritic.actor_is_due
    return isinstance(agent, AgentDQN | AgentOnPolicy)


def vars_of(config: AgentConfig) -> dict[str, Any]:
    """The settings by name; a dataclass with slots has no ``vars``."""
    return {name: getattr(config, name) for name in config.__dataclass_fields__}

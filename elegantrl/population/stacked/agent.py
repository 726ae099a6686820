"""P agents of one kind as one agent whose tensors have a leading axis P.

The members are ordinary agents whose tensors are rows of the stacked ones. The stacked agent is another one of their
class: its ``update`` is the agent's own, which calls losses, targets and diagnoses mapped over members, and random
numbers come from the stream of each member. A member therefore learns what it would learn alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def stack_agents(agent: Agent, members: Sequence[Any]) -> Agent:
    """Make ``agent`` the stack of ``members``, which are of the same class and sizes."""
    stack_tensors(agent, members)
    agent.gradients = StackedGradients()
    for name, function in methods_of_all(agent, members).items():
        setattr(agent, name, function)
    if isinstance(agent, AgentOnPolicy) and isinstance(agent.value, ScaledValueNet):
        agent.value.observe = ObserveTargets([member.value for member in members])  # type: ignore[method-assign]
    return agent


def methods_of_all(agent: Agent, members: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    """What ``update`` calls besides the hot functions and depends on the axis P, for all members at once."""
    found: dict[str, Callable[..., Any]] = {}
    if members[0].obs_stats is not None:
        found["observe"] = Observe(members)
    if isinstance(agent, AgentActorCritic):
        found["draw_noise"] = DrawNoise(members)
    if isinstance(agent, AgentOnPolicy):
        found["next_values"] = NextValues(agent)
        found["targets"] = Mapped(agent, "targets", axis=1)
        found["moments"] = Mapped(agent, "moments")
        found["diagnose"] = Mapped(agent, "diagnose")
        found["minibatches"] = Minibatches(members)
    return found


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
    for buffer, *own in zip(agent.buffers(), *(member.buffers() for member in members), strict=True):
        buffer.data = torch.stack(own)
        for tensor, row in zip(own, buffer, strict=True):
            tensor.data = row
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
    """``AgentOnPolicy.next_values`` of all rows: selecting those of truncated steps would wait for the device."""

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
        first, parts = self.members[0], self.shuffled(rows)
        if not first.normalizes_minibatches():
            return parts
        normalized = torch.vmap(lambda advantage: first.normalized(advantage, None))
        return [part._replace(advantage=normalized(part.advantage)) for part in parts]

    def shuffled(self, rows: Batch) -> list[Batch]:
        num_members, num_rows = rows.logp.shape
        size = self.members[0].config.batch_size
        if num_rows <= size:
            return [rows]
        device = rows.logp.device
        orders = [torch.randperm(num_rows, device=device, generator=member.generator) for member in self.members]
        first = num_rows * torch.arange(num_members, device=device).unsqueeze(1)
        parts = torch.split(torch.stack(orders) + first, size, 1)  # places among the rows of all members
        places = torch.cat([part.flatten() for part in parts])
        shuffled = tree.map_leaves(lambda x: x.flatten(0, 1).index_select(0, places), rows)
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
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
    used = [name for name in ("memory", "h_term", "prioritized") if settings.get(name, "none") not in ("none", False)]
    reason = ""
    if spec.team or len(tree.leaves(spec.obs)) != 1 or agent.policy.encoder is not None:
        reason = f"observations of {spec.name} are not one vector of floats"
    elif used:
        reason = f"agent.{used[0]}={settings[used[0]]} keeps other data for each of them"
    elif settings.get("target_kl") is not None:
        reason = f"agent.target_kl={settings['target_kl']} ends the epochs of each at another time"
    elif settings.get("target_critics") == "subset" or not has_known_update(agent):
        reason = f"{type(agent).__name__} does not take the same steps for all of them"
    if reason:
        raise ConfigError(f"members cannot be stacked because {reason}; train them as separate runs")


def has_known_update(agent: Agent) -> bool:
    """Whether every step of ``update`` is a hot function, elementwise, or replaced here."""
    if isinstance(agent, AgentActorCritic):
        return type(agent).actor_is_due is AgentActorCritic.actor_is_due
    return isinstance(agent, AgentDQN | AgentOnPolicy)

"""What holds for every registered agent that learns for one agent, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from choosing import Levers
from torch import Tensor, nn

from elegantrl.agents.base import Agent
from elegantrl.agents.optim import GradStep
from elegantrl.data.fragments import Sequences
from elegantrl.envs import make_env
from elegantrl.nets.critics import EnsembleCritic, ValueNet
from elegantrl.nets.layers import EnsembleLinear
from elegantrl.nets.networks import Dueling
from elegantrl.nets.normalize import ObsNorm
from elegantrl.registry import build_agent, find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import EnvSpec, Rollout, Transition
from tests.names import SINGLE_AGENTS

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]
MakeRollout = Callable[..., Rollout]

CASES = [(name, kind) for name in SINGLE_AGENTS for kind in sorted(find_agent(name).agent.actions)]
"""Every agent with every kind of action it takes."""

ENVS = {"discrete": "TensorCartPole", "multi_discrete": Levers, "continuous": "TensorPendulum"}


def build(name: str, spec: EnvSpec, seed: int = 0, **settings: Any) -> Any:
    entry = find_agent(name)
    short = {"burn_in": 2, "horizon": 6} if name == "recurrent_dqn" else {}
    config = entry.config(**{"hidden": (8, 8), **short, **entry.preset, **settings})
    return build_agent(entry, spec, config, CPU, seed)


def transitions(kind: str, rows: int = 16, seed: int = 0) -> Transition:
    g = torch.Generator().manual_seed(seed)
    discrete, choices = torch.randint(2, (rows,), generator=g), torch.randint(2, (rows, 2), generator=g)
    continuous = torch.rand(rows, 2, generator=g) * 2 - 1
    return Transition(
        obs=torch.randn(rows, 3, generator=g),
        action={"discrete": discrete, "multi_discrete": choices, "continuous": continuous}[kind],
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.2, 0.0, 0.9),
        next_obs=torch.randn(rows, 3, generator=g),
    )


@pytest.fixture
def make_data(make_rollout: MakeRollout) -> Callable[..., Any]:
    """What the agent's ``update`` takes."""

    def make(agent: Agent, kind: str, seed: int = 0) -> Any:
        if agent.memory == "rollout":
            return make_rollout(agent, kind, 12, 2, seed=seed)
        if agent.memory == "fragments":
            r = make_rollout(agent, kind, 8, 2, seed=seed)
            return Sequences(*r[:6], carry=r.carry)
        return transitions(kind, seed=seed)

    return make


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_network_sees_normalised_observations(
    make_spec: MakeSpec, make_data: Callable[..., Any], name: str, kind: str
) -> None:
    """Guards against: P6, a normaliser that some network does not use, or that needs a target actor.

    Learning from raw observations with a normaliser equals learning from normalised ones without it, bit for bit.
    """
    spec = make_spec(kind, num_envs=2)
    plain, normed = (build(name, spec, normalize_obs=on) for on in (False, True))
    norm = normed.policy.norm
    assert isinstance(norm, ObsNorm)
    norm.mean.copy_(torch.tensor([1.0, -2.0, 0.5]))
    norm.inv_std.copy_(torch.tensor([2.0, 0.5, 3.0]))
    before = plain.policy.to_flat()
    plain.num_updates = normed.num_updates = 20  # a first rollout would teach the normaliser before it is learned from
    for seed in range(1 if plain.memory == "rollout" else 20):  # any other does so at its end
        raw = make_data(plain, kind, seed)
        prepared = raw._replace(obs=norm(raw.obs), next_obs=norm(raw.next_obs))
        assert not torch.equal(raw.obs, prepared.obs)
        normed.update(raw)
        plain.update(prepared)
    for (label, a), (_, b) in zip(plain.named_parameters(), normed.named_parameters(), strict=True):
        assert torch.equal(a, b), label
    assert not torch.equal(plain.policy.to_flat(), before)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_layers_alternate_with_a_non_linearity(make_spec: MakeSpec, name: str, kind: str) -> None:
    """Guards against: ENS1, two linear layers in a row, which are no more than one."""
    agent = build(name, make_spec(kind))
    stacks = [module for module in agent.modules() if isinstance(module, nn.Sequential)]
    trunks = [module.trunk for module in agent.modules() if isinstance(module, Dueling)]  # a linear layer follows them
    assert stacks
    for stack in stacks:
        linear = [isinstance(layer, nn.Linear | EnsembleLinear) for layer in stack]
        assert linear == [i % 2 == 0 for i in range(len(linear))]
        assert linear[-1] != any(stack is trunk for trunk in trunks)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_target_networks_never_hold_gradients(
    make_spec: MakeSpec, make_data: Callable[..., Any], name: str, kind: str
) -> None:
    """Guards against: SAC3, gradients in target networks."""
    agent = build(name, make_spec(kind))
    for seed in range(2):
        agent.update(make_data(agent, kind, seed))
    targets = {label: p for label, p in agent.named_parameters() if "target" in label}
    assert bool(targets) == (agent.memory != "rollout")
    assert not any(p.requires_grad for p in targets.values())
    assert all(p.grad is None for p in agent.parameters())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_after_loading_the_optimisers_hold_the_live_parameters(
    make_spec: MakeSpec, make_data: Callable[..., Any], name: str, kind: str
) -> None:
    """Guards against: R2, an optimiser that goes on with the tensors of the agent before the load."""
    agent, other = (build(name, make_spec(kind), seed) for seed in (0, 1))
    agent.update(make_data(agent, kind))
    other.load_training_state(agent.training_state())
    live = {p.data_ptr() for p in other.parameters()}
    for step in other.grad_steps().values():
        assert {p.data_ptr() for p in step.params} <= live
        assert torch.equal(step.flat, torch.cat([p.detach().reshape(-1) for p in step.params]))
    assert torch.equal(other.policy.to_flat(), agent.policy.to_flat())
    data = make_data(agent, kind, 1)
    for one in (agent, other):
        one.update(data)
    assert torch.equal(other.policy.to_flat(), agent.policy.to_flat())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_worker_builds_no_critic_and_no_optimiser(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against: R9, workers that build all an agent has in order to act."""
    env = make_env(ENVS[kind], 2)
    entry = find_agent(name)
    settings: dict[str, Any] = {"hidden": (8,), **entry.preset}
    if entry.agent.memory != "rollout":
        settings["buffer_size"] = 1000
    learner = Learner(name, entry.config(**settings), env.spec, CPU, 0)

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise AssertionError(f"a worker has no use for a {type(self).__name__}")

    for kind_of_part in (ValueNet, EnsembleCritic, EnsembleLinear, GradStep):
        monkeypatch.setattr(kind_of_part, "__init__", refuse)
    worker = GroupActor(env, learner.policy_spec(), 0)
    fragment = worker.sample(learner.weights(), 4, 0)
    assert fragment.rollout.reward.shape == (4, 2)
    tensors: list[Tensor] = worker.policy.policy.tensors()
    assert sum(t.numel() for t in tensors) == learner.weights().flat.numel()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_reward_that_overflows_the_moments_is_noticed(
    make_spec: MakeSpec, make_data: Callable[..., Any], name: str, kind: str
) -> None:
    # R2: one finite reward spike left second moments of a critic at infinity, silently.
    agent = build(
        name, make_spec(kind, num_envs=2), **({"normalize_advantage": False} if name in ("ppo", "a2c") else {})
    )
    data = make_data(agent, kind)
    agent.update(data)
    assert agent.is_finite()
    agent.update(data._replace(reward=data.reward.clone().index_fill_(0, torch.tensor([3]), 1e25)))
    agent.update(data)
    moments = [step.square for step in agent.grad_steps().values()]
    if not all(x.isfinite().all() for x in moments):
        assert not agent.is_finite()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_adams_epsilon_is_a_setting(make_spec: MakeSpec, name: str, kind: str) -> None:
    # C11: it was 1e-5 for all.
    agent = build(name, make_spec(kind), adam_epsilon=1e-3)
    assert {step.epsilon for step in agent.grad_steps().values()} == {1e-3}

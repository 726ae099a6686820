"""Hot functions are functions of (parameters, buffers, arguments) alone: mapped over agents or compiled they agree."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from elegantrl.agents.base import Agent
from elegantrl.agents.gradients import Gradients
from elegantrl.agents.off_policy import ActionNoise
from elegantrl.agents.on_policy import Batch
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.data.fragments import Sequences
from elegantrl.fast.compiled import Compiled
from elegantrl.fast.learning import gradients_of
from elegantrl.registry import build_agent, find_agent
from elegantrl.types import EnvSpec, Leaf, Obs, Rollout, Transition
from tests.names import SINGLE_AGENTS

CPU = torch.device("cpu")
ROWS, NUM_AGENTS = 12, 3
CASES = [
    (name, kind, hot)
    for name in SINGLE_AGENTS
    for kind in sorted(find_agent(name).agent.actions)
    for hot in find_agent(name).agent.hot
]
CASES = [(*case, False) for case in CASES] + [(*case, True) for case in CASES if case[1] != "continuous"]
"""The last entry: whether observations have masks."""
VARIANTS: list[dict[str, Any]] = [{}, {"normalize_obs": True, "layer_norm": True}]
RUNS = [(*case, settings) for case in CASES for settings in VARIANTS]
RUNS += [
    (*case, {"memory": kind, "memory_size": 5})
    for case in CASES
    if case[0] in ("a2c", "ppo")
    for kind in ("gru", "lstm")
]


class Hot(nn.Module):
    """One hot function of an agent as a module, which is what ``functional_call`` takes."""

    def __init__(self, agent: Agent, name: str):
        super().__init__()
        self.agent, self.name = agent, name

    def forward(self, *args: Any) -> Tensor:
        loss: Tensor = getattr(self.agent, self.name)(*args)[0]
        return loss


def build(name: str, kind: str, spec: EnvSpec, seed: int, **settings: Any) -> Agent:
    entry = find_agent(name)
    torch.manual_seed(seed)
    settings = {"hidden": (8, 8), **entry.preset, **settings} | ({"burn_in": 2} if name == "recurrent_dqn" else {})
    agent = build_agent(entry, spec, entry.config(**settings), CPU, seed)
    if agent.obs_stats is not None:
        agent.observe(torch.randn(20, 3) * 2 + seed)
    return agent


def arguments(agent: Agent, kind: str, seed: int) -> tuple[tuple[Tensor, ...], Callable[..., tuple[Any, ...]]]:
    """Tensors, and how they become the arguments of a hot function."""
    g = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, ROWS, 3, generator=g)
    numbers = torch.randn(5, ROWS, generator=g)
    continuous = torch.rand(ROWS, 2, generator=g) * 2 - 1
    discrete, choices = torch.randint(2, (ROWS,), generator=g), torch.randint(2, (ROWS, 2), generator=g)
    action = {"discrete": discrete, "multi_discrete": choices, "continuous": continuous}[kind]
    masks = torch.rand(2, ROWS, agent.policy_spec.action.num_outputs, generator=g) < 0.5
    masks[0, :, [0, 1]] = masks[0, :, 2:4] = True  # what was done was allowed; some successors allow nothing

    def seen(obs: Tensor, mask: Tensor) -> Any:
        return Obs(obs, mask) if agent.policy.has_mask else obs

    ended = torch.rand(2, ROWS, generator=g) < 0.1
    if agent.policy.core is not None:  # two sequences
        carry = [torch.randn(x.shape, generator=g) for x in agent.policy.initial_carry(2)]
        rows = (obs, masks[0], next_obs, masks[1], action, *numbers[:3], *ended)
        tensors = (*(x.unflatten(0, (-1, 2)) for x in rows), *carry)
        if agent.memory == "rollout":
            return tensors, lambda *x: (Batch(seen(*x[:2]), *x[4:9], tuple(x[10:])),)
        return tensors, lambda *x: (Sequences(seen(*x[:2]), *x[4:6], *x[8:10], seen(*x[2:4]), tuple(x[10:])),)
    if agent.memory == "rollout":
        return (obs, masks[0], action, *numbers[:3]), lambda obs, mask, *x: (Batch(seen(obs, mask), *x),)

    def transition(obs: Tensor, mask: Tensor, next_obs: Tensor, next_mask: Tensor, *x: Tensor) -> Transition:
        return Transition(seen(obs, mask), *x, seen(next_obs, next_mask))

    tensors = (obs, masks[0], next_obs, masks[1], action, numbers[0], torch.full((ROWS,), 0.9))
    if not hasattr(agent, "draw_noise"):
        return tensors, lambda *x: (transition(*x),)
    noise = agent.draw_noise(transition(*tensors))
    return (*tensors, *noise), lambda *x: (transition(*x[:7]), ActionNoise(*x[7:]))


@pytest.mark.parametrize(("name", "kind", "hot", "has_mask", "settings"), RUNS)
def test_gradients_mapped_over_agents_equal_a_loop(
    make_spec: Callable[..., EnvSpec], name: str, kind: str, hot: str, has_mask: bool, settings: dict[str, Any]
) -> None:
    spec = make_spec(kind)
    if has_mask:
        mask: Any = Leaf((spec.action.num_outputs,), "bool")
        spec = replace(spec, obs=Obs(spec.obs, mask))
    agents = [build(name, kind, spec, seed, **settings) for seed in range(NUM_AGENTS)]
    modules = [Hot(agent, hot) for agent in agents]
    tensors, to_args = zip(*(arguments(agent, kind, seed) for seed, agent in enumerate(agents)), strict=True)

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], *rows: Tensor) -> Tensor:
        found: Tensor = functional_call(modules[0], (params, buffers), to_args[0](*rows))
        return found

    params, buffers = stack_module_state(modules)  # type: ignore[arg-type]
    mapped = vmap(grad(loss))(params, buffers, *(torch.stack(column) for column in zip(*tensors, strict=True)))
    moved = 0
    for i, module in enumerate(modules):
        alone = dict(module.named_parameters())
        learned = {key: p for key, p in alone.items() if p.requires_grad}
        value = module(*to_args[i](*tensors[i]))
        expected = torch.autograd.grad(value, list(learned.values()), allow_unused=True)
        for key, gradient in zip(learned, expected, strict=True):
            found = mapped[key][i]
            torch.testing.assert_close(found, torch.zeros_like(found) if gradient is None else gradient)
            moved += int(found.abs().sum() > 0)
    assert moved >= NUM_AGENTS


# ---- compiled


def ppo(make_spec: Callable[..., EnvSpec]) -> AgentPPO:
    torch.manual_seed(0)
    return AgentPPO(make_spec("discrete"), PPOConfig(hidden=(8,), num_epochs=2), CPU, 0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_gradients_are_autograds(
    make_spec: Callable[..., EnvSpec], make_rollout: Callable[..., Rollout]
) -> None:
    eager, compiled = ppo(make_spec), ppo(make_spec)
    compiled.gradients = gradients_of(compiled, "compiled")
    rollout = make_rollout(eager, "discrete", 16, 4)
    one, other = eager.update(rollout), compiled.update(rollout)
    assert compiled.gradients.description == "compiled"
    torch.testing.assert_close(compiled.step.flat, eager.step.flat, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_without_a_compiler_autograd_takes_over_and_a_sentence_says_so(
    make_spec: Callable[..., EnvSpec],
    make_rollout: Callable[..., Rollout],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_compiler(function: Any) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nmore\nlines")

        return call

    monkeypatch.setattr(torch, "compile", no_compiler)
    eager, compiled = ppo(make_spec), ppo(make_spec)
    compiled.gradients = gradients_of(compiled, "compiled")
    assert isinstance(compiled.gradients, Compiled)
    rollout = make_rollout(eager, "discrete", 16, 4)
    eager.update(rollout)
    compiled.update(rollout)
    assert torch.equal(compiled.step.flat, eager.step.flat)
    assert compiled.gradients.description == "autograd (torch.compile failed)"
    assert [r.getMessage() for r in caplog.records] == [
        "torch.compile failed, so autograd is used: RuntimeError: InvalidCxxCompiler: No working C++ compiler found"
    ]


def test_the_way_is_a_choice_and_says_what_it_is(make_spec: Callable[..., EnvSpec]) -> None:
    agent = ppo(make_spec)
    assert type(gradients_of(agent, "autograd")) is Gradients
    assert gradients_of(agent).description == "by hand (checked against autograd)"
    dqn = build("dqn", "discrete", make_spec("discrete"), 0)
    assert gradients_of(dqn).description.startswith("autograd (none derived by hand for this AgentDQN)")

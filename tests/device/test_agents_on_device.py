"""Every agent with every memory learns and acts on a pretended accelerator, with the numbers of a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl import tree
from elegantrl.agents.base import Agent
from elegantrl.agents.gradients import Gradients, LazyMetrics
from elegantrl.agents.optim import GradStep
from elegantrl.nets.policies import FlatPolicy
from elegantrl.rng import torch_stream
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import Fragment
from tests.accelerator import ACCELERATOR, CPU, Accelerator
from tests.device.cases import CASES, HORIZON, LANES, build_env, build_learner, case_id
from tests.device.listed import unlisted


class Watched(Gradients):
    """Autograd that allows no event at all in hot functions and their gradients."""

    def __init__(self, owner: Accelerator):
        super().__init__()
        self.owner, self.calls = owner, set[str]()

    def __call__(self, agent: Agent, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        assert self.owner.events is not None
        before = self.owner.events.copy()
        result = super().__call__(agent, name, step, *args)
        assert self.owner.events == before, f"{name} of {type(agent).__name__}: {self.owner.events - before}"
        self.calls.add(name)
        return result


def sampled(name: str, env_id: Any, settings: dict[str, Any]) -> tuple[Learner, list[Fragment]]:
    """A learner on the CPU, and fragments that its first policy made there."""
    env = build_env(env_id, CPU)
    learner = build_learner(name, env, CPU, settings)
    actor = GroupActor(env, learner.policy_spec(), 0)
    return learner, [actor.sample(learner.weights(), HORIZON, seq) for seq in range(3)]


def state_of(learner: Learner) -> list[Tensor]:
    """Everything that updates change."""
    agent = learner.agent
    moments = [x for step in agent.grad_steps().values() for x in (step.mean, step.square)]
    return [x.detach() for x in [*agent.parameters(), *agent.buffers(), *moments]]


def same(found: Any, expected: Any) -> bool:
    """Whether all numbers are equal up to rounding: on a CPU some products are taken in blocks or by other kernels."""
    pairs = zip(tree.leaves(found), tree.leaves(expected), strict=True)
    return all(x.dtype == y.dtype and torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in pairs)


@pytest.mark.parametrize(("name", "env_id", "settings"), CASES, ids=case_id)
def test_learning_has_the_numbers_of_a_cpu_and_no_other_reads(name: str, env_id: Any, settings: dict[str, Any]) -> None:
    expected, fragments = sampled(name, env_id, settings)
    metrics = [expected.update([fragment]) for fragment in fragments]
    with Accelerator() as accelerator:
        learner = build_learner(name, build_env(env_id, CPU), ACCELERATOR, settings)
        learner.agent.gradients = watched = Watched(accelerator)
        for fragment, known in zip(fragments, metrics, strict=True):
            given = fragment._replace(rollout=accelerator.put(fragment.rollout))
            with accelerator.watch() as events:
                found = learner.update([given])
                learner.weights()
            assert not unlisted(events)
            assert found.keys() == known.keys()
            assert same(accelerator.values(found), known)
        state = accelerator.values(state_of(learner))
    term = {"h_energy"} if learner.agent.h_term is not None else set()
    assert watched.calls == {*learner.agent.hot, *term}
    assert same(tuple(state), tuple(state_of(expected)))


@pytest.mark.parametrize(("name", "env_id", "settings"), CASES, ids=case_id)
def test_acting_has_the_numbers_of_a_cpu_and_no_reads(name: str, env_id: Any, settings: dict[str, Any]) -> None:
    learner, fragments = sampled(name, env_id, settings)
    obs, spec, weights = fragments[0].rollout.obs, learner.policy_spec(), learner.weights()

    def play(policy: Any, seen: list[Any], device: torch.device) -> tuple[Any, ...]:
        carry = policy.initial_carry(LANES)
        rows: list[Any] = []
        for now, draw in zip(seen, policy.draw(len(seen), LANES, torch_stream(0, device=device)), strict=True):
            action, out, after = policy.explore(now, carry, draw)
            rows.append((action, out, policy.act(now, carry)))
            carry = after
        actions, outs, best = tree.stack(rows)
        return actions, best, policy.kept(outs, actions), carry

    seen = [tree.rows(obs, t) for t in range(HORIZON)]
    with torch.inference_mode():
        expected = play(FlatPolicy(spec, CPU).load(weights.flat), seen, CPU)
    with Accelerator() as accelerator:
        policy = FlatPolicy(spec, ACCELERATOR)
        flat, there = accelerator.put((weights.flat, seen))
        with accelerator.watch() as events, torch.inference_mode():
            found = play(policy.load(flat), there, ACCELERATOR)
        assert not events
        values = accelerator.values(found)
    assert same(values, expected)

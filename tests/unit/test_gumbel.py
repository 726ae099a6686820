"""The policy of relaxed choices: its gradient, its samples, and what masks forbid."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elegantrl.errors import SpecError
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import GumbelPolicy, PolicySpec
from elegantrl.nets.policies.gumbel import gumbel_noise
from elegantrl.types import ActionSpec, Leaf, Obs

OPTIONS, AGENTS, LANES = 4, 2, 5


def build(temperature: float = 1.0) -> GumbelPolicy:
    obs = Obs(Leaf((AGENTS, 3)), Leaf((AGENTS, OPTIONS), "bool"))  # type: ignore[arg-type]
    net = NetSpec((8,), num_agents=AGENTS, separate=True)
    policy = PolicySpec("gumbel", obs, ActionSpec(choices=(OPTIONS,)), net, {"temperature": temperature}).build()
    assert isinstance(policy, GumbelPolicy)
    return policy


def observed(mask: Any = None) -> Obs:
    seen = torch.randn(LANES, AGENTS, 3, generator=stream())
    full = torch.ones(LANES, AGENTS, OPTIONS, dtype=torch.bool)
    return Obs(seen, full if mask is None else full & torch.tensor(mask))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_relaxed_sample_is_one_hot_and_has_the_gradient_of_the_softmax(temperature: float) -> None:
    """The gradient by finite differences of softmax((logits + noise) / temperature)."""
    policy = build(temperature)
    logits = torch.randn(6, OPTIONS, generator=stream(), dtype=torch.float64, requires_grad=True)
    noise = gumbel_noise((6, OPTIONS), stream(1)).double()
    weight = torch.randn(6, OPTIONS, generator=stream(2), dtype=torch.float64)
    sample = policy.relaxed(logits, noise)
    assert torch.equal(sample.detach(), torch.eye(OPTIONS, dtype=torch.float64)[(logits + noise).argmax(-1)])
    (gradient,) = torch.autograd.grad((sample * weight).sum(), logits)

    def soft(x: torch.Tensor) -> float:
        scaled = (x + noise) / temperature
        return float((scaled.exp() / scaled.exp().sum(-1, keepdim=True) * weight).sum())

    step = 1e-6
    for row in range(6):
        for option in range(OPTIONS):
            change = torch.zeros_like(logits)
            change[row, option] = step
            slope = (soft(logits.detach() + change) - soft(logits.detach() - change)) / (2 * step)
            assert gradient[row, option].item() == pytest.approx(slope, abs=1e-8)


def test_a_forbidden_option_has_neither_a_sample_nor_a_gradient() -> None:
    policy, obs = build(), observed([True, False, True, False])
    logits = policy.logits(obs, policy.normed(obs))
    noise = torch.zeros_like(logits)
    noise[..., 1] = 1e3  # the largest there is
    sample = policy.relaxed(logits, noise)
    assert not sample[..., [1, 3]].any() and (sample.sum(-1) == 1).all()
    (gradient,) = torch.autograd.grad((sample * torch.arange(4.0)).sum(), logits)
    assert not gradient[..., [1, 3]].any() and gradient[..., 0].all()
    assert not policy.hard(logits + noise)[..., [1, 3]].any()


def test_exploring_draws_from_the_softmax_of_what_is_allowed() -> None:
    policy, obs = build(), observed([True, True, False, True])
    policy.random_frac.zero_()
    with torch.no_grad():
        policy.net[-1].bias += torch.tensor([0.5, -0.5, 2.0, 0.0])
    wanted = policy.logits(obs, policy.normed(obs)).softmax(-1)
    counts = torch.zeros(LANES, AGENTS, OPTIONS)
    with torch.no_grad():
        for draw in policy.draw(2000, LANES, stream()):
            action = policy.explore(obs, (), draw).action
            counts += torch.eye(OPTIONS)[action]
    assert not counts[..., 2].any()
    assert (counts / 2000 - wanted).abs().max() < 0.05  # more than four standard deviations of a share of 2000


def test_random_actions_are_uniform_among_the_allowed() -> None:
    policy, obs = build(), observed([False, True, True, True])
    with torch.no_grad():
        policy.net[-1].bias[:] = torch.tensor([9.0, 9.0, 0.0, -9.0])
        counts = sum(torch.eye(OPTIONS)[policy.explore(obs, (), d).action] for d in policy.draw(1000, LANES, stream()))
        assert isinstance(counts, torch.Tensor)
        assert not counts[..., 0].any()
        assert (counts[..., 1:] / 1000 - 1 / 3).abs().max() < 0.07
        assert (policy.act(obs, ())[0] == 1).all()
        assert (policy.act(observed(), ())[0] <= 1).all()


def test_nothing_allowed_counts_as_everything() -> None:
    """The mask of an agent that has ended may be all false."""
    policy = build()
    (draw,) = policy.draw(1, LANES, stream())
    obs = observed([False] * OPTIONS)
    action = policy.explore(obs, (), draw).action
    assert action.shape == (LANES, AGENTS) and ((action >= 0) & (action < OPTIONS)).all()
    assert torch.equal(policy.vote(obs), policy.vote(observed()))
    assert torch.allclose(policy.vote(obs).sum(-1), torch.ones(LANES, AGENTS))


def test_observations_of_a_team_have_its_axis() -> None:
    with pytest.raises(SpecError, match="of a team of 3"):
        GumbelPolicy(Leaf((2, 3)), ActionSpec(choices=(2,)), NetSpec(num_agents=3, separate=True))

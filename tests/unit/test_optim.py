"""The gradient step against torch's Adam and clipping; flat storage; target tracking."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from elegantrl.agents.optim import GradStep, Target


def small_net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loss_of(net: nn.Module, step: int, scale: float = 1.0) -> Tensor:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    return scale * (net(x) - 1.0).square().mean()


@pytest.mark.parametrize("epsilon", [1e-8, 1e-5, 0.1])
@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_equals_torch_adam_step_by_step(max_norm: float | None, epsilon: float) -> None:
    ours = small_net()
    theirs = deepcopy(ours)
    step = GradStep(ours.parameters(), torch.tensor(0.01), max_norm, epsilon)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=epsilon)
    for i in range(30):
        norm = step(loss_of(ours, i))
        adam.zero_grad()
        loss_of(theirs, i).backward()
        expected_norm = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or float("inf"))
        adam.step()
        torch.testing.assert_close(norm, expected_norm)
        if max_norm:
            assert norm > max_norm  # clipping is at work, and the norm is the one before
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_first_step_by_hand() -> None:
    # Gradient 0.5: mean = 0.1 * 0.5, square = 0.001 * 0.25; corrected 0.5 and 0.25; step = lr * 0.5 / (0.5 + eps).
    p = nn.Parameter(torch.tensor([2.0]))
    step = GradStep([p], torch.tensor(0.1))
    norm = step(0.5 * p.sum())
    assert norm.item() == pytest.approx(0.5)
    assert p.item() == pytest.approx(2.0 - 0.1 * 0.5 / (0.5 + 1e-5), abs=1e-6)


def test_a_gradient_below_the_limit_is_not_changed() -> None:
    a, b = small_net(), small_net()
    step_a, step_b = (
        GradStep(a.parameters(), torch.tensor(0.01), 1e3),
        GradStep(b.parameters(), torch.tensor(0.01), None),
    )
    for i in range(3):
        step_a(loss_of(a, i))
        step_b(loss_of(b, i))
    assert torch.equal(step_a.flat, step_b.flat)


def test_parameters_are_views_of_the_flat_tensor_and_stay_so() -> None:
    net = small_net()
    step = GradStep(net.parameters(), torch.tensor(0.01))
    step.flat.zero_()
    assert all((p == 0).all() for p in net.parameters())
    net.load_state_dict(small_net(1).state_dict())
    assert torch.equal(step.flat, torch.cat([p.detach().reshape(-1) for p in net.parameters()]))
    before = [p.clone() for p in net.parameters()]
    step(loss_of(net, 0))
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert torch.equal(step.flat, torch.cat([p.detach().reshape(-1) for p in net.parameters()]))


def test_only_the_given_parameters_move_and_no_grad_is_left_behind() -> None:
    net, other = small_net(), small_net(1)
    step = GradStep(net.parameters(), torch.tensor(0.01))
    before = [p.clone() for p in other.parameters()]
    step((net(torch.ones(1, 3)) * other(torch.ones(1, 3))).sum())
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))
    assert all(p.grad is None for p in [*net.parameters(), *other.parameters()])


def test_state_round_trip_continues_equally() -> None:
    a, b = small_net(), small_net()
    step_a, step_b = GradStep(a.parameters(), torch.tensor(0.01)), GradStep(b.parameters(), torch.tensor(0.5))
    for i in range(4):
        step_a(loss_of(a, i))
    state = step_a.state_dict()
    b.load_state_dict(a.state_dict())
    step_b.load_state_dict(state)
    kept = {name: value.clone() for name, value in state.items()}
    for i in range(4, 8):
        step_a(loss_of(a, i))
        step_b(loss_of(b, i))
    assert torch.equal(step_a.flat, step_b.flat)
    assert all(torch.equal(kept[name], state[name]) for name in kept)  # a saved state is a snapshot


def test_learning_rate_is_changed_in_place() -> None:
    net = small_net()
    step = GradStep(net.parameters(), torch.tensor(0.01))
    before = step.flat.clone()
    step.lr.fill_(0.0)
    step(loss_of(net, 0))
    assert torch.equal(step.flat, before)


def test_target_moves_by_tau() -> None:
    source, target = nn.Linear(1, 1), nn.Linear(1, 1)
    step = GradStep(source.parameters(), torch.tensor(0.01))
    follower = Target(target, step)
    with torch.no_grad():
        step.flat.copy_(torch.tensor([8.0, -4.0]))
        follower.flat.copy_(torch.tensor([0.0, 4.0]))
    follower.track(0.25)
    assert follower.flat.tolist() == [2.0, 2.0]  # 0 + 0.25 * 8;  4 + 0.25 * (-8)
    assert target.weight.item() == 2.0 and target.bias.item() == 2.0
    follower.track(1.0)
    assert torch.equal(follower.flat, step.flat)
    assert step.flat.tolist() == [8.0, -4.0]
    assert not any(p.requires_grad for p in target.parameters())


def test_target_does_not_share_memory_with_its_source() -> None:
    source = small_net()
    step = GradStep(source.parameters(), torch.tensor(0.1))
    target = deepcopy(source)
    Target(target, step)
    before = [p.clone() for p in target.parameters()]
    step(loss_of(source, 0))
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))


@pytest.mark.parametrize("spike", [1e25, float("inf"), float("nan")])
def test_one_spike_is_never_forgotten(spike: float) -> None:
    # R2: a finite gradient of 1e25 left infinite second moments, and nothing noticed.
    p = nn.Parameter(torch.zeros(3))
    step = GradStep([p], torch.tensor(0.1))
    for scale in (1.0, 1e3, 1.0):
        step(scale * p.sum())
    assert step.sum_of_squares.isfinite()
    before = step.state_dict()
    step(spike * p.sum())
    step(p.sum())
    assert not step.sum_of_squares.isfinite()
    step.load_state_dict(before)  # a run that goes back to its last commit starts anew
    assert step.sum_of_squares.isfinite()

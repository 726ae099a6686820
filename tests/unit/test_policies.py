"""Policies: what travels, how they explore, and what they compute."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from elegantrl import tree
from elegantrl.nets.normalize import ObsNorm, RunningStats
from elegantrl.nets.policies import (
    POLICIES,
    CategoricalPolicy,
    FlatPolicy,
    GaussianPolicy,
    Policy,
    PolicySpec,
    QPolicy,
    SquashedPolicy,
)

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"obs_dim": 3, "action_dim": 2, "hidden": (5,)}

KINDS = sorted(set(POLICIES) - {"ensemble"})  # which is made of the others


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def explored(policy: Policy, obs: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions of one step and their log-probabilities."""
    (draw,) = policy.draw(1, len(obs), generator)
    action, out = policy.explore(obs, draw)
    kept = policy.kept(out, action)
    return action, kept if isinstance(kept, torch.Tensor) else torch.empty(0)


def randomised(policy: Policy, seed: int = 0) -> Policy:
    g = stream(seed)
    with torch.no_grad():
        for t in policy.tensors():
            t.copy_(torch.rand(t.shape, generator=g) + 0.1)
    return policy


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_rebuilt_from_json_and_acts_alike(kind: str, normalize_obs: bool) -> None:
    spec = PolicySpec(kind, SIZES | {"normalize_obs": normalize_obs})
    again = PolicySpec(**json.loads(json.dumps(asdict(spec))))
    policy = randomised(spec.build())
    copy = FlatPolicy(again, CPU).load(policy.to_flat())
    obs = torch.randn(6, 3, generator=stream(1))
    with torch.no_grad():
        assert torch.equal(policy.act(obs), copy.act(obs))
        expected, result = explored(policy, obs, stream(2)), explored(copy, obs, stream(2))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(expected), tree.leaves(result), strict=True))
    assert expected[0].shape == ((6,) if kind in ("categorical", "q") else (6, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_flat_round_trip_includes_buffers(kind: str) -> None:
    policy = randomised(PolicySpec(kind, SIZES | {"normalize_obs": True}).build())
    flat = policy.to_flat()
    assert flat.dtype == torch.float32
    assert flat.numel() == sum(t.numel() for t in policy.state_dict().values())
    other = FlatPolicy(PolicySpec(kind, SIZES | {"normalize_obs": True}), CPU)
    other.load(flat)
    for (name, a), b in zip(policy.state_dict().items(), other.policy.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(other.policy.to_flat(), flat)
    assert not any(t.requires_grad for t in other.policy.tensors())


def test_flat_is_a_copy_and_a_loaded_policy_stays_live() -> None:
    # Guards against: R3, an evaluator that scores one policy and saves another.
    policy = CategoricalPolicy(**SIZES)
    flat = policy.to_flat()
    before = flat.clone()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)
    assert torch.equal(flat, before)
    worker = FlatPolicy(PolicySpec("categorical", SIZES), CPU)
    worker.load(flat)
    worker.load(policy.to_flat())  # the second version reaches the very same module
    assert torch.equal(worker.policy.to_flat(), policy.to_flat())


def test_epsilon_greedy_draws_a_coin_per_lane() -> None:
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    policy = QPolicy(obs_dim=1, action_dim=4, hidden=())
    with torch.no_grad():
        policy.net[0].weight.zero_()
        policy.net[0].bias.copy_(torch.tensor([0.0, 5.0, 0.0, 0.0]))  # action 1 is always the best
    policy.epsilon.fill_(0.4)
    action, _ = explored(policy, torch.zeros(20_000, 1), stream(3))
    counts = torch.bincount(action, minlength=4).double() / 20_000
    expected = torch.tensor([0.1, 0.7, 0.1, 0.1], dtype=torch.float64)
    torch.testing.assert_close(counts, expected, atol=0.012, rtol=0)
    # One coin for all lanes would make a step either fully greedy or fully random.
    shares = torch.stack([(explored(policy, torch.zeros(50, 1), stream(s))[0] == 1).float().mean() for s in range(40)])
    assert shares.min() > 0.4 and shares.max() < 0.95


@pytest.mark.parametrize(("epsilon", "greedy_share"), [(0.0, 1.0), (1.0, 0.25)])
def test_epsilon_at_its_ends(epsilon: float, greedy_share: float) -> None:
    policy = QPolicy(obs_dim=2, action_dim=4, hidden=())
    policy.epsilon.fill_(epsilon)
    obs = torch.randn(8000, 2, generator=stream())
    action, _ = explored(policy, obs, stream(1))
    best = policy.act(obs)
    assert float((action == best).float().mean()) == pytest.approx(greedy_share, abs=0.02)


def test_dueling_is_value_plus_centred_advantage() -> None:
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    policy = QPolicy(obs_dim=1, action_dim=3, hidden=(), dueling=True)
    with torch.no_grad():
        policy.net[0].weight.zero_()
        policy.net[0].bias.copy_(torch.tensor([10.0, 1.0, 2.0, 6.0]))  # V = 10, A = 1, 2, 6 with mean 3
    torch.testing.assert_close(policy.q(torch.zeros(1, 1)), torch.tensor([[8.0, 9.0, 13.0]]))


def test_both_streams_of_a_dueling_network_learn() -> None:
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    policy = QPolicy(obs_dim=3, action_dim=4, hidden=(5,), dueling=True)
    loss = policy.q(torch.randn(7, 3, generator=stream()))[:, 1].square().sum()
    (grad,) = torch.autograd.grad(loss, [policy.net[2].weight])
    assert grad.shape[0] == 5
    assert (grad.abs().sum(1) > 0).all()  # the value row and every advantage row


@torch.no_grad()
def test_random_share_of_a_squashed_policy() -> None:
    policy = SquashedPolicy(obs_dim=1, action_dim=1, hidden=())
    with torch.no_grad():
        policy.net[0].weight.zero_()
        policy.net[0].bias.copy_(torch.tensor([1.0, -20.0]))  # always tanh(1)
    sure = torch.tensor(1.0).tanh()
    obs = torch.zeros(10_000, 1)
    policy.random_frac.fill_(1.0)
    action, _ = explored(policy, obs, stream())
    assert abs(float(action.mean())) < 0.03 and abs(float(action.var()) - 1 / 3) < 0.02  # uniform on [-1, 1]
    policy.random_frac.fill_(0.3)
    action, _ = explored(policy, obs, stream())
    assert float(((action - sure).abs() < 1e-5).float().mean()) == pytest.approx(0.7, abs=0.02)
    policy.random_frac.fill_(0.0)
    action, _ = explored(policy, obs, stream())
    torch.testing.assert_close(action, sure.expand(10_000, 1))


def test_squashed_policy_does_not_explore_when_judged() -> None:
    policy = SquashedPolicy(**SIZES)
    policy.random_frac.fill_(1.0)
    obs = torch.randn(4, 3, generator=stream())
    action = policy.act(obs)
    mean, _ = policy.net(obs).chunk(2, -1)
    torch.testing.assert_close(action, mean.tanh())


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_log_prob_of_an_explored_action_is_that_of_the_action(kind: str) -> None:
    policy = PolicySpec(kind, SIZES).build()
    assert isinstance(policy, CategoricalPolicy | GaussianPolicy)
    obs = torch.randn(9, 3, generator=stream())
    action, logp = explored(policy, obs, stream(1))
    torch.testing.assert_close(logp, policy.dist(obs).log_prob(action))


@pytest.mark.parametrize("kind", KINDS)
def test_normaliser_changes_what_the_network_sees(kind: str) -> None:
    # Guards against: P6, observation normalisation that is dead, partial or lost on resume.
    policy = randomised(PolicySpec(kind, SIZES | {"normalize_obs": True}).build())
    seen: list[torch.Tensor] = []
    policy.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    norm = policy.norm
    assert isinstance(norm, ObsNorm)
    norm.mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.inv_std.copy_(torch.tensor([2.0, 1.0, 0.5]))
    explored(policy, torch.tensor([[2.0, 2.0, 1.0]]), stream())
    torch.testing.assert_close(seen[0], torch.tensor([[2.0, 0.0, -1.0]]))


def test_normaliser_clips() -> None:
    norm = ObsNorm(1, clip=3.0)
    torch.testing.assert_close(norm(torch.tensor([[-9.0], [2.0], [9.0]])), torch.tensor([[-3.0], [2.0], [3.0]]))


def test_running_statistics_equal_those_of_all_data_at_once() -> None:
    data = torch.randn(100, 4, generator=stream(), dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + 1e4
    stats = RunningStats(4, CPU)
    for part in torch.split(data, [1, 9, 50, 40]):
        stats.update(part.reshape(-1, 1, 4))
    torch.testing.assert_close(stats.mean, data.mean(0))
    torch.testing.assert_close(stats.m2 / 100, data.var(0, correction=0), atol=1e-9, rtol=1e-7)
    norm = ObsNorm(4)
    stats.write_to(norm)
    torch.testing.assert_close(norm.inv_std[:3], data.std(0, correction=0).reciprocal().float()[:3], rtol=1e-4, atol=0)
    assert norm.inv_std[3] == 1.0  # a constant feature keeps its scale
    again = RunningStats(4, CPU)
    again.load_state_dict(stats.state_dict())
    again.update(data[:7])
    stats.update(data[:7])
    assert torch.equal(again.mean, stats.mean) and torch.equal(again.m2, stats.m2)


def test_squashed_policy_bounds_its_standard_deviation() -> None:
    policy = SquashedPolicy(obs_dim=1, action_dim=1, hidden=())
    with torch.no_grad():
        policy.net[0].weight.zero_()
        policy.net[0].bias.copy_(torch.tensor([0.0, 50.0]))
    _, logp = policy.sample(torch.zeros(1, 1), torch.zeros(1, 1))
    # At the mean 0 the density is that of a normal with log std 2, the upper bound.
    assert logp.item() == pytest.approx(-2.0 - 0.9189385, abs=1e-5)


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu", "elu"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flat_copy_acts_bit_for_bit_like_the_policy_itself(kind: str, activation: str) -> None:
    """A copy holds on to its weight tensors for speed; it must follow every new version and change no bit."""
    spec = PolicySpec(kind, {"obs_dim": 4, "action_dim": 2, "hidden": (16, 16), "activation": activation})
    obs, copy = torch.randn(8, 4), FlatPolicy(spec, torch.device("cpu"))
    for _ in range(2):
        policy = spec.build()
        mine = explored(policy, obs, stream(1))
        theirs = explored(copy.load(policy.to_flat()), obs, stream(1))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_for_few_lanes_explores_like_the_policy_itself(kind: str, activation: str) -> None:
    """In NumPy where that is faster: the same random numbers, the same choices, the same output to rounding."""
    sizes = {"obs_dim": 4, "action_dim": 2, "hidden": (64, 64), "activation": activation, "normalize_obs": True}
    spec = PolicySpec(kind, sizes | ({"dueling": True} if kind == "q" else {}))
    copy = FlatPolicy(spec, torch.device("cpu"), lanes=8)
    in_numpy = kind in ("categorical", "gaussian", "squashed", "q") and activation != "silu"
    assert (copy.output is not None) == in_numpy
    for seed in range(2):
        policy = spec.build().requires_grad_(False)
        policy.norm.mean.fill_(0.5 + seed)
        copy.load(policy.to_flat())
        obs = torch.randn(8, 4, generator=stream(seed)) * 20  # beyond where normalised observations are clipped
        (mine,), (theirs,) = policy.draw(1, 8, stream(seed)), copy.draw(1, 8, stream(seed))
        for a, b in zip(tree.leaves(policy.explore(obs, mine)), tree.leaves(copy.explore(obs, theirs)), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b)


def test_numpy_is_for_small_layers_and_few_lanes() -> None:
    spec = PolicySpec("gaussian", {"obs_dim": 4, "action_dim": 2, "hidden": (128, 128)})
    assert FlatPolicy(spec, torch.device("cpu"), lanes=256).output is not None
    assert FlatPolicy(spec, torch.device("cpu"), lanes=257).output is None
    wider = PolicySpec("gaussian", {"obs_dim": 4, "action_dim": 2, "hidden": (129, 128)})
    assert FlatPolicy(wider, torch.device("cpu"), lanes=2).output is not None
    assert FlatPolicy(wider, torch.device("cpu"), lanes=3).output is None


@pytest.mark.parametrize("kind", ["categorical", "deterministic"])
def test_many_rows_give_the_output_of_few(kind: str) -> None:
    spec = PolicySpec(kind, {"obs_dim": 4, "action_dim": 2, "hidden": (16, 16)})
    policy, obs = FlatPolicy(spec, torch.device("cpu")).policy, torch.randn(1500, 4)
    torch.testing.assert_close(policy.output(obs), torch.cat([policy.output(part) for part in obs.split(300)]))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_do_not_depend_on_how_many_steps_are_drawn_at_once(kind: str) -> None:
    policy = PolicySpec(kind, SIZES).build().requires_grad_(False)
    together, g = policy.draw(7, 5, stream(1)), stream(1)
    apart = [draw for num_steps in (1, 4, 2) for draw in policy.draw(num_steps, 5, g)]
    for one, other in zip(together, apart, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_log_probs_of_many_steps_at_once_are_those_of_each(kind: str) -> None:
    policy = PolicySpec(kind, SIZES).build().requires_grad_(False)
    obs = torch.randn(8, 5, 3, generator=stream())
    pairs = [policy.explore(o, draw) for o, draw in zip(obs, policy.draw(8, 5, stream(1)), strict=True)]
    action, out = (torch.stack(column) for column in zip(*pairs, strict=True))
    together = policy.kept(out, action)
    torch.testing.assert_close(together, torch.stack([policy.kept(o, a) for a, o in pairs]))
    assert isinstance(policy, CategoricalPolicy | GaussianPolicy)
    torch.testing.assert_close(together, policy.dist(obs).log_prob(action))

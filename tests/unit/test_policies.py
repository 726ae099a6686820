"""Policies: what travels, how they explore, and what they compute."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from elegantrl import tree
from elegantrl.nets.networks import NetSpec
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
from elegantrl.types import ActionSpec, Leaf

CPU = torch.device("cpu")

KINDS = sorted(set(POLICIES) - {"ensemble"})  # which is made of the others
CHOOSING = ("categorical", "q", "gumbel", "multi_categorical", "joint_q")


def spec_of(
    kind: str, obs_dim: int = 3, action_dim: int = 2, hidden: tuple[int, ...] = (5,), **settings: Any
) -> PolicySpec:
    action = ActionSpec(dim=action_dim)
    if kind in CHOOSING:
        action = ActionSpec(
            choices=(action_dim,) if kind in ("categorical", "q", "gumbel") else (action_dim, action_dim + 1)
        )
    net = {name: settings.pop(name) for name in ("activation", "normalize_obs") if name in settings}
    return PolicySpec(kind, Leaf((obs_dim,)), action, NetSpec(hidden=hidden, **net), settings)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def q_policy(**settings: Any) -> QPolicy:
    policy = spec_of("q", **settings).build()
    assert isinstance(policy, QPolicy)
    return policy


def squashed(**settings: Any) -> SquashedPolicy:
    policy = spec_of("squashed", **settings).build()
    assert isinstance(policy, SquashedPolicy)
    return policy


def explored(policy: Policy, obs: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions of one step and their log-probabilities."""
    (draw,) = policy.draw(1, len(obs), generator)
    action, out, _ = policy.explore(obs, policy.initial_carry(len(obs)), draw)
    kept = tree.map_leaves(
        lambda x: x[0], policy.kept(tree.map_leaves(lambda x: x.unsqueeze(0), out), action.unsqueeze(0))
    )
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
    spec = spec_of(kind, normalize_obs=normalize_obs)
    again = PolicySpec.from_json(json.loads(json.dumps(spec.to_json())))
    policy = randomised(spec.build())
    copy = FlatPolicy(again, CPU).load(policy.to_flat())
    obs = torch.randn(6, 3, generator=stream(1))
    with torch.no_grad():
        assert torch.equal(policy.act(obs, ())[0], copy.act(obs, ())[0])
        expected, result = explored(policy, obs, stream(2)), explored(copy, obs, stream(2))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(expected), tree.leaves(result), strict=True))
    assert expected[0].shape == ((6,) if kind in ("categorical", "q", "gumbel") else (6, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_flat_round_trip_includes_buffers(kind: str) -> None:
    policy = randomised(spec_of(kind, normalize_obs=True).build())
    flat = policy.to_flat()
    assert flat.dtype == torch.float32
    assert flat.numel() == sum(t.numel() for t in policy.state_dict().values())
    other = FlatPolicy(spec_of(kind, normalize_obs=True), CPU)
    other.load(flat)
    for (name, a), b in zip(policy.state_dict().items(), other.policy.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(other.policy.to_flat(), flat)
    assert not any(t.requires_grad for t in other.policy.tensors())


def test_flat_is_a_copy_and_a_loaded_policy_stays_live() -> None:
    # Guards against: R3, an evaluator that scores one policy and saves another.
    policy = spec_of("categorical").build()
    flat = policy.to_flat()
    before = flat.clone()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)
    assert torch.equal(flat, before)
    worker = FlatPolicy(spec_of("categorical"), CPU)
    worker.load(flat)
    worker.load(policy.to_flat())  # the second version reaches the very same module
    assert torch.equal(worker.policy.to_flat(), policy.to_flat())


def test_epsilon_greedy_draws_a_coin_per_lane() -> None:
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    policy = q_policy(obs_dim=1, action_dim=4, hidden=())
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
    policy = q_policy(obs_dim=2, action_dim=4, hidden=())
    policy.epsilon.fill_(epsilon)
    obs = torch.randn(8000, 2, generator=stream())
    action, _ = explored(policy, obs, stream(1))
    best, _ = policy.act(obs, ())
    assert float((action == best).float().mean()) == pytest.approx(greedy_share, abs=0.02)


def test_dueling_is_value_plus_centred_advantage() -> None:
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    policy = q_policy(obs_dim=1, action_dim=3, hidden=(), dueling=True)
    for stream_, biases in ((policy.net.value, [10.0]), (policy.net.advantage, [1.0, 2.0, 6.0])):  # their mean is 3
        with torch.no_grad():
            stream_[0].weight.zero_()
            stream_[0].bias.copy_(torch.tensor(biases))
    torch.testing.assert_close(policy.q(torch.zeros(1, 1)), torch.tensor([[8.0, 9.0, 13.0]]))


def test_both_streams_of_a_dueling_network_learn() -> None:
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    policy = q_policy(obs_dim=3, action_dim=4, hidden=(6, 5), dueling=True)
    loss = policy.q(torch.randn(7, 3, generator=stream()))[:, 1].square().sum()
    grads = torch.autograd.grad(loss, list(policy.net.parameters()))
    assert all(bool(grad.any()) for grad in grads)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_streams_of_a_dueling_network_have_a_hidden_layer_each(layer_norm: bool) -> None:
    # C6: with one linear head the state value adds nothing that advantages cannot express.
    policy = q_policy(obs_dim=3, action_dim=4, hidden=(6, 5), dueling=True, layer_norm=layer_norm)
    shapes = {name: tuple(p.shape) for name, p in policy.net.named_parameters() if "weight" in name and p.dim() == 2}
    last = 3 if layer_norm else 2
    assert shapes == {
        "trunk.0.weight": (6, 3),
        "value.0.weight": (5, 6),
        f"value.{last}.weight": (1, 5),
        "advantage.0.weight": (5, 6),
        f"advantage.{last}.weight": (4, 5),
    }


@torch.no_grad()
def test_random_share_of_a_squashed_policy() -> None:
    policy = squashed(obs_dim=1, action_dim=1, hidden=())
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
    policy = squashed()
    policy.random_frac.fill_(1.0)
    obs = torch.randn(4, 3, generator=stream())
    action, _ = policy.act(obs, ())
    mean, _ = policy.net(obs).chunk(2, -1)
    torch.testing.assert_close(action, mean.tanh())


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_log_prob_of_an_explored_action_is_that_of_the_action(kind: str) -> None:
    policy = spec_of(kind).build()
    assert isinstance(policy, CategoricalPolicy | GaussianPolicy)
    obs = torch.randn(9, 3, generator=stream())
    action, logp = explored(policy, obs, stream(1))
    torch.testing.assert_close(logp, policy.dist(obs).log_prob(action))


@pytest.mark.parametrize("kind", KINDS)
def test_normaliser_changes_what_the_network_sees(kind: str) -> None:
    # Guards against: P6, observation normalisation that is dead, partial or lost on resume.
    policy = randomised(spec_of(kind, normalize_obs=True).build())
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
    policy = squashed(obs_dim=1, action_dim=1, hidden=())
    with torch.no_grad():
        policy.net[0].weight.zero_()
        policy.net[0].bias.copy_(torch.tensor([0.0, 50.0]))
    _, logp = policy.sample(torch.zeros(1, 1), torch.zeros(1, 1))
    # At the mean 0 the density is that of a normal with log std 2, the upper bound.
    assert logp.item() == pytest.approx(-2.0 - 0.9189385, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_do_not_depend_on_how_many_steps_are_drawn_at_once(kind: str) -> None:
    policy = spec_of(kind).build().requires_grad_(False)
    together, g = policy.draw(7, 5, stream(1)), stream(1)
    apart = [draw for num_steps in (1, 4, 2) for draw in policy.draw(num_steps, 5, g)]
    for one, other in zip(together, apart, strict=True):
        pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_log_probs_of_many_steps_at_once_are_those_of_each(kind: str) -> None:
    policy = spec_of(kind).build().requires_grad_(False)
    obs = torch.randn(8, 5, 3, generator=stream())
    steps = [policy.explore(o, (), draw) for o, draw in zip(obs, policy.draw(8, 5, stream(1)), strict=True)]
    action, out, _ = tree.stack(steps)
    together = policy.kept(out, action)
    torch.testing.assert_close(
        together, torch.stack([policy.kept(step.out.unsqueeze(0), step.action.unsqueeze(0))[0] for step in steps])
    )
    assert isinstance(policy, CategoricalPolicy | GaussianPolicy)
    torch.testing.assert_close(together, policy.dist(obs).log_prob(action))

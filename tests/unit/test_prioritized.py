"""Prioritised replay: the sum tree, what is drawn how often, importance weights, saving, and training with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elegantrl.agents.dqn import DQNConfig
from elegantrl.agents.off_policy import TD_ERROR, td_loss
from elegantrl.data.memory import Prioritized, Replay
from elegantrl.data.prioritized import (
    EPSILON,
    PrioritizedReplay,
    SumTree,
    block_sums,
    level_at_zeros,
    settle_duplicates,
)
from elegantrl.data.replay import FIELDS, ReplayBuffer
from elegantrl.registry import build_agent, find_agent
from elegantrl.rng import torch_stream
from elegantrl.roles.learner import Learner
from elegantrl.runtime.run import RunResult
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Rollout, Transition

CPU = torch.device("cpu")
HALF = torch.tensor(0.5)
Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tree_of(values: Tensor) -> SumTree:
    tree = SumTree(values.numel(), CPU)
    tree.load(values)
    return tree


def chi_square(counts: Tensor, probability: Tensor) -> float:
    expected = probability.double() * counts.sum()
    return float(((counts - expected).square() / expected).sum())


def quantile_999(degrees: int) -> float:
    """The 99.9 % quantile of chi-square by Wilson and Hilferty."""
    part = 2 / (9 * degrees)
    return float(degrees * (1 - part + 3.0902 * math.sqrt(part)) ** 3)


def numbered_steps(first: int, steps: int, lanes: int) -> Rollout:
    """Lane n sees 1000 * n + t at time t and gets that as reward; no episode ends."""
    number = torch.arange(first, first + steps).view(-1, 1) + 1000.0 * torch.arange(lanes)
    none = torch.zeros(steps, lanes, dtype=torch.bool)
    obs = number.unsqueeze(-1)
    return Rollout(obs, number.long(), number, none, none, obs + 1, torch.zeros(steps, lanes))


def ring(capacity: int, lanes: int, alpha: float = 1.0, beta: float = 1.0) -> PrioritizedReplay:
    return PrioritizedReplay(capacity, EnvSpec("Made", (1,), ActionSpec(choices=(5,)), lanes), CPU, alpha, beta)


def draw(buffer: PrioritizedReplay, batch_size: int, n_step: int = 1, seed: int = 0) -> tuple[Transition, Tensor]:
    """A minibatch, and the flat places in memory it came from."""
    batch = buffer.sample(batch_size, HALF, n_step, stream(seed))
    assert batch.rows is not None and batch.weight is not None
    return batch, batch.rows


# ---- the tree


@pytest.mark.parametrize("num_leaves", [1, 2, 15, 17, 1000, 1024, 1_000_000])
def test_root_is_the_sum_of_the_leaves(num_leaves: int) -> None:
    # Guards against: B1, a sum tree whose root is not the sum of its leaves, or draws that do not follow them.
    g = stream()
    tree, model = SumTree(num_leaves, CPU), np.zeros(num_leaves, np.float32)
    assert float(tree.root) == 0.0
    for step in range(300):
        index = torch.randint(num_leaves, (256,), generator=g)
        value = torch.randn(256, generator=g).mul(5).exp()  # over many orders of magnitude
        tree.update(index, value)
        for i, v in zip(index.tolist(), value.tolist(), strict=True):
            model[i] = v
        if step % 50 == 0:
            start = int(torch.randint(num_leaves, (), generator=g))
            tree.fill(start, num_leaves, torch.tensor(2.5))
            model[start:] = 2.5
    assert tree.leaves.tolist() == model.tolist()
    assert float(tree.root) == pytest.approx(math.fsum(model.tolist()), rel=1e-12)


def test_a_million_leaves_after_millions_of_updates() -> None:
    # Guards against: B1, a sum tree whose root is not the sum of its leaves, or draws that do not follow them.
    g, tree = stream(), SumTree(1_000_000, CPU)
    for _ in range(60):
        index = torch.randint(1_000_000, (50_000,), generator=g)
        tree.update(index, torch.randn(50_000, generator=g).mul(8).exp())
    assert float(tree.root) == pytest.approx(math.fsum(tree.leaves.tolist()), rel=1e-9)
    tree.update(torch.arange(1_000_000), torch.full((1_000_000,), 0.125))  # large values leave no trace
    assert float(tree.root) == 125_000.0


@settings(max_examples=100, deadline=None)
@given(
    num_leaves=st.integers(1, 40),
    updates=st.lists(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 9)), min_size=1, max_size=12), max_size=5),
)
def test_of_equal_indices_in_one_update_the_last_value_counts(
    num_leaves: int, updates: list[list[tuple[int, int]]]
) -> None:
    tree, model = SumTree(num_leaves, CPU), [0.0] * num_leaves
    for pairs in updates:
        index = torch.tensor([i % num_leaves for i, _ in pairs])
        tree.update(index, torch.tensor([float(v) for _, v in pairs]))
        for i, v in pairs:
            model[i % num_leaves] = float(v)
        assert tree.leaves.tolist() == model
        assert float(tree.root) == sum(model)  # small whole numbers: no rounding


def test_equal_indices_are_written_with_equal_values() -> None:
    """Devices write in any order, so that order must not matter."""
    index, value = settle_duplicates(torch.tensor([5, 2, 5, 9, 2, 5]), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert index.tolist() == [2, 2, 5, 5, 5, 9]
    assert value.tolist() == [5.0, 5.0, 6.0, 6.0, 6.0, 4.0]


def test_equal_indices_in_a_large_update() -> None:
    index = torch.randint(100, (200_000,), generator=stream())
    value = torch.arange(200_000.0)
    tree = SumTree(1000, CPU)
    tree.update(index, value)
    last = {i: v for i, v in zip(index.tolist(), value.tolist(), strict=True)}
    assert tree.leaves.tolist() == [last.get(i, 0.0) for i in range(1000)]


def test_a_block_has_the_same_sum_however_many_are_summed_at_once() -> None:
    """Or a resumed run, which sums all blocks anew, would differ from one that summed them one by one."""
    blocks = torch.randn(1000, 64, generator=stream()).mul(12).exp()
    whole = block_sums(blocks)
    for size in (1, 2, 3, 7, 64, 256):
        assert torch.equal(torch.cat([block_sums(part) for part in blocks.split(size)]), whole), size
    order = torch.randint(1000, (256,), generator=stream(1))
    assert torch.equal(block_sums(blocks.index_select(0, order)), whole[order])


@pytest.mark.parametrize("num_leaves", [1, 1000, 1024, 5000])
def test_frequencies_follow_the_leaves(num_leaves: int) -> None:
    # Guards against: B1, a sum tree whose root is not the sum of its leaves, or draws that do not follow them.
    values = torch.rand(num_leaves, generator=stream(1)) + 0.2
    tree, g = tree_of(values), stream()
    drawn = torch.cat([tree.sample(128, g) for _ in range(1000)])
    counts = drawn.bincount(minlength=num_leaves)
    assert counts.numel() == num_leaves
    assert num_leaves == 1 or chi_square(counts, values / values.sum()) < quantile_999(num_leaves - 1)
    assert num_leaves == 1 or chi_square(counts, torch.full_like(values, 1 / num_leaves)) > 2 * num_leaves


def test_frequencies_among_a_million_leaves() -> None:
    # Guards against: B1, a sum tree whose root is not the sum of its leaves, or draws that do not follow them.
    values = torch.rand(1_000_000, generator=stream(1)).pow(3)
    values[300_000:400_000] *= 10
    tree, g = tree_of(values), stream()
    drawn = torch.cat([tree.sample(4096, g) for _ in range(50)])
    group = torch.arange(1_000_000) // 100_000 * 10 + (values * 9.99 / values.amax()).long()
    mass = torch.zeros(100, dtype=torch.float64).index_add(0, group, values.double())
    kept = mass > mass.sum() / 10_000  # groups in which at least some 20 draws are expected
    counts = group[drawn].bincount(minlength=100)[kept]
    assert kept.sum() >= 10 and counts.sum() > 0.99 * drawn.numel()
    assert chi_square(counts, mass[kept] / mass[kept].sum()) < quantile_999(int(kept.sum()) - 1)


def test_one_draw_from_each_share() -> None:
    tree = tree_of(torch.ones(64 * 64))
    for seed in range(20):
        assert (tree.sample(256, stream(seed)) // 16).tolist() == list(range(256))  # 16 leaves to a share


@pytest.mark.parametrize("num_leaves", [1, 16, 17, 1000, 70_000])
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2.0**-53])
def test_a_leaf_without_value_is_never_drawn(monkeypatch: pytest.MonkeyPatch, num_leaves: int, number: float) -> None:
    """Also where the random numbers are the smallest and the largest possible and sums have been rounded."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, number, dtype=torch.float64))
    for seed in range(10):
        g = stream(seed)
        values = torch.randn(num_leaves, generator=g).mul(10).exp()
        values[torch.randperm(num_leaves, generator=g)[: num_leaves * seed // 10]] = 0.0
        for at_ends in (0.0, 1e-30):  # lost in the sum, but not nothing
            values[0] = values[-1] = at_ends
            if seed % 2:
                values[: num_leaves // 2] = values[num_leaves // 2 + 1 :] = 0.0  # whole blocks of nothing at both ends
            values[num_leaves // 2] = 0.1
            tree = tree_of(values)
            for batch_size in (1, 3, 256, 1000):
                drawn = tree.sample(batch_size, g)
                assert drawn.shape == (batch_size,)
                assert drawn.min() >= 0 and drawn.max() < num_leaves
                assert (values[drawn] > 0).all()


def test_the_only_leaf_with_a_value_is_always_drawn() -> None:
    for place in (0, 15, 16, 500, 999):
        values = torch.zeros(1000)
        values[place] = 1e-6
        assert tree_of(values).sample(300, stream(place)).unique().tolist() == [place]


def test_running_sums_of_a_parallel_scan_are_levelled_where_entries_are_zero() -> None:
    entries = torch.tensor([0.0, 2.0, 0.0, 3.0, 0.0, 0.0])
    rounded = torch.tensor([0.5, 2.0, 2.5, 5.0, 4.5, 5.5], dtype=torch.float64)  # wrong by rounding at every zero
    assert level_at_zeros(rounded, entries).tolist() == [0.0, 2.0, 2.0, 5.0, 5.0, 5.0]


# ---- what is drawn


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_by_the_power_alpha_of_their_absolute_error(alpha: float) -> None:
    # Guards against: B4, priorities that are squared losses, or importance weights that are wrong or unused.
    buffer = ring(10, 2, alpha)
    buffer.add(numbered_steps(0, 5, 2))
    error = torch.tensor([0.1, -0.2, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, -6.0, 8.0])
    buffer.update_priorities(torch.arange(10), error)
    g, drawn = stream(), []
    for _ in range(5000):
        index = buffer.sample(4, HALF, 1, g).rows
        assert index is not None
        drawn.append(index)
    counts = torch.cat(drawn).bincount(minlength=10)
    for other in (0.0, 0.6, 1.0):
        wanted = error.abs().pow(other)
        statistic = chi_square(counts, wanted / wanted.sum())
        assert (statistic < 27.88) == (other == alpha), (other, statistic)  # the 99.9 % quantile, 9 degrees of freedom


def test_priorities_are_absolute_errors_not_squares() -> None:
    # Guards against: B4, priorities that are squared losses, or importance weights that are wrong or unused.
    buffer = ring(4, 1)
    buffer.add(numbered_steps(0, 4, 1))
    buffer.update_priorities(torch.arange(4), torch.tensor([-3.0, 3.0, 0.0, 0.5]))
    assert buffer.tree.leaves.tolist() == pytest.approx([3.0, 3.0, EPSILON, 0.5], rel=1e-5)
    half = ring(4, 1, alpha=0.5)
    half.add(numbered_steps(0, 4, 1))
    half.update_priorities(torch.tensor([1]), torch.tensor([-9.0]))
    assert float(half.tree.leaves[1]) == pytest.approx(3.0)


def test_importance_weights_by_hand() -> None:
    # Guards against: B4, priorities that are squared losses, or importance weights that are wrong or unused.
    buffer = ring(4, 1)
    buffer.add(numbered_steps(0, 4, 1))
    buffer.update_priorities(torch.arange(4), torch.tensor([1.0, -2.0, 3.0, 4.0]))  # P = 1/10, 2/10, 3/10, 4/10
    for beta, by_hand in [
        (1.0, [1.0, 1 / 2, 1 / 3, 1 / 4]),  # (4 P) ** -1 = 2.5, 1.25, 0.8333, 0.625, each divided by 2.5
        (0.5, [1.0, 0.70711, 0.57735, 0.5]),
        (0.0, [1.0, 1.0, 1.0, 1.0]),
    ]:
        buffer.beta = beta
        batch, index = draw(buffer, 40)
        assert batch.weight is not None and set(index.tolist()) == {0, 1, 2, 3}
        assert batch.weight.tolist() == pytest.approx([by_hand[i] for i in index.tolist()], rel=1e-4)
        assert batch.weight.dtype == torch.float32
    buffer.beta = 1.0
    buffer.update_priorities(torch.tensor([0]), torch.tensor([1e-12]))  # too rare for this batch, so 2 is the smallest
    batch, index = draw(buffer, 9)
    assert batch.weight is not None and set(index.tolist()) == {1, 2, 3}
    assert batch.weight.tolist() == pytest.approx([2 / (i + 1) for i in index.tolist()], rel=1e-4)


def test_new_rows_get_the_largest_priority_seen() -> None:
    buffer = ring(6, 1)
    buffer.add(numbered_steps(0, 2, 1))
    assert buffer.tree.leaves.tolist() == [1, 1, 0, 0, 0, 0]
    buffer.update_priorities(torch.tensor([0, 1]), torch.tensor([7.0, 0.5]))
    buffer.update_priorities(torch.tensor([0]), torch.tensor([2.0]))  # seen is seen
    buffer.add(numbered_steps(2, 1, 1))
    assert buffer.tree.leaves.tolist() == pytest.approx([2, 0.5, 7, 0, 0, 0], rel=1e-5)


def test_wrap_around_by_hand() -> None:
    # Guards against: B2, prioritised replay that breaks when the ring wraps.
    buffer = ring(8, 2)
    buffer.add(numbered_steps(0, 3, 2))
    buffer.update_priorities(torch.arange(6), torch.full((6,), 0.25))
    buffer.add(numbered_steps(3, 2, 2))  # row 3, then row 0 again
    assert buffer.tree.leaves.tolist() == pytest.approx([1, 1, 0.25, 0.25, 0.25, 0.25, 1, 1], rel=1e-5)
    assert float(buffer.tree.root) == pytest.approx(5.0, rel=1e-5)
    buffer.add(numbered_steps(5, 30, 2))  # longer than the ring
    assert buffer.tree.leaves.tolist() == [1.0] * 8


def test_a_place_overwritten_since_the_draw_takes_the_priority() -> None:
    buffer = ring(2, 1)
    buffer.add(numbered_steps(0, 2, 1))
    buffer.add(numbered_steps(2, 1, 1))  # row 0 is another one now
    buffer.update_priorities(torch.tensor([0]), torch.tensor([5.0]))
    assert buffer.tree.leaves.tolist() == pytest.approx([5.0, 1.0])


@pytest.mark.parametrize("lanes", [1, 3, 4])
@pytest.mark.parametrize("n_step", [1, 3])
def test_draws_are_stored_rows_with_their_own_successors(lanes: int, n_step: int) -> None:
    """At every fill level; a full ring never leads from its newest row on to its oldest."""
    # Guards against: B2, prioritised replay that breaks when the ring wraps.
    # Guards against: B3, prioritised draws from several lanes with invalid places, another batch size or foreign
    # successors.
    buffer, g = ring(5 * lanes, lanes), stream()
    for time in range(14):
        buffer.add(numbered_steps(time, 1, lanes))
        batch, index = draw(buffer, 33, n_step, seed=time)
        assert index.shape == (33,) and all(x.shape[0] == 33 for x in batch if x is not None)
        assert index.min() >= 0 and index.max() < len(buffer)
        start, end = batch.obs[:, 0], batch.next_obs[:, 0]
        assert torch.equal(buffer.obs.flatten(0, 1)[index, 0], start)
        assert torch.equal(index % lanes, (start / 1000).long())  # the lane it came from
        steps = (time + 1 - start % 1000).clamp(max=n_step)  # a return ends at the newest row
        assert torch.equal(end, start + steps)
        assert torch.equal(batch.discount, 0.5**steps)
        assert (start % 1000).min() >= max(0, time - 4)
        buffer.update_priorities(index, torch.randn(33, generator=g))
        assert float(buffer.tree.root) == pytest.approx(float(buffer.tree.leaves.double().sum()), rel=1e-12)


def test_n_step_returns_equal_those_of_the_base_class() -> None:
    buffer = ring(12, 2)
    buffer.add(numbered_steps(0, 9, 2))
    buffer.truncate_newest(torch.tensor([True, False]))
    batch, index = draw(buffer, 50, n_step=3)
    age = batch.obs[:, 0].long() % 1000 - 3  # the oldest of the six rows held is that of time 3
    base = buffer.gather(2 * age + index % 2, HALF, 3)
    assert all(torch.equal(a, b) for a, b in zip(batch[:5], base[:5], strict=True))


def test_draws_depend_on_their_stream_alone() -> None:
    buffer = ring(200, 2)
    buffer.add(numbered_steps(0, 60, 2))
    a, b, c = (draw(buffer, 8, seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_errors_that_are_not_finite_do_not_break_the_sampler() -> None:
    buffer = ring(4, 1)
    buffer.add(numbered_steps(0, 4, 1))
    buffer.update_priorities(torch.arange(4), torch.tensor([math.nan, math.inf, -math.inf, 1.0]))
    assert buffer.tree.root.isfinite() and buffer.max_priority.isfinite()
    batch, index = draw(buffer, 100)
    assert set(index.tolist()) == {1, 2} and batch.weight is not None and batch.weight.isfinite().all()


def test_memory_counts_the_tree() -> None:
    spec = EnvSpec("Made", (17,), ActionSpec(dim=6), 4)
    plain = ReplayBuffer(100_000, spec, CPU).num_bytes
    prioritized = PrioritizedReplay(100_000, spec, CPU, 0.6, 0.4).num_bytes
    assert 4 * 100_000 <= prioritized - plain <= 5 * 100_000  # a float32 leaf for each row, and a few sums


# ---- saving


@pytest.mark.parametrize("steps", range(14))
def test_state_round_trip_at_every_fill_level(steps: int) -> None:
    buffer, again, g = ring(10, 2, 0.6, 0.4), ring(10, 2, 0.6, 0.4), stream()
    again.add(numbered_steps(50, 4, 2))  # what was there before goes
    again.update_priorities(torch.arange(8), torch.full((8,), 9.0))
    for time in range(steps):
        buffer.add(numbered_steps(time, 1, 2))
        _, index = draw(buffer, 6, seed=time)
        buffer.update_priorities(index, torch.randn(6, generator=g).mul(4).exp())
    state = buffer.state_dict()
    assert set(state) == {*FIELDS, "head", "priority", "max_priority"}
    assert state["priority"].shape == (min(steps, 5), 2)
    kept = state["priority"].clone()
    again.load_state_dict(state)
    for time in range(steps, steps + 8):
        assert torch.equal(again.tree.leaves, buffer.tree.leaves) and torch.equal(again.tree.sums, buffer.tree.sums)
        assert torch.equal(again.max_priority, buffer.max_priority)
        if time:
            (a, index), (b, _) = (draw(x, 16, n_step=2, seed=time) for x in (buffer, again))
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None)
            error = torch.randn(16, generator=g).mul(4).exp()
            buffer.update_priorities(index, error)
            again.update_priorities(index, error)
        buffer.add(numbered_steps(time, 1, 2))
        again.add(numbered_steps(time, 1, 2))
    assert torch.equal(state["priority"], kept)  # a snapshot


# ---- in training


def fragment(rollout: Rollout, seq: int) -> Fragment:
    return Fragment(0, seq, seq, rollout, Episodes(np.zeros(0), np.zeros(0, np.int64)))


def random_steps(steps: int, seed: int, lanes: int = 2) -> Rollout:
    g = stream(seed)
    obs, next_obs = torch.randn(2, steps, lanes, 3, generator=g)
    action = torch.randint(2, (steps, lanes), generator=g)
    terminated, truncated = torch.rand(2, steps, lanes, generator=g) < 0.15
    reward = torch.randn(steps, lanes, generator=g)
    return Rollout(obs, action, reward, terminated, truncated & ~terminated, next_obs, torch.zeros(steps, lanes))


SMALL: dict[str, Any] = {
    "hidden": (8,),
    "buffer_size": 60,
    "learning_starts": 12,
    "batch_size": 8,
    "n_step": 2,
    "lr": 0.01,
}


def test_the_learner_hands_back_absolute_errors_and_keeps_metrics_scalar() -> None:
    # Guards against: B4, priorities that are squared losses, or importance weights that are wrong or unused.
    spec = EnvSpec("Made", (3,), ActionSpec(choices=(2,)), 2)
    learner = Learner("dqn", DQNConfig(**SMALL, prioritized=True, priority_alpha=0.7), spec, CPU, seed=3)
    assert isinstance(learner.memory, Prioritized)
    replay, update = learner.memory.ring, learner.agent.update
    assert replay.alpha == 0.7
    expected = torch.zeros(60)
    seen = 0

    def watched_update(batch: Transition) -> Any:
        nonlocal seen
        assert batch.rows is not None and batch.weight is not None
        with torch.no_grad():
            target = batch.reward + batch.discount * learner.agent.next_value(batch.next_obs)  # type: ignore[operator]
            q = learner.agent.policy.q(batch.obs).gather(1, batch.action.unsqueeze(1)).squeeze(1)  # type: ignore[operator]
        for i, error in zip(batch.rows.tolist(), (q - target).tolist(), strict=True):
            expected[i] = (abs(error) + EPSILON) ** 0.7
        seen += 1
        return update(batch)

    learner.agent.update = watched_update  # type: ignore[method-assign]
    for seq in range(10):
        metrics = learner.update([fragment(random_steps(2, seq), seq)])
        assert all(value.dim() == 0 for value in metrics.values()) and TD_ERROR not in metrics
    drawn = expected > 0
    assert seen == 28 and drawn.sum() > 20
    assert torch.allclose(replay.tree.leaves[drawn], expected[drawn], rtol=1e-4)  # the ring has not wrapped yet


def test_the_errors_of_several_critics_are_averaged() -> None:
    # Guards against: B4, priorities that are squared losses, or importance weights that are wrong or unused.
    x = torch.zeros(2)
    error = torch.tensor([[1.0, -3.0], [-2.0, 5.0]])
    weight = torch.tensor([1.0, 0.5])
    batch = Transition(x, x, x, x, x, weight=weight, rows=torch.arange(2))
    loss, metrics = td_loss(error, error.square(), batch)
    assert metrics[TD_ERROR].tolist() == [1.5, 4.0]
    assert loss.tolist() == [(1 + 4.5) / 2, (4 + 12.5) / 2]


def test_beta_rises_to_one_over_the_schedule() -> None:
    spec = EnvSpec("Made", (3,), ActionSpec(choices=(2,)), 2)
    config = DQNConfig(**SMALL, prioritized=True, priority_beta=0.4, schedule_steps=40)
    learner = Learner("dqn", config, spec, CPU, seed=3)
    betas = []
    for seq in range(6):
        learner.update([fragment(random_steps(5, seq), seq)])
        assert isinstance(learner.memory, Prioritized)
        betas.append(learner.memory.ring.beta)
    assert betas == pytest.approx([0.55, 0.7, 0.85, 1.0, 1.0, 1.0])


def test_without_priorities_learning_is_that_of_the_plain_ring(hash_state: HashState) -> None:
    spec = EnvSpec("Made", (3,), ActionSpec(choices=(2,)), 2)
    config = DQNConfig(**SMALL, prioritized=False, priority_alpha=0.9, priority_beta=0.1)
    learner = Learner("dqn", config, spec, CPU, seed=3)
    assert type(learner.memory) is Replay
    agent: Any = build_agent(find_agent("dqn"), spec, config, CPU, 3)
    replay, sampler = ReplayBuffer(60, spec, CPU), torch_stream(3, "replay")
    agent.schedule(0)
    for seq in range(10):
        rollout = random_steps(2, seq)
        learner.update([fragment(rollout, seq)])
        replay.add(rollout)
        while agent.num_updates < max(0, (seq + 1) * 4 - 12):
            agent.update(replay.sample(8, agent.hypers.gamma, 2, sampler))
        agent.schedule((seq + 1) * 4)
    state = learner.state_dict()
    assert agent.num_updates == 28
    assert hash_state(state["agent"]) == hash_state(agent.training_state())
    assert hash_state(state["memory"]) == hash_state(replay.state_dict() | {"sampler": sampler.get_state()})


REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 150, "learning_starts": 30, "batch_size": 16, "horizon": 4}
PRIORITIZED: dict[str, Any] = {**REPLAY, "prioritized": True, "schedule_steps": 300}


@pytest.mark.parametrize(
    ("agent", "env", "extra"),
    [
        pytest.param("dqn", "CartPole-v1", {"num_envs": 1, "n_step": 3, "double": True}, id="dqn-1"),
        pytest.param("dqn", "TensorCartPole", {"num_envs": 4, "priority_alpha": 1.0}, id="dqn-t"),
        pytest.param("sac", "Pendulum-v1", {"num_envs": 2, "updates_per_step": 0.5}, id="sac-2"),
        pytest.param("sac", "TensorPendulum", {"num_envs": 3, "n_step": 3, "updates_per_step": 0.5}, id="sac-t"),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    extra: dict[str, Any],
) -> None:
    settings = {"seed": 7, "eval": {"interval": 10**9, "episodes": 2}, **PRIORITIZED, **extra}
    for name, stops in (("whole", [360]), ("parts", [180, 360])):  # the ring wraps before the first stop
        for i, stop in enumerate(stops):
            run_quietly(agent, env, run_dir=tmp_path / name, max_steps=stop, resume=i > 0, **settings)
    whole, parts = (load_commit(tmp_path / name) for name in ("whole", "parts"))
    for part in set(whole) - {"supervisor"}:
        assert hash_state(parts[part]) == hash_state(whole[part]), part
    learner = whole["learner"]
    assert learner["agent"]["num_updates"] >= 150
    assert learner["memory"]["priority"].unique().numel() > 50  # errors came back
    assert all(x.isfinite().all() for x in learner["agent"]["modules"].values())
    dropped = ("prioritized", "schedule_steps", "priority_alpha")
    plain = {name: value for name, value in settings.items() if name not in dropped}
    run_quietly(agent, env, run_dir=tmp_path / "plain", max_steps=360, **plain)
    state = load_commit(tmp_path / "plain")["learner"]
    assert "priority" not in state["memory"]
    assert hash_state(state["agent"]["modules"]) != hash_state(learner["agent"]["modules"])

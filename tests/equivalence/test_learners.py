"""Two learners equal one with the batches of both; one in a process of its own equals one in this process."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elegantrl.agents.gradients import Gradients
from elegantrl.errors import ConfigError
from elegantrl.execute.base import Executor
from elegantrl.execute.inline import InlineExecutor
from elegantrl.execute.process import ProcessExecutor
from elegantrl.registry import find_agent
from elegantrl.roles.learner import Learner
from elegantrl.roles.ranks import Ranks, connect
from elegantrl.runtime import learners as learners_module
from elegantrl.runtime.build import PRELOAD
from elegantrl.runtime.learners import Learners
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Rollout, Transition

CPU = torch.device("cpu")
HashState = Callable[[Any], str]
LANES, STEPS = 6, 8


def spec_of(kind: Any) -> EnvSpec:
    return EnvSpec("Made", (3,), ActionSpec(choices=(2,)) if kind == "discrete" else ActionSpec(dim=2), LANES)


def random_rollout(kind: str, seed: int, lanes: int = LANES) -> Rollout:
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(STEPS + 1, lanes, 3, generator=g) * 3 + 1
    ended = torch.rand(2, STEPS, lanes, generator=g) < 0.1
    if kind == "discrete":
        action = torch.randint(2, (STEPS, lanes), generator=g)
    else:
        action = torch.rand(STEPS, lanes, 2, generator=g) * 2 - 1
    reward = torch.randn(STEPS, lanes, generator=g) * 5
    logp = -torch.rand(STEPS, lanes, generator=g)
    return Rollout(obs[:-1], action, reward, ended[0], ended[1] & ~ended[0], obs[1:], logp)


def fragments_of(kind: str, seq: int, num_groups: int = 2) -> list[Fragment]:
    """A rollout of all lanes, shared out among groups."""
    parts = zip(*(x.chunk(num_groups, dim=1) for x in random_rollout(kind, seq)[:7]), strict=True)
    nothing = Episodes(np.empty(0), np.empty(0, np.int64))
    return [Fragment(group, seq, seq, Rollout(*part), nothing) for group, part in enumerate(parts)]


def learner_of(name: str, kind: str, settings: dict[str, Any], rank: int = 0, num_learners: int = 1) -> Learner:
    entry = find_agent(name)
    config = entry.config(**{"hidden": (8,), "horizon": STEPS, **settings})
    return Learner(name, config, spec_of(kind), CPU, 3, rank, num_learners)


def at_once(work: Callable[[int], Any], number: int = 2) -> list[Any]:
    """What ``work`` gives for each rank, all in threads of their own."""
    results: list[Any] = [None] * number

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def pair(name: str, kind: str, settings: dict[str, Any]) -> list[Learner]:
    """Two ranks that have met, in this process."""
    both = [learner_of(name, kind, settings, rank, 2) for rank in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        at_once(lambda rank: both[rank].connect(f"{folder}/ranks"))
    return both


def floats(state: Any) -> list[Tensor]:
    """All floating tensors of a nested state, in order."""
    if isinstance(state, dict):
        return [x for name in sorted(state) for x in floats(state[name])]
    return [state] if isinstance(state, Tensor) and state.is_floating_point() else []


def learned(learner: Learner) -> list[Tensor]:
    state = learner.agent.training_state()
    return floats({name: state[name] for name in ("modules", "optimizers", "obs_stats")})


def assert_equal_but_for_rounding(ranks: list[Learner], whole: Learner, tolerance: float = 2e-4) -> None:
    for mine, other in zip(learned(ranks[0]), learned(ranks[1]), strict=True):
        assert torch.equal(mine, other)
    for mine, expected in zip(learned(ranks[0]), learned(whole), strict=True):
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)
    assert ranks[0].env_steps == ranks[1].env_steps == whole.env_steps
    assert ranks[0].num_updates() == ranks[1].num_updates() == whole.num_updates() > 0


# ---- two ranks and one whole


ALL_NORMED: dict[str, Any] = {
    "normalize_obs": True,
    "normalize_value": True,
    "normalize_advantage": True,
    "max_grad_norm": 0.1,
    "lr": 0.01,
    "lr_schedule": "linear",
    "schedule_steps": 1000,
    "entropy_coef": 0.01,
}


def with_carry(fragment: Fragment, size: int) -> Fragment:
    """The fragment of a policy with memory."""
    lanes = fragment.rollout.reward.shape[1]
    return fragment._replace(rollout=fragment.rollout._replace(carry=(torch.randn(lanes, size),)))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"num_epochs": 3, "batch_size": 1000}),
        ("ppo", {"num_epochs": 5, "batch_size": 48, "target_kl": 0.002}),
        ("a2c", {}),
        ("a2c", {"vtrace": True}),
        ("ppo", {"num_epochs": 3, "batch_size": 1000, "max_grad_norm": 0.02, "memory": "gru", "memory_size": 5}),
    ],
    ids=["ppo", "ppo-kl", "a2c", "a2c-vtrace", "ppo-gru"],
)
def test_two_ranks_equal_one_learner_of_rollouts(name: str, kind: str, settings: dict[str, Any]) -> None:
    settings = ALL_NORMED | settings
    whole, ranks = learner_of(name, kind, settings), pair(name, kind, settings)
    for seq in range(4):
        fragments = fragments_of(kind, seq)
        if "memory" in settings:
            fragments = [with_carry(fragment, settings["memory_size"]) for fragment in fragments]
        metrics = whole.update(fragments)
        at_once(lambda rank, fragments=fragments: ranks[rank].update([fragments[rank]]))
        assert metrics["loss/grad_norm"] > settings["max_grad_norm"]  # clipping is at work
    assert_equal_but_for_rounding(ranks, whole)
    if "target_kl" in settings:
        assert whole.num_updates() < 4 * settings["num_epochs"]  # an epoch was skipped, on all ranks alike


def test_statistics_are_those_of_all_ranks() -> None:
    """What the test above could miss if both parts were alike."""
    parts = torch.randn(2, 50) * torch.tensor([[1.0], [7.0]]) + torch.tensor([[-3.0], [100.0]])
    ranks = [learner.averaging for learner in pair("ppo", "discrete", {})]
    for name, expected in (("mean", parts.mean()), ("variance", parts.var(correction=0)), ("minimum", parts.amin())):
        for found in at_once(lambda rank, name=name: getattr(ranks[rank], name)(parts[rank])):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("log_ratio", "stops"), [(1.0, False), (1.5, True)])
def test_all_ranks_leave_out_the_same_epochs(log_ratio: float, stops: bool) -> None:
    """Rank 1 alone is beyond the limit; what counts is the mean of both."""
    ranks = pair("ppo", "discrete", {"target_kl": 0.5})
    metrics = [{"log_ratio": torch.full((4,), value)} for value in (0.0, log_ratio)]
    agents: list[Any] = [learner.agent for learner in ranks]
    assert at_once(lambda rank: agents[rank].should_stop([metrics[rank]])) == [stops, stops]


def batch_of(kind: str, seed: int, rows: int = 16) -> Transition:
    g = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, rows, 3, generator=g)
    continuous = torch.rand(rows, 2, generator=g) * 2 - 1
    action = torch.randint(2, (rows,), generator=g) if kind == "discrete" else continuous
    discount = 0.99 * (torch.rand(rows, generator=g) > 0.2)
    return Transition(obs, action, torch.randn(rows, generator=g) * 5, discount, next_obs)


def fixed_noise(agent: Any, rows: slice) -> None:
    """Noise by place in the whole batch, so that ranks together have that of one learner."""
    calls = iter(range(10**6))

    def normal_like(x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(next(calls))
        return torch.randn(16, *x.shape[1:], generator=g)[rows]

    agent.normal_like = normal_like


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("dqn", "discrete", {"double": True}),
        ("td3", "continuous", {}),
        ("sac", "continuous", {}),
        ("mod_sac", "continuous", {}),
        ("redq", "continuous", {"num_critics": 4, "actor_interval": 2}),
        ("discrete_sac", "discrete", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_two_ranks_equal_one_learner_of_minibatches(name: str, kind: str, settings: dict[str, Any]) -> None:
    settings = {"batch_size": 16, "buffer_size": 100, "max_grad_norm": 0.5, "lr": 0.01, **settings}
    whole, ranks = learner_of(name, kind, settings), pair(name, kind, settings)
    whole.agent.gradients = Gradients()  # as the ranks have it
    whole.agent.common = ranks[0].agent.common.clone_state()  # what ranks draw alike
    parts = [slice(0, 8), slice(8, 16)]
    fixed_noise(whole.agent, slice(16))
    for learner, rows in zip(ranks, parts, strict=True):
        fixed_noise(learner.agent, rows)
    for seed in range(6):
        batch = batch_of(kind, seed)
        whole.agent.update(batch)
        shares = [batch._replace(**{f: getattr(batch, f)[rows] for f in batch._fields[:5]}) for rows in parts]
        at_once(lambda rank, shares=shares: ranks[rank].agent.update(shares[rank]))
    assert_equal_but_for_rounding(ranks, whole, 1e-3)


def test_weights_of_prioritised_replay_are_those_of_all_rings() -> None:
    settings = {"batch_size": 8, "buffer_size": 96, "prioritized": True, "learning_starts": 0, "updates_per_step": 0.1}
    ranks = pair("dqn", "discrete", settings)
    for seq in range(2):
        fragments = fragments_of("discrete", seq)
        at_once(lambda rank, fragments=fragments: ranks[rank].update([fragments[rank]]))
    memories: Any = [r.memory for r in ranks]
    draw = [partial(m.ring.sample, 4, torch.tensor(0.99), 1, m.setup.generator) for m in memories]
    batches = at_once(lambda rank: draw[rank]())
    assert max(float(b.weight.max()) for b in batches) == pytest.approx(1.0)
    trees = [m.ring.tree for m in memories]
    share = torch.cat([t.leaves[b.rows] / t.root for t, b in zip(trees, batches, strict=True)])
    expected = (share.amin() / share) ** memories[0].ring.beta
    torch.testing.assert_close(torch.cat([b.weight for b in batches]), expected.float())


def test_streams_are_own_or_common_and_the_share_is_a_share() -> None:
    settings = {"batch_size": 16, "buffer_size": 96, "learning_starts": 100}
    ranks = [learner_of("redq", "continuous", settings, rank, 2) for rank in range(2)]
    for name, equal in (("common", True), ("generator", False)):
        states = [getattr(r.agent, name).get_state() for r in ranks]
        assert torch.equal(*states) is equal
    assert not torch.equal(*(r.memory.state_dict()["sampler"] for r in ranks))
    config: Any = ranks[0].config
    assert (config.batch_size, config.buffer_size, config.learning_starts) == (8, 48, 100)
    memory: Any = ranks[0].memory
    assert memory.ring.reward.shape == (16, 3)


def test_ranks_that_differ_are_refused() -> None:
    both = [learner_of("ppo", "discrete", {}, rank, 2) for rank in range(2)]
    with torch.no_grad():
        next(both[1].agent.policy.parameters()).view(-1)[0] += 1e-3
    with tempfile.TemporaryDirectory() as folder, pytest.raises(Exception, match="do not hold the same parameters"):
        at_once(lambda rank: both[rank].connect(f"{folder}/ranks"))


def test_a_group_is_no_default_group(tmp_path: Path) -> None:
    at_once(lambda rank: connect(str(tmp_path / "ranks"), rank, 2, CPU))
    assert not torch.distributed.is_initialized()
    assert Ranks(1, 2).rank == 1


# ---- wherever they run


REPLAY: dict[str, Any] = {"batch_size": 8, "buffer_size": 60, "learning_starts": 50, "updates_per_step": 0.1}
CASES = {
    "ppo": ("ppo", "discrete", {**ALL_NORMED, "batch_size": 16, "num_epochs": 2}),
    "sac": ("sac", "continuous", {**REPLAY, "normalize_obs": True, "h_term": True, "h_store": 30, "h_windows": 4}),
    "redq": ("redq", "continuous", {**REPLAY, "num_critics": 4, "prioritized": True}),
}


def build(case: str, num_learners: int, rank: int) -> Callable[[], Learner]:
    return partial(learner_of, *CASES[case], rank=rank, num_learners=num_learners)


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = ProcessExecutor(PRELOAD)
    yield executor
    executor.close()
    assert multiprocessing.active_children() == []


def feed(learners: Learners, kind: str, sequence: range) -> list[Any]:
    return [learners.update(fragments_of(kind, seq)) for seq in sequence]


@pytest.mark.parametrize("case", ["ppo", "redq"])
def test_a_learner_in_a_process_equals_one_in_this_process(
    case: str, executor: Executor, hash_state: HashState
) -> None:
    here = Learners(InlineExecutor(), partial(build, case, 1), 1, 2)
    there = Learners(executor, partial(build, case, 1), 1, 2)
    kind = CASES[case][1]
    for (metrics, weights), (metrics_there, weights_there) in zip(
        feed(here, kind, range(4)), feed(there, kind, range(4)), strict=True
    ):
        assert {n: float(x) for n, x in metrics.items()} == {n: float(x) for n, x in metrics_there.items()}
        assert weights.version == weights_there.version and torch.equal(weights.flat, weights_there.flat)
    assert hash_state(here.state_dict()) == hash_state(there.state_dict())
    assert here.num_updates() == there.num_updates() > 0
    assert {f.name for f in fields(here.policy_spec)} == {f.name for f in fields(there.policy_spec)}
    assert torch.equal(there.weights().flat, weights_there.flat)


@pytest.mark.parametrize("case", list(CASES))
def test_ranks_continue_bit_for_bit(case: str, executor: Executor, hash_state: HashState) -> None:
    kind = CASES[case][1]
    learners = Learners(executor, partial(build, case, 2), 2, 2)
    feed(learners, kind, range(3))
    learners.end_open_episodes([np.array([True, False, False]), np.array([False, True, True])])
    half = learners.state_dict()
    assert set(half) == {"learner", "learner1"}
    assert "agent" not in half["learner1"]  # no second copy of what is common
    feed(learners, kind, range(3, 6))
    whole = hash_state(learners.state_dict())
    learners.restart()
    learners.load_state_dict(half)
    assert hash_state(learners.state_dict()) == hash_state(half)
    (metrics, weights), *_ = reversed(feed(learners, kind, range(3, 6)))
    assert hash_state(learners.state_dict()) == whole != hash_state(half)
    assert weights.version == 6 and all(x.dim() == 0 for x in metrics.values())


def test_every_rank_learns_from_its_own_groups(executor: Executor) -> None:
    learners = Learners(executor, partial(build, "sac", 2), 2, 2)
    fragments = fragments_of("continuous", 0)
    learners.update(list(reversed(fragments)))  # the order of arrival does not matter
    parts = learners.state_dict()
    for group, name in enumerate(("learner", "learner1")):
        assert torch.equal(parts[name]["memory"]["reward"], fragments[group].rollout.reward)
    assert parts["learner"]["env_steps"] == STEPS * LANES


def test_nothing_is_left_of_the_meeting(executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners_module.tempfile, "tempdir", str(tmp_path))
    learners = Learners(executor, partial(build, "ppo", 2), 2, 2)
    feed(learners, "discrete", range(1))
    assert list(tmp_path.iterdir()) == []


def test_layouts_that_do_not_work_out(executor: Executor) -> None:
    with pytest.raises(ConfigError, match="2 learners need processes of their own"):
        Learners(InlineExecutor(), partial(build, "ppo", 2), 2, 2)
    with pytest.raises(ConfigError, match=r"3 groups of environments cannot be .* 2 learners; use --num-groups 4"):
        Learners(executor, partial(build, "ppo", 2), 2, 3)

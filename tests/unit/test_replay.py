"""The replay ring: what stays, what follows what, n-step returns, and saving."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elegantrl import tree
from elegantrl.agents.dqn import DQNConfig
from elegantrl.data import replay as replay_module
from elegantrl.data.memory import Replay, Setup, build_memory
from elegantrl.data.replay import FIELDS, ReplayBuffer
from elegantrl.errors import ConfigError
from elegantrl.types import ActionSpec, EnvSpec, Rollout

CPU = torch.device("cpu")
HALF = torch.tensor(0.5)
MakeSpec = Callable[..., EnvSpec]


class Source:
    """Numbered steps: lane n sees 1000 * n + t at time t and gets that as reward; flags are random."""

    def __init__(self, lanes: int, seed: int = 0, end_share: float = 0.0):
        self.lanes, self.time, self.end_share = lanes, 0, end_share
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: list[Rollout] = []  # one per time

    def take(self, steps: int) -> Rollout:
        for _ in range(steps):
            number = torch.arange(self.lanes) * 1000.0 + self.time
            terminated = torch.rand(self.lanes, generator=self.generator) < self.end_share
            truncated = (torch.rand(self.lanes, generator=self.generator) < self.end_share) & ~terminated
            ended = terminated | truncated
            successor = torch.where(ended, -number - 1, number + 1)  # a final observation is seen nowhere else
            self.rows.append(
                Rollout(
                    obs=number.unsqueeze(1),
                    action=number.long(),
                    reward=number,
                    terminated=terminated,
                    truncated=truncated,
                    next_obs=successor.unsqueeze(1),
                )
            )
            self.time += 1
        return tree.stack(self.rows[-steps:])


def ring(capacity: int, lanes: int) -> ReplayBuffer:
    return ReplayBuffer(capacity, EnvSpec("Made", (1,), ActionSpec(choices=(5,)), lanes), CPU)


def everything(buffer: ReplayBuffer, n_step: int = 1) -> list[tuple[float, float, float, float]]:
    """(obs, reward, discount, next_obs) of every start, oldest first, lane by lane within a row."""
    batch = buffer.gather(torch.arange(len(buffer)), HALF, n_step)
    assert torch.equal(batch.action, batch.obs[:, 0].long())
    columns = (batch.obs[:, 0], batch.reward, batch.discount, batch.next_obs[:, 0])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_wrap_around_by_hand() -> None:
    buffer, source = ring(4, 1), Source(1)
    buffer.add(source.take(3))
    assert [row[0] for row in everything(buffer)] == [0, 1, 2]
    buffer.add(source.take(3))  # rows 0 and 1 are overwritten
    assert [row[0] for row in everything(buffer)] == [2, 3, 4, 5]
    assert buffer.obs[:, 0, 0].tolist() == [4, 5, 2, 3] and buffer.head == 2


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_full_ring_never_pairs_the_newest_with_the_oldest(lanes: int) -> None:
    # Guards against: B5, the newest row of a full ring paired with the oldest as its successor.
    buffer, source = ring(5 * lanes, lanes), Source(lanes)
    for _ in range(13):
        buffer.add(source.take(1))
        assert all(next_obs == obs + 1 for obs, _, _, next_obs in everything(buffer))


def test_n_step_return_across_the_ring_head() -> None:
    # Guards against: B5, the newest row of a full ring paired with the oldest as its successor.
    # Guards against: B8, a saved buffer that lacks fields or its place in the ring, or returns that are wrong across
    # the wrap.
    buffer, source = ring(4, 1), Source(1)
    buffer.add(source.take(6))
    buffer.add(source.take(1))  # the ring holds 3 4 5 6; 6 lies before 3 in memory
    # gamma 1/2, 3 steps. From 3: 3 + 4/2 + 5/4 = 6.25, then 1/8 of the value of state 6.
    # From 4: 4 + 5/2 + 6/4 = 8, across the end of the memory.  From 5 and 6 the newest row ends the sum early.
    assert everything(buffer, 3) == [(3, 6.25, 0.125, 6), (4, 8.0, 0.125, 7), (5, 8.0, 0.25, 7), (6, 6.0, 0.5, 7)]


def test_n_step_return_ends_with_the_episode() -> None:
    # Guards against: P3, a time limit treated as death, or valued without gamma or at the wrong state.
    buffer, source = ring(8, 1), Source(1)
    rollout = source.take(5)
    rollout.terminated[1], rollout.truncated[3] = True, True
    rollout.next_obs[1], rollout.next_obs[3] = -2.0, -4.0
    buffer.add(rollout)
    assert everything(buffer, 3) == [
        (0, 0.5, 0.0, -2),  # 0 + 1/2: the MDP ended at step 1, nothing follows
        (1, 1.0, 0.0, -2),
        (2, 3.5, 0.25, -4),  # 2 + 3/2: cut at step 3, the value of its final observation follows
        (3, 3.0, 0.5, -4),
        (4, 4.0, 0.5, 5),
    ]


def brute_force(source: Source, first: int, n_step: int) -> list[tuple[float, float, float, float]]:
    result = []
    for t in range(first, source.time):
        for lane in range(source.lanes):
            total, factor = 0.0, 1.0
            for k in range(t, min(t + n_step, source.time)):
                row = source.rows[k]
                total += factor * float(row.reward[lane])
                factor *= 0.5
                if row.terminated[lane] or row.truncated[lane]:
                    break
            discount = 0.0 if row.terminated[lane] else factor
            result.append((float(source.rows[t].obs[lane, 0]), total, discount, float(row.next_obs[lane, 0])))
    return result


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 3),
    num_rows=st.integers(1, 7),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    n_step=st.integers(1, 5),
    seed=st.integers(0, 999),
)
def test_n_step_transitions_equal_a_plain_loop(
    lanes: int, num_rows: int, lengths: list[int], n_step: int, seed: int
) -> None:
    buffer, source = ring(num_rows * lanes, lanes), Source(lanes, seed, end_share=0.2)
    for length in lengths:
        buffer.add(source.take(length))
    expected = brute_force(source, max(0, source.time - num_rows), n_step)
    assert everything(buffer, n_step) == expected  # halves of small whole numbers: no rounding


@pytest.mark.parametrize("lanes", [1, 3, 7, 10])
def test_capacity_counts_transitions_of_all_lanes(lanes: int) -> None:
    # Guards against: B7, a capacity per lane, and memory that runs out hours later.
    buffer, source = ring(100, lanes), Source(lanes)
    buffer.add(source.take(60))
    buffer.add(source.take(60))
    assert len(buffer) == 100 // lanes * lanes
    assert buffer.reward.numel() <= 100


def test_a_capacity_below_one_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent.buffer_size=7 holds not even one row of env.num_envs=8"):
        ring(7, 8)


def test_a_rollout_longer_than_the_ring_leaves_its_newest_rows() -> None:
    buffer, source = ring(4, 1), Source(1)
    buffer.add(source.take(2))
    buffer.add(source.take(9))
    assert [row[0] for row in everything(buffer)] == [7, 8, 9, 10]


def test_more_than_255_choices(make_spec: MakeSpec) -> None:
    # Guards against: B6, more than 255 choices that overflow.
    buffer = ReplayBuffer(2000, make_spec("discrete", obs_dim=1, action_dim=70_000), CPU)
    action = torch.arange(0, 70_000, 35).view(-1, 1)
    size = action.shape[0]
    zeros, none = torch.zeros(size, 1), torch.zeros(size, 1, dtype=torch.bool)
    obs = zeros.unsqueeze(-1)
    buffer.add(Rollout(obs, action, zeros, none, none, obs, zeros))
    batch = buffer.gather(torch.arange(size), HALF, 1)
    assert torch.equal(batch.action, action[:, 0])


@pytest.mark.parametrize("steps", range(12))
def test_state_round_trip_at_every_fill_level(steps: int) -> None:
    # Guards against: B8, a saved buffer that lacks fields or its place in the ring, or returns that are wrong across
    # the wrap.
    source = Source(2, end_share=0.2)
    buffer = ring(10, 2)
    for _ in range(steps):
        buffer.add(source.take(1))
    again = ring(10, 2)
    state = buffer.state_dict()
    assert state["reward"].shape[0] == min(steps, 5)  # nothing that was never written
    again.load_state_dict(state)
    assert (again.head, again.filled, len(again)) == (buffer.head, buffer.filled, len(buffer))
    if steps:
        assert everything(again, 3) == everything(buffer, 3)
    more = source.take(3)
    buffer.add(more)
    again.add(more)
    assert everything(again, 3) == everything(buffer, 3)
    for name in FIELDS:  # also bit for bit where a sampler would look
        assert torch.equal(getattr(again, name)[: again.filled], getattr(buffer, name)[: buffer.filled]), name


def test_a_saved_state_is_a_snapshot_with_all_fields() -> None:
    buffer, source = ring(4, 1), Source(1)
    buffer.add(source.take(4))
    state = buffer.state_dict()
    assert set(state) == {*FIELDS, "head"}
    kept = state["obs"].clone()
    buffer.add(source.take(2))
    assert torch.equal(state["obs"], kept)


def test_loading_replaces_what_was_there() -> None:
    source, other = Source(1), Source(1)
    buffer, full = ring(4, 1), ring(4, 1)
    buffer.add(source.take(2))
    other.time = 50
    full.add(other.take(4))
    full.load_state_dict(buffer.state_dict())
    assert [row[0] for row in everything(full)] == [0, 1]


def test_memory_is_that_of_the_data() -> None:
    """17 observations and 6 action numbers: at most 1.3 times the bytes of the transitions themselves."""
    spec = EnvSpec("Made", (17,), ActionSpec(dim=6), 4)
    buffer = ReplayBuffer(1000, spec, CPU)
    raw = 4 * (17 + 17 + 6 + 1) + 2  # obs, next_obs, action and reward as float32; two flags
    assert raw * 1000 <= buffer.num_bytes <= 1.3 * raw * 1000
    before = buffer.num_bytes
    zeros, none = torch.zeros(10, 4), torch.zeros(10, 4, dtype=torch.bool)
    obs = torch.zeros(10, 4, 17)
    buffer.add(Rollout(obs, torch.zeros(10, 4, 6), zeros, none, none, obs, zeros))
    assert buffer.num_bytes == before  # allocated once


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_memory_is_predicted_before_anything_is_allocated(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, kind: str, prioritized: bool
) -> None:
    """Guards against: B7, a buffer that fills the memory hours after the start."""
    spec = make_spec(kind, obs_dim=4, num_envs=8)
    config = DQNConfig(buffer_size=80_000, prioritized=prioritized)
    setup = Setup(config, spec, CPU, torch.Generator(), torch.tensor(0.99))

    def num_bytes() -> int:
        memory = build_memory("prioritized" if prioritized else "replay", setup)
        assert isinstance(memory, Replay)
        return memory.ring.num_bytes

    needed = num_bytes()
    monkeypatch.setattr(replay_module, "available_bytes", lambda _: int(1.02 * needed))
    assert num_bytes() == needed
    monkeypatch.setattr(replay_module, "available_bytes", lambda _: needed - 1)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("allocated before the check"))
    with pytest.raises(
        ConfigError, match=r"agent\.buffer_size=80000 needs 0\.0 GB for Made, 0\.0 GB are free; lower it"
    ):
        num_bytes()


def test_sampling_is_uniform_over_what_is_filled() -> None:
    buffer, source = ring(20, 2), Source(2)
    buffer.add(source.take(6))  # 12 of 20 transitions
    batch = buffer.sample(24_000, HALF, 1, torch.Generator().manual_seed(0))
    values, counts = batch.obs[:, 0].unique(return_counts=True)
    assert values.tolist() == [*range(6), *range(1000, 1006)]
    chi_square = ((counts - 2000.0).square() / 2000).sum()
    assert chi_square < 31.26  # the 99.9 % quantile with 11 degrees of freedom


def test_sampling_depends_on_its_stream_alone() -> None:
    buffer, source = ring(20, 2), Source(2)
    buffer.add(source.take(6))
    a, b, c = (buffer.sample(8, HALF, 2, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(a.obs, b.obs) and not torch.equal(a.obs, c.obs)


def test_gather_takes_gamma_from_another_device() -> None:
    """An agent's settings live on the CPU while the buffer may live on a GPU; ``meta`` stands for it here."""
    meta = torch.device("meta")
    buffer = ReplayBuffer(8, EnvSpec("Made", (1,), ActionSpec(choices=(5,)), 1), meta)
    buffer.filled = 4
    index = torch.zeros(2, dtype=torch.int64, device=meta)
    assert buffer.gather(index, torch.tensor(0.9), 3).discount.device == meta

"""The memory of whole episodes."""

from __future__ import annotations

import pytest
import torch

from elegantrl import tree
from elegantrl.data.episodes import EpisodeRing
from elegantrl.errors import ConfigError
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, Rollout

CPU = torch.device("cpu")


def spec_of(num_envs: int = 2, max_episode_steps: int | None = 4) -> EnvSpec:
    obs = Obs(seen=Leaf((2,), "uint8"), state=Leaf((1,)))
    return EnvSpec("Made", obs, ActionSpec(choices=(3,)), num_envs, max_episode_steps, num_agents=2)


def rollout_of(ends: list[list[int]], start: int = 0, truncated: bool = False) -> Rollout:
    """Steps numbered from ``start``; ``ends`` [T][N] says where episodes end."""
    ended = torch.tensor(ends, dtype=torch.bool)
    steps, lanes = ended.shape
    number = torch.arange(start, start + steps).unsqueeze(1) * 10 + torch.arange(lanes)
    obs = Obs(number.unsqueeze(-1).expand(-1, -1, 2).to(torch.uint8), state=number.unsqueeze(-1).float())
    nowhere = torch.zeros_like(ended)
    flags = (nowhere, ended) if truncated else (ended, nowhere)
    team = number.unsqueeze(-1).expand(-1, -1, 2)
    return Rollout(obs, team % 3, team.float(), *flags, obs)


def episodes(ring: EpisodeRing) -> list[list[int]]:
    """The numbers of the steps of every episode, oldest first."""
    slots = [(ring.head - ring.filled + i) % ring.num_slots for i in range(ring.filled)]
    return [ring.steps[0].state[slot, : int(ring.length[slot]), 0].int().tolist() for slot in slots]


def test_episodes_move_into_the_ring_when_they_end() -> None:
    ring = EpisodeRing(3 * 4, spec_of(), CPU)
    ring.add(rollout_of([[0, 0], [1, 0], [0, 0]]))
    assert episodes(ring) == [[0, 10]] and ring.open_length == [1, 3]
    ring.add(rollout_of([[0, 1], [1, 0]], start=3))
    assert episodes(ring) == [[0, 10], [1, 11, 21, 31], [20, 30, 40]]
    ring.add(rollout_of([[1, 1]], start=5))  # the oldest ones go
    assert episodes(ring) == [[20, 30, 40], [50], [41, 51]]


def test_a_batch_is_padded_and_says_so() -> None:
    ring = EpisodeRing(8 * 4, spec_of(), CPU)
    ring.add(rollout_of([[0, 0], [1, 0], [0, 1]]))
    batch = ring.sample(64, torch.Generator().manual_seed(0))
    assert batch.valid.shape == (3, 64) and batch.obs.seen.dtype == torch.uint8 and batch.reward.shape == (3, 64, 2)
    lengths = batch.valid.sum(0)
    assert set(lengths.tolist()) == {2, 3}
    assert not batch.obs.state[..., 0][~batch.valid].any()
    last = batch.terminated.int().argmax(0) + 1
    assert torch.equal(last, lengths)


def test_an_episode_longer_than_its_limit_or_without_successor_is_truncated() -> None:
    ring = EpisodeRing(4 * 4, spec_of(), CPU)
    ring.add(rollout_of([[0, 0]] * 5))
    assert episodes(ring) == [[0, 10, 20, 30], [1, 11, 21, 31]] and ring.open_length == [1, 1]
    ring.truncate_newest(torch.tensor([False, True]))
    assert episodes(ring)[-1] == [41] and ring.open_length == [1, 0]
    truncated = ring.steps[4]
    assert truncated[0, 3] and truncated[2, 0] and not truncated[0, :3].any()
    ring.truncate_newest(torch.tensor([False, True]))  # nothing is open there
    assert len(ring) == 3


def test_a_ring_continues_from_its_state() -> None:
    ring, other = (EpisodeRing(3 * 4, spec_of(), CPU) for _ in range(2))
    for start in range(0, 12, 3):
        ring.add(rollout_of([[0, 1], [1, 0], [0, 0]], start))
    other.add(rollout_of([[1, 1]]))
    other.load_state_dict(ring.state_dict())
    for each in (ring, other):
        each.add(rollout_of([[0, 1], [1, 0]], 20))
    assert episodes(ring) == episodes(other) and ring.open_length == other.open_length
    one, two = (each.sample(5, torch.Generator().manual_seed(1)) for each in (ring, other))
    assert torch.equal(one.obs.seen, two.obs.seen) and torch.equal(one.valid, two.valid)


def one_by_one(ring: EpisodeRing, rollout: Rollout) -> None:
    """Add the steps of a rollout one at a time."""
    for t in range(len(rollout.terminated)):
        ring.add(tree.rows(rollout, slice(t, t + 1)))


@pytest.mark.parametrize("num_slots", [1, 3, 7, 40])
@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_a_rollout_at_once_is_the_same_as_step_by_step(num_slots: int, rate: float) -> None:
    """Also where more episodes end at once than the ring has slots."""
    g = torch.Generator().manual_seed(num_slots)
    rings = [EpisodeRing(num_slots * 4, spec_of(num_envs=5), CPU) for _ in range(2)]
    for start in range(0, 22, 11):
        rollout = rollout_of((torch.rand(11, 5, generator=g) < rate).int().tolist(), start)
        rings[0].add(rollout)
        one_by_one(rings[1], rollout)
    assert episodes(rings[0]) == episodes(rings[1]) != []
    states = [ring.state_dict() for ring in rings]
    assert states[0].keys() == states[1].keys() and states[0]["open_length"] == states[1]["open_length"]
    pairs = zip(*(tree.leaves(ring.steps) for ring in rings), strict=True)
    kept = rings[0]._kept()
    assert all(torch.equal(one[kept], other[kept]) for one, other in pairs)
    length, padded = rings[0].length, rings[0].steps[2]
    for slot in kept[: rings[0].filled].tolist():
        assert not padded[slot, length[slot] :].any()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="Made has no limit; set max_episode_steps"):
        EpisodeRing(100, spec_of(max_episode_steps=None), CPU)
    with pytest.raises(ConfigError, match=r"agent\.buffer_size=3 holds not even one episode of 4 steps; raise it"):
        EpisodeRing(3, spec_of(), CPU)

"""Rings that store each frame once: bit-equal to rings that store whole stacks, and a quarter as large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elegantrl import tree
from elegantrl.data.prioritized import PrioritizedReplay
from elegantrl.data.replay import ReplayBuffer
from elegantrl.data.trajectories import TrajectoryStore
from elegantrl.errors import ConfigError
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, Rollout, Transition

CPU = torch.device("cpu")
GAMMA = torch.tensor(0.5)
SHAPE = (2, 3)


class Film:
    """Lanes of random pictures, stacked as the wrapper does; episodes end at random, and lanes may be disturbed."""

    def __init__(self, num_envs: int, stack: int, seed: int, end_share: float):
        self.num_envs, self.stack, self.end_share = num_envs, stack, end_share
        self.generator = torch.Generator().manual_seed(seed)
        self.obs = self.begin()

    def picture(self) -> Tensor:
        # Few values: equal frames in a row must not confuse the ring.
        return torch.randint(2, (self.num_envs, *SHAPE), generator=self.generator, dtype=torch.uint8)

    def begin(self) -> Tensor:
        return self.picture().unsqueeze(1).repeat_interleave(self.stack, 1)

    def chance(self) -> Tensor:
        return torch.rand(self.num_envs, generator=self.generator) < self.end_share

    def take(self, num_steps: int) -> Rollout:
        rows = []
        for _ in range(num_steps):
            next_obs = torch.cat([self.obs[:, 1:], self.picture().unsqueeze(1)], 1)
            terminated = self.chance()
            truncated = self.chance() & ~terminated
            action = torch.randint(5, (self.num_envs,), generator=self.generator)
            reward = torch.rand(self.num_envs, generator=self.generator)
            rows.append(Rollout(self.obs, action, reward, terminated, truncated, next_obs))
            self.obs = torch.where((terminated | truncated)[:, None, None, None], self.begin(), next_obs)
        return tree.stack(rows)

    def disturb(self) -> Tensor:
        """Some lanes begin a new episode, the others lose steps; returns the lanes whose episodes are cut."""
        self.take(2)
        restarted = self.chance()
        self.obs = torch.where(restarted[:, None, None, None], self.begin(), self.obs)
        return torch.ones(self.num_envs, dtype=torch.bool)


def spec(leaf: Leaf, num_envs: int) -> EnvSpec:
    obs = Obs({"picture": leaf, "vector": Leaf((1,))}, Leaf((5,), "bool"))  # type: ignore[arg-type]
    return EnvSpec("Film", obs, ActionSpec(choices=(5,)), num_envs)


def shown(rollout: Rollout, dtype: torch.dtype, stack: int) -> Rollout:
    """The rollout with observations like those of ``spec``."""

    def observe(stacks: Tensor) -> Obs:
        picture = stacks.to(dtype)
        vector = stacks[..., -1, 0, :1].float()
        mask = torch.ones(*stacks.shape[:2], 5, dtype=torch.bool)
        return Obs({"picture": picture if stack > 1 else picture.squeeze(2), "vector": vector}, mask)

    return rollout._replace(obs=observe(rollout.obs), next_obs=observe(rollout.next_obs))


def same(one: Transition, other: Transition) -> bool:
    pairs = list(zip(tree.leaves(one), tree.leaves(other), strict=True))
    return all(torch.equal(x.float(), y.float()) for x, y in pairs)


Build = Callable[[int, EnvSpec], Any]
KINDS: dict[str, Build] = {
    "uniform": lambda capacity, spec: ReplayBuffer(capacity, spec, CPU),
    "prioritized": lambda capacity, spec: PrioritizedReplay(capacity, spec, CPU, 0.6, 0.4),
    "trajectories": lambda capacity, spec: TrajectoryStore(capacity, spec, CPU),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    stack=st.integers(1, 4),
    num_envs=st.integers(1, 3),
    num_rows=st.integers(2, 9),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 999),
    parts=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "disturb", "resume"])), min_size=1, max_size=6),
)
def test_every_draw_is_that_of_a_ring_of_whole_stacks(
    kind: str,
    stack: int,
    num_envs: int,
    num_rows: int,
    end_share: float,
    seed: int,
    parts: list[tuple[int, str]],
) -> None:
    film = Film(num_envs, stack, seed, end_share)
    shape = (stack, *SHAPE) if stack > 1 else SHAPE
    specs = spec(Leaf(shape, "uint8", stack), num_envs), spec(Leaf(shape), num_envs)
    build, capacity = KINDS[kind], num_rows * num_envs + num_envs - 1
    rings = [build(capacity, each) for each in specs]
    for num_steps, event in parts:
        rollout = film.take(num_steps)
        for ring, dtype in zip(rings, (torch.uint8, torch.float32), strict=True):
            ring.add(shown(rollout, dtype, stack))
        if event == "disturb":
            lanes = film.disturb()
            for ring in rings:
                ring.truncate_newest(lanes)
        if event == "resume":
            state = rings[0].state_dict()
            rings[0] = build(capacity, specs[0])
            rings[0].load_state_dict(state)
        for n_step in (1, 3):
            batches = [ring.gather(torch.arange(len(ring)), GAMMA, n_step) for ring in rings]
            assert same(*batches) and batches[0].obs.seen["picture"].dtype == torch.uint8
            drawn = [ring.sample(7, GAMMA, n_step, torch.Generator().manual_seed(seed)) for ring in rings]
            assert same(*drawn)
        if kind == "trajectories":
            windows = [ring.top_windows(3, 2, GAMMA) for ring in rings]
            assert (windows[0] is None) == (windows[1] is None)
            assert windows[0] is None or same(*windows)


def test_a_stack_of_four_takes_little_more_than_its_single_frames() -> None:
    leaf = Leaf((4, 84, 84), "uint8", stack=4)
    atari = EnvSpec("Atari", leaf, ActionSpec(choices=(6,)), 8)
    single = 100_000 * 84 * 84
    ring = ReplayBuffer(100_000, atari, torch.device("meta"))
    assert ring.num_bytes <= 1.1 * single
    assert PrioritizedReplay(100_000, atari, torch.device("meta"), 0.6, 0.4).num_bytes <= 1.1 * single


def test_the_memory_does_not_grow_while_episodes_are_long() -> None:
    film = Film(2, 4, 0, end_share=0.01)
    ring = ReplayBuffer(400, spec(Leaf((4, *SHAPE), "uint8", 4), 2), CPU)
    before = ring.num_bytes
    for _ in range(100):
        ring.add(shown(film.take(7), torch.uint8, 4))
    assert ring.num_bytes == before
    short = Film(2, 4, 0, end_share=1.0)  # two frames for every step
    for _ in range(100):
        ring.add(shown(short.take(7), torch.uint8, 4))
    (picture,) = ring.pictures
    assert 2 * 400 <= len(picture.frames) <= 1.2 * 2 * 400


def test_a_ring_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elegantrl.data.replay.available_bytes", lambda device: 700_000_000)
    leaf = Leaf((4, 84, 84), "uint8", stack=4)
    with pytest.raises(ConfigError, match=r"agent.buffer_size=100000 needs 0.8 GB for Atari, 0.7 GB are free"):
        ReplayBuffer(100_000, EnvSpec("Atari", leaf, ActionSpec(choices=(6,)), 8), CPU)


def test_the_mask_of_a_team_is_no_picture() -> None:
    mask: Any = Leaf((3, 4), "bool")
    spec = EnvSpec("Team", Obs(Leaf((3, 2)), mask), ActionSpec(choices=(4,)), 2, num_agents=3)
    ring = ReplayBuffer(8, spec, CPU)
    assert not ring.pictures
    masks = torch.rand(2, 6, 2, 3, 4) < 0.5
    seen = torch.randn(2, 6, 2, 3, 2)
    flags = torch.zeros(6, 2, dtype=torch.bool)
    action, reward = torch.zeros(6, 2, 3, dtype=torch.int64), torch.zeros(6, 2, 3)
    ring.add(Rollout(Obs(seen[0], masks[0]), action, reward, flags, flags, Obs(seen[1], masks[1])))
    batch = ring.gather(torch.arange(8), GAMMA, 1)  # the newest four rows of two lanes
    assert torch.equal(batch.obs.mask, masks[0, 2:].flatten(0, 1))
    assert torch.equal(batch.next_obs.mask, masks[1, 2:].flatten(0, 1))

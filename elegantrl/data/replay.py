"""A ring of transitions, stored per lane so that n-step returns follow one environment.

Axes: R rows of the ring, N lanes, B minibatch rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from .. import tree
from ..errors import ConfigError
from ..tree import Tree
from ..types import EnvSpec, Leaf, Rollout, State, Transition, from_state, mask_of, to_state
from .frames import FrameRing, bytes_per_transition

FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


class ReplayBuffer:
    """The newest ``capacity`` transitions of all lanes together; memory is allocated once, at construction.

    ``next_obs`` is stored beside ``obs``: this doubles the observation memory, but a successor never comes from another
    episode or from beyond the ring's write head. Pictures are stored once, by a ``FrameRing`` for each picture of an
    observation; ``obs`` and ``next_obs`` have None in their places.
    """

    extra_bytes: ClassVar[int] = 0
    """Bytes that a subclass keeps per transition besides the fields."""

    def __init__(self, capacity: int, spec: EnvSpec, device: torch.device):
        self.num_rows = capacity // spec.num_envs
        if self.num_rows < 1:
            raise ConfigError(
                f"agent.buffer_size={capacity} holds not even one row of env.num_envs={spec.num_envs}; raise it"
            )
        lead, owner = (self.num_rows, spec.num_envs), f"agent.buffer_size={capacity}"
        self.is_picture = picture_flags(spec.obs)
        pictures = self._pictures_of(spec.obs)
        extra_bytes = self.extra_bytes + sum(map(bytes_per_transition, pictures))
        plain = replace(spec, obs=without_pictures(self.is_picture, spec.obs))
        ring = allocate(row_leaves(plain), lead, owner, spec.name, device, extra_bytes)
        self.pictures = [FrameRing(leaf, *lead, device) for leaf in pictures]
        self.obs, self.action, self.reward, self.terminated, self.truncated, self.next_obs = ring
        self.head = 0  # the row written next
        self.filled = 0  # rows that hold data

    def __len__(self) -> int:
        return self.filled * self.terminated.shape[1]

    @property
    def num_bytes(self) -> int:
        plain = sum(x.nbytes for name in FIELDS for x in tree.leaves(getattr(self, name)))
        return plain + sum(picture.num_bytes for picture in self.pictures)

    def add(self, rollout: Rollout) -> None:
        """Append T rows for every lane; if the rollout is longer than the ring, only its newest rows are kept."""
        num_new = min(rollout.reward.shape[0], self.num_rows)
        first = min(num_new, self.num_rows - self.head)  # rows that fit before the ring wraps
        if self.pictures:
            self._add_pictures(rollout, num_new)
            obs, next_obs = (without_pictures(self.is_picture, part) for part in (rollout.obs, rollout.next_obs))
            rollout = rollout._replace(obs=obs, next_obs=next_obs)
        for name in FIELDS:
            for ring, new in zip(tree.leaves(getattr(self, name)), tree.leaves(getattr(rollout, name)), strict=True):
                new = new[-num_new:]
                ring[self.head : self.head + first] = new[:first]
                if first < num_new:
                    ring[: num_new - first] = new[first:]
        self.head = (self.head + num_new) % self.num_rows
        self.filled = min(self.filled + num_new, self.num_rows)

    def _add_pictures(self, rollout: Rollout, num_new: int) -> None:
        """Store the pictures of the newest rows of a rollout."""
        row_T = torch.arange(self.head, self.head + num_new, device=self.reward.device) % self.num_rows
        filled = min(self.filled + num_new, self.num_rows)
        oldest_row = (self.head + num_new - filled) % self.num_rows
        parts = map(self._pictures_of, (rollout.obs, rollout.next_obs))
        for picture, obs, next_obs in zip(self.pictures, *parts, strict=True):
            picture.add(obs[-num_new:], next_obs[-num_new:], row_T, oldest_row)

    def _pictures_of(self, obs: Tree) -> list[Any]:
        """The pictures among the leaves of an observation, or of its specification."""
        pairs = zip(tree.leaves(self.is_picture), tree.leaves(obs), strict=True)
        return [leaf for is_picture, leaf in pairs if is_picture]

    def sample(self, batch_size: int, gamma: Tensor, n_step: int, generator: Generator) -> Transition:
        """A uniform minibatch of n-step transitions."""
        index_B = torch.randint(len(self), (batch_size,), device=self.reward.device, generator=generator)
        return self.gather(index_B, gamma, n_step)

    def gather(self, index_B: Tensor, gamma: Tensor, n_step: int) -> Transition:
        """Transitions that start at ``age * N + lane``; age 0 is the oldest row held.

        A return ends early at an episode's end and at the newest row; both bootstrap from the true successor with
        the discount of the number of steps summed.
        """
        num_places, num_envs = self.terminated.numel(), self.terminated.shape[1]
        index_B = index_B + self.oldest_place()
        last_B = start_B = index_B % num_places
        reward_B = pick(self.reward, start_B)
        discount_B = gamma  # a scalar until episodes end
        for k in range(1, n_step):
            is_newest_B = index_B + k * num_envs >= self.oldest_place() + len(self)
            ended_B = pick(self.terminated, last_B) | pick(self.truncated, last_B) | is_newest_B
            next_B = torch.where(ended_B, last_B, (index_B + k * num_envs) % num_places)
            # After an end last_B stays the same, so every later k reads the same flags and adds nothing.
            later_B = pick(self.reward, next_B)
            longer_B = reward_B + tree.across(discount_B, later_B) * later_B
            reward_B = torch.where(tree.across(ended_B, longer_B), reward_B, longer_B)
            discount_B = torch.where(ended_B, discount_B, discount_B * gamma)
            last_B = next_B
        return Transition(
            obs=self.obs_at(start_B),
            action=pick(self.action, start_B),
            reward=reward_B,
            discount=discount_B * ~pick(self.terminated, last_B),
            next_obs=self.next_obs_at(last_B),
        )

    def obs_at(self, place_B: Tensor) -> Tree:
        """Observations [B, ...] at places ``row * N + lane``."""
        return self._observed(self.obs, place_B, FrameRing.obs)

    def next_obs_at(self, place_B: Tensor) -> Tree:
        """Observations [B, ...] after the steps at places ``row * N + lane``."""
        return self._observed(self.next_obs, place_B, FrameRing.next_obs)

    def _observed(self, ring: Tree, place_B: Tensor, read: Callable[[FrameRing, Tensor], Tensor]) -> Tree:
        plain = tree.map_leaves(partial(pick, place_B=place_B), ring)
        if not self.pictures:
            return plain
        pictures = iter([read(picture, place_B) for picture in self.pictures])
        return tree.map_leaves(lambda is_picture, x: next(pictures) if is_picture else x, self.is_picture, plain)

    def oldest_place(self) -> int:
        """The place of the oldest row's first transition."""
        return (self.head - self.filled) % self.num_rows * self.terminated.shape[1]

    def truncate_newest(self, lanes: Tensor) -> None:
        """Mark the newest row of the given lanes [N] as truncated, so that no return continues into the next row."""
        if self.filled:
            newest = (self.head - 1) % self.num_rows
            self.truncated[newest] |= lanes.to(self.truncated.device) & ~self.terminated[newest]

    def state_dict(self) -> State:
        """The filled rows, oldest first, without rows that were never written."""
        filled = self.filled_rows()
        rows = {name: to_state(tree.rows(getattr(self, name), filled)) for name in FIELDS}
        pictures = [picture.state_dict(filled) for picture in self.pictures]
        return rows | {"head": self.head} | ({"pictures": pictures} if pictures else {})

    def load_state_dict(self, state: State) -> None:
        self.filled, self.head = state["reward"].shape[0], state["head"]
        order = self.filled_rows()
        for name in FIELDS:
            saved = tree.leaves(from_state(state[name]))
            for ring, rows in zip(tree.leaves(getattr(self, name)), saved, strict=True):
                ring[order] = rows.to(ring.device)
        for picture, part in zip(self.pictures, state.get("pictures", []), strict=True):
            picture.load_state_dict(part, order)

    def filled_rows(self) -> Tensor:
        """The rows that hold data, oldest first."""
        return torch.arange(self.head - self.filled, self.head, device=self.reward.device) % self.num_rows


def picture_flags(obs: Tree) -> Tree:
    """Whether each leaf of an observation is a picture. The mask of a team has two axes too, but is none: it is small,
    and to find out which masks are new would wait for the device."""
    flags = tree.map_leaves(lambda leaf: leaf.is_picture, obs)
    return flags._replace(mask=False) if mask_of(obs) is not None else flags


def without_pictures(is_picture: Tree, parts: Tree) -> Tree:
    """The tree ``parts`` with None in place of the pictures that the flags ``is_picture`` name."""
    return tree.map_leaves(lambda flag, part: None if flag else part, is_picture, parts)


def row_leaves(spec: EnvSpec) -> tuple[Tree, ...]:
    """The leaves stored for one step of one lane, in the order of ``FIELDS``."""
    flag = Leaf((), "bool")
    return spec.obs, spec.action_leaf, spec.reward_leaf, flag, flag, spec.obs


def pick(ring: Tensor, place_B: Tensor) -> Tensor:
    """Rows [B, ...] of a ring [R, N, ...] by place ``row * N + lane``."""
    return ring.flatten(0, 1).index_select(0, place_B)  # half the time of indexing with []


def allocate(
    leaves: Tree, lead: tuple[int, ...], owner: str, env_name: str, device: torch.device, extra_bytes: int = 0
) -> Tree:
    """Tensors of ``leaves`` with the axes ``lead`` in front, or an error that names ``owner`` if they do not fit.

    ``extra_bytes`` are further bytes that the owner needs for each element of ``lead``.
    """
    needed = math.prod(lead) * (sum(leaf.num_bytes for leaf in tree.leaves(leaves)) + extra_bytes)
    free = available_bytes(device)
    refusal = f"{owner} needs {needed / 1e9:.1f} GB for {env_name}"
    if free is not None and needed > free:
        raise ConfigError(f"{refusal}, {free / 1e9:.1f} GB are free; lower it")
    try:
        return tree.map_leaves(lambda leaf: leaf.empty(*lead, device=device), leaves)
    except (RuntimeError, MemoryError) as error:  # the system may give less than it reported
        raise ConfigError(f"{refusal}, which the system does not give; lower it") from error


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be allocated on a device; None where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [limit for limit in (_free_memory(), _free_in_container()) if limit is not None]
    return min(limits, default=None)


def _free_memory() -> int | None:
    lines = _read_lines("/proc/meminfo")
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _free_in_container() -> int | None:
    """The memory that a control group may still allocate; its file caches count as free."""
    folder = "/sys/fs/cgroup"
    limit, used = _read_lines(f"{folder}/memory.max"), _read_lines(f"{folder}/memory.current")
    if not limit or not used or not limit[0].isdecimal():
        return None
    cached = [int(line.split()[1]) for line in _read_lines(f"{folder}/memory.stat") if line.startswith("file ")]
    return int(limit[0]) - int(used[0]) + sum(cached)


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

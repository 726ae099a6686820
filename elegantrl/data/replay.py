"""A ring of transitions, stored per lane so that n-step returns follow one environment.

Axes: R rows of the ring, N lanes, B minibatch rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor

from .. import tree
from ..errors import ConfigError
from ..tree import Tree
from ..types import EnvSpec, Leaf, Rollout, State, Transition, from_state, to_state

FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


class ReplayBuffer:
    """The newest ``capacity`` transitions of all lanes together; memory is allocated once, at construction.

    ``next_obs`` is stored beside ``obs``: twice the observation memory, and never a successor from another episode
    or from across the ring's write head.
    """

    extra_bytes: ClassVar[int] = 0
    """What a subclass keeps per transition besides the fields."""

    def __init__(self, capacity: int, spec: EnvSpec, device: torch.device):
        self.num_rows = capacity // spec.num_envs
        if self.num_rows < 1:
            raise ConfigError(
                f"agent.buffer_size={capacity} holds not even one row of env.num_envs={spec.num_envs}; raise it"
            )
        check_memory(capacity, spec, device, self.extra_bytes)
        ring = tree.map_leaves(lambda leaf: leaf.empty(self.num_rows, spec.num_envs, device=device), row_leaves(spec))
        self.obs, self.action, self.reward, self.terminated, self.truncated, self.next_obs = ring
        self.head = 0  # the row written next
        self.filled = 0  # rows that hold data

    def __len__(self) -> int:
        return self.filled * self.terminated.shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for name in FIELDS for x in tree.leaves(getattr(self, name)))

    def add(self, rollout: Rollout) -> None:
        """Append T rows for every lane; of a rollout longer than the ring only the newest rows stay."""
        num_new = min(rollout.reward.shape[0], self.num_rows)
        first = min(num_new, self.num_rows - self.head)  # rows that fit before the ring wraps
        for name in FIELDS:
            for ring, new in zip(tree.leaves(getattr(self, name)), tree.leaves(getattr(rollout, name)), strict=True):
                new = new[-num_new:]
                ring[self.head : self.head + first] = new[:first]
                if first < num_new:
                    ring[: num_new - first] = new[first:]
        self.head = (self.head + num_new) % self.num_rows
        self.filled = min(self.filled + num_new, self.num_rows)

    def sample(self, batch_size: int, gamma: Tensor, n_step: int, generator: Generator) -> Transition:
        """A uniform minibatch of n-step transitions."""
        index_B = torch.randint(len(self), (batch_size,), device=self.reward.device, generator=generator)
        return self.gather(index_B, gamma, n_step)

    def gather(self, index_B: Tensor, gamma: Tensor, n_step: int) -> Transition:
        """Transitions that start at ``age * N + lane``, age 0 being the oldest row held.

        A return ends early at an episode's end and at the newest row; both bootstrap from the true successor with
        the discount of the steps really taken.
        """
        num_places, num_envs = self.terminated.numel(), self.terminated.shape[1]
        index_B = index_B + self.oldest_place()
        last_B = start_B = index_B % num_places
        reward_B = pick(self.reward, start_B)
        discount_B = gamma  # one number until episodes end
        for k in range(1, n_step):
            is_newest_B = index_B + k * num_envs >= self.oldest_place() + len(self)
            ended_B = pick(self.terminated, last_B) | pick(self.truncated, last_B) | is_newest_B
            next_B = torch.where(ended_B, last_B, (index_B + k * num_envs) % num_places)
            # Once ended, last_B stays, so every later k sees the same flags and adds nothing.
            later_B = pick(self.reward, next_B)
            longer_B = reward_B + tree.across(discount_B, later_B) * later_B
            reward_B = torch.where(tree.across(ended_B, longer_B), reward_B, longer_B)
            discount_B = torch.where(ended_B, discount_B, discount_B * gamma)
            last_B = next_B
        return Transition(
            obs=tree.map_leaves(partial(pick, place_B=start_B), self.obs),
            action=pick(self.action, start_B),
            reward=reward_B,
            discount=discount_B * ~pick(self.terminated, last_B),
            next_obs=tree.map_leaves(partial(pick, place_B=last_B), self.next_obs),
        )

    def oldest_place(self) -> int:
        """Where the oldest row begins, counting single transitions."""
        return (self.head - self.filled) % self.num_rows * self.terminated.shape[1]

    def truncate_newest(self, lanes: Tensor) -> None:
        """Mark the newest row of the given lanes [N] as cut, so that no return runs on into what comes next."""
        if self.filled:
            newest = (self.head - 1) % self.num_rows
            self.truncated[newest] |= lanes.to(self.truncated.device) & ~self.terminated[newest]

    def state_dict(self) -> State:
        """The filled rows, oldest first, and nothing that was never written."""
        rows = {name: tree.rows(getattr(self, name), self.filled_rows()) for name in FIELDS}
        return {name: to_state(part) for name, part in rows.items()} | {"head": self.head}

    def load_state_dict(self, state: State) -> None:
        self.filled, self.head = state["reward"].shape[0], state["head"]
        order = self.filled_rows()
        for name in FIELDS:
            saved = tree.leaves(from_state(state[name]))
            for ring, rows in zip(tree.leaves(getattr(self, name)), saved, strict=True):
                ring[order] = rows.to(ring.device)

    def filled_rows(self) -> Tensor:
        """The rows that hold data, oldest first."""
        return torch.arange(self.head - self.filled, self.head, device=self.reward.device) % self.num_rows


def row_leaves(spec: EnvSpec) -> tuple[Tree, ...]:
    """What is stored of one step of one lane, in the order of ``FIELDS``."""
    flag = Leaf((), "bool")
    return spec.obs, spec.action_leaf, spec.reward_leaf, flag, flag, spec.obs


def pick(ring: Tensor, place_B: Tensor) -> Tensor:
    """Rows [B, ...] of a ring [R, N, ...] by place ``row * N + lane``."""
    return ring.flatten(0, 1).index_select(0, place_B)  # half the time of indexing with []


def check_memory(capacity: int, spec: EnvSpec, device: torch.device, extra_bytes: int = 0) -> None:
    """Refuse a buffer that cannot fit before the first step instead of failing hours later."""
    needed = capacity * (sum(leaf.num_bytes for leaf in tree.leaves(row_leaves(spec))) + extra_bytes)
    free = available_bytes(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"agent.buffer_size={capacity} needs {needed / 1e9:.1f} GB for {spec.name}, {free / 1e9:.1f} GB are free;"
            f" lower it"
        )


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be had on a device, where the system tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)

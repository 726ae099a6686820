"""A ring of whole episodes, for agents that learn from sequences.

Axes: M episodes of the ring, L steps of an episode, N lanes, B drawn episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from .. import tree
from ..errors import ConfigError
from ..tree import Tree
from ..types import EnvSpec, Rollout, State, from_state, to_state
from .replay import FIELDS, allocate, row_leaves


class EpisodeBatch(NamedTuple):
    """B episodes, time-major and padded with zeros after their ends."""

    obs: Tree  # [L, B, ...]
    action: Tensor  # [L, B, ...]
    reward: Tensor  # [L, B] or [L, B, G]
    terminated: Tensor  # [L, B]
    truncated: Tensor  # [L, B]
    next_obs: Tree  # [L, B, ...]
    valid: Tensor  # [L, B] bool: false in the padding


class EpisodeRing:
    """The newest episodes that ended, in memory for ``capacity`` steps; open episodes have slots of their own.

    Every episode takes the memory of the longest, ``max_episode_steps``, so that a draw is one gather.
    """

    def __init__(self, capacity: int, spec: EnvSpec, device: torch.device):
        if spec.max_episode_steps is None:
            raise ConfigError(
                f"a memory of episodes needs to know how long they can be, and {spec.name} has no limit; set"
                f" max_episode_steps"
            )
        self.max_steps = spec.max_episode_steps
        self.num_slots = capacity // self.max_steps
        if self.num_slots < 1:
            raise ConfigError(
                f"agent.buffer_size={capacity} holds not even one episode of {self.max_steps} steps; raise it"
            )
        lead = (self.num_slots + spec.num_envs, self.max_steps)
        self.steps = allocate(row_leaves(spec), lead, f"agent.buffer_size={capacity}", spec.name, device)
        """All fields [M + N, L, ...]: slots of ended episodes, then the open episode of each lane."""
        self.num_envs, self.device = spec.num_envs, device
        self.head = 0  # the slot written next
        self.filled = 0  # slots that hold an episode
        self.length = torch.zeros(self.num_slots, dtype=torch.int64, device=device)
        self.open_length = [0] * spec.num_envs
        self._clear(slice(self.num_slots, None))

    def __len__(self) -> int:
        return self.filled

    def add(self, rollout: Rollout) -> None:
        """Append T steps of every lane; episodes that end among them move into the ring."""
        new_steps = tuple(getattr(rollout, name) for name in FIELDS)
        pairs = list(zip(tree.leaves(self.steps), tree.leaves(new_steps), strict=True))
        place = torch.arange(self.num_slots, self.num_slots + self.num_envs, device=self.device)
        for t, ended in enumerate((rollout.terminated | rollout.truncated).tolist()):  # one host read per rollout
            at = torch.tensor(self.open_length, device=self.device)
            for ring, new in pairs:
                ring[place, at] = new[t]
            for lane, has_ended in enumerate(ended):
                self.open_length[lane] += 1
                if has_ended:
                    self._close(lane)
                elif self.open_length[lane] == self.max_steps:
                    self._cut(lane)

    def truncate_newest(self, lanes: Tensor) -> None:
        """End the open episodes of the given lanes [N] at their newest step."""
        for lane in lanes.nonzero().squeeze(1).tolist():
            if self.open_length[lane]:
                self._cut(lane)

    def _cut(self, lane: int) -> None:
        """End the open episode of a lane as truncated."""
        self.steps[FIELDS.index("truncated")][self.num_slots + lane, self.open_length[lane] - 1] = True
        self._close(lane)

    def _close(self, lane: int) -> None:
        """Move the open episode of a lane into the ring."""
        place = self.num_slots + lane
        for ring in tree.leaves(self.steps):
            ring[self.head] = ring[place]
        self._clear(place)
        self.length[self.head] = self.open_length[lane]
        self.open_length[lane] = 0
        self.head = (self.head + 1) % self.num_slots
        self.filled = min(self.filled + 1, self.num_slots)

    def _clear(self, places: int | slice) -> None:
        for ring in tree.leaves(self.steps):
            ring[places].zero_()

    def sample(self, batch_size: int, generator: Generator) -> EpisodeBatch:
        """Uniformly drawn episodes, padded to the longest of them."""
        oldest = (self.head - self.filled) % self.num_slots
        index = torch.randint(self.filled, (batch_size,), generator=generator, device=self.device)
        slot = (index + oldest) % self.num_slots
        length = self.length[slot]
        longest = int(length.max())
        valid = torch.arange(longest, device=self.device).unsqueeze(1) < length
        steps = tree.map_leaves(lambda x: x[slot, :longest].transpose(0, 1), self.steps)
        return EpisodeBatch(**dict(zip(FIELDS, steps, strict=True)), valid=valid)

    def state_dict(self) -> State:
        """Ended episodes, oldest first, and the open ones."""
        kept = self._kept()
        steps = {name: to_state(tree.rows(part, kept)) for name, part in zip(FIELDS, self.steps, strict=True)}
        lengths = {"length": self.length[kept[: self.filled]], "open_length": self.open_length.copy()}
        return {**steps, **lengths, "head": self.head}

    def load_state_dict(self, state: State) -> None:
        self.filled, self.head = len(state["length"]), state["head"]
        kept = self._kept()
        for name, part in zip(FIELDS, self.steps, strict=True):
            for ring, saved in zip(tree.leaves(part), tree.leaves(from_state(state[name])), strict=True):
                ring[kept] = saved.to(self.device)
        self.length[kept[: self.filled]] = state["length"].to(self.device)
        self.open_length = list(state["open_length"])

    def _kept(self) -> Tensor:
        """Places that hold data: slots, oldest first, then the open episodes."""
        slots = torch.arange(self.head - self.filled, self.head, device=self.device) % self.num_slots
        lanes = torch.arange(self.num_slots, self.num_slots + self.num_envs, device=self.device)
        return torch.cat([slots, lanes])

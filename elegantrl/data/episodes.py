"""A ring of whole episodes, for agents that learn from sequences.

Axes: M episodes of the ring, L steps of an episode, N lanes, B drawn episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from .. import tree
from ..errors import ConfigError
from ..tree import Tree
from ..types import EnvSpec, Rollout, State, from_state, to_state
from .prioritized import Priorities
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
    weight: Tensor | None = None  # [B] importance weights, only of prioritised replay
    rows: Tensor | None = None  # [B] their slots in the ring, to update their priorities


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
        for ring in tree.leaves(self.steps):
            ring[self.num_slots :].zero_()

    def __len__(self) -> int:
        return self.filled

    def add(self, rollout: Rollout) -> None:
        """Append T steps of every lane; episodes that end among them move into the ring."""
        new_steps = tuple(getattr(rollout, name) for name in FIELDS)
        pairs = list(zip(tree.leaves(self.steps), tree.leaves(new_steps), strict=True))
        place_N = torch.arange(self.num_slots, self.num_slots + self.num_envs, device=self.device)
        ended = (rollout.terminated | rollout.truncated).tolist()  # one host read per rollout
        start, num_steps = 0, len(ended)
        while start < num_steps:
            # All steps up to the next one at which an episode ends or is as long as it can be are written at once.
            limit = min(num_steps, start + self.max_steps - max(self.open_length))
            stop = next((t + 1 for t in range(start, limit) if any(ended[t])), limit)
            at_TN = torch.tensor(self.open_length, device=self.device) + torch.arange(
                stop - start, device=self.device
            ).unsqueeze(1)
            for ring, new in pairs:
                ring[place_N, at_TN] = new[start:stop]
            self.open_length = [length + stop - start for length in self.open_length]
            lanes = range(self.num_envs)
            self._cut([i for i in lanes if self.open_length[i] == self.max_steps and not ended[stop - 1][i]])
            self._close([i for i in lanes if ended[stop - 1][i] or self.open_length[i] == self.max_steps])
            start = stop

    def truncate_newest(self, lanes: Tensor) -> None:
        """End the open episodes of the given lanes [N] at their newest step."""
        opened = [lane for lane in lanes.nonzero().squeeze(1).tolist() if self.open_length[lane]]
        self._cut(opened)
        self._close(opened)

    def _cut(self, lanes: list[int]) -> None:
        """Mark the newest steps of the open episodes of some lanes as truncated."""
        if lanes:
            newest = torch.tensor([self.open_length[lane] - 1 for lane in lanes], device=self.device)
            self.steps[FIELDS.index("truncated")][self._places(lanes), newest] = True

    def _close(self, lanes: list[int]) -> Tensor:
        """Move the open episodes of some lanes into the ring, in this order; return their slots."""
        kept = lanes[-self.num_slots :]  # the ring may be smaller than the number of episodes that end at once
        head = (self.head + len(lanes) - len(kept)) % self.num_slots
        slots = torch.arange(head, head + len(kept), device=self.device) % self.num_slots
        if lanes:
            places, opened = self._places(kept), self._places(lanes)
            for ring in tree.leaves(self.steps):
                ring[slots] = ring[places]
                ring[opened] = 0
            self.length[slots] = torch.tensor([self.open_length[lane] for lane in kept], device=self.device)
            for lane in lanes:
                self.open_length[lane] = 0
            self.head = (self.head + len(lanes)) % self.num_slots
            self.filled = min(self.filled + len(lanes), self.num_slots)
        return slots

    def _places(self, lanes: list[int]) -> Tensor:
        """The places of the open episodes of some lanes."""
        return torch.tensor(lanes, device=self.device) + self.num_slots

    def sample(self, batch_size: int, generator: Generator) -> EpisodeBatch:
        """Uniformly drawn episodes, padded to the longest of them."""
        oldest = (self.head - self.filled) % self.num_slots
        index = torch.randint(self.filled, (batch_size,), generator=generator, device=self.device)
        return self.gather((index + oldest) % self.num_slots)

    def gather(self, slot: Tensor) -> EpisodeBatch:
        """The episodes in slots [B], padded to the longest of them."""
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


class PrioritizedEpisodes(Priorities, EpisodeRing):
    """A ring whose episodes are drawn by priority: the mean absolute error of their steps, p_i = (error + epsilon) **
    alpha. A new episode gets the largest p so far, initially 1."""

    def __init__(
        self,
        capacity: int,
        spec: EnvSpec,
        device: torch.device,
        alpha: float,
        beta: float,
        minimum: Callable[[Tensor], Tensor] | None = None,
    ):
        """``minimum`` returns the smallest value over the rings of all learners, if there are several."""
        EpisodeRing.__init__(self, capacity, spec, device)
        Priorities.__init__(self, self.num_slots, device, alpha, beta, minimum)

    def _close(self, lanes: list[int]) -> Tensor:
        slots = super()._close(lanes)
        if lanes:
            self.tree.update(slots, self.max_priority.expand(len(slots)))
        return slots

    def sample(self, batch_size: int, generator: Generator) -> EpisodeBatch:
        """Episodes with importance weights (M P(i)) ** -beta, scaled to a maximum of 1."""
        slot = self.tree.sample(batch_size, generator)
        return self.gather(slot)._replace(weight=self.weights(slot), rows=slot)

    def state_dict(self) -> State:
        priority = self.tree.leaves[self._kept()[: self.filled]]
        return super().state_dict() | {"priority": priority, "max_priority": self.max_priority}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        priority = torch.zeros_like(self.tree.leaves)
        priority[self._kept()[: self.filled]] = state["priority"].to(self.device)
        self.tree.load(priority)
        self.max_priority = state["max_priority"].to(self.device)

"""Actions and rewards of open episodes, from which a resumed run replays and verifies them.

Axes: T steps, N environment lanes, G agents of a team. Rewards of a team have the axis G after N.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CHUNK_STEPS = 1024


class EpisodeLog:
    """The newest ``max_steps`` steps of all lanes.

    Rows are collected in lists and packed into one array per chunk: a step costs two appends, an old episode consists
    of few objects, and saving a lane copies memory instead of visiting every step in Python.
    """

    def __init__(self, max_steps: int, actions: Array | None = None, rewards: Array | None = None):
        """An empty log, or one that holds ``actions`` [T, N, ...] and ``rewards`` [T, N]."""
        self.max_steps = max_steps
        self._chunks = [] if actions is None or rewards is None else [(actions, rewards)]
        self._held = 0  # the number of the oldest step in memory, which may be older than the oldest one needed
        self._packed = 0 if actions is None else len(actions)  # the number of steps that went into chunks
        self._needed = 0  # the number of the oldest step that an open episode needs
        self._actions: list[Array] = []
        self._rewards: list[Array] = []

    @classmethod
    def aligned(
        cls, max_steps: int, episodes: Sequence[tuple[Array, Array] | None], dtype: np.dtype[Any]
    ) -> tuple[EpisodeLog, list[int]]:
        """A log of the lanes' open episodes, which all end now, and the number of the first step of each.

        An episode is actions [T, ...] and rewards [T]; None for a lane whose episode begins now.
        """
        kept = [episode for episode in episodes if episode is not None]
        num_steps = max((len(rewards) for _, rewards in kept), default=0)
        started = [num_steps] * len(episodes)
        if num_steps == 0:
            return cls(max_steps), started
        shape = (num_steps, len(episodes))
        actions, rewards = max(kept, key=lambda episode: len(episode[1]))  # an empty one may lack further axes
        all_actions = np.zeros((*shape, *actions.shape[1:]), dtype=dtype)
        all_rewards = np.zeros((*shape, *rewards.shape[1:]), dtype=np.float32)
        for lane, episode in enumerate(episodes):
            if episode is not None and len(episode[1]):
                started[lane] = start = num_steps - len(episode[1])
                all_actions[start:, lane], all_rewards[start:, lane] = episode
        return cls(max_steps, all_actions, all_rewards), started

    @property
    def end(self) -> int:
        """The number of steps taken."""
        return self._packed + len(self._rewards)

    @property
    def first(self) -> int:
        """The number of the oldest step that is kept."""
        return max(self._needed, self.end - self.max_steps)

    def append(self, actions: Array, rewards: Array) -> None:
        """Add one step of all lanes, actions [N, ...] and rewards [N]; the caller does not write to them again."""
        self._actions.append(actions)
        self._rewards.append(rewards)
        if len(self._rewards) == CHUNK_STEPS:
            self._pack()

    def _pack(self) -> None:
        # Concatenating is several times faster than stacking, which adds an axis to each array in Python.
        actions, rewards = (
            np.concatenate(rows).reshape(len(rows), *rows[0].shape) for rows in (self._actions, self._rewards)
        )
        self._chunks.append((actions, rewards))
        self._packed += len(self._rewards)
        self._actions, self._rewards = [], []
        self.drop_before(self.first)

    def drop_before(self, step: int) -> None:
        """Release the steps before ``step`` as far as they fill whole chunks."""
        self._needed = max(self._needed, step)
        while self._chunks and self._held + len(self._chunks[0][0]) <= self._needed:
            self._held += len(self._chunks.pop(0)[0])
        if self._needed == self.end:
            self._actions, self._rewards, self._held, self._packed = [], [], self.end, self.end

    def actions_of(self, lane: int, start: int, dtype: np.dtype[Any]) -> Array | None:
        """The lane's actions [T, ...] from step ``start`` on; None if some of them were dropped."""
        return None if start < self.first else self._column(0, lane, start, dtype)

    def reward_digest(self, lane: int, start: int) -> int:
        """The checksum of the lane's rewards from step ``start`` on; 0 if some of them were dropped."""
        return 0 if start < self.first else digest(self._column(1, lane, start, np.dtype(np.float32)))

    def _column(self, field: int, lane: int, start: int, dtype: np.dtype[Any]) -> Array:
        position = self._held
        parts = []
        for chunk in self._chunks:
            rows = chunk[field]
            parts.append(rows[max(start - position, 0) :, lane])
            position += len(rows)
        recent = (self._actions, self._rewards)[field][max(start - position, 0) :]
        if recent or not parts:
            parts.append(np.array([row[lane] for row in recent], dtype=dtype))
        return np.concatenate(parts, dtype=dtype)


def digest(rewards: Any) -> int:
    """A checksum of rewards [T], which are compared as float32."""
    return zlib.crc32(np.asarray(rewards, dtype=np.float32).tobytes())

"""Pictures of a replay ring, each stored once, although it is part of several stacks and of two observations.

Axes: T new rows, N lanes, R rows of the ring, K frames of a stack, B minibatch rows, M stacks that are stored whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Leaf, State

SPARE = 16
"""For every ``SPARE`` transitions there is room for one frame more, because an episode has one frame more than steps;
the memory grows if episodes are shorter than that."""


class FrameRing:
    """The frames of one leaf of an observation.

    A transition needs the K frames of its observation and one more for its successor. Frames are numbered in the order
    in which they were stored; ``numbers`` holds the K + 1 numbers of every transition, and the frame with number i is
    at place i modulo the number of places. A transition whose observation equals the successor of the transition before
    it shares its frames, so that it stores only one.
    """

    def __init__(self, leaf: Leaf, num_rows: int, num_envs: int, device: torch.device):
        self.leaf = leaf
        self.numbers = torch.zeros(num_rows, num_envs, leaf.stack + 1, dtype=torch.int64, device=device)
        self.frames = leaf.frame.empty(num_places(leaf, num_rows, num_envs), device=device)
        self.first = 0  # the number of the oldest frame that is needed
        self.end = 0  # the number of the frame stored next
        self.newest: Tensor | None = None  # numbers of the newest row [N, K + 1]

    @property
    def num_bytes(self) -> int:
        return self.frames.nbytes + self.numbers.nbytes

    def add(self, obs: Tensor, next_obs: Tensor, row_T: Tensor, oldest_row: int) -> None:
        """Store the pictures [T, N, ...] of rows ``row_T``; ``oldest_row`` is the oldest row that the ring then holds.

        A stack of ``next_obs`` is the one of ``obs`` without its oldest frame and with a new one.
        """
        obs_TNK, next_TNK = self._with_frames(obs), self._with_frames(next_obs)
        follows_TN = self._follows(obs_TNK, next_TNK)
        step_M, lane_M = (~follows_TN).nonzero(as_tuple=True)
        stack_MK = obs_TNK[step_M, lane_M]
        is_new_MK = torch.ones(stack_MK.shape[:2], dtype=torch.bool, device=obs.device)
        is_new_MK[:, 1:] = rows_differ(stack_MK[:, 1:], stack_MK[:, :-1])  # a first frame is repeated
        count_TN = torch.ones_like(follows_TN, dtype=torch.int64)
        count_TN[step_M, lane_M] += is_new_MK.sum(1)
        stop_TN = self.end + count_TN.flatten().cumsum(0).view_as(count_TN)
        number_MK = (stop_TN - count_TN)[step_M, lane_M].unsqueeze(1) + is_new_MK.cumsum(1) - 1
        self._store_numbers(follows_TN, stop_TN - 1, number_MK, (step_M, lane_M), row_T)

        self.first = int(self.numbers[oldest_row, :, 0].min())
        end = int(stop_TN[-1, -1])
        self._reserve(end - self.first)
        self._write(stop_TN.flatten() - 1, next_TNK[:, :, -1].flatten(0, 1))
        self._write(number_MK[is_new_MK], stack_MK[is_new_MK])
        self.end = end

    def _follows(self, obs_TNK: Tensor, next_TNK: Tensor) -> Tensor:
        """Whether each observation [T, N] equals the successor of the transition before it."""
        first_N = torch.zeros(obs_TNK.shape[1], dtype=torch.bool, device=obs_TNK.device)
        if self.newest is not None:
            first_N = ~rows_differ(obs_TNK[0].flatten(1), self._gather(self.newest[:, 1:]).flatten(1), 1)
        later_TN = ~rows_differ(obs_TNK[1:], next_TNK[:-1])
        return torch.cat([first_N.unsqueeze(0), later_TN])

    def _store_numbers(
        self,
        follows_TN: Tensor,
        successor_TN: Tensor,
        number_MK: Tensor,
        place_M: tuple[Tensor, Tensor],
        row_T: Tensor,
    ) -> None:
        """The numbers of new rows, from those of their successors and of the stacks that are stored whole."""
        begun_TNK = successor_TN.new_zeros(*successor_TN.shape, self.leaf.stack)
        begun_TNK[place_M] = number_MK
        rows = []
        newest = self.newest if self.newest is not None else self.numbers[0]  # follows_TN is then false in row 0
        for follows_N, begun_NK, successor_N in zip(follows_TN, begun_TNK, successor_TN, strict=True):
            seen_NK = torch.where(follows_N.unsqueeze(1), newest[:, 1:], begun_NK)
            newest = torch.cat([seen_NK, successor_N.unsqueeze(1)], 1)
            rows.append(newest)
        self.newest = newest
        self.numbers[row_T] = torch.stack(rows)

    def _reserve(self, num_frames: int) -> None:
        """Make room for ``num_frames`` frames from number ``first`` on."""
        if num_frames <= len(self.frames):
            return
        held = torch.arange(self.first, self.end, device=self.frames.device)
        frames = self.leaf.frame.empty(num_frames + num_frames // SPARE, device=self.frames.device)
        frames[held % len(frames)] = self.frames[held % len(self.frames)]
        self.frames = frames

    def _write(self, number: Tensor, frames: Tensor) -> None:
        self.frames[number % len(self.frames)] = frames

    def obs(self, place_B: Tensor) -> Tensor:
        """Observations [B, ...] of transitions at places ``row * N + lane``."""
        return self._observed(self.numbers.flatten(0, 1).index_select(0, place_B)[:, :-1])

    def next_obs(self, place_B: Tensor) -> Tensor:
        return self._observed(self.numbers.flatten(0, 1).index_select(0, place_B)[:, 1:])

    def _observed(self, number_BK: Tensor) -> Tensor:
        stack = self._gather(number_BK)
        return stack if self.leaf.stack > 1 else stack.squeeze(1)

    def _gather(self, number_BK: Tensor) -> Tensor:
        place = (number_BK % len(self.frames)).flatten()
        return self.frames.index_select(0, place).view(*number_BK.shape, *self.frames.shape[1:])

    def _with_frames(self, obs: Tensor) -> Tensor:
        """``obs`` [T, N, ...] with the axis K, also where a stack has one frame."""
        return obs if self.leaf.stack > 1 else obs.unsqueeze(2)

    def state_dict(self, rows: Tensor) -> State:
        """The frames that ``rows`` need, oldest first, and their numbers counted from the first of these frames."""
        held = torch.arange(self.first, self.end, device=self.frames.device)
        return {"frames": self.frames[held % len(self.frames)], "numbers": self.numbers[rows] - self.first}

    def load_state_dict(self, state: State, rows: Tensor) -> None:
        saved = state["frames"].to(self.frames.device)
        self.first, self.end = 0, 0
        self._reserve(len(saved))
        self.frames[: len(saved)] = saved
        self.end = len(saved)
        self.numbers[rows] = state["numbers"].to(self.numbers.device)
        self.newest = self.numbers[rows[-1]].clone() if len(rows) else None


def num_places(leaf: Leaf, num_rows: int, num_envs: int) -> int:
    """Frames to allocate for so many transitions."""
    transitions = num_rows * num_envs
    return transitions + transitions // SPARE + (leaf.stack + 1) * num_envs


def bytes_per_transition(leaf: Leaf) -> int:
    """Memory of one transition, rounded up."""
    return leaf.frame.num_bytes * (SPARE + 1) // SPARE + 1 + 8 * (leaf.stack + 1)


def rows_differ(x: Tensor, y: Tensor, lead: int = 2) -> Tensor:
    """Which rows [...] of two tensors with ``lead`` leading axes are not the same."""
    return (x != y).flatten(lead).any(-1)

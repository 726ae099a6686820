"""Prioritised replay (arXiv:1511.05952): rows are drawn in proportion to the size of their temporal-difference error.

Axes: K blocks of the tree, F leaves in a block, B minibatch rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ..types import EnvSpec, Rollout, State, Transition
from .replay import ReplayBuffer

EPSILON = 1e-6
"""Added to every absolute error, so that a row without error can still be drawn."""

BELOW_ONE = 1.0 - 2.0**-50
"""Factor that keeps the end of the last interval below the root even if it is rounded up."""


class SumTree:
    """Non-negative float32 leaves, drawn in proportion to their value; two levels, sums in float64.

    A block's sum is always computed from all its leaves and never from a difference, so rounding errors do not add up
    over millions of updates. The upper level has no inner nodes: one cumulative sum over the blocks finds a block, one
    over its leaves finds the leaf. The number of tensor operations does not depend on the number of leaves.
    """

    def __init__(self, num_leaves: int, device: torch.device):
        # Drawing B leaves reads num_leaves / F blocks and B * F leaves: the minimum is at F = sqrt(num_leaves / B).
        self.width = 16
        while self.width**2 * 256 < num_leaves:
            self.width *= 2
        num_blocks = -(-num_leaves // self.width)
        self.blocks = torch.zeros(num_blocks, self.width, device=device)  # places beyond num_leaves stay 0
        self.leaves = self.blocks.view(-1)[:num_leaves]
        self.sums = torch.zeros(num_blocks, dtype=torch.float64, device=device)

    @property
    def root(self) -> Tensor:
        """The sum of all leaves."""
        return self.sums.sum()

    @property
    def num_bytes(self) -> int:
        return self.blocks.nbytes + self.sums.nbytes

    def update(self, index_B: Tensor, value_B: Tensor) -> None:
        """Set leaves; if an index occurs several times, its last value counts, on every device."""
        index_B, value_B = settle_duplicates(index_B, value_B)
        self.leaves[index_B] = value_B
        block_B = index_B // self.width
        self.sums[block_B] = block_sums(self.blocks.index_select(0, block_B))

    def fill(self, start: int, stop: int, value: Tensor) -> None:
        """Set the leaves from ``start`` to before ``stop`` to one value."""
        self.leaves[start:stop] = value
        first, last = start // self.width, (stop - 1) // self.width + 1
        self.sums[first:last] = block_sums(self.blocks[first:last])

    def load(self, leaves: Tensor) -> None:
        """Set all leaves."""
        self.leaves.copy_(leaves)
        self.sums.copy_(block_sums(self.blocks))

    def sample(self, batch_size: int, generator: Generator) -> Tensor:
        """Indices [B], one from each of B equal intervals of the root; never the index of a leaf with 0."""
        random_2B = torch.rand(2, batch_size, dtype=torch.float64, device=self.sums.device, generator=generator)
        bound_K = running_sums(self.sums)
        share_B = random_2B[0] + torch.arange(batch_size, device=self.sums.device)
        block_B = torch.searchsorted(bound_K, share_B * (bound_K[-1] * (BELOW_ONE / batch_size)), right=True)
        # A second number, not the remainder of the first: rounding cannot leave the block.
        bound_BF = running_sums(self.blocks.index_select(0, block_B))
        target_B1 = (random_2B[1] * bound_BF[:, -1]).unsqueeze(1)  # below the last sum, as rand is below 1
        leaf_B = torch.searchsorted(bound_BF, target_B1, right=True).squeeze(1)
        return block_B * self.width + leaf_B


def settle_duplicates(index_B: Tensor, value_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted indices; equal ones get the last of their values, so that the order of writes does not matter."""
    index_B, order_B = index_B.sort(stable=True)
    last_B = torch.searchsorted(index_B, index_B, right=True) - 1
    return index_B, value_B[order_B[last_B]]


def block_sums(blocks_KF: Tensor) -> Tensor:
    return blocks_KF.sum(-1, dtype=torch.float64)


def running_sums(x: Tensor) -> Tensor:
    """Cumulative sums along the last axis, which rise at positive entries only.

    A target from 0 to below the last sum then never finds an entry with 0, because the search takes the first sum
    above the target.
    """
    sums = x.cumsum(-1, dtype=torch.float64)
    # A CPU adds the entries in order. A parallel scan rounds each sum differently: sums may change at zeros.
    return sums if x.device.type == "cpu" else level_at_zeros(sums, x)


def level_at_zeros(sums: Tensor, x: Tensor) -> Tensor:
    return torch.where(x > 0, sums, 0.0).cummax(-1).values


class Priorities:
    """Priorities p_i = (|TD error| + epsilon) ** alpha of a ring's places, and the importance weights of draws."""

    def __init__(
        self,
        num_places: int,
        device: torch.device,
        alpha: float,
        beta: float,
        minimum: Callable[[Tensor], Tensor] | None = None,
    ):
        """``minimum`` returns the smallest value over the rings of all learners, if there are several."""
        self.minimum = minimum
        self.alpha = alpha
        self.beta = beta  # the memory raises it towards 1
        self.tree = SumTree(num_places, device)
        self.max_priority = torch.ones((), device=device)

    def weights(self, index_B: Tensor) -> Tensor:
        """Importance weights (N P(i)) ** -beta of drawn places, scaled to a maximum of 1."""
        priority_B = self.tree.leaves.index_select(0, index_B)
        # N and sum(p) are the same in all weights: they cancel in the division by the largest weight.
        share_B, smallest = priority_B, priority_B.amin()
        if self.minimum is not None:  # rings are equally long, but their sums differ
            share_B = (priority_B / self.tree.root).float()
            smallest = self.minimum(share_B)
        return (smallest / share_B) ** self.beta

    def update_priorities(self, index_B: Tensor, td_error_B: Tensor) -> None:
        """Set the priorities of drawn places from their errors; if a place was drawn twice, the last error counts.

        If the ring has overwritten a place since the draw, what is new there keeps the priority of the old until it is
        drawn itself.
        """
        # NaN counts as no error: the training loop reports a diverged network, the sampler must not fail on it.
        priority_B = (td_error_B.detach().float().abs().nan_to_num() + EPSILON) ** self.alpha
        self.max_priority = torch.maximum(self.max_priority, priority_B.amax())
        self.tree.update(index_B, priority_B)


class PrioritizedReplay(Priorities, ReplayBuffer):
    """A ring whose rows are drawn with probability P(i) = p_i / sum(p), p_i = (|TD error| + epsilon) ** alpha.

    A new row gets the largest p so far, initially 1. Leaf ``row * num_envs + lane`` of the tree belongs to that place
    in memory and does not depend on the ring's head; places never written have p = 0.
    """

    extra_bytes = 5  # a float32 leaf, and a part of the float64 sum over 16 leaves or more

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
        ReplayBuffer.__init__(self, capacity, spec, device)
        Priorities.__init__(self, self.terminated.numel(), device, alpha, beta, minimum)

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self.tree.num_bytes

    def add(self, rollout: Rollout) -> None:
        start, num_envs = self.head, self.terminated.shape[1]
        super().add(rollout)
        stop = start + min(rollout.reward.shape[0], self.num_rows)
        self.tree.fill(start * num_envs, min(stop, self.num_rows) * num_envs, self.max_priority)
        if stop > self.num_rows:
            self.tree.fill(0, (stop - self.num_rows) * num_envs, self.max_priority)

    def sample(self, batch_size: int, gamma: Tensor, n_step: int, generator: Generator) -> Transition:
        """A minibatch of n-step transitions with importance weights (N P(i)) ** -beta, scaled to a maximum of 1."""
        index_B = self.tree.sample(batch_size, generator)
        batch = self.gather((index_B - self.oldest_place()) % self.terminated.numel(), gamma, n_step)
        return batch._replace(weight=self.weights(index_B), rows=index_B)

    def state_dict(self) -> State:
        priority = self._priority_rows()[self.filled_rows()]  # oldest first, like the rows
        return super().state_dict() | {"priority": priority, "max_priority": self.max_priority}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        device = self.reward.device
        priority = torch.zeros_like(self._priority_rows())
        priority[self.filled_rows()] = state["priority"].to(device)
        self.tree.load(priority.view(-1))
        self.max_priority = state["max_priority"].to(device)

    def _priority_rows(self) -> Tensor:
        return self.tree.leaves.view(self.num_rows, -1)

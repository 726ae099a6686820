"""Statistics over the batch of all learners.

``OneRank`` holds the whole batch, so its own statistics are those of the batch. With several learners, each holds an
equal part of every batch and a subclass averages over all ranks; agents call both classes in the same way.
"""

from __future__ import annotations

from torch import Tensor


class OneRank:
    """A learner that holds the whole batch."""

    rank = 0
    size = 1

    def average(self, x: Tensor) -> Tensor:
        """The mean of ``x`` over all ranks, in place."""
        return x

    def minimum(self, x: Tensor) -> Tensor:
        """The smallest element of the ``x`` of all ranks."""
        return x.amin()

    def mean(self, x: Tensor) -> Tensor:
        """The mean of the elements of all ranks; no gradient flows through this and the next two."""
        return x.mean()

    def variance(self, x: Tensor) -> Tensor:
        return x.var(correction=0)

    def std(self, x: Tensor) -> Tensor:
        return x.std(correction=0)

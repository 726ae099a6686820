"""Several learners as one: what every rank computes from its own rows becomes what all rows together give.

A ``Solo`` has all rows, so nothing is to be done. ``Ranks`` hold equal parts of every batch, have equal parameters and
take equal steps. Agents ask either in the same way and know of no process.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from ..config.fields import Section
from ..errors import ConfigError, PeersLost


class Solo:
    """A learner alone."""

    rank = 0
    size = 1

    def average(self, x: Tensor) -> Tensor:
        """The mean of ``x`` over all ranks, in place."""
        return x

    def least(self, x: Tensor) -> Tensor:
        """The smallest of the elements that all ranks have."""
        return x.amin()

    def mean(self, x: Tensor) -> Tensor:
        """The mean of the elements that all ranks have; like the next two without a gradient."""
        return x.mean()

    def variance(self, x: Tensor) -> Tensor:
        return x.var(correction=0)

    def std(self, x: Tensor) -> Tensor:
        return x.std(correction=0)


class Ranks(Solo):
    """One of ``size`` learners; every rank must ask for the same things in the same order."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.group: Any = None  # a process group, once the ranks have met

    def average(self, x: Tensor) -> Tensor:
        return self._reduce(x, dist.ReduceOp.SUM).div_(self.size)

    def least(self, x: Tensor) -> Tensor:
        return self._reduce(x.amin(), dist.ReduceOp.MIN)

    def mean(self, x: Tensor) -> Tensor:
        return self.average(x.mean())

    def variance(self, x: Tensor) -> Tensor:
        # Around the common mean: parts are equal in size, so the mean of their means is that of all.
        return self.average((x - self.mean(x)).square().mean())

    def std(self, x: Tensor) -> Tensor:
        return self.variance(x).sqrt()

    def _reduce(self, x: Tensor, op: Any) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        try:
            self.group.allreduce([x], options).wait()
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise PeersLost(f"learner {self.rank} of {self.size} lost touch with the others: {text}") from error
        return x


C = TypeVar("C", bound=Section)


def share_of(config: C, num_learners: int, num_rows: int) -> C:
    """An agent's settings for one of several learners; ``num_rows`` are those of a whole rollout.

    What is counted in environment steps stays: every learner counts the steps of all.
    """
    if num_learners <= 1:
        return config
    values: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(config)}
    share: dict[str, int] = {}
    for name in {"buffer_size", "h_store", "h_windows"} & values.keys():
        share[name] = max(1, values[name] // num_learners)
    if "batch_size" in values:
        size = values["batch_size"]
        is_whole = "buffer_size" not in values and size >= num_rows  # a rollout in one batch: each has all of its rows
        if size % num_learners and not is_whole:
            less = size - size % num_learners
            sizes = " or ".join(str(n) for n in (less, less + num_learners) if n)
            raise ConfigError(
                f"agent.batch_size={size} cannot be shared out equally among {num_learners} learners; use {sizes}"
            )
        share["batch_size"] = -(-size // num_learners)
    return replace(config, **share)

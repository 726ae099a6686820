"""Gradients of an agent's losses. Autograd defines the result; faster implementations must agree with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..types import Metrics
from .optim import GradStep

if TYPE_CHECKING:
    from .base import Agent


LazyMetrics = Callable[[], Metrics]
"""The metrics of a hot function, computed when called: most minibatches are not logged."""


class Gradients:
    """Differentiates the hot functions of an agent, here by autograd.

    A subclass computes the same numbers in another way: derived by hand, compiled, or stacked over a population. Agents
    call ``Agent.descend`` and do not depend on the subclass.
    """

    def __init__(self, description: str = "autograd"):
        self.description = description
        """One phrase for the log of a run."""

    def __call__(self, agent: Agent, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        """The flat gradient of the hot function ``name`` for the parameters of ``step``, and the function's metrics."""
        loss, metrics = getattr(agent, name)(*args)
        return step.gradient(loss), lambda: metrics

    def close(self) -> None:
        """Release processes and memory."""

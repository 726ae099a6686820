"""How the losses of an agent become gradients. Autograd defines what a gradient is; faster ways must agree with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..types import Metrics
from .optim import GradStep

if TYPE_CHECKING:
    from .base import Agent


Tell = Callable[[], Metrics]
"""What a hot function says to log, for who asks: most minibatches are not logged."""


class Gradients:
    """Differentiates the hot functions of an agent."""

    def __call__(self, agent: Agent, name: str, step: GradStep, *args: Any) -> tuple[Tensor, Tell]:
        """The flat gradient of the hot function ``name`` for the parameters of ``step``, and what it says to log."""
        loss, metrics = getattr(agent, name)(*args)
        return step.gradient(loss), lambda: metrics

    def close(self) -> None:
        """Release processes and memory."""

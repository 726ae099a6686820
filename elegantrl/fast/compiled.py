"""Autograd through ``torch.compile``: hot functions become fused kernels. Pays for large networks and on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..agents.base import Agent
from ..agents.gradients import Gradients, LazyMetrics
from ..agents.optim import GradStep

log = logging.getLogger(__name__)


class Compiled(Gradients):
    """Each hot function is compiled at its first call; without a working compiler autograd is used."""

    def __init__(self) -> None:
        super().__init__("compiled")
        self.functions: dict[str, Callable[..., Any]] = {}

    def __call__(self, agent: Agent, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        if self.description != "compiled":
            return super().__call__(agent, name, step, *args)
        is_new = name not in self.functions
        if is_new:
            # Compiled for the shapes of the first call; a second minibatch size is compiled again, for any size.
            self.functions[name] = torch.compile(getattr(agent, name))
        try:
            loss, metrics = self.functions[name](*args)
            return step.gradient(loss), lambda: metrics
        except Exception as error:
            if not is_new:
                raise
            # An error of the loss itself is raised again by autograd.
            result = super().__call__(agent, name, step, *args)
            self.description = "autograd (torch.compile failed)"
            log.warning("torch.compile failed, so autograd is used: %s", first_line(error))
            return result


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""Autograd by oneDNN: linear layers whose large products it computes, where MKL is slower (``products``).

Axes: B rows, E ensemble members, I inputs, K outputs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..agents.base import Agent
from ..agents.gradients import Gradients, LazyMetrics
from ..agents.optim import GradStep
from ..nets.layers import EnsembleLinear, Members, chosen
from .products import are_faster, mm, onednn

MIN_LAYER = 2**22
"""The smallest product B * I * K of a layer for which this is faster than torch's own function."""


class ByOneDNN(Gradients):
    """Autograd through linear layers whose large products oneDNN computes."""

    def __init__(self, agent: Agent, description: str):
        super().__init__(description)
        self.wanted: frozenset[int] = frozenset()
        """The parameters to differentiate for; autograd cannot tell a function of ours which of them it needs."""
        for layer in agent.modules():
            if type(layer) is nn.Linear and layer.bias is not None:
                layer.forward = partial(self.linear, layer)  # type: ignore[method-assign]
            elif type(layer) is EnsembleLinear:
                layer.subset = partial(self.ensemble, layer)  # type: ignore[method-assign]

    @staticmethod
    def suits(agent: Agent) -> bool:
        return are_faster() and all(p.device.type == "cpu" for p in agent.parameters())

    def __call__(self, agent: Agent, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        self.wanted = frozenset(map(id, step.params))
        return super().__call__(agent, name, step, *args)

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """``nn.Linear.forward``."""
        weight, bias = layer.weight, layer.bias
        if x.dim() != 2 or len(x) * weight.numel() < MIN_LAYER:
            return linear(x, weight, bias)
        if not torch.is_grad_enabled():
            return onednn(x, weight, bias)
        weight, bias = (p if id(p) in self.wanted else p.detach() for p in (weight, bias))  # type: ignore[assignment]
        y: Tensor = LinearProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y

    def ensemble(self, layer: EnsembleLinear, members: Members, x: Tensor) -> Tensor:
        """``EnsembleLinear.subset``."""
        weight, bias = chosen(layer, members)
        if x.dim() == 2:
            x = x.expand(len(weight), *x.shape)
        if x.shape[1] * weight[0].numel() < MIN_LAYER:
            return torch.baddbmm(bias, x, weight)
        if id(layer.weight) not in self.wanted:
            weight, bias = weight.detach(), bias.detach()
        y: Tensor = EnsembleProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y


class LinearProduct(torch.autograd.Function):
    """``x @ weight.T + bias`` for x [B, I], weight [K, I] and bias [K]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            mm(gradient, weight) if needs_x else None,
            mm(gradient.t(), x) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


class EnsembleProduct(torch.autograd.Function):
    """``x @ weight + bias`` for x [E, B, I], weight [E, I, K] and bias [E, 1, K]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.stack([onednn(x[e], weight[e].t(), bias[e, 0]) for e in range(len(weight))])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        members = range(len(weight))
        return (
            torch.stack([mm(gradient[e], weight[e].t()) for e in members]) if needs_x else None,
            torch.stack([mm(x[e].t(), gradient[e]) for e in members]) if needs_weight else None,
            gradient.sum(1, keepdim=True) if needs_bias else None,
        )

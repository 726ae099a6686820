"""Linear stacks, single and stacked, and flat storage for their parameters.

Axes: B rows, E ensemble members, I inputs, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import layer_norm

Activation = Literal["relu", "tanh", "silu", "elu"]
Init = Literal["default", "orthogonal"]
Array = NDArray[Any]
Members = slice | Tensor
"""Which members of an ensemble: a slice of them, or their indices."""
ALL = slice(None)
BLOCK_ROWS = 2048
"""Rows that stay in the cache of a processor with what is computed from them."""
NARROW, MANY_ROWS = 16, 1024
"""For so many rows other ways are faster on a CPU: with few outputs the product the other way round, by three times."""
MAX_NUMPY_WEIGHTS, MAX_NUMPY_ROWS, FEW_ROWS = 2**14, 256, 2
"""Weights of a layer and rows up to which NumPy is faster than torch, and rows for which it is whatever the layer."""
ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),  # a linear layer does not need its output again: half the memory traffic
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


class EnsembleLinear(nn.Module):
    """E independent linear layers as one batched product: [B, I] or [E, B, I] -> [E, B, K]."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int):
        super().__init__()
        # The same distribution as nn.Linear, so a member is the network a user would build alone.
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_members, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, num_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return self.some(ALL, x)

    def some(self, members: Members, x: Tensor) -> Tensor:
        """The outputs of the chosen members only."""
        weight, bias = _chosen(self, members)
        if x.dim() == 2:
            x = x.expand(weight.shape[0], *x.shape)
        return torch.baddbmm(bias, x, weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with its own gain and offset per member: [E, B, K] -> [E, B, K]."""

    def __init__(self, num_members: int, num_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, num_features))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, num_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.some(ALL, x)

    def some(self, members: Members, x: Tensor) -> Tensor:
        """The outputs of the chosen members only, whose inputs ``x`` holds."""
        weight, bias = _chosen(self, members)
        return torch.addcmul(bias, weight, layer_norm(x, x.shape[-1:]))


STACKED = EnsembleLinear, EnsembleLayerNorm


def _chosen(layer: EnsembleLinear | EnsembleLayerNorm, members: Members) -> tuple[Tensor, Tensor]:
    # Slicing costs microseconds, which all members need not pay.
    return (layer.weight, layer.bias) if members is ALL else (layer.weight[members], layer.bias[members])


class Stack(nn.Sequential):
    """Layers in a row. Calling ``forward`` spares the hook machinery of each, a tenth of the time at acting sizes."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            x = layer.forward(x)  # type: ignore[union-attr]
        return x

    def some(self, members: Members, x: Tensor) -> Tensor:
        """What the chosen members of a stacked network say, at the cost of these alone."""
        for layer in self:
            x = layer.some(members, x) if isinstance(layer, STACKED) else layer.forward(x)
        return x

    def frozen(self) -> Callable[[Tensor], Tensor]:
        """``forward`` with the present weight tensors: less time, for a copy whose storage never moves again."""
        steps: list[Callable[[Tensor], Tensor]] = []
        for layer in self:
            if isinstance(layer, nn.Linear):
                linear = _linear
                if layer.weight.device.type == "cpu":
                    linear = _narrow_linear if layer.out_features < NARROW else _wide_linear
                steps.append(partial(linear, layer.bias, layer.weight.t()))
            elif isinstance(layer, nn.Tanh):
                steps.append(torch.tanh_)  # the one activation that has no switch for working in place
            else:
                steps.append(layer.forward)

        def run(x: Tensor) -> Tensor:
            for step in steps:
                x = step(x)
            return x

        return run

    def in_numpy(self, num_rows: int) -> Callable[[Array], Array] | None:
        """``frozen`` for ``num_rows`` rows in NumPy, whose calls cost less than torch's; None if that would not pay."""
        steps: list[Callable[[Array], Array]] = []
        for layer in self:
            if isinstance(layer, nn.Linear) and layer.weight.device.type == "cpu":
                if num_rows > (MAX_NUMPY_ROWS if layer.weight.numel() <= MAX_NUMPY_WEIGHTS else FEW_ROWS):
                    return None
                steps.append(partial(_linear_in_numpy, layer.bias.detach().numpy(), layer.weight.detach().numpy().T))
            elif type(layer) in IN_NUMPY:
                steps.append(IN_NUMPY[type(layer)])
            else:
                return None

        def run(x: Array) -> Array:
            for step in steps:
                x = step(x)
            return x

        return run


def _linear(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight)


def _wide_linear(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    if len(x) < MANY_ROWS:
        return torch.addmm(bias, x, weight)
    return torch.mm(x, weight).add_(bias)  # addmm fills the result with the bias first, which is slower


def _narrow_linear(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    if len(x) < MANY_ROWS:
        return torch.addmm(bias, x, weight)
    return torch.addmm(bias.unsqueeze(1), weight.t(), x.t()).t()


def _linear_in_numpy(bias: Array, weight: Array, x: Array) -> Array:
    y: Array = np.dot(x, weight)
    y += bias
    return y


IN_NUMPY: dict[type[nn.Module], Callable[[Array], Array]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
}


def mlp(
    sizes: Sequence[int],
    activation: Activation = "relu",
    *,
    init: Init = "default",
    head_gain: float = 1.0,
    num_members: int | None = None,
    normed: bool = False,
) -> Stack:
    """Linear layers with an activation between them; a stack of ``num_members`` of them if given.

    With orthogonal initialisation hidden layers have gain sqrt(2) and the last one ``head_gain``; if ``normed``, what
    goes into an activation is layer-normalised.
    """
    layers: list[nn.Module] = []
    linears: list[nn.Linear | EnsembleLinear] = []
    for num_inputs, num_outputs in pairwise(sizes):
        if linears:  # between two linear layers
            if normed:
                layers.append(
                    nn.LayerNorm(num_inputs) if num_members is None else EnsembleLayerNorm(num_members, num_inputs)
                )
            layers.append(ACTIVATIONS[activation]())
        if num_members is None:
            linears.append(nn.Linear(num_inputs, num_outputs))
        else:
            linears.append(EnsembleLinear(num_members, num_inputs, num_outputs))
        layers.append(linears[-1])
    if init == "orthogonal":
        for layer in linears:
            orthogonal_(layer, head_gain if layer is linears[-1] else math.sqrt(2))
    return Stack(*layers)


def orthogonal_(layer: nn.Linear | EnsembleLinear, gain: float) -> None:
    """Orthogonal weights and zero biases, per member of a stack."""
    for weight in layer.weight if isinstance(layer, EnsembleLinear) else [layer.weight]:
        nn.init.orthogonal_(weight, gain)
    nn.init.zeros_(layer.bias)


@torch.no_grad()
def flatten_(tensors: Iterable[Tensor], into: Tensor | None = None) -> Tensor:
    """Move tensors into one flat storage, a new one or ``into``, and make each a view of it; return the flat tensor.

    One storage makes an optimiser step, a target update or a weight transfer a single kernel.
    """
    tensors = list(tensors)
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    if into is not None:
        flat = into.copy_(flat)
    for t, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        t.data = part.view_as(t)
    return flat

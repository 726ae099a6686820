"""Linear stacks, single and stacked, and flat storage for their parameters.

Axes: B rows, E ensemble members, I inputs, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import layer_norm

Activation = Literal["relu", "tanh", "silu", "elu"]
Init = Literal["default", "orthogonal"]
Array = NDArray[Any]
Members = slice | Tensor
"""Members of an ensemble: a slice of them, or their indices."""
ALL = slice(None)
BLOCK_ROWS = 2048
"""Number of rows that fit into a processor's cache together with the results computed from them."""
ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),  # half the memory traffic; a linear layer's backward needs no output
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


class EnsembleLinear(nn.Module):
    """E independent linear layers as one batched product: [B, I] or [E, B, I] -> [E, B, K]."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int):
        super().__init__()
        # The same distribution as nn.Linear, so a member starts like a network that is built alone.
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_members, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, num_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return self.subset(ALL, x)

    def subset(self, members: Members, x: Tensor) -> Tensor:
        """The outputs of the chosen members only."""
        weight, bias = chosen(self, members)
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
        return self.subset(ALL, x)

    def subset(self, members: Members, x: Tensor) -> Tensor:
        """The outputs of the chosen members only; ``x`` holds the inputs of these members."""
        weight, bias = chosen(self, members)
        return torch.addcmul(bias, weight, layer_norm(x, x.shape[-1:]))


class Separate(nn.Module):
    """E networks of any kind, computed one after the other: [B, I] -> [E, B, K]."""

    def __init__(self, networks: Iterable[nn.Module]):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks])

    def subset(self, members: Members, x: Tensor) -> Tensor:
        """The outputs of the chosen members only; all are computed, because reading indices would wait for a device."""
        return self(x)[members]


STACKED = EnsembleLinear, EnsembleLayerNorm, Separate


class AgentLinear(nn.Module):
    """A linear layer for each of G agents, whose axis stands before the features: [..., G, I] -> [..., G, K]."""

    def __init__(self, num_agents: int, num_inputs: int, num_outputs: int, bias: bool = True):
        super().__init__()
        self.in_features, self.out_features = num_inputs, num_outputs
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_agents, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_agents, 1, num_outputs).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x_GBI = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)  # a view: the product reads rows with a stride
        y_GBK = torch.bmm(x_GBI, self.weight) if self.bias is None else torch.baddbmm(self.bias, x_GBI, self.weight)
        return y_GBK.transpose(0, 1).reshape(*x.shape[:-1], -1)


class AgentLayerNorm(nn.Module):
    """Layer normalisation with its own gain and offset per agent: [..., G, K] -> [..., G, K]."""

    def __init__(self, num_agents: int, num_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_agents, num_features))
        self.bias = nn.Parameter(torch.zeros(num_agents, num_features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self.weight, layer_norm(x, x.shape[-1:]))


def chosen(layer: EnsembleLinear | EnsembleLayerNorm, members: Members) -> tuple[Tensor, Tensor]:
    # Slicing costs microseconds; the whole ensemble needs none.
    return (layer.weight, layer.bias) if members is ALL else (layer.weight[members], layer.bias[members])


class Stack(nn.Sequential):
    """Layers in a row. Calling ``forward`` skips the hooks of each layer, a tenth of the time at acting sizes."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            x = layer.forward(x)  # type: ignore[union-attr]
        return x

    def subset(self, members: Members, x: Tensor) -> Tensor:
        """The outputs of the chosen members of a stacked network; the others are not computed."""
        for layer in self:
            x = layer.subset(members, x) if isinstance(layer, STACKED) else layer.forward(x)
        return x


Linear = nn.Linear | EnsembleLinear | AgentLinear


def mlp(
    sizes: Sequence[int],
    activation: Activation = "relu",
    *,
    init: Init = "default",
    head_gain: float = 1.0,
    num_members: int | None = None,
    num_agents: int | None = None,
    normed: bool = False,
) -> Stack:
    """Linear layers with an activation between them; a stack of ``num_members`` of them if given, or weights of their
    own for each of ``num_agents``.

    With orthogonal initialisation hidden layers have gain sqrt(2) and the last one ``head_gain``; if ``normed``, the
    inputs of activations are layer-normalised.
    """
    linear: Callable[[int, int], Linear] = nn.Linear
    norm: Callable[[int], nn.Module] = nn.LayerNorm
    if num_members is not None:
        linear, norm = partial(EnsembleLinear, num_members), partial(EnsembleLayerNorm, num_members)
    elif num_agents is not None:
        linear, norm = partial(AgentLinear, num_agents), partial(AgentLayerNorm, num_agents)
    activate = ACTIVATIONS[activation]
    if num_agents is not None and activation == "relu":
        activate = nn.ReLU  # AgentLinear returns views, and the gradient of a view changed in place takes long
    layers: list[nn.Module] = []
    linears: list[Linear] = []
    for num_inputs, num_outputs in pairwise(sizes):
        if linears:  # between two linear layers
            layers += [norm(num_inputs)] * normed + [activate()]
        linears.append(linear(num_inputs, num_outputs))
        layers.append(linears[-1])
    if init == "orthogonal":
        for layer in linears:
            orthogonal_(layer, head_gain if layer is linears[-1] else math.sqrt(2))
    return Stack(*layers)


def orthogonal_(layer: Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights and zero biases, per member of a stack."""
    for weight in layer.weight if isinstance(layer, EnsembleLinear | AgentLinear) else [layer.weight]:
        nn.init.orthogonal_(weight, gain)
    if layer.bias is not None:
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

"""Multi-layer perceptrons with gradients derived by hand: one algorithm, in torch and in NumPy.

The layers are views of the flat storage that an optimiser steps on, and so are their gradients. Small minibatches are
computed in NumPy, whose calls have less overhead; large ones with torch's kernels.
Axes: B minibatch rows, I inputs and K outputs of a layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..nets.layers import Stack
from .acting import NARROW, Array
from .products import are_faster, mm

T = TypeVar("T", Array, Tensor)


class Layer(NamedTuple, Generic[T]):
    """A linear layer, and the tensors that its gradient is written to; a network that is not trained has none."""

    weight: T  # [I, K]
    bias: T  # [K]
    weight_grad: T
    bias_grad: T


def layers_of(stack: Stack, grads: dict[nn.Parameter, Tensor]) -> list[Layer[Tensor]]:
    """The linear layers of a stack, with the tensor that the gradient of each parameter is written to."""
    params = [tuple(layer.parameters()) for layer in stack if isinstance(layer, nn.Linear)]
    return [Layer(w.detach().t(), b.detach(), grads[w].t(), grads[b]) for w, b in params]


class Network(ABC, Generic[T]):
    """Linear layers with relu or tanh between them."""

    def __init__(self, layers: Sequence[Layer[T]], is_tanh: bool = False):
        self.layers: Sequence[Layer[T]] = layers
        self.is_tanh = is_tanh
        self.inputs: list[T] = []
        """The inputs of each layer at the last ``forward``."""

    def forward(self, x: T) -> T:
        """Outputs [B, K] for inputs [B, I]."""
        self.inputs = [x]
        for i in range(len(self.layers)):
            if i:
                self.inputs.append(self.activate(x))
            x = self.linear(i, self.inputs[i])
        return x

    def backward(self, gradient: T) -> None:
        """Write the gradients of all layers, given the loss's gradient [B, K] at the outputs. Overwrites ``inputs``."""
        for i in reversed(range(len(self.layers))):
            self.differentiate(i, gradient)
            if i:
                gradient = self.gradient_below(i, gradient)

    def input_gradient(self, gradient: T) -> T:
        """The loss's gradient at the last inputs [B, I], given that at the last outputs [B, K]."""
        for i in reversed(range(1, len(self.layers))):
            gradient = self.gradient_below(i, gradient)
        return gradient @ self.layers[0].weight.T

    @abstractmethod
    def linear(self, i: int, x: T) -> T:
        """The outputs of layer ``i``."""

    @abstractmethod
    def activate(self, x: T) -> T:
        """The non-linearity, in place."""

    @abstractmethod
    def differentiate(self, i: int, gradient: T) -> None:
        """Write the gradient of layer ``i``, given the loss's gradient [B, K] at its outputs."""

    @abstractmethod
    def gradient_below(self, i: int, gradient: T) -> T:
        """The loss's gradient at the outputs of layer ``i - 1``, given that at the outputs of layer ``i``."""


class NumpyNetwork(Network[Array]):
    """For minibatches that are computed at once: ``differentiate`` overwrites gradients."""

    def __init__(self, layers: Sequence[Layer[Tensor]], is_tanh: bool = False):
        super().__init__([Layer(*(x.numpy() for x in layer)) for layer in layers], is_tanh)

    def linear(self, i: int, x: Array) -> Array:
        y: Array = np.dot(x, self.layers[i].weight)
        y += self.layers[i].bias
        return y

    def activate(self, x: Array) -> Array:
        activated: Array = np.tanh(x, out=x) if self.is_tanh else np.maximum(x, 0, out=x)
        return activated

    def differentiate(self, i: int, gradient: Array) -> None:
        layer = self.layers[i]
        np.dot(gradient.T, self.inputs[i], out=layer.weight_grad.T)
        gradient.sum(0, out=layer.bias_grad)

    def gradient_below(self, i: int, gradient: Array) -> Array:
        below: Array = np.dot(gradient, self.layers[i].weight.T)
        x = self.inputs[i]
        if self.is_tanh:
            x *= x
            below *= np.subtract(1, x, out=x)
        else:
            below *= x > 0
        return below


relu_backward = torch.ops.aten.threshold_backward.grad_input


class TorchNetwork(Network[Tensor]):
    """For large minibatches, and for networks in shared memory."""

    def __init__(
        self,
        layers: Sequence[Layer[Tensor]],
        is_tanh: bool = False,
        adds: bool = False,
        outputs: Sequence[Tensor] = (),
        output_gradients: Sequence[Tensor] = (),
    ):
        """``adds``: gradients are accumulated over the blocks of a minibatch.

        ``outputs`` and ``output_gradients`` are tensors to write those of each layer to, if another process needs them.
        """
        super().__init__(layers, is_tanh)
        self.adds, self.outputs, self.output_gradients = adds, outputs, output_gradients

    def linear(self, i: int, x: Tensor) -> Tensor:
        layer = self.layers[i]
        if self.outputs:
            y = mm(x, layer.weight, out=self.outputs[i])
        elif self.adds and len(layer.bias) < NARROW:  # for many rows the transposed product takes a third of the time
            y = torch.mm(layer.weight.t(), x.t()).t()
        else:
            y = mm(x, layer.weight)
        return y.add_(layer.bias)

    def activate(self, x: Tensor) -> Tensor:
        return x.tanh_() if self.is_tanh else x.relu_()

    def differentiate(self, i: int, gradient: Tensor) -> None:
        layer, x = self.layers[i], self.inputs[i]
        if not self.adds:
            mm(x.t(), gradient, out=layer.weight_grad)
            torch.sum(gradient, 0, out=layer.bias_grad)
            return
        if x.shape[1] < NARROW:
            layer.weight_grad.add_(torch.mm(x.t(), gradient))
        elif are_faster():
            layer.weight_grad.t().add_(mm(gradient.t(), x))
        else:
            layer.weight_grad.t().addmm_(gradient.t(), x)
        layer.bias_grad.add_(gradient.sum(0))

    def gradient_below(self, i: int, gradient: Tensor) -> Tensor:
        out = self.output_gradients[i - 1] if self.output_gradients else None
        below = mm(gradient, self.layers[i].weight.t(), out=out)
        if self.is_tanh:
            below *= self.inputs[i].square_().neg_().add_(1)
            return below
        return relu_backward(below, self.inputs[i], 0, grad_input=below)  # type: ignore[no-any-return]

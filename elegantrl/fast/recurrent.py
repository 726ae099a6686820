"""Recurrent cores unrolled in NumPy, with gradients derived by hand, for the small cores of a CPU.

A step of a core is a dozen kernels on a few rows, and autograd doubles them; here a step is a handful of NumPy calls in
each direction. Everything that does not depend on the order of steps is one call for all of them. ``Core.unroll`` and
``Core.advance`` define what is computed: ``unroll_by_hand`` compares the two.
Axes: T steps, N lanes, H units, K gates times units.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..nets.layers import Array
from ..nets.recurrent import GRU, LSTM, Core, State

log = logging.getLogger(__name__)

MAX_NUMPY_SIZE, MAX_NUMPY_ROWS = 256, 256
"""Units and lanes up to which NumPy is faster than torch."""
TOLERANCE = 1e-3


def unroll_by_hand(module: nn.Module) -> bool:
    """Let the small cores in ``module`` unroll with the code here, if it agrees with theirs; returns whether any do."""
    found = False
    for core in module.modules():
        if not isinstance(core, Core) or not is_small(core):
            continue
        if agrees(core):
            core.unroll, found = partial(unroll, core), True  # type: ignore[method-assign]
        else:
            log.warning("%s is not the core known to fast/recurrent.py: autograd is used", type(core).__name__)
    return found


def is_small(core: Core) -> bool:
    """Whether the core is known here, and small enough to gain."""
    is_known = type(core) in LOOPS and not core.team
    return is_known and core.size <= MAX_NUMPY_SIZE and core.input.weight.device.type == "cpu"


def agrees(core: Core) -> bool:
    """Whether states and gradients are those of the core itself on random steps: they are not if it was edited."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, core.input.in_features, generator=g)
    state = tuple(torch.randn(3, core.size, generator=g) for _ in range(core.num_parts))
    first = torch.rand(4, 3, generator=g) < 0.3
    core = deepcopy(core).requires_grad_()  # a target network needs no gradients
    params, results = list(core.parameters()), []
    for way in (type(core).unroll, unroll):
        states = torch.stack(way(core, x, state, first))
        weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
        results.append([states, *torch.autograd.grad((states * weight).sum(), params)])
    return all(torch.allclose(mine, other, TOLERANCE, TOLERANCE) for mine, other in zip(*results, strict=True))


def unroll(core: Core, x: Tensor, state: State, first: Tensor) -> State:
    """``core.unroll(x, state, first)``."""
    if x.shape[1] > MAX_NUMPY_ROWS:
        return type(core).unroll(core, x, state, first)
    bias = () if core.recurrent.bias is None else (core.recurrent.bias,)
    loop, weights = LOOPS[type(core)], (core.recurrent.weight, *bias)
    states: State = Unroll.apply(loop, first, state, core.input(x), *weights)  # type: ignore[no-untyped-call]
    return states


class Unroll(torch.autograd.Function):
    """From the inputs' share of the gates [T, N, K] to the states after each step [T, N, H]."""

    @staticmethod
    def forward(ctx: Any, loop: type[Loop], first: Tensor, state: State, gates: Tensor, *weights: Tensor) -> State:
        arrays = [x.detach().numpy() for x in (*state, gates, *weights)]
        ctx.loop = loop(first.numpy(), arrays[: len(state)], *arrays[len(state) :])
        ctx.set_materialize_grads(False)
        return tuple(torch.from_numpy(states) for states in ctx.loop.states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        found = ctx.loop.backward(*(None if x is None else x.numpy() for x in gradients))
        return None, None, None, *map(torch.from_numpy, found)


class Loop(ABC):
    """One pass over T steps; what its way back needs is kept."""

    states: tuple[Array, ...]

    def __init__(self, first: Array, state: Sequence[Array], gates: Array, weight: Array, *bias: Array):
        self.weight = weight
        self.transposed = np.ascontiguousarray(weight.T)  # a product with a view takes up to four times as long
        self.begins = [bool(row.any()) for row in first]
        self.keep = (~first).astype(np.float32)[..., None]
        self.before = [np.empty((*gates.shape[:2], weight.shape[1]), np.float32) for _ in state]
        """The states before each step."""

    def begin(self, t: int, state: Sequence[Array]) -> None:
        """Note the state before step ``t``; it is zero where an episode begins."""
        for before, part in zip(self.before, state, strict=True):
            np.multiply(part, self.keep[t], out=before[t]) if self.begins[t] else np.copyto(before[t], part)

    def recurrent_gradient(self, inner: Array) -> Array:
        """The gradient of the recurrent weights, from that of the recurrent products [T, N, K]."""
        rows, h = inner.reshape(-1, inner.shape[-1]), self.before[0]
        gradient: Array = rows.T @ h.reshape(-1, h.shape[-1])
        return gradient

    @abstractmethod
    def backward(self, *gradients: Array | None) -> tuple[Array, ...]:
        """The gradients of gates and weights, from those of the states."""


class LSTMLoop(Loop):
    """``LSTM.advance``."""

    def __init__(self, first: Array, state: Sequence[Array], gates: Array, weight: Array, *bias: Array):
        super().__init__(first, state, gates, weight)
        self.gates = gates.copy()
        self.states = h, c = np.empty_like(self.before[0]), np.empty_like(self.before[1])
        self.tanh_c = np.empty_like(c)
        inner = np.empty_like(self.gates[0])
        for t, (sums, before_h, before_c) in enumerate(zip(self.gates, *self.before, strict=True)):
            self.begin(t, state)
            np.dot(before_h, self.transposed, out=inner)
            lstm_step(sums, inner, before_c, h[t], c[t], self.tanh_c[t])
            state = h[t], c[t]

    def backward(self, *gradients: Array | None) -> tuple[Array, ...]:
        dh_all, dc_all = gradients
        num_steps, num_lanes, _ = self.gates.shape
        by_gate = self.gates.reshape(num_steps, num_lanes, 4, -1)
        enter, forget, output, new = (by_gate[:, :, k] for k in range(4))
        # d(gate sum) is d(c) times a factor, and d(h) times a factor for the output gate.
        factor = np.empty_like(by_gate)
        factor[:, :, 0] = new * enter * (1 - enter)
        factor[:, :, 1] = self.before[1] * forget * (1 - forget)
        factor[:, :, 2] = self.tanh_c * output * (1 - output)
        factor[:, :, 3] = enter * (1 - new * new)
        through_h = output * (1 - self.tanh_c * self.tanh_c)
        dh, dc = np.zeros_like(through_h[0]), np.zeros_like(through_h[0])
        for t in reversed(range(num_steps)):
            if dh_all is not None:
                dh += dh_all[t]
            if dc_all is not None:
                dc += dc_all[t]
            dc += dh * through_h[t]
            step = factor[t]
            step[:, :2] *= dc[:, None]
            step[:, 2] *= dh
            step[:, 3] *= dc
            dh = step.reshape(num_lanes, -1) @ self.weight
            dc *= forget[t]
            if self.begins[t]:
                dh *= self.keep[t]
                dc *= self.keep[t]
        gates = factor.reshape(self.gates.shape)
        return gates, self.recurrent_gradient(gates)


class GRULoop(Loop):
    """``GRU.advance``."""

    def __init__(self, first: Array, state: Sequence[Array], gates: Array, weight: Array, *bias: Array):
        super().__init__(first, state, gates, weight)
        self.gates, self.inner = gates.copy(), np.empty_like(gates)
        (h,) = self.states = (np.empty_like(self.before[0]),)
        for t, (sums, inner, before) in enumerate(zip(self.gates, self.inner, *self.before, strict=True)):
            self.begin(t, state)
            np.dot(before, self.transposed, out=inner)
            inner += bias[0]
            gru_step(sums, inner, before, h[t])
            state = (h[t],)

    def backward(self, *gradients: Array | None) -> tuple[Array, ...]:
        (dh_all,) = gradients
        assert dh_all is not None
        num_steps, num_lanes, _ = self.gates.shape
        by_gate = self.gates.reshape(num_steps, num_lanes, 3, -1)
        reset, update, new = (by_gate[:, :, k] for k in range(3))
        inner_new = self.inner.reshape(by_gate.shape)[:, :, 2]
        through_new = (1 - update) * (1 - new * new)
        # The gradient of each recurrent product is d(h) times a factor.
        factor = np.empty_like(by_gate)
        factor[:, :, 0] = through_new * inner_new * reset * (1 - reset)
        factor[:, :, 1] = (self.before[0] - new) * update * (1 - update)
        factor[:, :, 2] = through_new * reset
        dh = np.zeros_like(through_new[0])
        for t in reversed(range(num_steps)):
            dh += dh_all[t]
            through_new[t] *= dh
            step = factor[t]
            step *= dh[:, None]
            dh *= update[t]
            dh += step.reshape(num_lanes, -1) @ self.weight
            if self.begins[t]:
                dh *= self.keep[t]
        inner = factor.reshape(self.gates.shape)
        found = self.recurrent_gradient(inner), inner.sum((0, 1))
        gates = factor.copy()
        gates[:, :, 2] = through_new
        return gates.reshape(self.gates.shape), *found


LOOPS: dict[type[nn.Module], type[Loop]] = {LSTM: LSTMLoop, GRU: GRULoop}


# ---- one step


def lstm_step(sums: Array, inner: Array, before_c: Array, h: Array, c: Array, tanh_c: Array) -> None:
    """Write the next state to ``h`` and ``c``. The inputs' share of the gates [N, 4H] becomes the gates; ``inner`` is
    the recurrent product."""
    size = h.shape[1]
    sums += inner
    sigmoid_(sums[:, : 3 * size])
    enter, forget, output, new = (sums[:, k * size : (k + 1) * size] for k in range(4))
    np.tanh(new, out=new)
    np.multiply(forget, before_c, out=c)
    c += np.multiply(enter, new, out=h)
    np.tanh(c, out=tanh_c)
    np.multiply(output, tanh_c, out=h)


def gru_step(sums: Array, inner: Array, before: Array, h: Array) -> None:
    """Write the next state to ``h``. The inputs' share of the gates [N, 3H] becomes the gates; ``inner`` is the
    recurrent product with its bias."""
    size = h.shape[1]
    both, new = sums[:, : 2 * size], sums[:, 2 * size :]
    both += inner[:, : 2 * size]
    sigmoid_(both)
    new += np.multiply(sums[:, :size], inner[:, 2 * size :], out=h)
    np.tanh(new, out=new)
    np.subtract(before, new, out=h)
    h *= sums[:, size : 2 * size]
    h += new


def core_in_numpy(core: Core | None, num_rows: int) -> Callable[[Array, State], State] | None:
    """The core as a function of inputs [N, F] and state, with the present storage of its weights; None if there is no
    core, or if torch is faster."""
    if core is None or not is_small(core) or num_rows > MAX_NUMPY_ROWS:
        return None
    layers = (core.input, core.recurrent)
    weights: list[Any] = [
        x.detach().numpy() for layer in layers for x in (layer.weight.t(), layer.bias) if x is not None
    ]
    return partial(_advance_lstm if type(core) is LSTM else _advance_gru, *weights)


def _advance_lstm(weight: Array, bias: Array, recurrent: Array, x: Array, state: State) -> State:
    before_h, before_c = (part.numpy() for part in state)
    sums = np.dot(x, weight)
    sums += bias
    h, c, tanh_c = (np.empty_like(before_h) for _ in range(3))
    lstm_step(sums, np.dot(before_h, recurrent), before_c, h, c, tanh_c)
    return torch.from_numpy(h), torch.from_numpy(c)


def _advance_gru(weight: Array, bias: Array, recurrent: Array, inner_bias: Array, x: Array, state: State) -> State:
    before = state[0].numpy()
    sums, inner = np.dot(x, weight), np.dot(before, recurrent)
    sums += bias
    inner += inner_bias
    h = np.empty_like(before)
    gru_step(sums, inner, before, h)
    return (torch.from_numpy(h),)


def sigmoid_(x: Array) -> None:
    """In place; as a hyperbolic tangent, which NumPy computes in one vectorised call and without overflow."""
    x *= 0.5
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5

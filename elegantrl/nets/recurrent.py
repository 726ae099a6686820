"""Recurrent cores: memory between the features of a policy and its head.

The state of a core is its carry: a tuple of tensors [N, H], zero at the beginning of an episode. The first of them is
the output, which the policy's head and the value network read as features.

Axes: T steps, N lanes, F inputs, H units of the core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .layers import AgentLinear, Init, orthogonal_

MemoryKind = Literal["none", "gru", "lstm"]
State = tuple[Tensor, ...]


class Core(nn.Module, ABC):
    """Features of a step and the state before it give the state after it."""

    num_gates: ClassVar[int]
    num_parts: ClassVar[int]
    """Tensors of the state."""
    recurrent_bias: ClassVar[bool]
    """Whether the recurrent product has a bias of its own; beside that of the inputs most gates need none."""

    def __init__(self, num_inputs: int, size: int, init: Init, team: tuple[int, ...] = (), separate: bool = False):
        """``team`` is the axis G of a team, which inputs and states then have after N; its agents share the weights
        unless they are ``separate``."""
        super().__init__()
        self.size, self.team = size, team
        linear: Any = partial(AgentLinear, team[0]) if separate else nn.Linear
        self.input = linear(num_inputs, self.num_gates * size)
        self.recurrent = linear(size, self.num_gates * size, bias=self.recurrent_bias)
        if init == "orthogonal":
            for layer in (self.input, self.recurrent):
                orthogonal_(layer, 1.0)

    def initial(self, num_lanes: int) -> State:
        """The state at the beginning of an episode."""
        return (self.recurrent.weight.new_zeros(num_lanes, *self.team, self.size),) * self.num_parts

    def forward(self, x: Tensor, state: State) -> State:
        """The state [N, H] after one step with inputs [N, F]."""
        return self.advance(self.input(x), state)

    def unroll(self, x: Tensor, state: State, first: Tensor) -> State:
        """The states [T, N, H] after each of T steps with inputs [T, N, F].

        ``state`` [N, H] is that before the first step, and it begins anew at the steps ``first`` [T, N], with which
        episodes begin.
        """
        gates_TNK = self.input(x)  # one product for all steps: only the recurrent product depends on the step before
        keep_TN1 = (~first).to(x.dtype).reshape(*first.shape, *(1,) * (x.dim() - 2))
        states: list[State] = []
        for gates, keep in zip(gates_TNK.unbind(), keep_TN1.unbind(), strict=True):
            state = self.advance(gates, tuple(part * keep for part in state))
            states.append(state)
        return tuple(torch.stack(parts) for parts in zip(*states, strict=True))

    @abstractmethod
    def advance(self, gates: Tensor, state: State) -> State:
        """The next state, from the inputs' share of the gates [N, num_gates * H]."""


class GRU(Core):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), with the weights of ``torch.nn.GRUCell``."""

    num_gates, num_parts, recurrent_bias = 3, 1, True

    def advance(self, gates: Tensor, state: State) -> State:
        (h,) = state
        sizes = [2 * self.size, self.size]
        outer, outer_new = torch.split(gates, sizes, -1)
        inner, inner_new = torch.split(self.recurrent.forward(h), sizes, -1)
        reset, update = (outer + inner).sigmoid().chunk(2, -1)
        new = torch.addcmul(outer_new, reset, inner_new).tanh()
        return (torch.lerp(new, h, update),)


class LSTM(Core):
    """Long short-term memory (Hochreiter and Schmidhuber 1997). The gates that are sigmoids come first: input, forget,
    output; ``torch.nn.LSTMCell`` has the output gate last."""

    num_gates, num_parts, recurrent_bias = 4, 2, False

    def advance(self, gates: Tensor, state: State) -> State:
        h, c = state
        if gates.dim() == 2:
            gates = torch.addmm(gates, h, self.recurrent.weight.t())  # one kernel
        else:
            gates = gates + self.recurrent(h)
        sums, new = torch.split(gates, [3 * self.size, self.size], -1)
        enter, forget, output = sums.sigmoid().chunk(3, -1)
        c = torch.addcmul(forget * c, enter, new.tanh())
        return output * c.tanh(), c


CORES: dict[str, type[Core]] = {"gru": GRU, "lstm": LSTM}


def first_steps(ended: Tensor) -> Tensor:
    """The steps [T, N] that begin an episode inside a rollout, given those that end one. The state before step 0 comes
    with the rollout and is a new one already if an episode begins there."""
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])

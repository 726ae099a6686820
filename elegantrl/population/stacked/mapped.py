"""Functions of one member as functions of all members: ``vmap`` of the member's own code over stacked tensors.

The code of agents and policies is written for one member. ``functional_call`` runs it with the tensors of a member in
place of the stacked ones, and ``vmap`` makes one batched kernel of each of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ... import tree
from ...agents.base import Agent
from ...agents.gradients import Gradients, LazyMetrics
from ...agents.optim import GradStep
from ...imports import import_fast
from ...tree import Tree

Tensors = tuple[Tensor, ...]


class Method(nn.Module):
    """A method of a module as a module, which is what ``functional_call`` takes."""

    def __init__(self, owner: nn.Module, name: str):
        super().__init__()
        self.owner = owner
        self.function = getattr(type(owner), name)  # of the class: the instance may hold the mapped function

    def forward(self, *args: Tree) -> Tree:
        return self.function(self.owner, *args)


class Mapped:
    """A method of one member, called with the arguments of all members.

    ``owner`` is a module whose tensors are stacked [P, ...]; the method must be a function of its tensors and arguments
    alone. ``axis`` and ``result_axis`` are the places of the axis P in arguments and results. For ``learned``
    parameters the result is (gradient [P, n], metrics) of a method that returns (loss, metrics).
    """

    def __init__(
        self,
        owner: nn.Module,
        name: str,
        axis: int = 0,
        result_axis: int = 0,
        learned: Sequence[nn.Parameter] = (),
    ):
        self.method, self.axis, self.result_axis = Method(owner, name), axis, result_axis
        named = {**dict(self.method.named_parameters()), **dict(self.method.named_buffers())}
        by_tensor = {id(tensor): key for key, tensor in named.items()}
        keys = [by_tensor[id(parameter)] for parameter in learned]
        self.num_learned = len(keys)
        self.keys = [*keys, *(key for key in named if key not in keys)]
        self.tensors = [named[key].detach() for key in self.keys]
        self.programs: dict[tuple[Any, ...], tuple[Callable[..., Tensors], list[Tree]]] = {}

    def __call__(self, *args: Tree, tensors: Sequence[Tensor] | None = None) -> Tree:
        """The results of all members; ``tensors`` replaces the tensors of the owner, in the order of ``keys``."""
        leaves = tree.leaves(args)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        inputs = [*(self.tensors if tensors is None else tensors), *leaves]
        if shapes not in self.programs:
            self.programs[shapes] = self.build(args, inputs)
        program, shape = self.programs[shapes]
        return refill(shape[0], iter(program(*inputs)))

    def build(self, args: Tree, inputs: Sequence[Tensor]) -> tuple[Callable[..., Tensors], list[Tree]]:
        """A function from tensors to tensors for arguments of these shapes, and the structure of its result."""
        structure: list[Tree] = []
        given, num_tensors = structure_of(args), len(self.keys)

        def member(*flat: Tensor) -> Tensors:
            owned = dict(zip(self.keys, flat[:num_tensors], strict=True))
            result = functional_call(self.method, owned, refill(given, iter(flat[num_tensors:])))
            structure[:] = [structure_of(result)]
            return tuple(tree.leaves(result))

        def descent(*flat: Tensor) -> Tensors:
            learned = grad(lambda params, *rest: split_loss(member(*params, *rest)), has_aux=True)
            slopes, metrics = learned(flat[: self.num_learned], *flat[self.num_learned :])
            return torch.cat([slope.reshape(-1) for slope in slopes]), *metrics

        axes = (0,) * num_tensors + (self.axis,) * (len(inputs) - num_tensors)
        mapped = vmap(descent if self.num_learned else member, axes, self.result_axis)
        with torch.no_grad():
            mapped(*inputs)  # fills ``structure``
        fast = import_fast("traced")
        return (fast.traced(mapped, inputs) if fast else mapped), structure


def split_loss(leaves: Tensors) -> tuple[Tensor, Tensors]:
    """The loss, and the metrics, which have no gradient."""
    loss, *metrics = leaves
    return loss, tuple(metrics)


def structure_of(values: Tree) -> Tree:
    """The tree without its tensors."""
    return tree.map_leaves(lambda _: True, values)


def refill(structure: Tree, leaves: Iterator[Tensor]) -> Tree:
    """``structure`` with other leaves."""
    return tree.map_leaves(lambda _: next(leaves), structure)


class StackedGradients(Gradients):
    """The gradients [P, n] of an agent's hot functions for all members."""

    def __init__(self) -> None:
        super().__init__("vmap over members")
        self.functions: dict[str, Mapped] = {}

    def __call__(self, agent: Agent, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        if name not in self.functions:
            self.functions[name] = Mapped(agent, name, learned=step.params)
        gradient, metrics = self.functions[name](*args)
        return gradient, lambda: dict(metrics)

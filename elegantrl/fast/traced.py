"""A function of tensors as the list of its kernels: without autograd, ``vmap`` and modules, which cost more than small
kernels do.

The function is recorded once, for the shapes of its first arguments. Kernels that change nothing are dropped, and
results that are used once are overwritten in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from .acting import NARROW

log = logging.getLogger(__name__)

Function = Callable[..., tuple[Tensor, ...]]
aten = torch.ops.aten
RESHAPES = {aten.view.default, aten.expand.default, aten._unsafe_view.default, aten.reshape.default}
IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.tanh.default: aten.tanh_.default,
}
"""Kernels that have a form which overwrites their first operand; the first two may exchange their operands."""
FRESH = {aten.bmm.default, aten.tanh_backward.default, aten.sub.Tensor, *IN_PLACE}
"""Kernels whose result is memory of its own, not a view."""
FUNCTIONS = (
    "abs", "add", "bmm", "cat", "clamp", "div", "eq", "exp", "gather", "ge", "gt", "le", "maximum", "mean", "minimum",
    "mul", "neg", "permute", "relu", "reshape", "select", "squeeze", "sub", "sum", "tanh", "transpose", "unbind",
    "unsqueeze", "where",
)  # fmt: skip
METHODS = ("add_", "expand", "masked_fill_", "mul_", "tanh_")
DIRECT = {name: getattr(torch, name) for name in FUNCTIONS} | {name: getattr(Tensor, name) for name in METHODS}
"""Kernels by their names: called through ``torch.ops`` each takes some microseconds longer."""
TOLERANCE = 1e-4


def traced(function: Function, inputs: Sequence[Tensor]) -> Function:
    """``function`` for arguments with the shapes of ``inputs``; ``function`` itself if the record gives other results.

    It must be a function of its arguments alone: everything else is part of the record.
    """
    with torch.no_grad():
        module = make_fx(function)(*inputs)
        if inputs[0].device.type == "cpu":
            transpose_narrow_products(module.graph)
        simplify(module.graph)
        used = [i for i, node in enumerate(placeholders(module.graph)) if node.users]
        for node in placeholders(module.graph):
            if not node.users:
                module.graph.erase_node(node)
        for node in module.graph.nodes:
            if isinstance(node.target, OpOverload):
                node.target = DIRECT.get(node.target._schema.name.removeprefix("aten::"), node.target)
        module.graph.set_codegen(CodeGen())
        module.recompile()
        forward = module.forward

        def run(*arguments: Tensor) -> tuple[Tensor, ...]:
            return tuple(forward(*[arguments[i] for i in used]))

        expected, found = function(*inputs), run(*inputs)
        for x, y in zip(expected, found, strict=True):
            if not torch.allclose(x.double(), y.double(), TOLERANCE, TOLERANCE, equal_nan=True):
                log.warning("the recorded kernels of a function do not give its results: it runs unrecorded")
                return function
    return run


def placeholders(graph: Graph) -> list[Node]:
    """The arguments of a graph."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def transpose_narrow_products(graph: Graph) -> None:
    """Compute products with few columns as the transposed product, which takes a CPU a third of the time."""
    for node in list(graph.nodes):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default  # a view needs the memory layout of the recorded product
        if node.target is not aten.bmm.default:
            continue
        (members, rows, columns), dtype = shape_of(node)
        if columns < min(NARROW, rows):
            with graph.inserting_before(node):
                operands = tuple(transposed(graph, x) for x in reversed(node.args))
                product = graph.call_function(aten.bmm.default, operands)
                product.meta["val"] = torch.empty(members, columns, rows, dtype=dtype, device="meta")
                node.replace_all_uses_with(transposed(graph, product))


def transposed(graph: Graph, node: Any) -> Node:
    """A new node for the transposed matrices."""
    result = graph.call_function(aten.transpose.int, (node, 1, 2))
    (members, rows, columns), dtype = shape_of(node)
    result.meta["val"] = torch.empty(members, columns, rows, dtype=dtype, device="meta")
    return result


def simplify(graph: Graph) -> None:
    """Drop kernels without effect, and let others overwrite operands that nothing else reads."""
    for node in list(graph.nodes):
        if (same := same_value(node)) is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    fresh = {node for node in graph.nodes if node.target in FRESH}  # a kernel that overwrites one of these stays here
    for node in list(graph.nodes):
        if node.target is aten.tanh_backward.default and is_free(node.args[0], node, fresh):
            node.target = aten.tanh_backward.grad_input
            node.kwargs = {"grad_input": node.args[0]}
        elif node.target in IN_PLACE and all(isinstance(x, Node) for x in node.args):
            operands = sorted(node.args, key=lambda x: not is_free(x, node, fresh))  # a free one first
            if is_free(operands[0], node, fresh):
                node.args, node.target = tuple(operands), IN_PLACE[node.target]


def same_value(node: Node) -> Any:
    """The node whose value a kernel returns unchanged; None if it computes something."""
    if node.op != "call_function":
        return None
    operand = node.args[0] if node.args else None
    if node.target in RESHAPES and shape_of(node) == shape_of(operand):
        return operand
    if node.target is aten.detach.default or (node.target is aten.mul.Scalar and node.args[1] == 1):
        return operand
    if node.target is aten.transpose.int and isinstance(operand, Node) and operand.target is aten.transpose.int:
        return operand.args[0] if operand.args[1:] == node.args[1:] else None
    return None


def is_free(operand: Any, node: Node, fresh: set[Node]) -> bool:
    """Whether ``node`` may write its result to the memory of ``operand``."""
    return (
        operand in fresh
        and list(operand.users) == [node]
        and node.args.count(operand) == 1
        and shape_of(operand) == shape_of(node)
    )


def shape_of(node: Any) -> tuple[Any, ...]:
    """Shape and type of a node's tensor."""
    value = node.meta["val"] if "val" in node.meta else node.meta["tensor_meta"]
    return tuple(value.shape), value.dtype

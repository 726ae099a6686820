"""Trees of tensors: a leaf, or a tuple, named tuple or dict of trees. None is an absent part.

Observations, the carry of a policy and the outputs that it keeps for learning are trees. A single tensor is the
usual case and costs one type test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any


def map_leaves(f: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree of ``f(leaf, *others)``, called with the leaves at the same place of all trees."""
    if isinstance(tree, Tensor):
        return f(tree, *others)
    if isinstance(tree, tuple):
        return like(tree, [map_leaves(f, *column) for column in zip(tree, *others, strict=True)])
    if isinstance(tree, dict):
        return {key: map_leaves(f, part, *(other[key] for other in others)) for key, part in tree.items()}
    return None if tree is None else f(tree, *others)


def like(tree: tuple[Any, ...], parts: Sequence[Any]) -> Tree:
    """``parts`` as a tuple of the same kind as ``tree``."""
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in a fixed order."""
    return list(named_leaves(tree).values())


def named_leaves(tree: Tree, path: str = "") -> dict[str, Any]:
    """The leaves by path, for example ``seen.picture``; the path of a tree that is a single leaf is empty."""
    if tree is None:
        return {}
    if isinstance(tree, dict):
        parts = list(tree.items())
    elif isinstance(tree, tuple):
        parts = list(zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=True))
    else:
        return {path: tree}
    found: dict[str, Any] = {}
    for name, part in parts:
        found |= named_leaves(part, f"{path}.{name}" if path else name)
    return found


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of the same structure as one tree, whose leaves have a new first axis."""
    return torch.stack(trees) if isinstance(trees[0], Tensor) else _join(torch.stack, trees)  # type: ignore[arg-type]


def cat(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Trees of the same structure as one tree, concatenated along an axis of their leaves."""
    return _join(lambda parts: torch.cat(parts, dim), trees)


def _join(f: Callable[[list[Tensor]], Tensor], trees: Sequence[Tree]) -> Tree:
    return map_leaves(lambda *parts: f(list(parts)), *trees)


def to(tree: Tree, device: torch.device) -> Tree:
    """The tree on a device; copies are asynchronous, and later operations on that device wait for them."""
    return map_leaves(lambda x: x.to(device, non_blocking=True), tree)


def rows(tree: Tree, index: Any) -> Tree:
    """Every leaf indexed along its first axes."""
    return map_leaves(lambda x: x[index], tree)


def split(tree: Tree, size: int) -> list[Tree]:
    """Trees of at most ``size`` rows each."""
    num_rows = len(leaves(tree)[0])
    return [map_leaves(lambda x, i=i: x[i : i + size], tree) for i in range(0, num_rows, size)]


def flatten(tree: Tree, start: int, end: int) -> Tree:
    """Every leaf with the axes from ``start`` to ``end`` as one."""
    return map_leaves(lambda x: x.flatten(start, end), tree)


def where(mask: Tensor, tree: Tree, other: Tree) -> Tree:
    """Rows of ``tree`` where the mask [N] is true, rows of ``other`` elsewhere."""
    return map_leaves(lambda x, y: torch.where(across(mask, x), x, y), tree, other)


def across(x: Tensor, like: Tensor) -> Tensor:
    """``x`` [N] with trailing axes of size 1, so that it broadcasts over the rows of ``like`` [N, ...].

    A single number broadcasts as it is, and from another device too.
    """
    return x if x.dim() in (0, like.dim()) else x.reshape(*x.shape, *(1,) * (like.dim() - x.dim()))


def rows_differ(tree: Tree, other: Tree) -> Tensor:
    """The mask [N] of rows that differ in some leaf between two trees of the same structure."""
    parts = [
        (x != y.to(x.device)).reshape(len(x), -1).any(-1) for x, y in zip(leaves(tree), leaves(other), strict=True)
    ]
    return torch.stack(parts).any(0)

"""The encoder of a whole observation.

A name stands for an encoder per leaf, whose features are joined; ``auto`` selects one for each leaf by its shape and
type. An encoder of the user's reads the whole observation.

Axes: B rows, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ... import tree
from ...errors import ConfigError
from ...imports import find, is_import_path
from ...tree import Tree
from ...types import Leaf
from ..layers import Init, orthogonal_
from .cells import embedding
from .layout import layout_of
from .pictures import NATURE_SIDE, impala_cnn, nature_cnn, small_cnn
from .vectors import flat, mlp

CELLS_SIDE = 28
"""Bytes of shorter pictures are categories and not brightness: MiniGrid shows up to 25 x 25 cells."""
WINDOWS_SIDE = 8
"""Arrays of floats with shorter sides are no pictures."""

ENCODERS: dict[str, Callable[[Leaf], nn.Module | None]] = {
    "nature_cnn": nature_cnn,
    "impala_cnn": impala_cnn,
    "small_cnn": small_cnn,
    "embedding": embedding,
    "mlp": mlp,
    "flat": flat,
}
"""Functions from a leaf to a module that maps it [B, *shape] to features [B, F]; None if the leaf is not for it."""

AUTO = "auto"
ENCODER_ROWS = 256
"""Rows that are encoded at a time where no gradient is needed: the maps of more rows take memory and save no time."""


class Encoder(nn.Module):
    """Features of an observation: leaves [..., *shape] -> [..., F]."""

    def __init__(self, seen: Tree, name: str = AUTO, init: Init = "default"):
        """``seen`` are the leaves of observations; ``name`` is ``auto``, a name in ``ENCODERS`` or an import path."""
        super().__init__()
        self.net = find(name, {}, "encoder")(seen) if is_import_path(name) else LeafEncoders(seen, name, init)
        self.num_features = check_encoder(self.net, seen, name)
        self.ranks = [len(leaf.shape) for leaf in tree.leaves(seen)]
        own = isinstance(self.net, LeafEncoders)
        self.description = self.net.description if own else f"{name}, {self.num_features} features"
        """What was selected, for the output of a run."""

    def forward(self, seen: Tree) -> Tensor:
        first = tree.leaves(seen)[0]
        lead = first.shape[: first.dim() - self.ranks[0]]
        if len(lead) == 1:
            return self.net(seen)  # type: ignore[no-any-return]
        ranks = iter(self.ranks)
        rows = tree.map_leaves(lambda x: x.reshape(math.prod(lead), *x.shape[x.dim() - next(ranks) :]), seen)
        return self.net(rows).view(*lead, self.num_features)  # type: ignore[no-any-return]


class LeafEncoders(nn.Module):
    """An encoder of the library for every leaf, whose features are joined: leaves [B, *shape] -> [B, F]."""

    def __init__(self, seen: Tree, name: str, init: Init):
        super().__init__()
        named = tree.named_leaves(seen)
        has_picture = any(leaf.is_picture for leaf in named.values())
        selected = [select(name, leaf, has_picture) for leaf in named.values()]
        if name not in (AUTO, *(leaf_name for leaf_name, _ in selected)):
            found = ", ".join(f"{path} {leaf}".strip() for path, leaf in named.items())
            raise ConfigError(f"agent.encoder={name} fits no part of the observation ({found}); use auto")
        self.parts = nn.ModuleList(module for _, module in selected)
        if init == "orthogonal":
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    orthogonal_(layer, math.sqrt(2))
        with torch.no_grad():
            sizes = [part(leaf.zeros(1)).shape[1] for part, leaf in zip(self.parts, named.values(), strict=True)]
        texts = [
            f"{leaf_name} for {path or 'the observation'} {leaf.shape} {leaf.dtype}, {size} features"
            for (leaf_name, _), (path, leaf), size in zip(selected, named.items(), sizes, strict=True)
        ]
        self.description = "; ".join(texts)

    def forward(self, seen: Tree) -> Tensor:
        features = [part(x) for part, x in zip(self.parts, tree.leaves(seen), strict=True)]
        return torch.cat(features, -1) if len(features) > 1 else features[0]


def select(name: str, leaf: Leaf, has_picture: bool) -> tuple[str, nn.Module]:
    """The named encoder if it is one for this leaf, else the one that ``auto`` selects; with its name."""
    module = None if name == AUTO else find(name, ENCODERS, "encoder")(leaf)
    if module is None:
        name = auto(leaf, has_picture)
        module = ENCODERS[name](leaf)
    assert module is not None
    return name, module


def auto(leaf: Leaf, has_picture: bool) -> str:
    """The name of the encoder for a leaf of an observation with or without a picture."""
    layout = layout_of(leaf)
    if layout is not None and (leaf.is_picture or layout.shorter_side >= WINDOWS_SIDE):
        if leaf.dtype == "uint8" and max(layout.height, layout.width) < CELLS_SIDE:
            return "embedding"
        return "nature_cnn" if layout.shorter_side >= NATURE_SIDE else "small_cnn"
    if not has_picture:
        return "flat"  # the linear layers after the encoder are enough
    return "embedding" if leaf.one_hot else "mlp"  # raw numbers would weigh little beside hundreds of features


def check_encoder(module: Any, seen: Tree, name: str) -> int:
    """The number of features of an encoder, or an error that says what it does wrong."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the encoder {name!r} gave a {type(module).__name__}, expected a torch.nn.Module")
    for part, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.dtype != torch.float32:
            raise ConfigError(
                f"the encoder {name!r} has the {tensor.dtype} tensor {part!r}, but weights are sent as float32; use"
                f" layers without one, such as LayerNorm in place of BatchNorm"
            )
    with torch.no_grad():
        features = module(tree.map_leaves(lambda leaf: leaf.zeros(2), seen))
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(f"the encoder {name!r} gave {found} for 2 observations, expected features of shape (2, F)")
    return int(features.shape[1])

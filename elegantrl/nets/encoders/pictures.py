"""Convolutional networks for pictures.

Axes: B rows, D channels of all frames, H height, W width, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...types import Leaf
from ..layers import Stack
from .layout import Layout, layout_of
from .vectors import as_floats

NATURE_SIDE = 36
"""The shortest side of a picture for which the three layers of the Nature network have an output."""


def nature_cnn(leaf: Leaf) -> nn.Module | None:
    """Three layers (Mnih et al. 2015) with 512 features, for pictures of at least 36 x 36."""
    layout = layout_of(leaf)
    if layout is None or layout.shorter_side < NATURE_SIDE:
        return None
    maps = [*conv(layout.depth, 32, 8, 4), *conv(32, 64, 4, 2), *conv(64, 64, 3)]
    return with_head(Pixels(layout), maps, layout, 512)


def impala_cnn(leaf: Leaf) -> nn.Module | None:
    """Fifteen layers, most of them residual (arXiv:1802.01561), with 256 features, for pictures of any size."""
    layout = layout_of(leaf)
    if layout is None:
        return None
    maps: list[nn.Module] = []
    for depth, width in ((layout.depth, 16), (16, 32), (32, 32)):
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        maps += [nn.Conv2d(depth, width, 3, padding=1), pool, Residual(width), Residual(width)]
    return with_head(Pixels(layout), [*maps, nn.ReLU()], layout, 256)


def small_cnn(leaf: Leaf) -> nn.Module | None:
    """Two layers with 128 features, for small pictures such as those of MinAtar."""
    layout = layout_of(leaf)
    return None if layout is None else with_head(Pixels(layout), small_maps(layout, layout.depth), layout, 128)


def small_maps(layout: Layout, depth: int) -> list[nn.Module]:
    """The layers of ``small_cnn`` for ``depth`` channels."""
    stride = 1 if layout.shorter_side < 16 else 2
    padding = int(layout.shorter_side < 5)  # two windows of 3 need a side of 5
    return [*conv(depth, 16, 3, stride, padding), *conv(16, 32, 3, stride, padding)]


class Pixels(nn.Module):
    """Pictures as convolutions take them: [B, *shape of the leaf] -> floats [B, D, H, W].

    In memory the channels are the innermost axis, with which a convolution and its gradient take two thirds of the time
    on a CPU.
    """

    def __init__(self, layout: Layout):
        super().__init__()
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        return as_floats(self.layout.channels_innermost(x)).permute(0, 3, 1, 2)


class FlattenMaps(nn.Module):
    """The output of convolutions in a row: [B, D, H, W] -> [B, H * W * D], a view because channels are innermost."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class Residual(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(self.first(x.relu()).relu_())
        return x + change


def conv(num_inputs: int, num_outputs: int, size: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    """A convolution and its non-linearity."""
    return [nn.Conv2d(num_inputs, num_outputs, size, stride, padding), nn.ReLU(inplace=True)]


def with_head(first: nn.Module, maps: list[nn.Module], layout: Layout, num_features: int) -> Stack:
    """Layers in a row: ``first`` gives [B, channels, H, W], ``maps`` are convolutions, a linear layer ends them."""
    depth = next(layer.in_channels for layer in maps if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        num_outputs = Stack(*maps)(torch.zeros(1, depth, layout.height, layout.width)).numel()
    head = [FlattenMaps(), nn.Linear(num_outputs, num_features), nn.ReLU(inplace=True)]
    return Stack(first, *maps, *head)

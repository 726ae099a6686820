"""Encoders of categories: grids of cells such as those of MiniGrid, and single choices.

Axes: B rows, H height, W width, D channels of all frames, E length of an embedding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...types import Leaf
from .layout import Layout, layout_of
from .pictures import small_maps, with_head

NUM_VALUES = 256
"""Values of a byte."""
CELL_WIDTH = 32
CHOICE_FEATURES = 32


class Cells(nn.Module):
    """A vector for every cell of a grid: [B, *shape of the leaf] -> [B, E, H, W].

    Each channel of a cell is a category. It has a table with a vector for every value, and the vector of a cell is the
    sum over its channels.
    """

    def __init__(self, layout: Layout):
        super().__init__()
        self.layout = layout
        self.tables = nn.EmbeddingBag(NUM_VALUES * layout.depth, CELL_WIDTH, mode="sum")
        nn.init.normal_(self.tables.weight, std=1 / math.sqrt(layout.depth))  # the sum over channels has variance 1

    def forward(self, x: Tensor) -> Tensor:
        value_BHWD = self.layout.channels_innermost(x).int()
        first_row_D = torch.arange(0, self.tables.num_embeddings, NUM_VALUES, dtype=torch.int32, device=x.device)
        cell_E: Tensor = self.tables((value_BHWD + first_row_D).flatten(0, 2))
        return cell_E.view(*value_BHWD.shape[:3], CELL_WIDTH).permute(0, 3, 1, 2)


def embedding(leaf: Leaf) -> nn.Module | None:
    """A learned vector for every value of a category: 32 features of a one-hot choice; 128 of a grid of bytes, with
    two convolutional layers."""
    if leaf.one_hot:  # its product with a matrix picks a row
        return nn.Linear(leaf.shape[0], CHOICE_FEATURES, bias=False)
    layout = layout_of(leaf)
    if layout is None or not leaf.is_picture:
        return None
    return with_head(Cells(layout), small_maps(layout, CELL_WIDTH), layout, 128)

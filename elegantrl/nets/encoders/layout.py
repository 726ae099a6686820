"""The axes of pictures and grids.

Axes: B rows, K frames of a stack, H height, W width, C channels, D channels of all frames.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...types import Leaf


class Layout(NamedTuple):
    """Sizes of the axes [(K,) H, W, C] or [(K,) C, H, W] of a picture."""

    frames: int
    channels: int
    height: int
    width: int
    channels_last: bool

    @property
    def depth(self) -> int:
        """D: the channels of all frames, which a convolution sees at once."""
        return self.frames * self.channels

    @property
    def shorter_side(self) -> int:
        return min(self.height, self.width)

    def channels_innermost(self, x: Tensor) -> Tensor:
        """Pictures [B, *shape of the leaf] as [B, H, W, D]."""
        if self.channels_last:
            x_BKHWC = x.reshape(-1, self.frames, self.height, self.width, self.channels)
            return x_BKHWC.permute(0, 2, 3, 1, 4).reshape(-1, self.height, self.width, self.depth)
        x_BDHW = x.reshape(-1, self.depth, self.height, self.width)
        return x_BDHW.permute(0, 2, 3, 1).contiguous()


def layout_of(leaf: Leaf) -> Layout | None:
    """The layout of a picture; None for a leaf that is none.

    Of three axes the channels are the shorter of the first and the last, and the last if both are equal. Of four axes
    the first are frames. A matrix of floats is no picture: its columns may mean anything.
    """
    shape, frames = leaf.shape, 1
    if leaf.stack > 1 or len(shape) == 4:
        frames, shape = shape[0], shape[1:]
    if len(shape) == 2 and leaf.is_picture:
        return Layout(frames, 1, *shape, channels_last=False)
    if len(shape) != 3 or leaf.dtype == "int64":
        return None
    first, middle, last = shape
    return Layout(frames, last, first, middle, True) if last <= first else Layout(frames, first, middle, last, False)

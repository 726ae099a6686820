"""Pictures of worlds in a plane, drawn with NumPy alone.

Axes: H rows and W columns of a picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Color = tuple[float, float, float]
"""Red, green and blue between 0 and 1."""
Array = NDArray[np.floating[Any]]
Part = tuple[slice, slice]
"""Rows and columns of a picture."""

WHITE: Color = (1.0, 1.0, 1.0)
PAPER: Color = (0.965, 0.972, 0.98)
LIGHT: Color = (0.86, 0.885, 0.91)
GREY: Color = (0.45, 0.45, 0.45)
INK: Color = (0.16, 0.2, 0.25)
BLUE: Color = (0.25, 0.4, 0.85)
RED: Color = (0.85, 0.3, 0.3)
GREEN: Color = (0.25, 0.7, 0.3)
ORANGE: Color = (0.93, 0.55, 0.2)


class Canvas:
    """The part [-half_width, half_width] x [-half_height, half_height] of a plane as pixels; y points upwards."""

    def __init__(self, half_width: float, half_height: float | None = None, width: int = 320) -> None:
        """``width`` is that of the picture in pixels; without ``half_height`` it is a square."""
        half_height = half_width if half_height is None else half_height
        self._pixel = 2 * half_width / width
        height = 2 * round(half_height / self._pixel)  # even, as videos need it
        self._x_W = (np.arange(width) + 0.5) * self._pixel - half_width
        self._y_H1 = half_height - (np.arange(height)[:, None] + 0.5) * self._pixel
        self._picture = np.tile(np.array(PAPER), (height, width, 1))

    def disc(self, x: float, y: float, radius: float, color: Color, opacity: float = 1.0) -> None:
        part, x_w, y_h = self._around(x - radius, x + radius, y - radius, y + radius)
        self._paint(part, radius - np.hypot(x_w - x, y_h - y), color, opacity)

    def ring(self, x: float, y: float, radius: float, color: Color) -> None:
        """A circle two pixels wide."""
        part, x_w, y_h = self._around(x - radius, x + radius, y - radius, y + radius)
        self._paint(part, self._pixel - np.abs(radius - np.hypot(x_w - x, y_h - y)), color)

    def bar(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """A rectangle whose left edge begins at ``x`` and whose middle is at height ``y``."""
        part, x_w, y_h = self._around(x, x + width, y - height / 2, y + height / 2)
        beside = width / 2 - np.abs(x_w - x - width / 2)
        self._paint(part, np.minimum(beside, height / 2 - np.abs(y_h - y)), color)

    def rod(self, start: tuple[float, float], end: tuple[float, float], width: float, color: Color) -> None:
        """A line with round ends."""
        (x0, y0), (x1, y1), half = start, end, width / 2
        part, x_w, y_h = self._around(min(x0, x1) - half, max(x0, x1) + half, min(y0, y1) - half, max(y0, y1) + half)
        along_x, along_y = x1 - x0, y1 - y0
        share = ((x_w - x0) * along_x + (y_h - y0) * along_y) / max(along_x**2 + along_y**2, 1e-12)
        share = np.clip(share, 0, 1)
        self._paint(part, half - np.hypot(x_w - x0 - share * along_x, y_h - y0 - share * along_y), color)

    def _around(self, left: float, right: float, bottom: float, top: float) -> tuple[Part, Array, Array]:
        """The pixels of a rectangle and two around it, and their places x [W] and y [H, 1]: the rest of a picture need
        not be computed."""
        margin = np.array([-2, 2])
        columns = np.searchsorted(self._x_W, (left, right)) + margin
        rows = np.searchsorted(-self._y_H1[:, 0], (-top, -bottom)) + margin
        part = slice(*rows.clip(0)), slice(*columns.clip(0))
        return part, self._x_W[part[1]], self._y_H1[part[0]]

    def _paint(self, part: Part, inside: Array, color: Color, opacity: float = 1.0) -> None:
        """Mix ``color`` in; ``inside`` [H, W] is the distance of a pixel to the edge of a shape."""
        share = opacity * np.clip(inside / self._pixel + 0.5, 0, 1)[..., None]
        self._picture[part] += share * (np.array(color) - self._picture[part])

    def pixels(self) -> NDArray[np.uint8]:
        """The picture [H, W, 3]."""
        return np.round(self._picture * 255).astype(np.uint8)

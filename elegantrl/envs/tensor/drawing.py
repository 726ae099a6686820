"""Pictures of worlds in a plane, drawn with NumPy alone.

Axes: H rows and W columns of a picture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Color = tuple[float, float, float]
"""Red, green and blue between 0 and 1."""

WHITE: Color = (1.0, 1.0, 1.0)
GREY: Color = (0.45, 0.45, 0.45)
BLUE: Color = (0.25, 0.4, 0.85)
RED: Color = (0.85, 0.3, 0.3)
GREEN: Color = (0.25, 0.7, 0.3)


class Canvas:
    """The square [-half_width, half_width]^2 of a plane as ``size`` x ``size`` pixels; y points upwards."""

    def __init__(self, half_width: float, size: int = 320, background: Color = WHITE) -> None:
        self._pixel = 2 * half_width / size
        center = (np.arange(size) + 0.5) * self._pixel - half_width
        self._x_W, self._y_H1 = center, -center[:, None]
        self._picture = np.tile(np.array(background), (size, size, 1))

    def disc(self, x: float, y: float, radius: float, color: Color, opacity: float = 1.0) -> None:
        distance = np.hypot(self._x_W - x, self._y_H1 - y)
        self._paint((radius - distance) / self._pixel, color, opacity)

    def ring(self, x: float, y: float, radius: float, color: Color) -> None:
        """A circle two pixels wide."""
        distance = np.hypot(self._x_W - x, self._y_H1 - y)
        self._paint(1 - np.abs(radius - distance) / self._pixel, color, 1.0)

    def bar(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """A rectangle whose left edge begins at ``x`` and whose middle is at height ``y``."""
        beside = width / 2 - np.abs(self._x_W - x - width / 2)
        above = height / 2 - np.abs(self._y_H1 - y)
        self._paint(np.minimum(beside, above) / self._pixel, color, 1.0)

    def _paint(self, inside: NDArray[np.float64], color: Color, opacity: float) -> None:
        """Mix ``color`` in; ``inside`` [H, W] is the distance of a pixel to the edge of a shape, in pixels."""
        share = opacity * np.clip(inside + 0.5, 0, 1)[..., None]
        self._picture += share * (np.array(color) - self._picture)

    def pixels(self) -> NDArray[np.uint8]:
        """The picture [H, W, 3]."""
        return np.round(self._picture * 255).astype(np.uint8)

"""Encoders: they turn observations of any kind into one vector of features, which networks of linear layers read.

Axes: F features.
"""

from .base import ENCODER_ROWS, ENCODERS, Encoder

__all__ = ["ENCODERS", "ENCODER_ROWS", "Encoder"]

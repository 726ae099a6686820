"""Encoders: they turn observations of any kind into one vector of features, which networks of linear layers read.

Axes: F features.
"""

from .base import ENCODERS, Encoder

__all__ = ["ENCODERS", "Encoder"]

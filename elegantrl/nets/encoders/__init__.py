"""Encoders: they turn observations of any kind into one vector of features, which networks of linear layers read.

Every leaf of an observation has an encoder of its own; their features are joined.
Axes: F features.
"""

from .base import ENCODERS, Encoder

__all__ = ["ENCODERS", "Encoder"]

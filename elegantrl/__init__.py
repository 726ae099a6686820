"""Massively parallel deep reinforcement learning: an environment in, a trained agent out."""

__version__ = "0.1.0"

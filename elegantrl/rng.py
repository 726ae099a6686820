"""A random stream per (run, role, slot) instead of global generators.

A stream depends on its key only, so results do not depend on the process of a role or on the order in which roles
start.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive_seed(run_seed: int, *key: str | int) -> int:
    """A 63-bit seed for the stream named by ``key``; different keys give unrelated streams."""
    text = "/".join([str(run_seed), *map(str, key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def torch_stream(run_seed: int, *key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator on ``device`` for the stream named by ``key``."""
    return torch.Generator(device=device).manual_seed(derive_seed(run_seed, *key))


def numpy_stream(run_seed: int, *key: str | int) -> np.random.Generator:
    """A NumPy generator for the stream named by ``key``."""
    return np.random.default_rng(derive_seed(run_seed, *key))

"""Global random generators, lent to environments that draw from them and given back as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..rng import derive_seed


class OwnStreams:
    """What the generators of Python, NumPy and torch are during the calls of one environment.

    A seed determines them; each ``lent`` block continues where the last one ended.
    """

    def __init__(self, device: torch.device):
        self._gpus = [device] if device.type == "cuda" else []
        self._states: tuple[Any, ...] | None = None

    @contextmanager
    def lent(self, seed: int | None = None) -> Iterator[None]:
        """The global generators are those of the environment within the block; ``seed`` begins anew."""
        before = np.random.get_state(), random.getstate()
        with torch.random.fork_rng(devices=self._gpus):
            self._put(seed)
            try:
                yield
                gpu_states = [torch.cuda.get_rng_state(gpu) for gpu in self._gpus]
                self._states = torch.get_rng_state(), np.random.get_state(), random.getstate(), gpu_states
            finally:
                np.random.set_state(before[0])
                random.setstate(before[1])

    def _put(self, seed: int | None) -> None:
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(derive_seed(seed, "numpy") & 0x7FFF_FFFF)
            random.seed(derive_seed(seed, "python"))
        elif self._states is not None:
            torch.set_rng_state(self._states[0])
            np.random.set_state(self._states[1])
            random.setstate(self._states[2])
            for gpu, state in zip(self._gpus, self._states[3], strict=True):
                torch.cuda.set_rng_state(state, gpu)

"""The environment contract: N environments behind ``reset`` and ``step``, tensors in and out.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from ..types import EnvSpec, State, Step

Exactness = Literal["exact", "replayed", "episode"]
"""How much of an open episode survives a resume: its whole state, a verified replay of it, or nothing."""


class VecEnv(ABC):
    """N environments that step together and reset by themselves.

    Every tensor lives on ``device``. An episode that ends is reset within the same step: ``Step.obs`` is then the first
    observation of the next episode and ``Step.next_obs`` the last one of the old. Seeds go in through ``reset``; an
    implementation draws from streams of its own and never from a global generator.
    """

    spec: EnvSpec
    device: torch.device

    @abstractmethod
    def reset(self, seed: int) -> Tensor:
        """Start all lanes anew, deterministically; return the first observations [N, O]."""

    @abstractmethod
    def step(self, action: Tensor) -> Step:
        """Take one action per lane: int64 [N] for discrete spaces, float32 [N, A] for continuous ones.

        Continuous actions mean [-1, 1]; values outside are clipped, since a Gaussian policy may exceed them.
        """

    @abstractmethod
    def state_dict(self) -> State:
        """Everything needed to continue; ``load_state_dict`` on a fresh instance must reproduce the next steps."""

    @abstractmethod
    def load_state_dict(self, state: State) -> Tensor:
        """Continue from ``state``; return the observations [N, O] the policy sees now."""

    @property
    def exactness(self) -> Exactness:
        """What ``load_state_dict`` restores of an open episode."""
        return "exact"

    def close(self) -> None:  # noqa: B027  an environment without resources has nothing to release
        """Release what the environments hold."""

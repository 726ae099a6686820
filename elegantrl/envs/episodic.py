"""Environments whose state cannot be saved: a resume starts new episodes."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ..rng import derive_seed
from ..tree import Tree
from ..types import State
from .vec_env import Exactness, VecEnv


class EpisodicVecEnv(VecEnv):
    """A ``VecEnv`` that can only be started from a seed; ``step`` counts ``_num_steps``."""

    _stream: ClassVar[str]
    """The name of the random stream from which the first episodes of a run come."""
    _seed = 0
    _num_steps = 0

    @abstractmethod
    def _start(self, seed: int) -> Tree:
        """Start all lanes; return the first observations [N, ...]."""

    def reset(self, seed: int) -> Tree:
        self._seed, self._num_steps = seed, 0
        return self._start(derive_seed(seed, self._stream))

    @property
    def exactness(self) -> Exactness:
        return "episode"

    def state_dict(self) -> State:
        return {"seed": self._seed, "num_steps": self._num_steps}

    def load_state_dict(self, state: State) -> Tree:
        self._seed, self._num_steps = state["seed"], state["num_steps"]
        # Another seed than at the start: otherwise every resume would repeat the same first episodes.
        return self._start(derive_seed(self._seed, "resume", self._num_steps))

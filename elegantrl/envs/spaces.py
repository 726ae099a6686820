"""Gymnasium spaces as flat tensors: how an observation becomes [N, O] floats and an action becomes what the env takes.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from ..errors import SpecError
from ..types import ActionSpec

Array = NDArray[Any]


class ObsCodec:
    """Turns observations of one space into float32 [N, O]: arrays are flattened, choices become one-hot."""

    def __init__(self, name: str, space: Any):
        self.name = name
        self.raw_dtype = space.dtype
        if isinstance(space, spaces.Discrete):
            self.shape: tuple[int, ...] = ()
            self.dim = int(space.n)
            self._dtype: Any = np.int64
            self._start = int(space.start)
            self._one_hot = np.eye(self.dim, dtype=np.float32)
            self.encode: Callable[[Array], Array] = self._encode_choice
        elif isinstance(space, spaces.Box | spaces.MultiBinary):
            self.shape = tuple(space.shape)
            self.dim = math.prod(self.shape)
            self._dtype = np.float32
            self.encode = self._encode_array
        else:
            raise SpecError(
                f"environment {name!r}: observation_space is {_kind(space)}, expected Box, Discrete or MultiBinary;"
                f" flatten it with gymnasium.wrappers.FlattenObservation"
            )

    def empty(self, num_envs: int) -> Array:
        """A fresh frame to be filled with one raw observation per lane."""
        return np.empty((num_envs, *self.shape), dtype=self._dtype)

    def frame(self, batch: Any) -> Array:
        """A fresh frame from a batch of raw observations."""
        return np.array(batch, dtype=self._dtype)

    def check(self, obs: Any, source: str) -> Array:
        """``obs`` as an array, or an error that names what is wrong with it."""
        array = np.asarray(obs)
        if array.shape != self.shape:
            raise SpecError(
                f"environment {self.name!r}: {source} returned an observation of shape {array.shape},"
                f" expected {self.shape} as in its observation_space"
            )
        if array.dtype.kind not in "fiub":
            raise SpecError(
                f"environment {self.name!r}: {source} returned an observation of dtype {array.dtype}, expected numbers"
            )
        return array

    def check_first(self, obs: Any) -> Array:
        """The same for an observation of ``reset``, which must be finite too."""
        array = self.check(obs, "reset")
        if not np.isfinite(array).all():
            raise SpecError(
                f"environment {self.name!r}: reset returned an observation with NaN or infinity,"
                f" expected finite numbers"
            )
        return array

    def _encode_array(self, frame: Array) -> Array:
        return frame if frame.ndim == 2 else frame.reshape(len(frame), self.dim)

    def _encode_choice(self, frame: Array) -> Array:
        one_hot: Array = self._one_hot[frame - self._start]
        return one_hot


class ActionCodec:
    """Turns action tensors into what a space takes.

    A bounded number is rescaled from [-1, 1] to its bounds and clipped; an unbounded one passes unchanged.
    """

    def __init__(self, name: str, space: Any, num_envs: int):
        self.name = name
        self.num_envs = num_envs
        if isinstance(space, spaces.Discrete):
            self.spec = ActionSpec(choices=(int(space.n),))
            self._start = int(space.start)
            self.dtype: np.dtype[Any] = np.dtype(np.int64)
            self._shape: tuple[int, ...] = (num_envs,)
            self.decode: Callable[[Tensor], Array] = self._decode_choice
        elif isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
            self.spec = ActionSpec(dim=math.prod(space.shape))
            self.dtype = space.dtype
            self._shape = (num_envs, self.spec.dim)
            self._batch_shape = (num_envs, *space.shape)
            self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
            bounded = np.isfinite(self._low) & np.isfinite(self._high)
            # Halves come first: the bounds may be as large as the type allows.
            half_low = np.where(bounded, self._low, -1) / 2
            half_high = np.where(bounded, self._high, 1) / 2
            self._half = (half_high - half_low).astype(self.dtype)
            self._center = (half_high + half_low).astype(self.dtype)
            self._rescales = bool((self._half != 1).any() or self._center.any())
            self.decode = self._decode_numbers
        else:
            raise SpecError(
                f"environment {name!r}: action_space is {_kind(space)}, expected Discrete or a Box of floats"
            )

    def _checked(self, action: Tensor) -> Array:
        if action.shape != self._shape:
            raise SpecError(
                f"environment {self.name!r}: action has shape {tuple(action.shape)}, expected {self._shape}"
            )
        return action.numpy(force=True)

    def _decode_choice(self, action: Tensor) -> Array:
        return self._checked(action) + self._start if self._start else self._checked(action)

    def _decode_numbers(self, action: Tensor) -> Array:
        moved = self._checked(action)
        if self._rescales:
            moved = moved * self._half + self._center
        # Clipping after rescaling keeps a value inside the bounds even where rescaling rounds up.
        clipped: Array = np.minimum(np.maximum(moved, self._low), self._high)
        return clipped.reshape(self._batch_shape)


def to_device(device: torch.device) -> Callable[[Array], Tensor]:
    """A function that makes a tensor on ``device`` of a NumPy array that nobody writes to again."""
    if device.type == "cpu":
        return torch.from_numpy
    return lambda array: torch.from_numpy(array).to(device)


def _kind(space: Any) -> str:
    dtype = f" of {space.dtype}" if isinstance(space, spaces.Box) else ""
    return type(space).__name__ + dtype

"""Converts between Gymnasium spaces and the contract: observations to trees of tensors, action tensors to actions.

Axes: N environment lanes, O observation, A action, C choices.
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
from ..tree import Tree
from ..types import ActionSpec, Dtype, Leaf, Obs
from .masks import MASK_KEY, flat_mask

Array = NDArray[Any]
Frame = list[Array]
"""Raw observations of all lanes: an array [N, ...] for each leaf of a space."""


PICTURES: dict[Any, Dtype] = {np.uint8: "uint8", np.bool_: "bool"}
"""Types of numbers that a picture keeps."""


class LeafCodec:
    """One space that is no container.

    Arrays keep their shape; uint8 and bool with two axes or more, which are pictures, keep their type, and all other
    numbers become float32. A choice becomes one-hot.
    """

    def __init__(self, name: str, space: Any, path: str = ""):
        self.name, self.path = name, path
        self.raw_dtype: Any = space.dtype
        """Of arrays that need no check but that of their size; None if the values are to be checked too."""
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.frame_dtype: Any = np.float32
        self.encode: Callable[[Array], Array] = lambda frame: frame
        if isinstance(space, spaces.Box | spaces.MultiBinary):
            self.low: Any = None
            if len(self.shape) > 1 and space.dtype is not None and space.dtype.type in PICTURES:
                self.frame_dtype = space.dtype.type
            if not self.shape:
                self.encode = lambda frame: frame[:, None]
            self.leaf = Leaf(self.shape or (1,), PICTURES.get(self.frame_dtype, "float32"))
        elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).astype(np.int64)
            self.low, self.high = np.asarray(space.start), np.asarray(space.start) + sizes.reshape(self.shape)
            self.first = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # index of the first output of each choice
            self.frame_dtype, self.raw_dtype = np.int64, None
            self.encode = self._one_hot
            self.leaf = Leaf((int(sizes.sum()),), one_hot=True)
        else:
            raise SpecError(
                f"environment {name!r}: observation_space{path} is {_kind(space)}, expected Box, Discrete,"
                f" MultiDiscrete or MultiBinary, or a Dict or Tuple of these; leave it out with a wrapper"
            )
        self.size = math.prod(self.shape)

    def check(self, obs: Any, source: str) -> Array:
        """``obs`` as an array, or an error that names what is wrong with it."""
        array = np.asarray(obs)
        if array.shape != self.shape:
            raise self._misfit(source, f"of shape {array.shape}, expected {self.shape} as in its observation_space")
        if array.dtype.kind not in "fiub":
            raise self._misfit(source, f"of dtype {array.dtype}, expected numbers")
        if self.low is not None and not ((array >= self.low) & (array < self.high)).all():
            raise self._misfit(source, f"{obs!r}, expected a choice from {self.low} to below {self.high}")
        dtype = self.frame_dtype
        if self.leaf.is_picture and array.dtype != dtype and not (array.astype(dtype) == array).all():
            raise self._misfit(
                source, f"of dtype {array.dtype}, expected {self.leaf.dtype} as in its observation_space"
            )
        return array

    def check_first(self, obs: Any) -> Array:
        """The same for an observation of ``reset``, which must be finite too."""
        array = self.check(obs, "reset")
        if not np.isfinite(array).all():
            raise self._misfit("reset", "with NaN or infinity, expected finite numbers")
        return array

    def _misfit(self, source: str, problem: str) -> SpecError:
        return SpecError(f"environment {self.name!r}: {source} returned an observation{self.path} {problem}")

    def _one_hot(self, frame: Array) -> Array:
        columns = (frame - self.low).reshape(len(frame), -1) + self.first
        one_hot = np.zeros((len(frame), *self.leaf.shape), dtype=np.float32)
        one_hot[np.arange(len(frame))[:, None], columns] = 1
        return one_hot


class ObsCodec:
    """Observations of one space, which may be a tree, with or without a mask of the actions that may be taken."""

    def __init__(self, name: str, space: Any, mask_size: int | None = None, path: str = ""):
        """``mask_size``: return ``Obs`` with masks of that many actions; None: leave masks out. ``path`` is a part of
        error messages."""
        self.name, self._path = name, path
        self._mask_size = mask_size
        self.leaves: list[LeafCodec] = []
        self._has_mask_key = isinstance(space, spaces.Dict) and MASK_KEY in space.spaces
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
        parts.pop(MASK_KEY, None)
        # {"observation": ..., "action_mask": ...} is an observation with a mask, not a tree with one part.
        self.only_key = next(iter(parts)) if self._has_mask_key and len(parts) == 1 else None
        seen = self._add(parts[self.only_key] if self.only_key else space, path)
        self.is_plain = len(self.leaves) == 1 and isinstance(seen, Leaf) and mask_size is None and not self.only_key
        mask: Any = None if mask_size is None else Leaf((mask_size,), "bool")
        self.spec: Tree = seen if mask is None else Obs(seen, mask)

    @property
    def gives_mask(self) -> bool:
        """Whether the observation itself holds the mask."""
        return self._has_mask_key

    def _add(self, space: Any, path: str) -> Tree:
        if isinstance(space, spaces.Dict):
            keys = [key for key in space.spaces if path != self._path or key != MASK_KEY]
            return {key: self._add(space.spaces[key], f"{path}[{key!r}]") for key in keys}
        if isinstance(space, spaces.Tuple):
            return tuple(self._add(part, f"{path}[{i}]") for i, part in enumerate(space.spaces))
        self.leaves.append(LeafCodec(self.name, space, path))
        return self.leaves[-1].leaf

    def empty(self, num_envs: int) -> Frame:
        """A fresh frame to be filled with one raw observation per lane."""
        frame = [np.empty((num_envs, *leaf.shape), dtype=leaf.frame_dtype) for leaf in self.leaves]
        if self._mask_size is not None:
            frame.append(np.ones((num_envs, self._mask_size), dtype=np.bool_))
        return frame

    def put(self, frame: Frame, lane: int, obs: Any, mask: Any = None, source: str = "step") -> None:
        """Write one observation into ``frame``; ``mask`` is used unless the observation holds one."""
        if self.is_plain and source == "step":
            frame[0][lane] = self.leaves[0].check(obs, source)  # NumPy alone would broadcast one that is too small
            return
        if self._has_mask_key and isinstance(obs, dict):
            mask = obs.get(MASK_KEY)
            obs = obs.get(self.only_key) if self.only_key else obs
        parts = list(self._parts(self.spec.seen if self._mask_size is not None else self.spec, obs, source, self._path))
        for leaf, rows, part in zip(self.leaves, frame, parts, strict=False):
            rows[lane] = leaf.check_first(part) if source == "reset" else leaf.check(part, source)
        if self._mask_size is not None:
            frame[-1][lane] = True if mask is None else flat_mask(self.name, mask, self._mask_size, source)

    def _parts(self, spec: Tree, obs: Any, source: str, path: str) -> list[Any]:
        """The leaves of a raw observation in the order of the space."""
        if isinstance(spec, Leaf):
            return [obs]
        named = isinstance(spec, dict)
        fits = isinstance(obs, dict) and obs.keys() >= spec.keys() if named else _is_sequence(obs, len(spec))
        if not fits:
            expected = f"a dict with {sorted(spec)}" if named else f"a tuple of {len(spec)}"
            raise SpecError(
                f"environment {self.name!r}: {source} returned an observation{path} that is {_shown(obs)}, expected"
                f" {expected} as in its observation_space"
            )
        keys = list(spec) if named else list(range(len(spec)))
        return [part for key in keys for part in self._parts(spec[key], obs[key], source, f"{path}[{key!r}]")]

    def batch(self, batch: Any, num_envs: int, masks: Any = None) -> Frame:
        """A fresh frame from a batch of raw observations, as vector environments return them."""
        if self._has_mask_key:
            masks = batch[MASK_KEY]
            batch = batch[self.only_key] if self.only_key else batch
        spec = self.spec.seen if self._mask_size is not None else self.spec
        parts = self._parts(spec, batch, "step", "")
        frame = [np.array(part, dtype=leaf.frame_dtype) for leaf, part in zip(self.leaves, parts, strict=True)]
        for leaf, rows in zip(self.leaves, frame, strict=True):
            if rows.shape != (num_envs, *leaf.shape):
                raise leaf._misfit("step", f"of shape {rows.shape[1:]}, expected {leaf.shape}")
        if self._mask_size is not None:
            allowed = np.ones((num_envs, self._mask_size), dtype=np.bool_)
            frame.append(allowed if masks is None else np.array(masks, dtype=np.bool_).reshape(allowed.shape))
        return frame

    def encode(self, frame: Frame, tensor: Callable[[Array], Tensor]) -> Tree:
        """The observation that a policy gets: a tree of ``spec`` with N as the first axis."""
        if self.is_plain:
            return tensor(self.leaves[0].encode(frame[0]))
        tensors = iter([tensor(leaf.encode(rows)) for leaf, rows in zip(self.leaves, frame, strict=False)])
        if self._mask_size is None:
            return _fill(self.spec, tensors)
        return Obs(_fill(self.spec.seen, tensors), tensor(frame[-1]))


def _fill(spec: Tree, tensors: Any) -> Tree:
    if isinstance(spec, dict):
        return {key: _fill(part, tensors) for key, part in spec.items()}
    return tuple(_fill(part, tensors) for part in spec) if isinstance(spec, tuple) else next(tensors)


def _is_sequence(value: Any, length: int) -> bool:
    return isinstance(value, tuple | list) and len(value) == length


def _shown(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.60}"


class ActionCodec:
    """Turns action tensors into actions of a space.

    A bounded number is rescaled from [-1, 1] to its bounds and clipped; an unbounded one passes unchanged.
    """

    def __init__(self, name: str, space: Any, num_envs: int, path: str = ""):
        """``path`` is a part of error messages."""
        self.name = name
        self.num_envs = num_envs
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            self.spec = ActionSpec(choices=_choices(space))
            self.start: Any = np.asarray(getattr(space, "start", 0))
            self.dtype: np.dtype[Any] = np.dtype(space.dtype or np.int64)
            self.decode: Callable[[Tensor], Array] = self._decode_choices
            if isinstance(space, spaces.Discrete) and not self.start and self.dtype == np.int64:
                self.decode = self._checked
        elif isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
            self.spec = ActionSpec(dim=math.prod(space.shape))
            self.dtype = space.dtype
            self.low, self.high = space.low.reshape(-1), space.high.reshape(-1)
            bounded = np.isfinite(self.low) & np.isfinite(self.high)
            # Halved before the subtraction: the bounds may be as large as the type allows.
            half_low = np.where(bounded, self.low, -1) / 2
            half_high = np.where(bounded, self.high, 1) / 2
            self.half = (half_high - half_low).astype(self.dtype)
            self.center = (half_high + half_low).astype(self.dtype)
            self._rescales = bool((self.half != 1).any() or self.center.any())
            self.decode = self._decode_numbers
        else:
            raise SpecError(
                f"environment {name!r}: action_space{path} is {_kind(space)}, expected Discrete, MultiDiscrete,"
                f" MultiBinary or a Box of floats"
            )
        self._shape = (num_envs, *self.spec.leaf.shape)
        self._batch_shape = (num_envs, *space.shape)

    def _checked(self, action: Tensor) -> Array:
        if action.shape != self._shape:
            raise SpecError(
                f"environment {self.name!r}: action has shape {tuple(action.shape)}, expected {self._shape}"
            )
        return action.numpy(force=True)

    def _decode_choices(self, action: Tensor) -> Array:
        chosen = self._checked(action).reshape(self._batch_shape) + self.start
        return chosen.astype(self.dtype, copy=False)

    def _decode_numbers(self, action: Tensor) -> Array:
        numbers = self._checked(action)
        if self._rescales:
            numbers = numbers * self.half + self.center
        # Clipping after rescaling keeps a value inside the bounds even where rescaling rounds up.
        clipped: Array = np.minimum(np.maximum(numbers, self.low), self.high)
        return clipped.reshape(self._batch_shape)


def _choices(space: Any) -> tuple[int, ...]:
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape)
    return tuple(int(n) for n in np.ravel(space.nvec))


def to_device(device: torch.device) -> Callable[[Array], Tensor]:
    """A function from a NumPy array, which is not written to afterwards, to a tensor on ``device``."""
    if device.type == "cpu":
        return torch.from_numpy
    return lambda array: torch.from_numpy(array).to(device)


def _kind(space: Any) -> str:
    dtype = f" of {space.dtype}" if isinstance(space, spaces.Box) else ""
    return type(space).__name__ + dtype

"""Converts raw observations to the inputs of a policy, and its outputs to actions for ``env.step``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..envs.masks import MASK_KEY, empty_lanes
from ..envs.spaces import ActionCodec, ObsCodec
from ..errors import SpecError
from ..tree import Tree, leaves, map_leaves, named_leaves
from ..types import Leaf, Obs, mask_of, seen_part


class Given(NamedTuple):
    """What a caller gave, as the input of a policy."""

    batch: Tree  # [N, ...]
    num: int  # N
    single: bool  # whether the observations came without N
    agents: tuple[str, ...] = ()
    """The agents of a team that were given."""


class Units:
    """The units of one environment, or of one agent of a team."""

    def __init__(self, observation_space: Any, action_space: Any, obs: Tree, name: str):
        """``observation_space`` is None if a policy gets observations unchanged, as the leaves ``obs``."""
        self.name, self.obs = name, map_leaves(lambda leaf: leaf.frame, obs)
        self.observation_space, self.action_space = observation_space, action_space
        self.codec = None if self.observation_space is None else ObsCodec(name, self.observation_space)
        self.action = ActionCodec(name, self.action_space, 1).spec  # an error if actions of this kind are unknown

    def encode(self, obs: Any, mask: Any = None) -> Given:
        """The policy's observations. ``mask`` names the actions that may be taken, unless the observation holds
        them."""
        mask = self.mask_for(obs, mask, mask_of(self.obs) is not None)
        seen, num, single = self.encode_seen(seen_part(obs))
        return Given(seen if mask is None else Obs(seen, self.encode_mask(mask, num)), num, single)

    def mask_for(self, obs: Any, mask: Any, is_needed: bool, needs_one: bool = True) -> Any:
        """The mask of an observation, given or held by it; None for a policy without masks.

        ``needs_one``: whether a policy with masks cannot act without one.
        """
        if mask is None:
            mask = self._held_mask(obs)
        if not is_needed:
            if mask is not None and not self._gives_mask:
                raise SpecError(f"the policy for {self.name} was trained without action masks; leave the mask out")
            return None
        if mask is None and needs_one:
            raise SpecError(
                f"the policy for {self.name} takes only actions that a mask allows; pass the mask of this observation,"
                f" such as mask=env.action_masks() or mask=info[{MASK_KEY!r}]"
            )
        return mask

    @property
    def num_numbers(self) -> int:
        """The numbers of an encoded observation."""
        if self.codec is None:
            return sum(math.prod(leaf.shape) for leaf in leaves(seen_part(self.obs)))
        return sum(math.prod(codec.leaf.shape) for codec in self.codec.leaves)

    @property
    def _gives_mask(self) -> bool:
        """Whether observations hold masks as one of their parts."""
        return self.codec is not None and self.codec.gives_mask

    def _held_mask(self, obs: Any) -> Any:
        return obs.get(MASK_KEY) if self._gives_mask and isinstance(obs, dict) else mask_of(obs)

    def encode_mask(self, mask: Any, num: int) -> Tensor:
        array, size = np.asarray(mask), self.action.num_outputs
        if array.dtype.kind not in "biu" or array.size != num * size:
            raise SpecError(
                f"the mask for {self.name} is of {array.dtype} and shape {array.shape}, expected {size} flags for each"
                f" of {num} observations"
            )
        allowed = array.reshape(num, size).astype(np.bool_)
        if empty_lanes(allowed, self.action):
            raise SpecError(f"the mask for {self.name} forbids every action; allow at least one")
        return torch.from_numpy(allowed)

    def encode_seen(self, obs: Any) -> tuple[Tree, int, bool]:
        if self.codec is None:
            return self._encode_tree(obs)
        kinds = "iu" if isinstance(self.observation_space, spaces.Discrete) else "fiub"
        if not self.codec.is_plain:  # a tree is always a single observation
            frame = self.codec.empty(1)
            self.codec.put(frame, 0, obs)
            return self.codec.encode(frame, torch.from_numpy), 1, True
        (leaf,) = self.codec.leaves
        batch, single = self._checked(obs, leaf.shape, kinds)
        space = self.observation_space
        if isinstance(space, spaces.Discrete) and ((batch < space.start) | (batch >= space.start + space.n)).any():
            raise SpecError(
                f"the observation for {self.name} is {obs}, expected numbers from {space.start} to"
                f" {space.start + space.n - 1}"
            )
        return torch.as_tensor(leaf.encode(np.array(batch, dtype=leaf.frame_dtype))), len(batch), single

    def _encode_tree(self, obs: Any) -> tuple[Tree, int, bool]:
        """Observations of a tensor environment, with the leaves that the policy was built for."""
        expected = self.obs if isinstance(obs, Obs) else seen_part(self.obs)
        found: list[tuple[int, bool]] = []

        def encode(leaf: Leaf, part: Any) -> Tensor:
            batch, single = self._checked(part, leaf.shape, "fiub")
            found.append((len(batch), single))
            return torch.as_tensor(batch, dtype=leaf.torch_dtype)

        try:
            tree = map_leaves(encode, expected, obs)
        except (LookupError, TypeError, ValueError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError(
                f"the observation for {self.name} has not the parts {sorted(named_leaves(expected))}"
            ) from None
        if len(set(found)) != 1:
            raise SpecError(f"the parts of the observation for {self.name} are not equally many")
        return tree, *found[0]

    def _checked(self, obs: Any, shape: tuple[int, ...], kinds: str) -> tuple[Any, bool]:
        """``obs`` as an array [N, *shape] of finite numbers, and whether it came without N."""
        try:
            array = np.asarray(obs)
        except ValueError as error:  # rows of different lengths
            raise SpecError(f"the observation for {self.name} is no array: {error}") from None
        if array.shape != shape and array.shape[1:] != shape:
            raise SpecError(
                f"the observation for {self.name} has the shape {array.shape}, expected {shape}, or {('N', *shape)} for"
                f" N of them"
            )
        if array.dtype.kind not in kinds:
            expected = "whole numbers" if kinds == "iu" else "numbers"
            raise SpecError(f"the observation for {self.name} has the dtype {array.dtype}, expected {expected}")
        if not np.isfinite(array).all():
            raise SpecError(f"the observation for {self.name} has NaN or infinity, expected finite numbers")
        return (array[None], True) if array.shape == shape else (array, False)

    def decode(self, action: Tensor, given: Given) -> Any:
        """Actions [N, ...] in the bounds, the shape and the type of the environment's action space."""
        taken = ActionCodec(self.name, self.action_space, len(action)).decode(action)
        typed = np.asarray(taken).astype(self.action_space.dtype, copy=False)
        return typed[0] if given.single else typed

    def next_carry(self, before: Tree, after: Tree, given: Given) -> Tree:
        """The carry for the next step, from that before and that after this one."""
        return after

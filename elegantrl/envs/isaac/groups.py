"""Observations in groups and actions, as simulators have them, behind the contract; tensors stay on their device.

Axes: N environment lanes, S state, A action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ... import tree
from ...errors import SpecError
from ...tree import Tree
from ...types import Leaf, Obs
from ..spaces import ActionCodec

POLICY_GROUPS = ("policy", "actor", "obs")
CRITIC_GROUPS = ("critic", "states")
"""Names under which simulators give what the policy sees and what only the value network may see."""
KEPT_DTYPES = (torch.uint8, torch.bool)
"""Types of numbers that a picture keeps; all others become float32."""


class ObsGroups:
    """Turns groups of observations, which are buffers that a simulator writes to again, into copies of their own.

    The group of the policy is ``Obs.seen``, one tensor or a dict of them. The terms of the critic's group become one
    vector, ``Obs.state``, which only training sees. Other groups are left out.
    """

    def __init__(
        self,
        name: str,
        sample: Any,
        num_envs: int,
        device: torch.device,
        policy_group: str | None = None,
        critic_group: str | None = None,
    ):
        """``sample``: observations as the simulator gives them. A group of None is found by its usual name; an empty
        name leaves the critic's group out."""
        self.name, self.num_envs, self.device = name, num_envs, device
        groups = as_groups(sample)
        self._policy = policy_group or next((key for key in POLICY_GROUPS if key in groups), "")
        if critic_group is None:
            critic_group = next((key for key in CRITIC_GROUPS if key in groups), "")
        self._critic = critic_group if critic_group != self._policy else ""
        for argument, group in (("policy_group", self._policy), ("critic_group", self._critic)):
            if group not in groups and (group or argument == "policy_group"):
                raise SpecError(
                    f"environment {name!r}: its observations have the groups {sorted(groups)} and not"
                    f" {group or ' or '.join(POLICY_GROUPS)!r}; name one of them by {argument}"
                )
        self.seen: Tree = tree.map_leaves(_leaf, as_tree(groups[self._policy]))
        self.spec: Tree = self.seen
        if self._critic:
            terms = tree.named_leaves(as_tree(groups[self._critic]))
            self._terms = list(terms)  # later observations may have them in another order
            width = sum(term.shape.numel() // num_envs for term in terms.values())
            self.spec = Obs(self.seen, state=Leaf((width,)))  # type: ignore[arg-type]

    @property
    def space(self) -> spaces.Space[Any]:
        """The Gymnasium space of what the policy sees."""
        return _space(self.seen)

    def read(self, obs: Any, known: Tree = None) -> Tree:
        """A copy of the observations [N, ...]; the critic's group may be missing if ``known`` has its state."""
        groups = as_groups(obs)
        given = as_tree(groups.get(self._policy))
        self._require(tree.named_leaves(given), tree.named_leaves(self.seen), self._policy)
        seen = tree.map_leaves(self._copy, self.seen, given)
        if not self._critic:
            return seen
        if self._critic not in groups:
            return Obs(seen, state=known.state)
        terms = tree.named_leaves(as_tree(groups[self._critic]))
        self._require(terms, self._terms, self._critic)
        parts = [terms[name].reshape(self.num_envs, -1) for name in self._terms]
        state = torch.cat([x.to(self.device, torch.float32) for x in parts], -1)  # a new tensor
        return Obs(seen, state=self._checked(self.spec.state, state))

    def _require(self, given: Iterable[str], expected: Iterable[str], group: str) -> None:
        if set(given) != set(expected):
            raise SpecError(
                f"environment {self.name!r}: an observation has the parts {sorted(given)} of the group {group!r},"
                f" expected {sorted(expected)} as at its first reset"
            )

    def _copy(self, leaf: Leaf, x: Tensor) -> Tensor:
        return self._checked(leaf, x.unsqueeze(1) if x.dim() == 1 else x).to(self.device, leaf.torch_dtype, copy=True)

    def _checked(self, leaf: Leaf, x: Tensor) -> Tensor:
        if x.shape != (self.num_envs, *leaf.shape):
            raise SpecError(
                f"environment {self.name!r}: an observation has shape {tuple(x.shape)}, expected"
                f" {(self.num_envs, *leaf.shape)} as at its first reset"
            )
        return x


def as_groups(obs: Any) -> dict[str, Any]:
    """Groups of observations by name, from a dict or a TensorDict; a single tensor is the group of the policy."""
    return {POLICY_GROUPS[0]: obs} if isinstance(obs, Tensor) else dict(obs.items())


def as_tree(group: Any) -> Tree:
    """The terms of a group as a tree: one tensor, or dicts of them."""
    if group is None or isinstance(group, Tensor):
        return group
    return {key: as_tree(part) for key, part in group.items()}


def _leaf(x: Tensor) -> Leaf:
    shape = tuple(x.shape[1:]) or (1,)
    is_picture = len(shape) > 1 and x.dtype in KEPT_DTYPES
    return Leaf(shape, "float32" if not is_picture else "uint8" if x.dtype == torch.uint8 else "bool")


def _space(seen: Tree) -> spaces.Space[Any]:
    if isinstance(seen, dict):
        return spaces.Dict([(key, _space(part)) for key, part in seen.items()])
    if seen.dtype == "uint8":
        return spaces.Box(0, 255, seen.shape, np.uint8)
    return spaces.MultiBinary(seen.shape) if seen.dtype == "bool" else spaces.Box(-np.inf, np.inf, seen.shape)


class TensorActions:
    """Turns action tensors into those of a simulator, on its device.

    A bounded number is rescaled from [-1, 1] to its bounds and clipped; an unbounded one passes unchanged. An index
    becomes a column, as Isaac Lab takes it.
    """

    def __init__(self, name: str, space: Any, num_envs: int, device: torch.device, path: str = ""):
        self.space = as_space(space)
        self._codec = ActionCodec(name, self.space, num_envs, path)
        self.spec = self._codec.spec
        self._name, self._shape = name, (num_envs, *self.spec.leaf.shape)
        if self.spec.choices:
            first = np.broadcast_to(self._codec.start, self.space.shape or ()).reshape(-1)
            self._first = torch.tensor(first.astype(np.int64), device=device)
        else:
            parts = self._codec.half, self._codec.center, self._codec.low, self._codec.high
            self._half, self._center, self._low, self._high = (
                torch.tensor(part, dtype=torch.float32, device=device) for part in parts
            )

    def decode(self, action: Tensor) -> Tensor:
        """New tensors [N, A], or options [N, C]."""
        if action.shape != self._shape:
            raise SpecError(
                f"environment {self._name!r}: action has shape {tuple(action.shape)}, expected {self._shape}"
            )
        if self.spec.choices:
            return action.reshape(len(action), -1) + self._first
        return torch.addcmul(self._center, action, self._half).clamp(self._low, self._high)


def as_space(space: Any) -> spaces.Space[Any]:
    """A Gymnasium space like ``space``, which may be one of the older ``gym`` or of mjlab."""
    if isinstance(space, spaces.Space):
        return space
    if isinstance(parts := getattr(space, "spaces", None), Mapping):
        return spaces.Dict([(key, as_space(part)) for key, part in parts.items()])
    if hasattr(space, "nvec"):
        return spaces.MultiDiscrete(space.nvec)
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if not hasattr(space, "low") or not isinstance(getattr(space, "shape", None), Sequence):
        raise SpecError(f"a space of kind {type(space).__name__} is not known; use one of gymnasium.spaces")
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return spaces.Box(low, high, tuple(space.shape), np.float32)

"""The tensors that enter and leave a policy in the units of its environment, each under a name.

A name is a path in the value that a program gives or gets: ``obs.camera`` is the part ``camera`` of an observation,
``mask.agent_1`` the mask of an agent, ``state.memory.0`` the first part of what is kept between steps.

Axes: N rows, A options of all choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..envs.masks import MASK_KEY
from ..envs.spaces import LeafCodec
from ..errors import ConfigError
from ..store.units import Units
from ..tree import Tree
from ..types import Leaf, seen_part

Array = NDArray[Any]
Path = tuple[str | int, ...]
FIRST = "first"
"""The name of the flags [N] of rows that begin an episode."""

LARGEST = 1e18
"""The largest number of a request, up to its sign: far beyond it the sums of a network overflow."""


@dataclass(frozen=True, eq=False)
class Port:
    """One tensor [N, *shape]."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    """NumPy's name of its type."""
    low: Array | None = None
    """The smallest values, of choices and of actions that are numbers; None: all of the type."""
    high: Array | None = None
    needed: bool = True
    """Whether a request to a server must have it. A file needs all of its inputs."""

    @cached_property
    def name(self) -> str:
        return ".".join(map(str, self.path))

    @cached_property
    def largest(self) -> float:
        """The largest number that a request may have here, of a type with fractions."""
        return min(float(np.finfo(self.dtype).max), LARGEST)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "shape": ["N", *self.shape], "dtype": self.dtype}


def obs_ports(units: Units, path: Path) -> list[Port]:
    """A port for each leaf of the observations of an environment or of an agent."""
    if units.codec is None:
        return [Port(part, leaf.shape, leaf.dtype) for part, leaf in _paths(seen_part(units.obs), path)]
    inner = (*path, units.codec.only_key) if units.codec.only_key is not None else path
    parts = [part for part, _ in _paths(units.codec.spec, inner)]
    return [_leaf_port(part, leaf) for part, leaf in zip(parts, units.codec.leaves, strict=True)]


def _leaf_port(path: Path, leaf: LeafCodec) -> Port:
    if leaf.low is None:
        return Port(path, leaf.shape, np.dtype(leaf.raw_dtype).name)
    low, high = np.broadcast_to(leaf.low, leaf.shape), np.broadcast_to(leaf.high - 1, leaf.shape)
    return Port(path, leaf.shape, "int64", low, high)


def mask_port(units: Units, obs_path: Path, mask_path: Path, needed: bool) -> Port:
    """The port of a mask: a part of the observation if the environment gives it there, otherwise one of its own."""
    if units.codec is not None and units.codec.gives_mask:
        space = units.observation_space.spaces[MASK_KEY]
        low, high = np.zeros(space.shape, int), np.ones(space.shape, int)
        return Port((*obs_path, MASK_KEY), tuple(space.shape), np.dtype(space.dtype).name, low, high)
    return Port(mask_path, (units.action.num_outputs,), "bool", needed=needed)


def action_port(space: Any, path: Path) -> Port:
    dtype = np.dtype(space.dtype).name
    if isinstance(space, spaces.Box):
        return Port(path, space.shape, dtype, space.low, space.high)
    if isinstance(space, spaces.MultiBinary):
        return Port(path, space.shape, dtype, np.zeros(space.shape, int), np.ones(space.shape, int))
    low = np.broadcast_to(space.start, space.shape)
    size = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return Port(path, space.shape, dtype, low, low + np.asarray(size) - 1)


def _paths(spec: Tree, path: Path) -> list[tuple[Path, Leaf]]:
    """The leaves in a fixed order, with their paths in a raw value, whose tuples have no names."""
    if isinstance(spec, Leaf):
        return [(path, spec)]
    parts = spec.items() if isinstance(spec, dict) else enumerate(spec)
    return [found for key, part in parts for found in _paths(part, (*path, key))]


def check_names(ports: list[Port]) -> None:
    """Refuse parts of an observation whose paths have the same name, as of {"a.b": x, "a": {"b": y}}."""
    names = [port.name for port in ports]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two parts of the observation have the name {name!r:.80}; rename one of them")


def nest(values: Mapping[Path, Any]) -> Any:
    """Values under paths as one value: a step of a path is a key of a dict, or a place in a tuple."""
    if () in values:
        return values[()]
    parts: dict[Any, dict[Path, Any]] = {}
    for (key, *rest), value in values.items():
        parts.setdefault(key, {})[tuple(rest)] = value
    nested = {key: nest(part) for key, part in parts.items()}
    return tuple(nested.values()) if all(isinstance(key, int) for key in nested) else nested

"""Spaces of the agents of a team as one contract: vectors of the same length, and one action of the widest agent.

Axes: N environment lanes, G agents, O observation, S state, A action numbers or options, C choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .. import tree
from ..errors import SpecError
from ..tree import Tree
from ..types import ActionSpec, Leaf, Obs
from .masks import flat_mask
from .spaces import ActionCodec, Array, Frame, LeafCodec, ObsCodec


class TeamObs(NamedTuple):
    """What the agents of one lane see, as their environment gives it."""

    seen: Sequence[Any]  # G observations, None for an agent that has ended
    masks: Sequence[Any] | None = None  # G masks of their options, None for an agent that may take all
    state: Any = None


class TeamActions:
    """Turns action tensors of a team into actions of its agents."""

    def __init__(self, name: str, agents: dict[str, Any], num_envs: int):
        """``agents``: the action space of each agent."""
        self.name, self.agents = name, tuple(agents)
        self._spaces = list(agents.values())
        self._codecs = [ActionCodec(name, space, num_envs, f" of agent {agent!r}") for agent, space in agents.items()]
        specs = [codec.spec for codec in self._codecs]
        self._refuse_both_kinds(specs)
        if specs[0].choices:
            # An agent with fewer choices than others has one option in each of the others.
            widest = zip_longest(*(spec.choices for spec in specs), fillvalue=1)
            self.spec = ActionSpec(choices=tuple(map(max, widest)))
            self.dtype: np.dtype[Any] = np.dtype(np.int64)
        else:
            dims = tuple(spec.dim for spec in specs)
            self.spec = ActionSpec(dim=max(dims), sizes=dims if len(set(dims)) > 1 else ())
            self.dtype = np.result_type(*(codec.dtype for codec in self._codecs))
        self._shape = (num_envs, len(agents), *self.spec.leaf.shape)
        self.is_uneven = any(spec.choices != self.spec.choices for spec in specs)
        """Whether some agents have fewer options than others."""

    def _refuse_both_kinds(self, specs: list[ActionSpec]) -> None:
        chooses = [agent for agent, spec in zip(self.agents, specs, strict=True) if spec.choices]
        moves = [agent for agent, spec in zip(self.agents, specs, strict=True) if not spec.choices]
        if chooses and moves:
            raise SpecError(
                f"environment {self.name!r}: the actions of agent {chooses[0]!r} are choices and those of agent"
                f" {moves[0]!r} are numbers, but the agents of a team have actions of one kind; give all of them"
                f" Discrete or all of them Box spaces"
            )

    def decode(self, action: Tensor) -> Array:
        """Options [N, G] or [N, G, C] as they are; numbers [N, G, A] in the units of each agent."""
        if action.shape != self._shape:
            raise SpecError(
                f"environment {self.name!r}: action has shape {tuple(action.shape)}, expected {self._shape}"
            )
        if self.spec.choices:
            return action.numpy(force=True)
        numbers = np.zeros(self._shape, dtype=self.dtype)
        for i, codec in enumerate(self._codecs):
            own = codec.decode(action[:, i, : codec.spec.dim])
            numbers[:, i, : codec.spec.dim] = own.reshape(len(own), -1)
        return numbers

    def split(self, row: Array, active: Sequence[bool]) -> list[Any]:
        """The action of each agent in its own space, from a row of ``decode``; None for agents that have ended."""
        return [self._own(i, row[i]) if active[i] else None for i in range(len(self.agents))]

    def _own(self, i: int, taken: Array) -> Any:
        space, choices = self._spaces[i], self._codecs[i].spec.choices
        if not choices:
            own = taken[: self._codecs[i].spec.dim]
        else:
            own = np.asarray(taken).reshape(-1)[: len(choices)]
            if (own >= choices).any() or (own < 0).any():
                raise ValueError(
                    f"agent {self.agents[i]!r} was given option {own.tolist()} of {list(choices)}; a policy takes only"
                    f" options that Obs.mask allows"
                )
            own = own + np.reshape(getattr(space, "start", 0), -1)
        return own.reshape(space.shape).astype(space.dtype, copy=False)[()]

    def own_options(self, i: int) -> Array:
        """The places of the options of an agent among those of the team."""
        first = np.cumsum([0, *self.spec.choices[:-1]])
        choices = self._codecs[i].spec.choices
        return np.concatenate([start + np.arange(n) for start, n in zip(first, choices, strict=False)])

    def fixed_options(self, i: int) -> Array:
        """The only option of each choice that an agent has not."""
        first = np.cumsum([0, *self.spec.choices[:-1]])
        return np.asarray(first[len(self._codecs[i].spec.choices) :])


class Parts(NamedTuple):
    """The fields of ``Obs`` as arrays."""

    seen: Any  # [N, G, O]
    mask: Any = None  # [N, G, A]
    state: Any = None  # [N, S]
    active: Any = None  # [N, G]


class TeamObsCodec:
    """Observations of a team: vectors [G, O], those of agents that see less with zeros at the end."""

    def __init__(
        self,
        name: str,
        agents: dict[str, Any],
        actions: TeamActions,
        *,
        has_mask: bool,
        state_size: int | None,
        has_active: bool,
    ):
        """``agents``: the observation space of each agent."""
        self.name, self._actions, self._has_mask = name, actions, has_mask
        self._codecs = [ObsCodec(name, space, path=f" of agent {agent!r}") for agent, space in agents.items()]
        self._sizes = [sum(int(np.prod(leaf.leaf.shape)) for leaf in codec.leaves) for codec in self._codecs]
        self._options = [actions.own_options(i) for i in range(len(agents))] if has_mask else []
        self._fixed = [actions.fixed_options(i) for i in range(len(agents))] if has_mask else []
        num_agents = len(agents)
        seen = Leaf((num_agents, max(self._sizes)))
        parts: list[Any] = [
            Leaf((num_agents, actions.spec.num_outputs), "bool") if has_mask else None,
            None if state_size is None else Leaf((state_size,)),
            Leaf((num_agents,), "bool") if has_active else None,
        ]
        self.spec: Tree = Obs(seen, *parts) if any(parts) else seen

    def empty(self, num_envs: int) -> Frame:
        """A fresh frame: an array for each leaf of ``spec``."""
        return [np.zeros((num_envs, *leaf.shape), np.dtype(leaf.dtype)) for leaf in tree.leaves(self.spec)]

    def parts(self, frame: Frame) -> Parts:
        """The arrays of ``frame`` by what they hold."""
        arrays = iter(frame)
        held = self.spec if isinstance(self.spec, Obs) else (self.spec,)
        return Parts(*(None if leaf is None else next(arrays) for leaf in held))

    def encode(self, frame: Frame, tensor: Callable[[Array], Tensor]) -> Tree:
        """The observation that policies get: a tree of ``spec`` with N as the first axis."""
        if not isinstance(self.spec, Obs):
            return tensor(frame[0])
        return Obs(*(None if rows is None else tensor(rows) for rows in self.parts(frame)))

    def put(self, frame: Frame, lane: int, obs: TeamObs, source: str) -> None:
        """Write the observations of one lane, whose rows may hold older ones."""
        parts = self.parts(frame)
        for i, seen in enumerate(obs.seen):
            row = parts.seen[lane, i]
            if seen is not None:
                row[: self._sizes[i]] = self._vector(i, seen, source)
            row[0 if seen is None else self._sizes[i] :] = 0
            if parts.active is not None:
                parts.active[lane, i] = seen is not None
            if parts.mask is not None:
                given = None if obs.masks is None else obs.masks[i]
                self._put_mask(parts.mask[lane, i], i, seen is not None, given, source)
        if parts.state is not None:
            parts.state[lane] = self._state(obs.state, source)

    def _vector(self, i: int, seen: Any, source: str) -> Array:
        codec = self._codecs[i]
        if codec.is_plain and seen.__class__ is np.ndarray and source == "step":
            leaf: LeafCodec = codec.leaves[0]
            if seen.dtype is leaf.raw_dtype and seen.shape == leaf.shape:  # the common case, which needs no check
                return seen.reshape(-1)
        frame = codec.empty(1)
        codec.put(frame, 0, seen, None, source)
        leaves = [leaf.encode(rows) for leaf, rows in zip(codec.leaves, frame, strict=True)]
        return np.concatenate([part.reshape(-1) for part in leaves])

    def _put_mask(self, row: Any, i: int, is_active: bool, given: Any, source: str) -> None:
        row[:] = False
        if is_active:
            options = self._options[i]
            row[options] = True if given is None else flat_mask(self.name, given, len(options), source)
            row[self._fixed[i]] = True

    def _state(self, state: Any, source: str) -> Array:
        array = np.asarray(state)
        size = self.spec.state.shape[0]
        if array.size != size or array.dtype.kind not in "fiub":
            raise SpecError(
                f"environment {self.name!r}: after {source} its state is of dtype {array.dtype} and shape"
                f" {array.shape}, expected {size} numbers"
            )
        return array.reshape(-1)

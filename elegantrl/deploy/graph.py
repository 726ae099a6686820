"""A policy with everything around it as one module: raw observations in, actions of the environment out.

Both kinds of files and the server use it. Nothing in it depends on values, so that it can be traced.

Axes: N rows, G agents, A options or numbers of an action, K frames of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from .. import tree
from ..envs.frame_stack import stack_frames
from ..envs.spaces import ActionCodec, LeafCodec
from ..nets.encoders.cells import Cells
from ..nets.policies import Policy, WarmUpPolicy
from ..store.team_units import TeamUnits
from ..store.trained import TrainedPolicy
from ..store.units import Units
from ..tree import Tree
from ..types import ActionSpec, Obs, mask_of, seen_part
from .ports import FIRST, Path, Port, action_port, check_names, mask_port, obs_ports

Given = Mapping[str, Tensor]


class PolicyGraph(nn.Module):
    """Tensors of ``inputs`` in their order give those of ``outputs``.

    A policy that keeps something between steps, a memory or the frames that it sees at once, gets it as inputs and
    gives it back as outputs. Where ``first`` is true an episode begins, and what was kept is not used.
    """

    def __init__(self, trained: TrainedPolicy):
        super().__init__()
        self.policy, self.spec, units = traceable(trained.policy), trained.spec, trained.units
        has_mask = mask_of(self.spec.obs) is not None
        self.side: OneSide | TeamSide = (
            TeamSide(units, has_mask) if isinstance(units, TeamUnits) else OneSide(units, (), has_mask)
        )
        self.stacks = {path: leaf for path, leaf in tree.named_leaves(self.spec.obs).items() if leaf.stack > 1}
        # The carry of these policies is for exploration only.
        self.initial = () if isinstance(self.policy, WarmUpPolicy) else self.policy.initial_carry(1)
        frames = [(("frames", i), leaf.shape, leaf.dtype) for i, leaf in enumerate(self.stacks.values())]
        memory = [
            (("memory", i), tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))
            for i, x in enumerate(tree.leaves(self.initial))
        ]
        kept = [*frames, *memory]
        self.state = [Port(("state", *path), shape, dtype) for path, shape, dtype in kept]
        later = [Port(("next_state", *path), shape, dtype) for path, shape, dtype in kept]
        first = [Port((FIRST,), (), "bool", needed=False)] if kept else []
        self.inputs = [*self.side.inputs, *self.state, *first]
        self.outputs = [*self.side.outputs, *later]
        check_names(self.inputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = {port.name: x for port, x in zip(self.inputs, tensors, strict=True)}
        obs, carry, frames = self.read(given)
        action, after = self.policy.act(obs, carry)
        return (*self.side.write(action), *frames, *tree.leaves(after if self.initial != () else ()))

    def read(self, given: Given) -> tuple[Tree, Tree, list[Tensor]]:
        """The observation and the carry of the policy, and the frames for the next step."""
        obs = self.side.read(given)
        if not self.state:
            return obs, (), []
        first, kept = given[FIRST], iter([given[port.name] for port in self.state])
        parts = tree.named_leaves(obs)
        before = {path: where(first, parts[path].unsqueeze(1), next(kept)) for path in self.stacks}
        memory = {"frames": before}
        obs = stack_frames(obs, self.spec.obs, memory)
        carry = tree.map_leaves(lambda x: where(first, x, next(kept)), self.initial)
        return obs, carry, list(memory["frames"].values()) if self.stacks else []


def where(first: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Rows of ``x`` where ``first`` [N] is true, rows of ``y`` elsewhere."""
    if y.dtype != torch.bool:
        return tree.where(first, x, y)  # type: ignore[no-any-return]
    is_first = tree.across(first, y)  # ONNX Runtime cannot select flags
    return (is_first & x) | (~is_first & y)


def traceable(policy: Policy) -> Policy:
    """The policy, or a copy without ``nn.EmbeddingBag``, which the exporter to ONNX translates wrongly."""
    if any(isinstance(module, Cells) for module in policy.modules()):
        policy = deepcopy(policy)
        for module in policy.modules():
            if isinstance(module, Cells):
                module.tables = SummedRows(module.tables)  # type: ignore[assignment]
    return policy


class SummedRows(nn.Module):
    """What ``nn.EmbeddingBag`` computes, in two operations: indices [R, D] -> sums of rows [R, E]."""

    def __init__(self, tables: nn.EmbeddingBag):
        super().__init__()
        self.weight, self.num_embeddings = tables.weight, tables.num_embeddings

    def forward(self, index: Tensor) -> Tensor:
        return embedding(index.long(), self.weight).sum(-2)


class OneSide(nn.Module):
    """The units of one environment, or of one agent of a team."""

    def __init__(self, units: Units, agent: Path, has_mask: bool, mask_needed: bool = True):
        super().__init__()
        self.obs_ports = obs_ports(units, ("obs", *agent))
        mask = mask_port(units, ("obs", *agent), ("mask", *agent), mask_needed) if has_mask else None
        self.mask = mask
        self.inputs = self.obs_ports if mask is None else [*self.obs_ports, mask]
        self.outputs = [action_port(units.action_space, ("action", *agent))]
        self.spec = seen_part(units.obs) if units.codec is None else units.codec.spec
        codecs = [None] * len(self.obs_ports) if units.codec is None else units.codec.leaves
        leaves = zip(codecs, tree.leaves(self.spec), strict=True)
        self.readers = nn.ModuleList(
            OneHot(codec) if codec is not None and codec.low is not None else Numbers(leaf.shape, leaf.torch_dtype)
            for codec, leaf in leaves
        )
        self.writer, self.action = ActionWriter(units), units.action

    @property
    def sides(self) -> list[OneSide]:
        """One for each agent."""
        return [self]

    def seen(self, given: Given) -> Tree:
        """Observations as a policy of this environment sees them."""
        read = iter([reader(given[port.name]) for reader, port in zip(self.readers, self.obs_ports, strict=True)])
        return tree.map_leaves(lambda _: next(read), self.spec)

    def allowed(self, given: Given) -> Tensor:
        """The mask [N, A]."""
        assert self.mask is not None
        return given[self.mask.name].flatten(1) != 0

    def read(self, given: Given) -> Tree:
        seen = self.seen(given)
        return seen if self.mask is None else Obs(seen, self.allowed(given))

    def write(self, action: Tensor) -> list[Tensor]:
        return [self.writer(action)]


class TeamSide(nn.Module):
    """The units of all agents of a team, whose axis G stands after N."""

    def __init__(self, units: TeamUnits, has_mask: bool):
        super().__init__()
        self.action, self.has_mask = units.action, has_mask
        # An agent needs a mask unless masks are there only because agents have different numbers of options.
        is_even = all(own.action.choices == units.action.choices for own in units.agents.values())
        sides = [OneSide(own, (name,), has_mask, is_even) for name, own in units.agents.items()]
        self.sides: Any = nn.ModuleList(sides)
        own = next(iter(units.agents.values()))
        self.length = None if own.codec is None else units.seen.shape[1]
        """Of an agent's vector; None if a policy gets observations unchanged."""
        self.inputs = [port for side in sides for port in side.inputs]
        self.outputs = [port for side in sides for port in side.outputs]

    def read(self, given: Given) -> Tree:
        seen = [side.seen(given) for side in self.sides]
        if self.length is not None:  # one vector of all parts; behind it zeros
            vectors = [torch.cat([x.flatten(1).float() for x in tree.leaves(one)], 1) for one in seen]
            team = torch.stack([pad(vector, (0, self.length - vector.shape[1])) for vector in vectors], 1)
        else:
            team = tree.map_leaves(lambda *parts: torch.stack(parts, 1), *seen)
        if not self.has_mask:
            return team
        return Obs(team, torch.stack([self._mask(side.allowed(given), side.action) for side in self.sides], 1))

    def _mask(self, allowed: Tensor, own: ActionSpec) -> Tensor:
        """The options of the team that an agent may take [N, A], from those of its own."""
        missing = len(self.action.choices) - len(own.choices)  # they have one option, which is never used
        parts = [*torch.split(allowed, list(own.choices), -1), *[torch.ones_like(allowed[:, :1])] * missing]
        padded = [pad(x, (0, size - x.shape[1])) for x, size in zip(parts, self.action.choices, strict=True)]
        return torch.cat(padded, 1)

    def write(self, action: Tensor) -> list[Tensor]:
        written = []
        for g, side in enumerate(self.sides):
            mine = action[:, g]
            if side.action.kind != "discrete":
                mine = mine[:, : side.action.leaf.shape[0]]
            elif self.action.kind == "multi_discrete":  # of agents with more choices
                mine = mine[:, 0]
            written += side.write(mine)
        return written


class Numbers(nn.Module):
    """Numbers in the type that a policy gets: [N, *raw shape] -> [N, *shape]."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype):
        super().__init__()
        self.shape, self.dtype = shape, dtype

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.dtype and x.shape[1:] == self.shape:
            return x  # without two kernels that do nothing
        return x.to(self.dtype).reshape(-1, *self.shape)


class OneHot(nn.Module):
    """Choices as vectors with 1 for each that was made: [N, *raw shape] -> [N, O]."""

    offset: Tensor
    column: Tensor

    def __init__(self, codec: LeafCodec):
        super().__init__()
        low = np.broadcast_to(codec.low, codec.shape).reshape(-1)
        self.register_buffer("offset", torch.as_tensor(codec.first - low))
        self.register_buffer("column", torch.arange(codec.leaf.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.reshape(-1, len(self.offset)) + self.offset
        return (chosen.unsqueeze(-1) == self.column).any(1).float()


class ActionWriter(nn.Module):
    """Actions of a policy [N, ...] in the bounds, the shape and the type of an action space."""

    start: Tensor  # of choices
    scale: Tensor  # of numbers, as the next three
    center: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, units: Units):
        super().__init__()
        space, codec = units.action_space, ActionCodec(units.name, units.action_space, 1)
        self.shape, self.dtype = space.shape, getattr(torch, np.dtype(space.dtype).name)
        self.is_choice = bool(codec.spec.choices)
        same_form = codec.spec.leaf.shape == self.shape and codec.spec.leaf.torch_dtype == self.dtype
        self.is_same = self.is_choice and same_form and not np.any(codec.start)
        if self.is_choice:
            constants = {"start": np.broadcast_to(codec.start, space.shape)}
        else:
            constants = {"scale": codec.half, "center": codec.center, "low": codec.low, "high": codec.high}
        for name, value in constants.items():
            self.register_buffer(name, torch.as_tensor(np.array(value)))

    def forward(self, action: Tensor) -> Tensor:
        if self.is_same:
            return action
        if self.is_choice:
            return (action.reshape(-1, *self.shape) + self.start).to(self.dtype)
        numbers = torch.minimum(torch.maximum(action * self.scale + self.center, self.low), self.high)
        return numbers.to(self.dtype).reshape(-1, *self.shape)

    def choice(self, written: Tensor, num_choices: int) -> Tensor:
        """The inverse for choices [N, C], with option 0 of those that the space does not have."""
        own = (written.long() - self.start).reshape(len(written), -1)
        return pad(own, (0, num_choices - own.shape[1]))

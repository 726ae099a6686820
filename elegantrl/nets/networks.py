"""Network settings as plain values that can be sent to any process."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..imports import find, is_import_path
from ..tree import Tree
from ..types import Leaf, vector_dim
from .encoders import Encoder
from .layers import ACTIVATIONS, Activation, Init, Separate, Stack, mlp
from .recurrent import CORES, Core, MemoryKind


@dataclass(frozen=True, slots=True)
class NetSpec:
    """The settings that the networks of an agent share."""

    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "relu"
    init: Init = "default"
    normalize_obs: bool = False
    network: str = "mlp"
    """A name in ``NETWORKS``, or the import path of a function with the same arguments as ``linear_layers``."""
    encoder: str = "auto"
    """``auto``, a name in ``encoders.ENCODERS``, or the import path of a function or class that takes the leaves of
    observations and gives a module that maps observations [B, ...] to features [B, F]."""
    memory: MemoryKind = "none"
    memory_size: int = 64
    num_agents: int | None = None
    """Agents of a team, whose axis G stands before the features; None for one agent."""
    separate: bool = False
    """Each agent of a team has weights of its own; otherwise all share them, and the number of an agent is one of its
    features. Encoders are shared in any case."""

    def build_encoder(self, seen: Tree, needs_vector: bool = False) -> Encoder | None:
        """A module that maps observations to one vector of features; None if the network itself reads observations:
        it does if they are one vector of floats, or if ``network`` is an import path, no encoder is named, no memory
        stands between, and the network does not need a vector, as one with an action beside the features does."""
        is_vector = isinstance(seen, Leaf) and seen.dtype == "float32" and len(seen.shape) == 1
        reads_any = is_import_path(self.network) and self.memory == "none" and not needs_vector
        if self.encoder == "auto" and (is_vector or reads_any):
            return None
        return Encoder(seen, self.encoder, self.init)

    def build_core(self, features: Tree) -> Core | None:
        """The memory between features and head; None if there is none."""
        if self.memory == "none":
            return None
        build = find(self.memory, CORES, "memory")
        return build(vector_dim(features), self.memory_size, self.init, self.team, self.separate)  # type: ignore[no-any-return]

    @property
    def team(self) -> tuple[int, ...]:
        """The axis G as a shape; empty without one."""
        return () if self.num_agents is None else (self.num_agents,)

    def build(self, obs: Tree, num_outputs: int, head_gain: float = 1.0, normed: bool = False) -> Any:
        """A module that maps observations [B, ...] of the leaves ``obs`` to [B, num_outputs]."""
        module = find(self.network, NETWORKS, "network")(obs, num_outputs, self, head_gain, normed)
        if not isinstance(module, nn.Module):
            raise TypeError(f"the network {self.network!r} gave a {type(module).__name__}, expected a torch.nn.Module")
        return module

    def build_ensemble(self, num_inputs: int, num_outputs: int, num_members: int, normed: bool = False) -> Stack:
        """Independent networks [B, num_inputs] -> [num_members, B, num_outputs]: linear layers in one batched product,
        or networks of the user's own, each built by a call of its own."""
        if is_import_path(self.network):
            inputs = Leaf((num_inputs,))
            return Stack(Separate(self.build(inputs, num_outputs, normed=normed) for _ in range(num_members)))
        sizes = (num_inputs, *self.hidden, num_outputs)
        return mlp(sizes, self.activation, init=self.init, num_members=num_members, normed=normed)

    def imports(self) -> list[str]:
        """The import paths that ``build`` imports."""
        return [path for path in (self.network, self.encoder) if is_import_path(path)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"hidden": list(self.hidden)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> NetSpec:
        return cls(**(values | {"hidden": tuple(values["hidden"])}))


def linear_layers(obs: Tree, num_outputs: int, net: NetSpec, head_gain: float = 1.0, normed: bool = False) -> Stack:
    """Linear layers on an observation that is one vector of floats.

    ``head_gain`` scales the last layer's orthogonal weights; if ``normed``, hidden layers are layer-normalised.
    """
    sizes = (vector_dim(obs), *net.hidden, num_outputs)
    num_agents = net.num_agents if net.separate else None
    return mlp(sizes, net.activation, init=net.init, head_gain=head_gain, num_agents=num_agents, normed=normed)


NETWORKS = {"mlp": linear_layers}


class Dueling(nn.Module):
    """A shared trunk, then a stream for the state value and one for the advantages: [B, ...] -> [B, 1 + A]."""

    def __init__(self, trunk: nn.Module, value: nn.Module, advantage: nn.Module):
        super().__init__()
        self.trunk, self.value, self.advantage = trunk, value, advantage

    def forward(self, x: Tree) -> Tensor:
        x = self.trunk(x)
        return torch.cat([self.value(x), self.advantage(x)], -1)


def build_dueling(obs: Tree, num_choices: int, net: NetSpec, normed: bool) -> Dueling:
    """Streams with a hidden layer of their own (arXiv:1511.06581, figure 1): the last width belongs to the streams, the
    others to the trunk. If the network is named by an import path, each stream is a whole network without a trunk."""
    if is_import_path(net.network):
        return Dueling(nn.Identity(), net.build(obs, 1, normed=normed), net.build(obs, num_choices, normed=normed))
    shared, last = (vector_dim(obs), *net.hidden[:-1]), net.hidden[-1:]
    trunk = list(mlp(shared, net.activation, init=net.init, head_gain=math.sqrt(2), normed=normed))
    if trunk:  # between two linear layers
        trunk += [nn.LayerNorm(shared[-1])] * normed + [ACTIVATIONS[net.activation]()]
    value, advantage = (
        mlp((shared[-1], *last, num_outputs), net.activation, init=net.init, normed=normed)
        for num_outputs in (1, num_choices)
    )
    return Dueling(Stack(*trunk), value, advantage)

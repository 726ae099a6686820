"""What a network is made of, as plain values that travel to any process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ..imports import find, is_import_path
from ..tree import Tree
from ..types import vector_dim
from .layers import Activation, Init, Stack, mlp


@dataclass(frozen=True, slots=True)
class NetSpec:
    """The settings that the networks of an agent share."""

    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "relu"
    init: Init = "default"
    normalize_obs: bool = False
    network: str = "mlp"
    """A name in ``NETWORKS``, or the import path of a function with the same arguments as ``linear_layers``."""

    def build(self, obs: Tree, num_outputs: int, head_gain: float = 1.0, normed: bool = False) -> Any:
        """A module that maps observations [B, ...] of the leaves ``obs`` to [B, num_outputs]."""
        module = find(self.network, NETWORKS, "network")(obs, num_outputs, self, head_gain, normed)
        if not isinstance(module, nn.Module):
            raise TypeError(f"the network {self.network!r} gave a {type(module).__name__}, expected a torch.nn.Module")
        return module

    def imports(self) -> list[str]:
        """The import paths that ``build`` follows."""
        return [self.network] if is_import_path(self.network) else []

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
    return mlp(sizes, net.activation, init=net.init, head_gain=head_gain, normed=normed)


NETWORKS = {"mlp": linear_layers}

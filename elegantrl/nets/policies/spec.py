"""Specifications of policies: plain values that can be sent to other processes and stored in files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from ...imports import find, is_import_path
from ...tree import Tree
from ...types import ActionSpec, from_state, to_state
from ..layers import flatten_
from ..networks import NetSpec
from .base import Policy

PACKAGE = __package__
POLICIES = {
    "categorical": f"{PACKAGE}.categorical:CategoricalPolicy",
    "multi_categorical": f"{PACKAGE}.multi_categorical:MultiCategoricalPolicy",
    "gaussian": f"{PACKAGE}.gaussian:GaussianPolicy",
    "squashed": f"{PACKAGE}.squashed:SquashedPolicy",
    "deterministic": f"{PACKAGE}.deterministic:DeterministicPolicy",
    "gumbel": f"{PACKAGE}.gumbel:GumbelPolicy",
    "q": f"{PACKAGE}.q:QPolicy",
    "joint_q": f"{PACKAGE}.joint_q:JointQPolicy",
    "ensemble": f"{PACKAGE}.ensemble:EnsemblePolicy",
}


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A kind of policy and the arguments of its constructor."""

    kind: str
    """A name in ``POLICIES``, or the import path of a subclass of ``Policy``: ``my_package.nets:MyPolicy``."""
    obs: Tree
    action: ActionSpec
    net: NetSpec = field(default_factory=NetSpec)
    kwargs: dict[str, Any] = field(default_factory=dict)
    """JSON values."""

    def build(self, allow_import: bool = False) -> Policy:
        """A new policy. Import paths are imported only if the caller allows it: a file must not choose what runs."""
        paths = self.imports()
        if paths and not allow_import:
            raise ConfigError(
                f"the policy names the import path {paths[0]!r}, which would run code; allow it if you trust its source"
            )
        policy = find(POLICIES.get(self.kind, self.kind), POLICIES, "policy")(
            self.obs, self.action, self.net, **self.kwargs
        )
        if not isinstance(policy, Policy):
            raise ConfigError(f"{self.kind!r} is a {type(policy).__name__}, expected a subclass of Policy")
        return policy

    def imports(self) -> list[str]:
        """The import paths outside the library that ``build`` imports."""
        own = [self.kind] if is_import_path(self.kind) else []
        members = [PolicySpec.from_json(member).imports() for member in self.kwargs.get("members", [])]
        return [*own, *self.net.imports(), *(path for paths in members for path in paths)]

    def to_json(self) -> dict[str, Any]:
        action = {"choices": list(self.action.choices), "dim": self.action.dim, "sizes": list(self.action.sizes)}
        net = self.net.to_json()
        return {"kind": self.kind, "obs": to_state(self.obs), "action": action, "net": net, "kwargs": self.kwargs}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PolicySpec:
        """The inverse of ``to_json``; KeyError or TypeError if it is not one."""
        sizes = values["action"].get("sizes", ())  # files of earlier versions have none
        action = ActionSpec(tuple(values["action"]["choices"]), values["action"]["dim"], tuple(sizes))
        net = NetSpec.from_json(values["net"])
        return cls(values["kind"], from_state(values["obs"]), action, net, values["kwargs"])


class FlatPolicy:
    """A policy whose weights are views of one flat tensor: a new version is one copy."""

    def __init__(self, spec: PolicySpec, device: torch.device):
        # Initial weights are overwritten at once: drawing them must not advance torch's global stream.
        with torch.random.fork_rng(devices=[]):
            # Specifications come from the learner of the same run, which has imported what they name.
            self.policy = spec.build(allow_import=True).to(device).requires_grad_(False)
        self.flat = flatten_(self.policy.tensors())

    def load(self, flat: Tensor) -> Policy:
        self.flat.copy_(flat)
        return self.policy

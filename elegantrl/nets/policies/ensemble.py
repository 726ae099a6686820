"""Several trained policies as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from ...tree import Tree
from ...types import ActionSpec
from ..networks import NetSpec
from .base import Acted, Draw, Policy
from .spec import PolicySpec


class EnsemblePolicy(Policy):
    """The weighted average of its members' votes. An ensemble is for deployment and does not explore."""

    def __init__(
        self, obs: Tree, action: ActionSpec, net: NetSpec, members: list[dict[str, Any]], weights: list[float]
    ):
        """``members`` are policy specifications as JSON. Each member normalises observations by itself."""
        super().__init__(obs, action, net)
        # The ensemble's specification lists the import paths of its members too, and the caller has allowed them.
        built = [PolicySpec.from_json(member).build(allow_import=True) for member in members]
        self.members = nn.ModuleList(built)
        self.votes = [(member.vote, weight) for member, weight in zip(built, weights, strict=True)]

    def vote(self, obs: Tree) -> Tensor:
        return torch.stack([vote(obs) * weight for vote, weight in self.votes]).sum(0)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        raise NotImplementedError("an ensemble does not explore")

    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        raise NotImplementedError("an ensemble does not explore")

    def act(self, obs: Tree, carry: Tree) -> tuple[Tensor, Tree]:
        vote, kind = self.vote(obs), self.action_spec.kind
        if kind == "continuous":
            return vote, carry
        best = [part.argmax(-1) for part in torch.split(vote, list(self.action_spec.choices), -1)]
        return (best[0] if kind == "discrete" else torch.stack(best, -1)), carry

"""The actor of a group actor or an evaluator: the policy itself, or a faster actor of ``elegantrl.fast``."""

from __future__ import annotations

from typing import Protocol

from torch import Generator, Tensor

from ..imports import import_fast
from ..nets.policies import Acted, Draw, Policy
from ..tree import Tree


class Actor(Protocol):
    """The methods of a policy that group actors and evaluators use."""

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]: ...
    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted: ...
    def act(self, obs: Tree, carry: Tree) -> tuple[Tensor, Tree]: ...


def actor_of(policy: Policy, num_lanes: int) -> Actor:
    """The fastest known actor for ``policy``, whose parameters must stay in their storage from now on."""
    fast = import_fast("acting")
    return (fast and fast.actor_for(policy, num_lanes)) or policy

"""Joins the fragments of one iteration.

Axes: T rollout steps, N lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import tree
from ..types import Fragment, Rollout


def join_fragments(fragments: Sequence[Fragment]) -> Rollout:
    """One rollout over all lanes [T, sum of N], ordered by slot group and not by arrival."""
    if len(fragments) == 1:
        return fragments[0].rollout
    ordered = sorted(fragments, key=lambda f: f.slot_group)
    rollouts = [fragment.rollout for fragment in ordered]
    carry = tree.cat([rollout.carry for rollout in rollouts])  # has no axis T
    return tree.cat([rollout._replace(carry=()) for rollout in rollouts], dim=1)._replace(carry=carry)

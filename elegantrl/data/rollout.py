"""Putting the fragments of one iteration together.

Axes: T rollout steps, N lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..types import Fragment, Rollout


def join_fragments(fragments: Sequence[Fragment]) -> Rollout:
    """One rollout over all lanes [T, sum of N], ordered by slot group and not by arrival."""
    if len(fragments) == 1:
        return fragments[0].rollout
    ordered = sorted(fragments, key=lambda f: f.slot_group)
    return Rollout(*(torch.cat(parts, dim=1) for parts in zip(*(f.rollout for f in ordered), strict=True)))

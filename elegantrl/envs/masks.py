"""Action masks: where an environment gives them, and what every adapter requires of them.

A mask has a flag for every option of every choice; true options may be chosen. An environment gives its masks under the
key "action_mask" of its observations, by a method ``action_masks()``, or under the key "action_mask" of its infos.

Axes: N environment lanes, A options of all choices.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from ..errors import SpecError
from ..tree import Tree
from ..types import ActionSpec, mask_of
from .lane_state import LaneState
from .lanes import seeded_reset

log = logging.getLogger(__name__)

MASK_KEY = "action_mask"
"""The key of an observation or an info under which a mask is found."""


def mask_size(
    name: str, action: ActionSpec, wanted: bool | None, space: Any, gives: Callable[[], bool] | None = None
) -> int | None:
    """The number of flags of a mask; None if observations are to have no masks.

    ``wanted`` is the caller's choice; if it is None, masks are used where the observation space has them, or where
    ``gives`` finds them. Continuous actions have none.
    """
    if wanted and not action.choices:
        raise SpecError(
            f"environment {name!r}: its actions are continuous, so there is nothing to mask; use masks=False"
        )
    if wanted is False or not action.choices:
        return None
    size = action.num_outputs
    key = space.spaces.get(MASK_KEY) if isinstance(space, spaces.Dict) else None
    if wanted or (key is not None and math.prod(key.shape or ()) == size):
        return size
    return size if key is None and gives is not None and gives() else None


def mask_method(env: Any) -> Callable[[], Any] | None:
    """``action_masks`` of an environment, of a wrapper in it or of what they wrap, if there is such a method."""
    while env is not None:
        if callable(method := getattr(env, "action_masks", None)):
            found: Callable[[], Any] = method
            return found
        env = getattr(env, "env", None)
    return None


def gives_masks(env: Any, name: str) -> bool:
    """Whether an environment has a method that gives masks, or an info with one at a reset.

    A state that outlives episodes is the same afterwards.
    """
    if mask_method(env) is not None:
        return True
    lane_state = LaneState(env, name)
    try:
        before = lane_state.get()
        _, info = seeded_reset(env)(0)
        if before is not None:
            lane_state.set(before)
    except Exception:  # the reset of the run reports it
        log.debug("environment %r fails at its first reset", name, exc_info=True)
        return False
    return MASK_KEY in (info or {})


def flat_mask(name: str, mask: Any, size: int, source: str) -> NDArray[np.bool_]:
    """One mask [A], or an error that names the environment."""
    array = np.asarray(mask)
    if array.size != size or array.dtype.kind not in "biu":
        shown = f"an array of shape {array.shape}" if array.dtype.kind in "biuf" else f"{mask!r:.60}"
        raise SpecError(f"environment {name!r}: {source} returned the action mask {shown}, expected {size} flags")
    return array.reshape(-1).astype(np.bool_)


def empty_lanes(mask: NDArray[np.bool_], action: ActionSpec, ended: Iterable[int] = ()) -> list[int]:
    """The lanes of masks [N, ..., A] in which a choice has no option, without those whose episode has ended."""
    first = np.cumsum([0, *action.choices[:-1]])  # the first option of each choice
    allows = np.logical_or.reduceat(mask, first, axis=-1).reshape(len(mask), -1).all(-1)
    return [] if allows.all() else sorted(set(np.flatnonzero(~allows).tolist()) - set(ended))


def allowed_actions(action: Tensor, obs: Tree, spec: ActionSpec) -> Tensor:
    """``action`` [N, ...] with each option that the mask of ``obs`` forbids replaced by one that it allows.

    Options drawn uniformly stay uniform up to the remainder of a division.
    """
    mask = mask_of(obs)
    if mask is None:
        return action
    taken = action.unsqueeze(-1) if len(spec.choices) == 1 else action  # [N, (G,) C]
    columns = []
    for chosen, allowed in zip(taken.unbind(-1), torch.split(mask, list(spec.choices), -1), strict=True):
        place = chosen % allowed.sum(-1).clamp(min=1)  # among the allowed options
        columns.append((allowed & (allowed.cumsum(-1) - 1 == place.unsqueeze(-1))).int().argmax(-1))
    return columns[0] if len(spec.choices) == 1 else torch.stack(columns, -1)


def empty_mask(name: str, lane: int, step: int, whom: str = "") -> SpecError:
    """``whom`` names an agent of a team."""
    return SpecError(
        f"environment {name!r}: the action mask of lane {lane} forbids every action{whom} at step {step}; allow at"
        f" least one, or end the episode there"
    )

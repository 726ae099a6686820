"""Requests for fragments, the record of a worker, and fragments as a part of a commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..execute.base import Future, Handle, Ref
from ..execute.inline import InlineFuture
from ..roles.worker import part_name
from ..tree import leaves
from ..types import Episodes, Fault, Fragment, Rollout, State, from_state, to_state


class Request(NamedTuple):
    """A request for a fragment of every group of a worker."""

    weights: Ref | None
    horizon: int
    seq: int


class Pending(NamedTuple):
    """A request whose fragments have not been taken."""

    request: Request
    call: Future


@dataclass(slots=True)
class WorkerRecord:
    """The pool's record of one worker."""

    build: Callable[[], Any]
    groups: range
    handle: Handle
    pending: deque[Pending] = field(default_factory=deque)
    """Requests whose fragments have not been taken, oldest first."""
    past: list[Request] = field(default_factory=list)
    """Requests whose fragments were taken since the snapshot: a successor repeats them."""
    last_results: list[Tensor] = field(default_factory=list)
    """Last observations and rewards of each group in the newest of ``past``: a repetition must give the same."""
    snapshot: dict[str, State] = field(default_factory=dict)
    snapshot_seq: int = -1
    """The newest request whose effects are in the snapshot."""
    snapshot_time: float = 0.0
    snapshot_seconds: float = 0.0
    """How long the worker took to make the snapshot."""
    next_snapshot: Pending | None = None
    """A requested snapshot, and the newest request before it."""
    repeating: int | None = None
    """The request that a new worker repeats while its state is restored, or ``RESTORING``."""

    def last_answered(self) -> int:
        """The newest request that the worker has answered."""
        answered = [p.request.seq for p in self.pending if value_of(p.call) is not None]
        return max([self.snapshot_seq, *answered, *(request.seq for request in self.past)])

    def parts_of(self, parts: dict[str, State]) -> dict[str, State]:
        """The parts of a commit that belong to the groups of this worker."""
        return {part_name(group): parts[part_name(group)] for group in self.groups}


RESTORING = -1
"""Value of ``repeating`` while a new worker loads the snapshot."""


def answered_before(fragments: list[Fragment]) -> Pending:
    """Fragments of one request that a commit holds, as if they had just been answered."""
    request = Request(None, fragments[0].rollout.reward.shape[0], fragments[0].seq)
    return Pending(request, InlineFuture(lambda: fragments))


def value_of(call: Future) -> Any:
    """The value of a call; None if it failed or has not ended."""
    try:
        return call.result() if call.done() else None
    except Exception:
        return None


def by_address(fragment: Fragment) -> tuple[int, int]:
    return fragment.seq, fragment.slot_group


def last_results(fragments: list[Fragment]) -> list[Tensor]:
    """Copies of the last observations [N, ...], leaf by leaf, and the rewards [T, N] of each group: state of an
    environment that outlives its episodes may show in rewards alone."""
    rollouts = [fragment.rollout for fragment in fragments]
    return [x.clone() for rollout in rollouts for x in (*(y[-1] for y in leaves(rollout.next_obs)), rollout.reward)]


def pack_fragment(fragment: Fragment) -> State:
    """A fragment as a part of a commit."""
    returns, lengths = map(torch.as_tensor, fragment.episodes)
    plain = {name: getattr(fragment, name) for name in ("slot_group", "seq", "version", "steps_lost")}
    faults = [fault._asdict() for fault in fragment.faults]
    rollout = {name: to_state(part) for name, part in fragment.rollout._asdict().items()}
    return {**plain, **rollout, "returns": returns, "lengths": lengths, "faults": faults}


def unpack_fragment(state: State) -> Fragment:
    rollout = Rollout(**{name: from_state(state[name]) for name in Rollout._fields})
    episodes = Episodes(state["returns"].numpy(), state["lengths"].numpy())
    faults = tuple(Fault(**fault) for fault in state["faults"])
    address = state["slot_group"], state["seq"], state["version"]
    return Fragment(*address, rollout, episodes, faults, state["steps_lost"])


def split_groups(num_groups: int, num_parts: int) -> list[range]:
    """Consecutive groups for each of ``num_parts``, as equal in number as possible."""
    ends = [num_groups * i // num_parts for i in range(num_parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]

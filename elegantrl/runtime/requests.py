"""What hosts of environment groups were asked for, what they delivered, and what a successor has to repeat."""

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

RESTORING = -1
"""In place of a job: the host takes over the snapshot."""


class Job(NamedTuple):
    """A fragment of every group of a host, asked for and not yet taken."""

    weights: Ref | None
    horizon: int
    seq: int
    call: Future


@dataclass(slots=True)
class Host:
    """Some groups of environments, and who acts for them."""

    build: Callable[[], Any]
    groups: range
    handle: Handle
    waiting: deque[Job] = field(default_factory=deque)
    """What it was asked for and has not been taken, oldest first."""
    past: list[Job] = field(default_factory=list)
    """What was taken since its snapshot: a successor repeats it."""
    seen: list[Tensor] = field(default_factory=list)
    """For each group, the observations [N, O] after the last of these: a repetition must end there too."""
    snapshot: dict[str, State] = field(default_factory=dict)
    snapshot_seq: int = -1
    """The last job whose effects are in the snapshot."""
    snapshot_time: float = 0.0
    next_snapshot: tuple[int, Future] | None = None
    """One that was asked for, and the last job before it."""
    repeating: int | None = None
    """For a new host that catches up the job it is at, or ``RESTORING``."""


NO_CALL: Future = InlineFuture(lambda: None)
"""In place of an answer that was taken: keeping it would hold its sender back."""


def held_job(fragments: list[Fragment]) -> Job:
    """A job that was answered in an earlier life."""
    return Job(None, fragments[0].rollout.reward.shape[0], fragments[0].seq, InlineFuture(lambda: fragments))


def value_of(call: Future) -> Any:
    """What a call has brought; None if it failed or has not ended."""
    try:
        return call.result() if call.done() else None
    except Exception:
        return None


def last_answered(host: Host) -> int:
    """The newest job that a host has done."""
    answered = [job.seq for job in host.waiting if value_of(job.call) is not None]
    return max([host.snapshot_seq, *answered, *(job.seq for job in host.past)])


def by_address(fragment: Fragment) -> tuple[int, int]:
    return fragment.seq, fragment.slot_group


def last_observations(fragments: list[Fragment]) -> list[Tensor]:
    """Copies of the last observations [N, ...] of each group, leaf by leaf."""
    return [x[-1].clone() for fragment in fragments for x in leaves(fragment.rollout.next_obs)]


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


def parts_of(host: Host, parts: dict[str, State]) -> dict[str, State]:
    return {part_name(group): parts[part_name(group)] for group in host.groups}


def share_out(num_groups: int, num_hosts: int) -> list[range]:
    """Consecutive groups for each host, as equal in number as can be."""
    ends = [num_groups * i // num_hosts for i in range(num_hosts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]

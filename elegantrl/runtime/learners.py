"""The learners of a run as one: in this process, in one of its own, or several ranks that average their gradients.

Every rank learns from the groups of environments that are its share; all take the same steps, so rank 0 speaks for all.
A rank that dies or hangs leaves the others stuck in the middle of a step: nobody is repaired, all begin anew from the
last commit. Whoever supervises them decides that.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, PeersLost
from ..execute.base import Executor, Future, Handle
from ..nets.policies import PolicySpec
from ..roles.learner import COMMON, Report
from ..types import Fragment, Metrics, State, Weights
from .requests import share_out

GRACE_SECONDS = 1.0
"""How long the loss of a peer waits for its cause: the peer's own error or its death."""


def part_of_rank(rank: int) -> str:
    """What the state of a rank is called in a commit."""
    return f"learner{rank}" if rank else "learner"


class Learners:
    """All learners of a run. A call raises what a rank raised, or that it died or timed out, and never waits for ever.

    ``build(rank)`` gives what makes the ``Learner`` of that rank, in whichever process that is; one in a process of its
    own must be able to travel there.
    """

    def __init__(
        self,
        executor: Executor,
        build: Callable[[int], Callable[[], Any]],
        num_learners: int = 1,
        num_groups: int = 1,
        timeout: float | None = None,
    ):
        if num_learners > 1 and not executor.isolates:
            raise ConfigError(f"{num_learners} learners need processes of their own; use --executor process")
        if num_groups % num_learners:
            raise ConfigError(
                f"{num_groups} groups of environments cannot be shared out equally among {num_learners} learners;"
                f" use --num-groups {-(-num_groups // num_learners) * num_learners} or another --num-learners"
            )
        self.executor, self.build = executor, build
        self.groups = share_out(num_groups, num_learners)
        self.timeout = timeout if executor.isolates else None
        self.handles: list[Handle] = []
        self.start()

    # ---- life

    def start(self) -> None:
        """Bring all ranks to life and have them meet; ranks that cannot leave nobody behind."""
        ranks = range(len(self.groups))
        self.handles = self.executor.spawn_all([self.build(rank) for rank in ranks], self.timeout)
        try:
            if len(ranks) > 1:
                self.meet()
            self.policy_spec: PolicySpec = self.ask("policy_spec")
        except BaseException:
            self.close()
            raise

    def meet(self) -> None:
        with tempfile.TemporaryDirectory(prefix="elegantrl-") as folder:
            try:
                self.ask_all("connect", *[(str(Path(folder) / "ranks"),) for _ in self.groups])
            except BaseException:
                self.close()  # before the folder goes, which a rank that still waits would write to
                raise

    def restart(self) -> None:
        """End all ranks and begin anew, with fresh parameters and empty buffers."""
        self.close()
        self.start()

    def close(self) -> None:
        for handle in self.handles:
            self.executor.kill(handle)

    # ---- learning

    def update(self, fragments: Sequence[Fragment]) -> tuple[Metrics, Weights]:
        """Learn from a fragment per group; metrics are those of all ranks' data."""
        shares = [([f for f in fragments if f.slot_group in groups],) for groups in self.groups]
        if not self.executor.isolates:
            metrics, weights = self.ask_all("learn", *shares)[0]
            return metrics, weights
        report: Report = self.ask_all("report", *shares)[0]
        assert report.weights is not None  # rank 0 sends them
        return dict(zip(report.names, report.values.unbind(), strict=True)), own(report.weights)

    def end_open_episodes(self, cut: Sequence[np.ndarray]) -> None:
        """Cut the newest transition of every lane whose episode was lost; an array [N] per group."""
        self.ask_all("end_open_episodes", *[([cut[group] for group in groups],) for groups in self.groups])

    # ---- what rank 0 knows for all

    def weights(self) -> Weights:
        weights: Weights = self.ask("weights")
        return own(weights) if self.executor.isolates else weights

    def num_updates(self) -> int:
        number: int = self.ask("num_updates")
        return number

    # ---- commits

    def state_dict(self) -> dict[str, State]:
        """A part of a commit per rank; parameters and all else that ranks share only in that of rank 0."""
        states = self.ask_all("state_dict", *[() for _ in self.groups])
        return {part_of_rank(rank): state for rank, state in enumerate(states)}

    def load_state_dict(self, parts: dict[str, State]) -> None:
        first = parts[part_of_rank(0)]
        calls = [self.handles[0].call("load_state_dict", first, timeout=self.timeout)]
        if len(self.handles) > 1:
            shared = self.executor.put({name: first[name] for name in COMMON})
            for rank, handle in enumerate(self.handles[1:], 1):
                own_part = parts[part_of_rank(rank)]
                calls.append(handle.call("load_state_dict", shared, own_part, timeout=self.timeout))
        self.outcomes(calls)

    # ---- talking to ranks

    def memory_bytes(self) -> int:
        """What the process of a learner holds in memory, of several the one that holds most."""
        return max(handle.memory_bytes() for handle in self.handles)

    def busy_seconds(self) -> float:
        """How long the learners have worked, on average."""
        return math.fsum(handle.busy_seconds for handle in self.handles) / len(self.handles)

    def ask(self, method: str) -> Any:
        return self.outcomes([self.handles[0].call(method, timeout=self.timeout)])[0]

    def ask_all(self, method: str, *args: tuple[Any, ...]) -> list[Any]:
        """What every rank answers to its own arguments."""
        pairs = zip(self.handles, args, strict=True)
        calls = [handle.call(method, *mine, timeout=self.timeout) for handle, mine in pairs]
        return self.outcomes(calls)

    def outcomes(self, calls: Sequence[Future]) -> list[Any]:
        """The values of calls that depend on each other: the first to fail ends the wait for all."""
        waiting, lost = list(calls), None
        while waiting:
            ended = self.executor.wait(waiting, None if lost is None else GRACE_SECONDS)
            if not ended:
                break
            waiting = [call for call in waiting if call not in ended]
            for call in ended:
                try:
                    call.result()
                except PeersLost as error:  # somebody else's fault: give them a moment to tell
                    lost = lost or error
        if lost is not None:
            raise lost
        return [call.result() for call in calls]


def own(weights: Weights) -> Weights:
    """A copy: what was received lies in memory that its sender waits for."""
    return Weights(weights.version, weights.flat.clone())

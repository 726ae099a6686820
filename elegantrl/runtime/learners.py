"""The learners of a run as one: in this process, in one of its own, or several ranks that average their gradients.

Every rank learns from its part of the groups of environments; all take the same steps, so rank 0 returns the weights.
If a rank dies or hangs, the others are stuck in the middle of a step: the supervisor then starts all ranks again from
the last commit.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, PeersLost
from ..execute.base import ONE_CPU, Executor, Future, Handle, Needs
from ..nets.policies import PolicySpec
from ..roles.learner import COMMON, Report
from ..types import Fragment, Metrics, State, Weights
from .requests import split_groups
from .timeouts import Timeouts

GRACE_SECONDS = 1.0
"""How long a ``PeersLost`` error waits for its cause: the peer's own error or its death."""


def part_of_rank(rank: int) -> str:
    """The name of a rank's part of a commit."""
    return f"learner{rank}" if rank else "learner"


class Learners:
    """All learners of a run. A call raises a rank's error, its death or its timeout, and never waits for ever.

    ``build(rank)`` returns the function that makes the ``Learner`` of that rank; for a learner in a process of its own
    the function is pickled.
    """

    def __init__(
        self,
        executor: Executor,
        build: Callable[[int], Callable[[], Any]],
        num_learners: int = 1,
        num_groups: int = 1,
        timeouts: Timeouts | None = None,
        needs: Needs = ONE_CPU,
    ):
        if num_learners > 1 and not executor.isolates:
            raise ConfigError(f"{num_learners} learners need processes of their own; use --executor process or ray")
        if num_groups % num_learners:
            raise ConfigError(
                f"{num_groups} groups of environments cannot be shared out equally among {num_learners} learners;"
                f" use --num-groups {-(-num_groups // num_learners) * num_learners} or another --num-learners"
            )
        self.executor, self.build = executor, build
        self.groups = split_groups(num_groups, num_learners)
        self.timeouts, self.needs = timeouts or Timeouts(isolates=executor.isolates), needs
        self.handles: list[Handle] = []
        self.start()

    # ---- life

    def start(self) -> None:
        """Spawn all ranks and connect them; if one fails, all are ended."""
        ranks = range(len(self.groups))
        self.handles = self.executor.spawn_all(
            [self.build(rank) for rank in ranks], self.timeouts.of_build(), self.needs
        )
        try:
            if len(ranks) > 1:
                self.connect()
            self.policy_spec: PolicySpec = self.call_rank0("policy_spec")
        except BaseException:
            self.close()
            raise

    def connect(self) -> None:
        """Ranks of one machine meet in a file, others at a port of rank 0."""
        hosts = [handle.host for handle in self.handles]
        if hosts[0] is not None:
            (address,) = self.outcomes([self.handles[0].call("open_meeting", hosts[0], timeout=self.timeouts.of())])
            self.outcomes(self.call_all("connect", *[(address, host) for host in hosts]))
            return
        with tempfile.TemporaryDirectory(prefix="elegantrl-") as folder:
            try:
                self.outcomes(self.call_all("connect", *[(str(Path(folder) / "ranks"),) for _ in self.groups]))
            except BaseException:
                self.close()  # before the folder is removed: a rank that still waits would write to it
                raise

    def restart(self) -> None:
        """End all ranks and start new ones, with fresh parameters and empty buffers."""
        self.close()
        self.start()

    def close(self) -> None:
        for handle in self.handles:
            self.executor.kill(handle)

    # ---- learning

    def update(self, fragments: Sequence[Fragment]) -> tuple[Metrics, Weights]:
        """Learn from a fragment per group; metrics cover the data of all ranks."""
        return self.finish_update(self.start_update(fragments))

    def start_update(self, fragments: Sequence[Fragment]) -> list[Future]:
        """The calls of an update, one per rank."""
        shares = [([f for f in fragments if f.slot_group in groups],) for groups in self.groups]
        return self.call_all("report" if self.executor.isolates else "learn", *shares, kind="update")

    def finish_update(self, calls: Sequence[Future]) -> tuple[Metrics, Weights]:
        if not self.executor.isolates:
            metrics, weights = self.outcomes(calls)[0]
            return metrics, weights
        self.outcomes(calls)
        self.timeouts.note("update", calls[0])
        report: Report = calls[0].take()
        assert report.weights is not None  # rank 0 sends them
        return dict(zip(report.names, report.values.unbind(), strict=True)), report.weights

    def waits_for(self, calls: Sequence[Future]) -> list[Future]:
        """The calls of which one must end before ``outcomes`` can continue; none if it need not wait."""
        waiting = [call for call in calls if not call.done()]
        has_failed = any(is_error(call) for call in calls if call not in waiting)
        return [] if has_failed else waiting

    def end_open_episodes(self, broken: Sequence[np.ndarray]) -> None:
        """Truncate the newest transition of every lane whose episode was lost; an array [N] per group."""
        shares = [([broken[group] for group in groups],) for groups in self.groups]
        self.outcomes(self.call_all("end_open_episodes", *shares))

    # ---- properties, read from rank 0

    def weights(self) -> Weights:
        (call,) = self.call_first("weights")
        self.outcomes([call])
        weights: Weights = call.take()
        return weights

    def gradients(self) -> str:
        """A description of how losses are differentiated."""
        phrase: str = self.call_rank0("gradients")
        return phrase

    def encoder(self) -> str:
        """A description of what turns observations into features; empty if nothing does."""
        phrase: str = self.call_rank0("encoder")
        return phrase

    def is_finite(self) -> bool:
        """Whether no parameter and no optimiser holds a NaN or an infinity."""
        return bool(self.call_rank0("is_finite"))

    def num_updates(self) -> int:
        number: int = self.call_rank0("num_updates")
        return number

    # ---- commits

    def request_states(self) -> list[Future]:
        return self.call_all("state_dict", *[() for _ in self.groups])

    def state_dict(self, calls: Sequence[Future] = ()) -> dict[str, State]:
        """A part of a commit per rank, as own copies; only rank 0's has the state that all ranks share.

        ``calls`` are those of ``request_states``, if they were made before.
        """
        calls = calls or self.request_states()
        self.outcomes(calls)
        return {part_of_rank(rank): call.take() for rank, call in enumerate(calls)}

    def load_state_dict(self, parts: dict[str, State]) -> None:
        first = parts[part_of_rank(0)]
        calls = [self.handles[0].call("load_state_dict", first, timeout=self.timeouts.of())]
        if len(self.handles) > 1:
            shared = self.executor.put({name: first[name] for name in COMMON})
            for rank, handle in enumerate(self.handles[1:], 1):
                own_part = parts[part_of_rank(rank)]
                calls.append(handle.call("load_state_dict", shared, own_part, timeout=self.timeouts.of()))
        self.outcomes(calls)

    # ---- calls

    def memory_bytes(self) -> int:
        """Memory that the process of a learner holds; the maximum over several."""
        return max(handle.memory_bytes() for handle in self.handles)

    def busy_seconds(self) -> float:
        """How long the learners have worked, on average."""
        return math.fsum(handle.busy_seconds for handle in self.handles) / len(self.handles)

    def call_rank0(self, method: str) -> Any:
        return self.outcomes(self.call_first(method))[0]

    def call_first(self, method: str) -> list[Future]:
        return [self.handles[0].call(method, timeout=self.timeouts.of())]

    def call_all(self, method: str, *args: tuple[Any, ...], kind: str = "") -> list[Future]:
        """Calls on every rank, each with its own arguments."""
        pairs = zip(self.handles, args, strict=True)
        return [handle.call(method, *mine, timeout=self.timeouts.of(kind)) for handle, mine in pairs]

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
                except PeersLost as error:  # caused by another rank: wait a moment for that rank's error
                    lost = lost or error
        if lost is not None:
            raise lost
        return [call.result() for call in calls]


def is_error(call: Future) -> bool:
    try:
        call.result()
    except Exception:
        return True
    return False

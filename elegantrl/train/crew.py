"""Those who act and judge for a learner: hosts of environment groups and an evaluator, wherever they run.

Whoever dies or hangs is replaced. A new host starts from the last snapshot of its groups and repeats what they did
since then with the weights of that time: where environments can be restored it continues bit for bit. A host that dies
again at the same place, or whose environments cannot be restored, begins new episodes instead.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..config import ExecuteConfig
from ..errors import RoleDied, RoleTimedOut
from ..execute.base import Executor, Future, Handle, Ref
from ..nets.policies import PolicySpec
from ..rng import derive_seed
from ..types import EnvSpec, Fragment, State, Weights
from .budget import RestartBudget
from .evaluator import Score
from .host import part_name

SNAPSHOT_SECONDS, SNAPSHOT_CALLS = 1.0, 32
"""A new host repeats no more than this; snapshots change no result, so a clock may time them."""


class Outcome(Protocol):
    """The value of a call by somebody, or an error that says who it was."""

    def __call__(self, future: Future, who: str) -> Any: ...


@dataclass(slots=True)
class Host:
    """Some groups of environments, and who acts for them."""

    build: Callable[[], Any]
    groups: range
    handle: Handle
    first_job: int = 0
    """The first of the answered calls that a successor must repeat."""
    seen: list[Tensor] = field(default_factory=list)
    """For each group, the observations [N, O] after the last of these calls: a repetition must end there too."""


@dataclass(slots=True)
class Losses:
    """What replacing roles has cost so far."""

    restarts: int = 0
    steps_lost: int = 0
    """Environment steps of fragments that died with their host; at most one fragment for each death."""
    episodes_lost: int = 0
    """Open episodes that could not be continued."""
    env_errors: int = 0
    """Environments that were reset because they failed, and fragments that were rejected."""


class Crew:
    """Everybody but the learner."""

    def __init__(
        self,
        executor: Executor,
        builds: Sequence[Callable[[], Any]],
        groups: Sequence[range],
        config: ExecuteConfig | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ):
        config = config or ExecuteConfig()
        self.executor, self.tell = executor, tell
        self.timeout = config.role_timeout if executor.isolates else None
        self.budget = RestartBudget(config.max_restarts)
        self.losses = Losses()
        handles = executor.spawn_all(builds)
        self.hosts = [Host(*host) for host in zip(builds, groups, handles, strict=True)]
        spec: EnvSpec = handles[0].call("env_spec").result()
        self.lanes, self.num_groups = spec.num_envs, sum(map(len, groups))
        self.env_spec = replace(spec, num_envs=self.lanes * self.num_groups)
        self.weights: Ref | None = None
        # What a new host repeats: the calls that were answered since the states below.
        self.answered: list[tuple[Ref | None, int, int]] = []
        self.snapshot: dict[str, State] = {}
        self.snapshot_time = 0.0
        self.cut: set[int] = set()
        """Groups whose open episodes were lost since ``take_cut`` was asked last."""

    def start(self, policy_spec: PolicySpec, seed: int, judge: Callable[[], Any]) -> None:
        """Hand out policies; only now is everybody ready to work."""
        self.policy_spec, self.seed, self.build_judge = policy_spec, seed, judge
        for call in [host.handle.call("start", policy_spec, seed) for host in self.hosts]:
            call.result()
        self.judge = self.executor.spawn(judge)
        if self.executor.isolates:
            self.state_dict(plain_outcome)

    def exactness(self) -> str:
        exactness: str = self.hosts[0].handle.call("exactness").result()  # all hosts have the same environments
        return exactness

    def publish(self, weights: Weights) -> None:
        """What everybody acts with from now on; written once, however many read it."""
        self.weights = self.executor.put(weights)

    # ---- acting

    def sample(self, horizon: int, seq: int, outcome: Outcome) -> list[Fragment]:
        """One fragment per group, in the order of groups."""
        waited = time.monotonic() - self.snapshot_time
        if len(self.answered) >= SNAPSHOT_CALLS or (self.answered and waited > SNAPSHOT_SECONDS):
            self.state_dict(outcome)
        job = (self.weights, horizon, seq)
        parts: list[list[Fragment]] = self.ask_all("sample", *job, steps=horizon * self.lanes, outcome=outcome)
        if self.executor.isolates:
            self.answered.append(job)
            for host, part in zip(self.hosts, parts, strict=True):
                host.seen = last_observations(part)
        return [fragment for part in parts for fragment in part]

    def state_dict(self, outcome: Outcome) -> dict[str, State]:
        """A part of a commit for each group: how the groups are shared out is no part of it."""
        parts: dict[str, State] = {}
        for part in self.ask_all("state_dict", outcome=outcome):
            parts |= part
        self.remember(parts)
        return parts

    def load_state_dict(self, parts: dict[str, State], outcome: Outcome) -> list[np.ndarray]:
        """Continue from ``parts``; for each group, which lanes [N] had to begin a new episode."""
        calls = [host.handle.call("load_state_dict", parts_of(host, parts)) for host in self.hosts]
        restarted = [lanes for call in calls for lanes in outcome(call, "load_state_dict")]
        self.remember(parts)
        return restarted

    def remember(self, parts: dict[str, State]) -> None:
        """Where a new host starts; a copy, since what was received lies in memory that its sender waits for."""
        if self.executor.isolates:
            self.snapshot = copy.deepcopy(parts)
            self.snapshot_time = time.monotonic()
            self.answered = []
            for host in self.hosts:
                host.first_job = 0

    def worker_of(self, group: int) -> int:
        """The number of the host that acts for a group."""
        return next(i for i, host in enumerate(self.hosts) if group in host.groups)

    def take_cut(self) -> list[np.ndarray] | None:
        """For each group, the lanes [N] whose newest transition has no successor; None if no episode was lost."""
        cut, self.cut = self.cut, set()
        return [np.full(self.lanes, group in cut) for group in range(self.num_groups)] if cut else None

    # ---- replacing

    def ask_all(self, method: str, *args: Any, outcome: Outcome, steps: int = 0) -> list[Any]:
        """What every host answers, in their order; ``steps`` per group are lost with a host that dies."""
        calls = [host.handle.call(method, *args, timeout=self.timeout) for host in self.hosts]
        return [self.insist(i, call, method, args, outcome, steps) for i, call in enumerate(calls)]

    def insist(
        self, number: int, call: Future, method: str, args: tuple[Any, ...], outcome: Outcome, steps: int
    ) -> Any:
        """The value of a call on a host; one that dies of it is replaced and its successor asked again."""
        host, deaths = self.hosts[number], 0
        while True:
            try:
                if deaths > 0:
                    self.replace(host, begin_anew=deaths > 1)
                    call = host.handle.call(method, *args, timeout=self.timeout)
                return outcome(call, f"worker {number}")
            except (RoleDied, RoleTimedOut) as death:
                deaths += 1
                self.losses.steps_lost += steps * len(host.groups)
                self.forgive(f"worker {number}: {death}")

    def forgive(self, why: str) -> None:
        spent = self.budget.spend(why)
        self.losses.restarts += 1
        self.tell(f"{why}; restarted ({spent} within 10 minutes)")

    def replace(self, host: Host, begin_anew: bool) -> None:
        """A new host, as far as the old one had come."""
        self.executor.kill(host.handle)
        host.handle = self.executor.spawn(host.build, self.timeout)
        # The streams of a host that begins anew must not repeat those of the run's beginning.
        seed = derive_seed(self.seed, "restart", self.losses.restarts) if begin_anew else self.seed
        self.ask(host, "start", self.policy_spec, seed)
        if begin_anew or not self.catch_up(host):
            self.cut |= set(host.groups)
            self.losses.episodes_lost += self.lanes * len(host.groups)
            # From here on this host has a past of its own.
            self.snapshot |= copy.deepcopy(self.ask(host, "state_dict"))
            host.first_job = len(self.answered)

    def catch_up(self, host: Host) -> bool:
        """Bring a new host to where the old one was; whether it got there."""
        if any(lanes.any() for lanes in self.ask(host, "load_state_dict", parts_of(host, self.snapshot))):
            return False
        fragments: list[Fragment] = []
        for job in self.answered[host.first_job :]:
            fragments = self.ask(host, "sample", *job)
        return not fragments or all(map(torch.equal, last_observations(fragments), host.seen))

    def ask(self, host: Host, method: str, *args: Any) -> Any:
        return host.handle.call(method, *args, timeout=self.timeout).result()

    # ---- judging

    def score(self, seed: int, outcome: Outcome) -> Score:
        """A function of weights and seed alone, so a new evaluator gives the same score."""
        is_dead = False
        while True:
            try:
                if is_dead:
                    self.executor.kill(self.judge)
                    self.judge = self.executor.spawn(self.build_judge, self.timeout)
                score: Score = outcome(self.judge.call("score", self.weights, seed, timeout=self.timeout), "score")
                return score
            except (RoleDied, RoleTimedOut) as death:
                is_dead = True
                self.forgive(f"evaluator: {death}")


def last_observations(fragments: list[Fragment]) -> list[Tensor]:
    """For each group what its lanes saw last [N, O], as a copy."""
    return [fragment.rollout.next_obs[-1].clone() for fragment in fragments]


def plain_outcome(future: Future, who: str) -> Any:
    return future.result()


def parts_of(host: Host, parts: dict[str, State]) -> dict[str, State]:
    return {part_name(group): parts[part_name(group)] for group in host.groups}


def share_out(num_groups: int, num_hosts: int) -> list[range]:
    """Consecutive groups for each host, as equal in number as can be."""
    ends = [num_groups * i // num_hosts for i in range(num_hosts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]

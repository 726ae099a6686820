"""Those who act and judge for a learner: hosts of environment groups and an evaluator, wherever they run.

Hosts work ahead of the learner by up to ``max_lag`` fragments of every group. With a lag of L the data of update k were
made with the weights after update k - 1 - L, whatever the speed of anybody: the order of calls decides, not the clock.
Only where the learner does not wait for all hosts (``sync_frac`` below 1) does speed decide what it learns from.

Whoever dies or hangs is replaced. A new host starts from the last snapshot of its groups and repeats what they did
since then with the weights of that time: where environments can be restored it continues bit for bit. A host that dies
twice at the same place, or whose environments cannot be restored, begins new episodes instead.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any, Protocol

import numpy as np
import torch

from ..config.sections import ExecuteConfig
from ..errors import RoleDied, RoleTimedOut
from ..execute.base import Executor, Future, Handle, Ref
from ..nets.policies import PolicySpec
from ..rng import derive_seed
from ..roles.evaluator import Score
from ..types import EnvSpec, Fragment, State, Weights
from .budget import RestartBudget
from .requests import (
    NO_CALL,
    RESTORING,
    Host,
    Job,
    by_address,
    held_job,
    last_answered,
    last_observations,
    pack_fragment,
    parts_of,
    share_out,
    unpack_fragment,
    value_of,
)

SNAPSHOT_SECONDS, SNAPSHOT_CALLS = 1.0, 32
"""A new host repeats no more than this; snapshots change no result, so a clock may time them."""

CALL_SECONDS = 1800.0
"""Unless said otherwise, a process that has not answered for so long is taken for stuck."""
FRAGMENT_SECONDS, FRAGMENT_FACTOR = 60.0, 20.0
"""Fragments are much alike: one that takes longer than this and than so many times the longest will never come."""

IN_FLIGHT = "in_flight"
"""The part of a commit that holds fragments which no update has seen yet."""


class Outcome(Protocol):
    """The value of a call by somebody, or an error that says who it was."""

    def __call__(self, future: Future, who: str) -> Any: ...


@dataclass(slots=True)
class Losses:
    """What replacing roles and not waiting for the slow has cost so far."""

    restarts: int = 0
    steps_lost: int = 0
    """Environment steps of work that died with its process: at most one fragment of each group for every worker, and
    what came after the last commit for every learner."""
    episodes_lost: int = 0
    """Open episodes that could not be continued."""
    steps_stale: int = 0
    """Environment steps that came too late to be learned from."""
    env_errors: int = 0
    """Environments that were reset because they failed, and fragments that were rejected."""


class Crew:
    """Everybody but the learner; ``build(groups)`` makes what makes the host of these groups."""

    def __init__(
        self,
        executor: Executor,
        build: Callable[[range], Callable[[], Any]],
        num_groups: int = 1,
        config: ExecuteConfig | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ):
        config = config or ExecuteConfig()
        self.executor, self.tell = executor, tell
        self.max_lag, self.sync_frac = config.max_lag, config.sync_frac
        self.max_bytes = math.inf if config.max_worker_memory is None else config.max_worker_memory * 1e6
        self.role_timeout = config.role_timeout
        self.timeout = call_seconds(config) if executor.isolates else None
        self.longest_fragment = 0.0
        self.budget = RestartBudget(config.max_restarts)
        self.losses = Losses()
        self.policy_spec: PolicySpec | None = None
        self.build, self.num_groups = build, num_groups
        self.hosts = self.hosts_for(config.num_workers)
        spec: EnvSpec = self.insist(0, lambda: self.hosts[0].handle.call("env_spec"), plain_outcome)
        self.lanes = spec.num_envs
        self.env_spec = replace(spec, num_envs=self.lanes * self.num_groups)
        self.weights: Ref | None = None
        self.version = 0
        self.cuts: dict[int, tuple[int, np.ndarray]] = {}
        """Of groups that lost open episodes: the first job after the loss, and the lanes [N] concerned."""
        self.verdict: tuple[Ref | None, int, Future] | None = None
        """What the evaluator is asked for: weights, seed, and its answer to come."""

    def hosts_for(self, num_workers: int) -> list[Host]:
        """Hosts that share all groups."""
        groups = share_out(self.num_groups, num_workers)
        builds = [self.build(part) for part in groups]
        return [Host(*host) for host in zip(builds, groups, self.hire("workers", builds), strict=True)]

    def start(self, policy_spec: PolicySpec, seed: int, judge: Callable[[], Any]) -> None:
        """Hand out policies; only now is everybody ready to work."""
        self.policy_spec, self.seed, self.build_judge = policy_spec, seed, judge
        self.brief()
        (self.judge,) = self.hire("evaluator", [judge])
        if self.executor.isolates:
            self.state_dict(plain_outcome)

    def brief(self) -> None:
        calls = [host.handle.call("start", self.policy_spec, self.seed) for host in self.hosts]
        for number, call in enumerate(calls):
            # A successor has been started by whoever replaced the first.
            self.insist(number, partial(next, chain([call], repeat(NO_CALL))), plain_outcome)

    def resize(self, num_workers: int, outcome: Outcome) -> None:
        """Share the groups out among another number of hosts; what comes of them stays the same."""
        parts, old = self.state_dict(outcome), self.hosts
        self.hosts = self.hosts_for(num_workers)
        self.brief()
        cuts = self.cuts
        self.load_state_dict(parts, outcome)
        self.cuts = cuts | self.cuts  # a loss that was noticed just now is in no part
        for host in old:
            self.executor.kill(host.handle)

    def exactness(self) -> str:
        # All hosts have the same environments.
        exactness: str = self.insist(0, lambda: self.hosts[0].handle.call("exactness"), plain_outcome)
        return exactness

    def publish(self, weights: Weights) -> None:
        """What everybody acts with from now on; written once, however many read it."""
        self.weights, self.version = self.executor.put(weights), weights.version

    # ---- acting

    def sample(self, horizon: int, seq: int, outcome: Outcome) -> tuple[list[Fragment], int]:
        """Fragments for the next update, in the order of groups, and the number of the next job.

        Before it waits it asks for more, so that nobody idles while the learner learns from these.
        """
        fragments: list[Fragment] = []
        while not fragments:  # all that came may have been too old
            while any(len(host.waiting) <= self.max_lag for host in self.hosts):
                for host in self.hosts:
                    if len(host.waiting) <= self.max_lag:
                        call = self.ask_for_fragment(host, self.weights, horizon, seq)
                        host.waiting.append(Job(self.weights, horizon, seq, call))
                seq += 1
            self.take_snapshots(seq)
            for number in self.ready_hosts():
                fragments += self.take_fragments(number, outcome)
        return fragments, seq

    def ask_for_fragment(self, host: Host, weights: Ref | None, horizon: int, seq: int) -> Future:
        return host.handle.call("sample", weights, horizon, seq, timeout=self.fragment_timeout())

    def fragment_timeout(self) -> float | None:
        if self.role_timeout is not None or not self.longest_fragment or self.timeout is None:
            return self.timeout
        return min(self.timeout, max(FRAGMENT_SECONDS, FRAGMENT_FACTOR * self.longest_fragment))

    def ready_hosts(self) -> list[int]:
        """Hosts whose oldest fragments are to be taken now: all, or those that are quick enough."""
        everybody = list(range(len(self.hosts)))
        if self.sync_frac == 1.0:
            return everybody
        calls = [host.waiting[0].call for host in self.hosts]
        needed = math.ceil(self.sync_frac * len(self.hosts))
        # Each is asked once: if one got done between two questions, only those were waited for who may take for ever.
        while len(late := [call for call in calls if not call.done()]) > len(calls) - needed:
            self.executor.wait(late)
        return [i for i in everybody if calls[i] not in late]

    def take_fragments(self, number: int, outcome: Outcome) -> list[Fragment]:
        """The oldest fragments that a host was asked for; none if they are too old to learn from."""
        host = self.hosts[number]
        part: list[Fragment] = self.insist(number, lambda: host.waiting[0].call, outcome)
        job = host.waiting.popleft()
        self.longest_fragment = max(self.longest_fragment, host.handle.longest_seconds)
        if self.executor.isolates:
            if job.seq > host.snapshot_seq:
                host.past.append(job._replace(call=NO_CALL))
            host.seen = last_observations(part)
        fresh = [fragment for fragment in part if self.version - fragment.version <= self.max_lag]
        if len(fresh) < len(part):
            self.losses.steps_stale += sum(fragment.rollout.num_steps for fragment in part)
            self.losses.steps_lost += sum(fragment.steps_lost for fragment in part)
            self.losses.env_errors += sum(len(fragment.faults) for fragment in part)
            for group in host.groups:
                self.cut_off(group, job.seq + 1)
            return []
        return fresh

    def worker_of(self, group: int) -> int:
        """The number of the host that acts for a group."""
        return next(i for i, host in enumerate(self.hosts) if group in host.groups)

    def cut_off(self, group: int, seq: int, lanes: np.ndarray | None = None) -> None:
        """From job ``seq`` on, what a group delivers does not continue what it delivered before."""
        lanes = np.ones(self.lanes, dtype=bool) if lanes is None else lanes
        self.cuts[group] = (seq, lanes | self.cuts[group][1] if group in self.cuts else lanes)

    def take_cuts(self, fragments: Sequence[Fragment] = ()) -> list[np.ndarray] | None:
        """For each group, the lanes [N] whose newest transition has no successor; None if there is none.

        Asked before ``fragments`` are learned from, or when everything that was delivered has been.
        """
        if not self.cuts:  # as nearly always
            return None
        coming = {fragment.slot_group: fragment.seq for fragment in fragments}
        cut = [np.zeros(self.lanes, dtype=bool) for _ in range(self.num_groups)]
        for group, (seq, lanes) in list(self.cuts.items()):
            older = [job.seq for job in self.hosts[self.worker_of(group)].waiting if value_of(job.call) is not None]
            if coming.get(group, -1 if fragments else min(older, default=seq)) >= seq:
                cut[group] = lanes
                del self.cuts[group]
        return cut if any(lanes.any() for lanes in cut) else None

    def num_ready(self) -> int:
        """Fragments of hosts that wait to be learned from."""
        return sum(job.call.done() for host in self.hosts for job in host.waiting)

    def memory_bytes(self) -> dict[str, int]:
        """What the processes of roles hold in memory, of hosts the one that holds most."""
        return {
            "workers": max(host.handle.memory_bytes() for host in self.hosts),
            "evaluator": self.judge.memory_bytes(),
        }

    def busy_seconds(self) -> dict[str, float]:
        """How long the roles have worked, hosts on average."""
        return {
            "workers": math.fsum(host.handle.busy_seconds for host in self.hosts) / len(self.hosts),
            "evaluator": self.judge.busy_seconds,
        }

    # ---- remembering

    def state_dict(self, outcome: Outcome) -> dict[str, State]:
        """A part of a commit for each group: how the groups are shared out is no part of it.

        The states are those after everything that was asked for; what of it was not taken yet is a part too.
        """
        calls = [self.ask_for_state(host) for host in self.hosts]
        parts: dict[str, State] = {}
        in_flight: list[Fragment] = []
        for number, (host, call) in enumerate(zip(self.hosts, calls, strict=True)):
            asked = chain([call], map(self.ask_for_state, repeat(host)))  # the first call, then one of each successor
            part = self.insist(number, partial(next, asked), outcome)
            for job in host.waiting:  # calls run in order, so these were answered before
                in_flight += outcome(job.call, f"worker {number}")
            self.adopt_snapshot(host, part, last_answered(host))
            parts |= part
        if in_flight:
            in_flight.sort(key=by_address)
            cuts = [[group, seq, torch.from_numpy(lanes)] for group, (seq, lanes) in sorted(self.cuts.items())]
            parts[IN_FLIGHT] = {"fragments": [pack_fragment(fragment) for fragment in in_flight], "cuts": cuts}
        return parts

    def load_state_dict(self, parts: dict[str, State], outcome: Outcome) -> None:
        """Continue from ``parts``; where that is not possible new episodes begin."""
        in_flight = parts.get(IN_FLIGHT, {"fragments": [], "cuts": []})
        fragments = [unpack_fragment(state) for state in in_flight["fragments"]]
        self.cuts = {group: (seq, lanes.numpy()) for group, seq, lanes in in_flight["cuts"]}
        for host in self.hosts:  # before anybody is asked: whoever must be replaced begins here too
            mine = [fragment for fragment in fragments if fragment.slot_group in host.groups]
            host.waiting = deque(held_job(list(same)) for _, same in groupby(mine, key=lambda f: f.seq))
            host.next_snapshot = None
            host.past, host.snapshot_seq = [], -1
            self.adopt_snapshot(host, parts_of(host, parts), last_answered(host))
        calls = [self.ask_to_load(host, parts) for host in self.hosts]
        for number, (host, call) in enumerate(zip(self.hosts, calls, strict=True)):
            asked = chain([call], map(self.ask_to_load, repeat(host), repeat(parts)))
            restarted: list[np.ndarray] = self.insist(number, partial(next, asked), outcome)
            for group, lanes in zip(host.groups, restarted, strict=True):
                if lanes.any():
                    self.cut_off(group, last_answered(host) + 1, lanes)
                    self.losses.episodes_lost += int(lanes.sum())

    def ask_to_load(self, host: Host, parts: dict[str, State]) -> Future:
        return host.handle.call("load_state_dict", parts_of(host, parts), timeout=self.timeout)

    def ask_for_state(self, host: Host) -> Future:
        return host.handle.call("state_dict", timeout=self.timeout)

    def take_snapshots(self, seq: int) -> None:
        """Now and then ask the hosts for their states, and adopt those that have come; nobody waits for them."""
        if not self.executor.isolates:
            return
        for host in self.hosts:
            if host.next_snapshot is not None and host.next_snapshot[1].done():
                asked, call = host.next_snapshot
                host.next_snapshot = None
                if (part := value_of(call)) is not None:
                    self.adopt_snapshot(host, part, asked)
            waited = time.monotonic() - host.snapshot_time
            due = len(host.past) >= SNAPSHOT_CALLS or (host.past and waited > SNAPSHOT_SECONDS)
            if due and host.next_snapshot is None:
                host.next_snapshot = (seq - 1, self.ask_for_state(host))

    def adopt_snapshot(self, host: Host, part: dict[str, State], seq: int) -> None:
        """Where a new host starts; a copy, since what was received lies in memory that its sender waits for."""
        if self.executor.isolates:
            host.snapshot, host.snapshot_seq, host.snapshot_time = copy.deepcopy(part), seq, time.monotonic()
            host.past = [job for job in host.past if job.seq > seq]

    # ---- replacing

    def insist(self, number: int, ask: Callable[[], Future], outcome: Outcome) -> Any:
        """What a host answers; one that dies of it is replaced and its successor asked again."""
        host, who = self.hosts[number], f"worker {number}"
        died_at: list[int | None] = []
        while True:
            try:
                if died_at:
                    self.replace(host, who, begin_anew=died_at[-1] is not None and died_at[-1] in died_at[:-1])
                answer = outcome(ask(), who)
                self.budget.has_recovered(who)
                return answer
            except (RoleDied, RoleTimedOut) as death:
                died_at.append(self.place_of_death(host))
                self.forgive(who, death)

    def replace_grown(self, outcome: Outcome) -> None:
        """New processes for hosts that hold too much memory: whatever leaks there is gone with the old ones."""
        for number, host in enumerate(self.hosts):
            if (held := host.handle.memory_bytes()) > self.max_bytes:
                part = self.insist(number, partial(self.ask_for_state, host), outcome)
                self.adopt_snapshot(host, part, last_answered(host))
                try:
                    self.replace(host, f"worker {number}", begin_anew=False)
                except (RoleDied, RoleTimedOut) as death:  # whoever asks it next replaces it once more
                    self.forgive(f"worker {number}", death)
                self.tell(f"worker {number} held {held / 1e6:,.0f} MB and was replaced")

    def place_of_death(self, host: Host) -> int | None:
        """The job that a host was at, None if it had none; counts the steps of one that was not a repetition."""
        at, host.repeating = host.repeating, None
        # Of those that have failed the first; those behind it had not begun.
        lost = next((job for job in host.waiting if job.call.done() and value_of(job.call) is None), None)
        if at is not None or lost is None:
            return at
        self.losses.steps_lost += lost.horizon * self.lanes * len(host.groups)
        return lost.seq

    def forgive(self, who: str, death: Exception) -> None:
        spent = self.budget.spend(f"{who}: {death}", who)
        self.losses.restarts += 1
        self.tell(f"{who}: {death}; restarted ({spent} within 10 minutes)")

    def hire(self, who: str, builds: Sequence[Callable[[], Any]]) -> list[Handle]:
        """New roles; if one of them dies before it has come to life, all are tried again."""
        while True:
            try:
                return self.executor.spawn_all(builds, self.timeout)
            except (RoleDied, RoleTimedOut) as death:
                self.forgive(who, death)

    def replace(self, host: Host, who: str, begin_anew: bool) -> None:
        """A new host, as far as the old one had come, with the same work before it."""
        self.executor.kill(host.handle)
        (host.handle,), host.next_snapshot = self.hire(who, [host.build]), None
        if self.policy_spec is None:  # nobody has been started yet
            return
        host.repeating = RESTORING
        # The streams of a host that begins anew must not repeat those of the run's beginning.
        seed = derive_seed(self.seed, "restart", self.losses.restarts) if begin_anew else self.seed
        self.ask(host, "start", self.policy_spec, seed)
        if begin_anew or not self.catch_up(host):
            for group in host.groups:
                self.cut_off(group, last_answered(host) + 1)
            self.losses.episodes_lost += self.lanes * len(host.groups)
            # From here on this host has a past of its own.
            self.adopt_snapshot(host, self.ask(host, "state_dict"), last_answered(host))
        unanswered = [job for job in host.waiting if value_of(job.call) is None]
        for job in unanswered:
            call = self.ask_for_fragment(host, job.weights, job.horizon, job.seq)
            host.waiting[host.waiting.index(job)] = job._replace(call=call)
        host.repeating = None

    def catch_up(self, host: Host) -> bool:
        """Bring a new host to where the old one was; whether it got there."""
        if not host.snapshot:  # the old one had just been started
            return True
        if any(lanes.any() for lanes in self.ask(host, "load_state_dict", parts_of(host, host.snapshot))):
            return False
        repeated: list[Fragment] = []
        seen = host.seen
        for job in host.past:
            repeated = self.repeat(host, job)
        for job in host.waiting:
            answer = value_of(job.call)
            if answer is not None and job.seq > host.snapshot_seq:
                repeated, seen = self.repeat(host, job), last_observations(answer)
        return not repeated or all(map(torch.equal, last_observations(repeated), seen))

    def repeat(self, host: Host, job: Job) -> list[Fragment]:
        host.repeating = job.seq
        fragments: list[Fragment] = self.ask_for_fragment(host, job.weights, job.horizon, job.seq).result()
        return fragments

    def ask(self, host: Host, method: str, *args: Any) -> Any:
        return host.handle.call(method, *args, timeout=self.timeout).result()

    # ---- judging

    def ask_for_score(self, weights: Weights, seed: int) -> None:
        """Have a policy judged; ``score`` hears the answer."""
        ref = self.weights if weights.version == self.version else self.executor.put(weights)
        self.verdict = (ref, seed, self.judge.call("score", ref, seed, timeout=self.timeout))

    def score(self, outcome: Outcome, wait: bool) -> Score | None:
        """What the evaluator answers; None if it has not yet and nobody waits.

        A score is a function of weights and seed alone, so a new evaluator gives the same.
        """
        is_dead = False
        while True:
            assert self.verdict is not None
            ref, seed, call = self.verdict
            try:
                if is_dead:
                    self.executor.kill(self.judge)
                    (self.judge,) = self.hire("evaluator", [self.build_judge])
                    call = self.judge.call("score", ref, seed, timeout=self.timeout)
                    self.verdict = (ref, seed, call)
                if not wait and not call.done():
                    return None
                score: Score = outcome(call, "score")
                self.verdict = None
                self.budget.has_recovered("evaluator")
                return score
            except (RoleDied, RoleTimedOut) as death:
                is_dead = True
                self.forgive("evaluator", death)


def call_seconds(config: ExecuteConfig) -> float:
    """How long a call may take."""
    return CALL_SECONDS if config.role_timeout is None else config.role_timeout


def plain_outcome(future: Future, who: str) -> Any:
    return future.result()

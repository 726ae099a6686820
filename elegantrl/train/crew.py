"""Those who act and judge for a learner: hosts of environment groups and an evaluator, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from ..execute.base import Executor, Future, Handle, Ref
from ..nets.policies import PolicySpec
from ..types import EnvSpec, Fragment, State, Weights
from .evaluator import Score
from .host import part_name


class Outcome(Protocol):
    """The value of a call by somebody, or an error that says who it was."""

    def __call__(self, future: Future, who: str) -> Any: ...


@dataclass(slots=True)
class Host:
    """Some groups of environments, and who acts for them."""

    build: Callable[[], Any]
    groups: range
    handle: Handle


class Crew:
    """Everybody but the learner."""

    def __init__(self, executor: Executor, builds: Sequence[Callable[[], Any]], groups: Sequence[range]):
        self.executor = executor
        handles = executor.spawn_all(builds)
        self.hosts = [Host(*host) for host in zip(builds, groups, handles, strict=True)]
        self.weights: Ref | None = None

    def env_spec(self) -> EnvSpec:
        """All lanes of the run."""
        spec: EnvSpec = self.hosts[0].handle.call("env_spec").result()
        return replace(spec, num_envs=spec.num_envs * sum(len(host.groups) for host in self.hosts))

    def start(self, policy_spec: PolicySpec, seed: int, judge: Callable[[], Any]) -> None:
        """Hand out policies; only now is everybody ready to work."""
        for call in [host.handle.call("start", policy_spec, seed) for host in self.hosts]:
            call.result()
        self.judge = self.executor.spawn(judge)

    def exactness(self) -> str:
        exactness: str = self.hosts[0].handle.call("exactness").result()  # all hosts have the same environments
        return exactness

    def publish(self, weights: Weights) -> None:
        """What everybody acts with from now on; written once, however many read it."""
        self.weights = self.executor.put(weights)

    # ---- acting

    def sample(self, horizon: int, seq: int, outcome: Outcome) -> list[Fragment]:
        """One fragment per group, in the order of groups."""
        calls = [host.handle.call("sample", self.weights, horizon, seq) for host in self.hosts]
        return [fragment for i, call in enumerate(calls) for fragment in outcome(call, f"worker {i}")]

    def state_dict(self, outcome: Outcome) -> dict[str, State]:
        """A part of a commit for each group: how the groups are shared out is no part of it."""
        calls = [host.handle.call("state_dict") for host in self.hosts]
        return {name: part for call in calls for name, part in outcome(call, "state_dict").items()}

    def load_state_dict(self, parts: dict[str, State], outcome: Outcome) -> list[np.ndarray]:
        """Continue from ``parts``; for each group, which lanes [N] had to begin a new episode."""
        calls = [
            host.handle.call("load_state_dict", {part_name(group): parts[part_name(group)] for group in host.groups})
            for host in self.hosts
        ]
        return [restarted for call in calls for restarted in outcome(call, "load_state_dict")]

    # ---- judging

    def score(self, seed: int, outcome: Outcome) -> Score:
        score: Score = outcome(self.judge.call("score", self.weights, seed), "score")
        return score


def share_out(num_groups: int, num_hosts: int) -> list[range]:
    """Consecutive groups for each host, as equal in number as can be."""
    ends = [num_groups * i // num_hosts for i in range(num_hosts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]

"""One run of time_to_threshold.py or team_threshold.py: train one system in this process until the rule holds, print
what it took as JSON.

    python benchmarks/threshold_run.py ours/ppo CartPole-v1 --threshold 475 --seed 0 --limit 60

The rule is the same for every system: the mean return of the last training episodes, exploration on, or with
--evaluate-every that of as many evaluation episodes without exploration, for a task on which the training episodes of
a system are not those of the others. The clock starts at the first environment step, so imports and construction are
not counted; what a system compiles while it trains is. Evaluations of ours count too, those of the others do not.
Needs elegantrl only for `ours/*`: the peers live in an environment of their own. An exit code of 3 means that the
system is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

NOT_INSTALLED = 3


class Over(Exception):
    """The threshold is reached, or there is no time left."""


class Rule:
    """When a run is over, and what it took.

    The limit is meant for a quiet machine: on a busy one a run may take it in seconds of the processor.
    """

    def __init__(self, threshold: float, limit: float, episodes: int = 20, evaluate_every: int | None = None):
        self.threshold, self.limit, self.episodes = threshold, limit, episodes
        self.evaluate_every = evaluate_every
        """Steps between evaluations if these decide, and not the training episodes."""
        self.recent: deque[float] = deque(maxlen=episodes)
        self.first: float | None = None
        self.last: float | None = None
        self.best, self.steps, self.reached, self.over = -math.inf, 0, False, False
        self.seconds = self.cpu_seconds = 0.0

    def start(self) -> None:
        """Just before the first environment step."""
        self._clocks = time.perf_counter(), session_seconds()

    def see(self, returns: list[float], steps: int) -> None:
        """The episodes that ended since the last call, by now that many environment steps."""
        self.steps = steps
        for value in returns if self.evaluate_every is None else []:
            self.recent.append(value)
            if len(self.recent) == self.recent.maxlen:
                self.note(statistics.fmean(self.recent))
        self.check()

    def is_due(self, steps: int) -> bool:
        """Whether the policy must be evaluated now."""
        return self.evaluate_every is not None and steps // self.evaluate_every > self.steps // self.evaluate_every

    def judge(self, returns: Sequence[float], seconds: float = 0.0, cpu_seconds: float = 0.0) -> None:
        """The returns of an evaluation, and how long it took if that shall not count."""
        self._clocks = self._clocks[0] + seconds, self._clocks[1] + cpu_seconds
        self.note(statistics.fmean(returns))
        self.check()

    def note(self, mean: float) -> None:
        self.last = mean
        self.best = max(self.best, mean)
        self.first = mean if self.first is None else self.first

    def check(self) -> None:
        self.seconds = time.perf_counter() - self._clocks[0]
        self.reached = self.best >= self.threshold
        # The processor's clock is read only where it decides: that takes a look at every process.
        if self.reached or self.seconds > self.limit:
            self.cpu_seconds = session_seconds() - self._clocks[1]
            self.over = self.reached or self.cpu_seconds > self.limit
        if self.over:
            raise Over

    def report(self) -> dict[str, Any]:
        return {
            "reached": self.reached,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "steps": self.steps,
            "first": self.first,
            "last": self.last,
            "best": self.best if math.isfinite(self.best) else None,
            "load": round(os.getloadavg()[0], 2),
        }


def session_seconds() -> float:
    """Processor time of all processes of this session, those that ended and were waited for included."""
    ticks, session = 0, os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            words = path.read_text().rpartition(")")[2].split()  # from the third field on: a name may hold blanks
            if int(words[3]) == session:
                ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


# ---- ours


def train_ours(agent: str, env: str, seed: int, rule: Rule) -> None:
    """What `elegantrl train AGENT ENV` does: its layout, evaluations, commits and log files included."""
    from elegantrl.runtime import build
    from elegantrl.runtime.evaluation import Evaluation
    from elegantrl.runtime.progress import Silent
    from elegantrl.runtime.supervisor import Supervisor
    from elegantrl.runtime.train import prepare
    from elegantrl.runtime.training import Steps
    from elegantrl.types import Fragment

    class Watched(Supervisor):
        """Checks the rule after every rollout; a display would see it only every half second."""

        def collect(self) -> Steps[list[Fragment]]:
            if self.progress.env_steps == 0:
                rule.start()
            fragments = yield from super().collect()
            returns = [value for fragment in fragments for value in fragment.episodes.returns.tolist()]
            rule.see(returns, self.progress.env_steps)
            return fragments

        def report(self, evaluation: Evaluation, is_best: bool) -> None:
            super().report(evaluation, is_best)
            if rule.evaluate_every is not None:
                rule.judge(evaluation.score.returns[: rule.episodes])

    evaluations = {} if rule.evaluate_every is None else {"interval": rule.evaluate_every, "episodes": rule.episodes}
    plan = prepare(agent, env, {"train": {"seed": seed, "target_return": math.inf}, "eval": evaluations})
    with patch.object(build, "Supervisor", Watched), tempfile.TemporaryDirectory() as folder:
        plan.run(f"{folder}/run", resume=False, display=Silent())


# ---- one run


def train(system: str, env: str, seed: int, rule: Rule) -> None:
    library, _, name = system.partition("/")
    if library == "ours":
        train_ours(name, env, seed, rule)
    elif library in ("sb3", "sbx"):
        from peers import baselines

        baselines.train(library, name, env, seed, rule)
    elif env.startswith(TEAMS):
        train_team_peer(library, name, seed, rule)
    else:
        train_peer(library, env, seed, rule)


TEAMS = "mpe2:"
"""How the names of environments with several agents begin."""


def train_team_peer(library: str, algorithm: str, seed: int, rule: Rule) -> None:
    import torch
    from peers.team_common import WatchedTeam

    torch.set_num_threads(1)
    WatchedTeam.rule = rule
    importlib.import_module(f"peers.team_{library}").train(algorithm, seed)


def train_peer(library: str, env: str, seed: int, rule: Rule) -> None:
    import torch
    from peers.common import OWN, ZOO, Watched

    torch.set_num_threads(1)
    Watched.rule = rule
    importlib.import_module(f"peers.{library}").train(env, seed, OWN.get((library, env), ZOO[env]))


PACKAGES = {
    "ours": ("elegantrl", "torch", "gymnasium"),
    "sb3": ("stable_baselines3", "torch", "gymnasium"),
    "sbx": ("sbx", "jax", "stable_baselines3", "gymnasium"),
    "skrl": ("skrl", "torch", "gymnasium"),
    "tianshou": ("tianshou", "torch", "gymnasium"),
    "rllib": ("ray", "torch", "gymnasium"),
    "rl_games": ("rl_games", "torch", "gymnasium"),
    "sample_factory": ("sample_factory", "torch", "gymnasium"),
    "torchrl": ("torchrl", "tensordict", "torch", "gymnasium"),
    "agilerl": ("agilerl", "torch", "gymnasium"),
    "xuance": ("xuance", "torch", "gymnasium"),
    "elegantrl_public": ("elegantrl", "torch", "gymnasium"),
    "rsl_rl": ("rsl_rl", "torch", "gymnasium"),
    "pufferlib": ("pufferlib", "torch", "gymnasium"),
    "pfrl": ("pfrl", "torch", "gymnasium"),
    "mushroom_rl": ("mushroom_rl", "torch", "gymnasium"),
}
DISTRIBUTIONS = {
    "sbx": "sbx-rl",
    "stable_baselines3": "stable-baselines3",
    "rl_games": "rl-games",
    "sample_factory": "sample-factory",
    "rsl_rl": "rsl-rl-lib",
}


def packages(library: str, env: str) -> tuple[str, ...]:
    return (*PACKAGES[library], "mpe2") if env.startswith(TEAMS) else PACKAGES[library]


def versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(DISTRIBUTIONS.get(name, name))
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("system", help="library/algorithm, for example ours/ppo or sbx/ppo")
    parser.add_argument("env")
    parser.add_argument("--threshold", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which the run is given up")
    parser.add_argument("--episodes", type=int, default=20, help="training episodes over which returns are averaged")
    parser.add_argument("--evaluate-every", type=int, metavar="STEPS",
                        help="judge by evaluation episodes without exploration, so often")  # fmt: skip
    parser.add_argument("--core", type=int, help="the only core that it may use")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    needed = packages(args.system.partition("/")[0], args.env)
    if any(importlib.util.find_spec(name) is None for name in needed):
        return NOT_INSTALLED
    rule = Rule(args.threshold, args.limit, args.episodes, args.evaluate_every)
    try:
        train(args.system, args.env, args.seed, rule)
    except Exception:  # RLlib passes Over on as a RuntimeError
        if not rule.over:
            raise
    print(json.dumps(rule.report() | {"versions": versions(needed)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

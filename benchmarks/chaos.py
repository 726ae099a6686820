"""What does a process that dies cost? One run during which workers, learner and evaluator are killed a hundred times.

    python benchmarks/chaos.py                  # 100 kills, a few minutes
    python benchmarks/chaos.py --kills 20       # fewer

A thread picks a role and a moment at random and sends SIGKILL, whatever the role is doing: working, idle, or catching
up after the kill before. (Roles killed while they are being built are in tests/fault/test_kill_matrix.py.) The run is
then compared with one of the same settings without kills: it must take as many steps and end with the same
bits. Results go to results/chaos.json; the exit code is 1 if a claim fails.

Recovery is counted from a kill, or from the moment at which an idle evaluator is missed, until the successor has
answered: a worker and a learner have taken part in a whole iteration by then, an evaluator has given a score.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from common import environment, write_json
from rich.console import Console
from rich.table import Table

from elegantrl.execute.base import Handle
from elegantrl.execute.process import ProcessHandle
from elegantrl.runtime import build as build_module
from elegantrl.runtime.supervisor import Supervisor
from elegantrl.runtime.train import train
from elegantrl.runtime.training import Steps
from elegantrl.store.commits import Store
from elegantrl.types import Fragment

BAR_SECONDS = 2.0
LEFT_SECONDS = 2.0
"""How long after a run its last process may live."""
NUM_ENVS, HORIZON, NUM_WORKERS, NUM_GROUPS = 4, 32, 2, 2
ITERATION = NUM_ENVS * HORIZON
COMMIT_INTERVAL = 4 * ITERATION
SETTINGS: dict[str, Any] = {
    "seed": 1, "num_envs": NUM_ENVS, "num_groups": NUM_GROUPS, "executor": "process", "num_workers": NUM_WORKERS,
    "num_learners": 1, "horizon": HORIZON, "hidden": [16], "batch_size": 64, "num_epochs": 2,
    "target_return": float("inf"), "eval": {"interval": 2 * ITERATION, "episodes": 2, "max_episode_steps": 200},
    "checkpoint": {"interval": COMMIT_INTERVAL},
}  # fmt: skip
PARTS = ("learner", *(f"group{group}" for group in range(NUM_GROUPS)))
"""What ends bit-equal; when an evaluation is heard, which the supervisor's part says, depends on the clock."""


@dataclass
class Kill:
    """One SIGKILL and what became of it."""

    role: str
    pid: int
    time: float
    env_steps: int
    needed: float | None = None
    """When the role was first missed, if that was later than its death."""
    recovered: float | None = None
    """When a successor had answered its next call."""
    regained: float | None = None
    """When the run had as many steps again as at the kill."""

    @property
    def seconds(self) -> float | None:
        start = self.time if self.needed is None else self.needed
        return None if self.recovered is None else self.recovered - start


class WatchedSupervisor(Supervisor):
    """Notes when each role answers."""

    kills: ClassVar[list[Kill]] = []
    current: WatchedSupervisor | None = None
    lock = threading.Lock()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        WatchedSupervisor.current = self

    def roles(self) -> dict[str, Handle]:
        workers = {f"worker {number}": worker.handle for number, worker in enumerate(self.pool.workers)}
        return {**workers, "learner": self.learners.handles[0], "evaluator": self.evaluator.handle}

    def learn(self, fragments: list[Fragment]) -> Steps[None]:
        """Note that workers and learner have answered."""
        yield from super().learn(fragments)
        with self.lock:
            pids = {role: pid_of(handle) for role, handle in self.roles().items()}
            for kill in self.kills:
                if kill.role != "evaluator" and kill.recovered is None and pids[kill.role] != kill.pid:
                    kill.recovered = time.monotonic()
                if kill.regained is None and kill.recovered is not None and self.progress.env_steps >= kill.env_steps:
                    kill.regained = time.monotonic()

    def evaluate(self) -> Steps[None]:
        """An evaluator that is not needed is not missed: its time counts from the request for a score."""
        open_kills = [kill for kill in self.kills if kill.role == "evaluator" and kill.recovered is None]
        evaluation = self.evaluations.current
        if evaluation is not None:
            for kill in open_kills:
                kill.needed = kill.needed or time.monotonic()
        rounds = 0 if evaluation is None else evaluation.rounds
        yield from super().evaluate()
        if evaluation is not None and (self.evaluations.current is not evaluation or evaluation.rounds > rounds):
            for kill in open_kills:
                if pid_of(self.evaluator.handle) != kill.pid:
                    kill.recovered = time.monotonic()


def pid_of(handle: Handle) -> int | None:
    """None if it has died already."""
    assert isinstance(handle, ProcessHandle)
    with contextlib.suppress(ValueError):  # its end was noticed
        return handle.process.pid if handle.death is None else None
    return None


class Killer(threading.Thread):
    """Kills roles at random moments; the next one too when the one before has not recovered."""

    def __init__(self, num_kills: int, gap_seconds: float, seed: int):
        super().__init__(daemon=True)
        self.num_kills, self.gap_seconds, self.random = num_kills, gap_seconds, random.Random(seed)

    def run(self) -> None:
        done = 0
        while done < self.num_kills:
            end = time.monotonic() + self.random.expovariate(1 / self.gap_seconds)
            while time.monotonic() < end and not self.is_late(done):
                time.sleep(0.005)
            supervisor = WatchedSupervisor.current
            done += supervisor is not None and self.strike(supervisor)

    def is_late(self, done: int) -> bool:
        """Whether a fast run would end before the last kill."""
        supervisor = WatchedSupervisor.current
        if supervisor is None:
            return False
        return supervisor.progress.env_steps / supervisor.config.train.max_steps > (done + 1) / (self.num_kills + 1)

    def strike(self, supervisor: WatchedSupervisor) -> bool:
        """Whether a living process was killed."""
        with supervisor.lock:
            role = self.random.choice([*supervisor.roles()])
            pid = pid_of(supervisor.roles()[role])
            if pid is None or any(kill.pid == pid for kill in supervisor.kills):
                return False
            kill = Kill(role, pid, time.monotonic(), supervisor.progress.env_steps)
            os.kill(pid, signal.SIGKILL)
            supervisor.kills.append(kill)
        return True


def disturbed_run(folder: Path, steps: int, num_kills: int, gap_seconds: float, seed: int) -> None:
    """The run with the kills, in this process; leaves kills.json beside its folder."""
    build_module.Supervisor = WatchedSupervisor  # type: ignore[misc]
    if num_kills:
        Killer(num_kills, gap_seconds, seed).start()
    limits = {"max_steps": steps, "max_restarts": 10 * num_kills}
    train("ppo", "CartPole-v1", run_dir=folder, verbose=False, **limits, **SETTINGS)
    kills = [asdict(kill) | {"seconds": kill.seconds} for kill in WatchedSupervisor.kills]
    folder.with_suffix(".json").write_text(json.dumps(kills))


def run_apart(folder: Path, *words: Any) -> tuple[int, float, list[str]]:
    """``disturbed_run`` in another process: its exit code, how long it took, and which processes outlived it."""
    command = [sys.executable, __file__, "--inside", folder, *words]
    mark = f"ELEGANTRL_CHAOS={uuid.uuid4().hex}"
    start = time.monotonic()
    code = subprocess.run([str(word) for word in command], env=os.environ | dict([mark.split("=")])).returncode
    end = time.monotonic()
    while (left := marked(mark)) and time.monotonic() < end + LEFT_SECONDS:
        time.sleep(0.02)
    return code, end - start, left


def marked(mark: str) -> list[str]:
    """Living processes with this in their environment, which all descendants inherit.

    Shared memory without a name lives and dies with the processes that map it, so where there are none there is none.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_text(errors="replace"):
                shared = (folder / "maps").read_text().count("memfd:elegantrl")
                found.append(f"{(folder / 'cmdline').read_text()[:200]!r} with {shared} maps of shared memory")
    return found


# ---- claims


def compare(folder: Path, reference: Path, steps: int, num_kills: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Rows of (claim, value, bar, verdict), and the figures as data."""
    kills = json.loads(folder.with_suffix(".json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    commit, sound = (Store(path).latest_valid() for path in (folder, reference))
    assert commit is not None and sound is not None
    of_role = {role: [kill for kill in kills if kill["role"].startswith(role)] for role in ("worker", "learner")}
    bound = len(of_role["worker"]) * ITERATION // NUM_WORKERS + len(of_role["learner"]) * (COMMIT_INTERVAL + ITERATION)
    times = sorted(kill["seconds"] for kill in kills if kill["seconds"] is not None)
    p50, p95 = np.percentile(times, (50, 95)).tolist()
    alone = [kill["seconds"] for kill in kills if kill["seconds"] is not None and is_alone(kill, kills)]
    alone_p50, alone_p95, alone_max = np.percentile(alone, (50, 95, 100)).tolist() if alone else (0.0, 0.0, 0.0)
    equal = all(same(commit.load(part), sound.load(part)) for part in PARTS)
    claims = [
        ("kills", len(kills), f"= {num_kills}", len(kills) == num_kills),
        ("stopped by", summary["stop_reason"], "max_steps", summary["stop_reason"] == "max_steps"),
        ("steps of summary and last commit", f"{summary['env_steps']} {commit.step}", f">= {steps}",
         summary["env_steps"] == commit.step >= steps),
        ("steps lost", summary["steps_lost"], f"<= {bound}", summary["steps_lost"] <= bound),
        ("same bits as an undisturbed run", f"{equal}, {summary['episodes_lost']} episodes lost",
         "unless episodes are lost", equal or summary["episodes_lost"] > 0),
        ("recovery p50 (s)", f"{p50:.2f}", "", True),
        ("recovery p95 (s)", f"{p95:.2f}", f"<= {BAR_SECONDS}", p95 <= BAR_SECONDS),
        ("recovery max (s)", f"{times[-1]:.2f}", "", True),
        (f"{len(alone)} kills with no other before recovery: p50, p95, max (s)",
         f"{alone_p50:.2f} {alone_p95:.2f} {alone_max:.2f}", "", True),
    ]  # fmt: skip
    figures = {
        "summary": {name: summary[name] for name in ("env_steps", "restarts", "steps_lost", "episodes_lost")},
        "steps_lost_bound": bound, "bit_equal": equal, "p50": p50, "p95": p95, "max": times[-1],
        "never_missed": len(kills) - len(times), "by_role": by_role(kills), "kills": kills,
        "alone": {"kills": len(alone), "p50": alone_p50, "p95": alone_p95, "max": alone_max},
    }  # fmt: skip
    return [[what, str(value), bar, "ok" if holds else "MISSED"] for what, value, bar, holds in claims], figures


def is_alone(kill: dict[str, Any], kills: list[dict[str, Any]]) -> bool:
    """Whether no other process was dead between this kill and its recovery."""
    return not any(
        other["recovered"] is None or (other["time"] < kill["recovered"] and kill["time"] < other["recovered"])
        for other in kills
        if other is not kill
    )


def by_role(kills: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    roles = sorted({kill["role"] for kill in kills})
    times = {role: [kill["seconds"] for kill in kills if kill["role"] == role and kill["seconds"]] for role in roles}
    return {
        role: {"kills": len(mine), "p50": float(np.median(mine)), "max": max(mine)}
        for role, mine in times.items()
        if mine
    }


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b) or (a != a and b != b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--gap", type=float, default=1.5, help="mean seconds between two kills")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        disturbed_run(args.inside, args.steps, args.kills, args.gap, args.seed)
        return
    with tempfile.TemporaryDirectory() as parent:
        folder, reference = Path(parent) / "disturbed", Path(parent) / "sound"
        words = ["--steps", args.steps, "--gap", args.gap, "--seed", args.seed]
        sound_code, sound_seconds, _ = run_apart(reference, *words, "--kills", 0)
        code, seconds, left = run_apart(folder, *words, "--kills", args.kills)
        if sound_code or code:
            sys.exit(f"the run ended with exit code {code}, the one without kills with {sound_code}")
        rows, figures = compare(folder, reference, args.steps, args.kills)
    rows.append(["processes left", str(len(left)), "= 0", "MISSED" if left else "ok"])
    rows.append(["seconds, with and without kills", f"{seconds:.0f} {sound_seconds:.0f}", "", "ok"])
    table = Table(title=f"{args.kills} kills at random moments", title_justify="left")
    for column in ("what", "value", "bar", ""):
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
    settings = {"steps": args.steps, "gap_seconds": args.gap, "seed": args.seed, **SETTINGS, "target_return": None}
    figures |= {"left": left, "seconds": seconds, "seconds_without_kills": sound_seconds}
    print(write_json("chaos.json", {**environment(), "settings": settings, **figures}))
    sys.exit(any(row[-1] == "MISSED" for row in rows))


if __name__ == "__main__":
    main()

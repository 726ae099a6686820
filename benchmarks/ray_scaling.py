"""What do actors of Ray cost, and how far do they scale?

    python benchmarks/ray_scaling.py             # about ten minutes on two cores
    python benchmarks/ray_scaling.py --workers 8

PPO on an environment that sleeps 5 ms per step, one environment per worker, so that the machine's cores do not limit
the workers: many workers against one, and Ray against the process executor with the same layout. The supervisor's share
is the processor time of the main process, which learns too, per second of the run. Calls are measured by the wall clock
and by the processor time of the caller, which does not depend on other programs. Results go to results/ray.json.

    python benchmarks/ray_scaling.py --calls     # only the calls, about a minute; keeps the other results
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, Measurement, environment, show, write_json
from sleepers import Costly

from elegantrl.execute.base import Executor, make_executor
from elegantrl.runtime.callback import Event
from elegantrl.runtime.train import train
from elegantrl.store.runlog import read_metrics

NEVER, NAME = 10**12, "ray.json"
SHAPE = {"horizon": 32, "num_epochs": 1, "batch_size": 256, "hidden": (64, 64)}


class Busy:
    """A callback that measures processor time and wall time from the first log line to the last."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def __call__(self, event: Event) -> None:
        self.marks.append((time.process_time(), time.monotonic()))

    def share(self) -> float:
        (start, began), (end, ended) = self.marks[0], self.marks[-1]
        return (end - start) / (ended - began)


def speed(executor: str, workers: int, lag: int, seconds: float) -> tuple[float, float]:
    """Environment steps per second without the beginning of a run, and the supervisor's share."""
    busy = Busy()
    layout = {"executor": executor, "num_workers": workers, "num_envs": workers, "max_lag": lag}
    settings: dict[str, Any] = {"eval": {"interval": NEVER, "episodes": 1, "max_episode_steps": 1}, "max_steps": NEVER}
    settings |= {"checkpoint": {"interval": NEVER}, "target_return": float("inf"), "loggers": ()}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train("ppo", partial(Costly, 0.005), run_dir=run_dir, max_seconds=seconds, verbose=False, callback=busy,
              **layout, **SHAPE, **settings)  # fmt: skip
        rows = [row for row in read_metrics(run_dir) if row["kind"] == "train"]
    return statistics.median(float(row["time/steps_per_second"] or 0.0) for row in rows[len(rows) // 3 :]), busy.share()


class Echo:
    """Returns what it gets."""

    def echo(self, value: Any) -> Any:
        return value

    def close(self) -> None: ...


def call_times(name: str, values: dict[str, Any], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Microseconds from a call to its answer, and of the caller's processor."""
    executor: Executor = make_executor(name)
    try:
        role = executor.spawn(Echo)
        times: dict[str, list[tuple[float, float]]] = {}
        for what, value in values.items():
            role.call("echo", value).result()
            times[what] = [timed(lambda value=value: role.call("echo", value).result()) for _ in range(repeats)]
        return times
    finally:
        executor.close()


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    started, busy = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - started) * 1e6, (time.process_time() - busy) * 1e6


def calls() -> list[Measurement]:
    """Ray against the process executor."""
    values = {"a number": 1, "600 kB": torch.zeros(150_000)}
    by_ray, by_process = (call_times(name, values, 200) for name in ("ray", "process"))
    found = []
    for what in values:
        for i, clock in enumerate(("us", "us of the caller's processor")):
            sides = ([pair[i] for pair in times[what]] for times in (by_ray, by_process))
            found.append(Measurement(f"a call with {what} and its answer", clock, *sides, "processes", "-"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each run")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--calls", action="store_true", help="measure only calls")
    arguments = parser.parse_args()
    if arguments.calls:
        before = json.loads((RESULTS / NAME).read_text()) if (RESULTS / NAME).exists() else {}
        results = [row for row in before.get("results", []) if not row["what"].startswith("a call")]
        write_json(NAME, {**before, **environment(), "results": [*results, *show("Ray", calls())]})
        return
    workers = arguments.workers
    sides = {
        "ray, 1 worker": ("ray", 1, 0),
        f"ray, {workers} workers": ("ray", workers, 0),
        f"ray, {workers} workers, lag 1": ("ray", workers, 1),
        f"process, {workers} workers": ("process", workers, 0),
        f"process, {workers} workers, lag 1": ("process", workers, 1),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(arguments.repeats):  # in turn, so that a change of the machine's load hits all of them
        for name, layout in sides.items():
            found[name].append(speed(*layout, arguments.seconds))
            print(f"{name}: {found[name][-1][0]:,.0f} steps/s, supervisor {found[name][-1][1]:.0%} busy", flush=True)
    rates = {name: [rate for rate, _ in pairs] for name, pairs in found.items()}
    one, many, ahead, other, other_ahead = rates.values()
    measurements = [
        Measurement(f"{workers} workers", "steps/s", many, one, "one worker", "-"),
        Measurement(
            f"{workers} workers, lag 1", "steps/s", ahead, one, "one worker", ">= 20" if workers >= 32 else "-"
        ),
        Measurement(f"{workers} workers", "steps/s", many, other, "processes", "-"),
        Measurement(f"{workers} workers, lag 1", "steps/s", ahead, other_ahead, "processes", "-"),
        *calls(),
    ]
    shares = {name: [share for _, share in pairs] for name, pairs in found.items()}
    results = show("Ray", measurements)
    print(write_json(NAME, {**environment(), "results": results, "supervisor_busy_share": shares}))


if __name__ == "__main__":
    main()

"""How steady is PPO? Ours against Stable-Baselines3 with the same settings and budgets, ten seeds on each of six tasks.

    python benchmarks/stability.py                                   # whatever is not in the results yet
    python benchmarks/stability.py --only Hopper-v5 --seeds 0 1 2    # one task, three seeds
    python benchmarks/stability.py --systems ours_h                  # ours with the H-term
    python benchmarks/stability.py --report                          # no runs: table, picture and docs/stability.md

Tasks, settings and what a run is: stability_run.py. Every run has the whole budget, no run is stopped early, and its
last policy is scored, not its best one. Tasks and budgets were chosen with seeds from 100 on, before seeds 0 to 9 ran.
Intervals are 95 % stratified bootstrap intervals: runs are drawn with replacement within each task and system (Agarwal
et al. 2021, arXiv:2108.13264). Results accumulate in results/stability.json after every run; several of these may run
at once.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, environment, write_json
from stability_run import TASKS, Task, run

from elegantrl.report.statistics import interquartile_mean

NAME = "stability.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "stability.md"
BEGIN, END = "<!-- stability: table -->\n", "<!-- stability: end -->"
SYSTEMS = {
    "ours": "elegantrl",
    "sb3": "Stable-Baselines3",
    "ours_rollout": "elegantrl, advantages over rollouts",
    "ours_h": "elegantrl with H-term",
}
SEEDS = range(10)
RESAMPLES = 10_000
Array = np.ndarray[Any, np.dtype[np.float64]]
Runs = Mapping[str, Any]
Interval = tuple[float, float, float]
"""An estimate and both ends of its interval."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS), help="tasks to run")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="seeds to run")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=["ours", "sb3"], help="systems to run")
    parser.add_argument("--report", action="store_true", help="no runs, only table, picture and document")
    args = parser.parse_args()
    if args.report:
        report()
        return 0
    for seed in args.seeds:  # round tasks and systems: an interrupted benchmark has as many seeds of each
        for env in args.only:
            for system in args.systems:
                if str(seed) not in load(TASKS[env])["runs"][env].get(system, {}):
                    record(TASKS[env], system, seed, run(system, TASKS[env], seed))
    return 0


# ---- results


def load(task: Task | None = None) -> dict[str, Any]:
    """What was measured so far; refuses runs of ``task`` that had other settings."""
    path = RESULTS / NAME
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"tasks": {}, "runs": {}}
    if task is not None:
        settings = {key: value for key, value in task._asdict().items() if key not in ("threshold", "floor", "source")}
        if results["tasks"].setdefault(task.env, settings) != settings:
            sys.exit(f"{path.name} has runs of {task.env} with other settings than stability_run.py; remove them first")
        results["runs"].setdefault(task.env, {})
    return results


@contextmanager
def locked() -> Iterator[None]:
    """Alone among the processes that write results."""
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def record(task: Task, system: str, seed: int, result: dict[str, Any]) -> None:
    with locked():
        results = load(task)
        results["runs"][task.env].setdefault(system, {})[str(seed)] = result
        results["environment"] = environment()
        write_json(NAME, results)
    print(f"{task.env} {system} seed {seed}: {result['returns'][-1]:.0f} in {result['seconds'][-1]:.1f} s", flush=True)


def final(runs: Runs) -> Array:
    """The mean return of the last policy of each run."""
    return np.array([float(np.mean(result["episodes"])) for result in runs.values()])


def until(runs: Runs, threshold: float, what: str) -> Array:
    """``steps`` or ``cpu_seconds`` of each run until the first evaluation at the threshold, inf if none is."""
    times = []
    for result in runs.values():
        reached = [when for when, score in zip(result[what], result["returns"], strict=True) if score >= threshold]
        times.append(float(reached[0]) if reached else math.inf)
    return np.array(times)


def trained(runs: Runs, what: str = "cpu_seconds") -> Array:
    """Seconds of training of each run."""
    return np.array([result[what][-1] for result in runs.values()])


# ---- statistics


def probability(x: Array, y: Array) -> Array:
    """How often a run of X [..., n] beats one of Y [..., m] among all pairs; a tie is half a win."""
    a, b = x[..., :, None], y[..., None, :]
    return ((a > b) + 0.5 * (a == b)).mean((-2, -1))


def deviation_ratio(x: Array, y: Array) -> Array:
    """Standard deviation over the runs of X [..., n] by that of Y [..., m]; NaN where one has none."""
    above, below = x.std(-1, ddof=1), y.std(-1, ddof=1)
    return np.divide(above, below, out=np.full_like(below, np.nan), where=(above > 0) & (below > 0))


def time_ratio(x: Array, y: Array) -> Array:
    return np.median(x, -1) / np.median(y, -1)


def resample(scores: list[Array], stream: int) -> list[Array]:
    """For each task as many runs as there are, drawn with replacement: [runs] -> [resamples, runs]."""
    generator = np.random.default_rng(stream)
    return [generator.choice(runs, (RESAMPLES, len(runs))) for runs in scores]


def over_tasks(mean: Callable[[Array], Array], statistic: Callable[..., Array], *sides: list[Array]) -> Interval:
    """A statistic of each task's runs, averaged over tasks; each side is a list of the runs of each task."""

    def average(chosen: tuple[list[Array], ...]) -> Array:
        return mean(np.stack([statistic(*runs) for runs in zip(*chosen, strict=True)]))

    drawn = average(tuple(resample(side, stream) for stream, side in enumerate(sides)))
    return interval(float(average(sides)), drawn)


def interval(value: float, drawn: Array) -> Interval:
    if np.isnan(drawn).all():
        return value, math.nan, math.nan
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return value, float(low), float(high)


def arithmetic(values: Array) -> Array:
    return values.mean(0)


def geometric(values: Array) -> Array:
    """Over the tasks that have a value; a draw of runs that are all equal has no deviation to compare."""
    known = ~np.isnan(values)
    logs = np.log(np.where(known, values, 1.0)).sum(0)
    return np.exp(np.divide(logs, known.sum(0), out=np.full_like(logs, np.nan), where=known.any(0)))


def aggregate_iqm(scores: list[Array]) -> Interval:
    """Interquartile mean of the runs of all tasks together."""
    drawn = interquartile_mean(np.concatenate(resample(scores, 0), axis=1), axis=1)
    return interval(float(interquartile_mean(np.concatenate(scores))), drawn)


def normalized(task: Task, scores: Array) -> Array:
    """0 is a random policy, 1 the threshold."""
    return (scores - task.floor) / (task.threshold - task.floor)


def compare(runs: Mapping[str, Mapping[str, Runs]], tasks: list[Task], one: str, other: str) -> dict[str, Interval]:
    """Everything that is said about two systems on some tasks."""
    x, y = ([runs[task.env][system] for task in tasks] for system in (one, other))
    scores = [final(r) for r in x], [final(r) for r in y]

    def sooner(what: str) -> Interval:
        sides = ([-until(r, task.threshold, what) for r, task in zip(side, tasks, strict=True)] for side in (x, y))
        return over_tasks(arithmetic, probability, *sides)

    return {
        "better": over_tasks(arithmetic, probability, *scores),
        "sooner_steps": sooner("steps"),
        "sooner_seconds": sooner("cpu_seconds"),
        "deviation": over_tasks(geometric, deviation_ratio, *scores),
        "seconds": over_tasks(geometric, time_ratio, [trained(r) for r in x], [trained(r) for r in y]),
    }


# ---- telling


def report() -> None:
    from stability_picture import draw

    results = load()
    first, tasks = measured(results["runs"])
    text = "\n".join([*table(results["runs"], tasks), "", *summary(results["runs"], tasks)])
    print(text)
    page = DOCUMENT.read_text()
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{DOCUMENT.name} has no lines {BEGIN.strip()!r} and {END!r}, between which the table belongs")
    DOCUMENT.write_text(f"{before}{BEGIN}{text}\n{END}{after}")
    print(draw(results["runs"], tasks, first))


def measured(runs: Mapping[str, Mapping[str, Runs]]) -> tuple[str, list[Task]]:
    """Which of ours is compared, and the tasks that have runs of it and of Stable-Baselines3."""
    for first in ("ours", "ours_rollout"):
        tasks = [task for env, task in TASKS.items() if {first, "sb3"} <= runs.get(env, {}).keys()]
        if tasks:
            return first, tasks
    sys.exit(f"{NAME} has no task with runs of ours and of sb3; run python benchmarks/stability.py first")


def table(runs: Mapping[str, Mapping[str, Runs]], tasks: list[Task]) -> list[str]:
    lines = [
        "| task, steps | system | seeds | last return: IQM (95 %) | std over seeds | std / SB3's (95 %) |"
        " P(better than SB3) (95 %) | threshold reached by, after median steps | processor seconds (min - max); wall |",
        "|---" * 9 + "|",
    ]
    for task in tasks:
        present = [s for s in SYSTEMS if s in runs[task.env]]
        for system in present:
            mine = runs[task.env][system]
            scores, seconds = final(mine), trained(mine)
            low, high = np.quantile(interquartile_mean(resample([scores], 0)[0], axis=1), [0.025, 0.975])
            steps = until(mine, task.threshold, "steps")
            cells = [f"{task.env}, {task.budget:,}" if system == present[0] else "", SYSTEMS[system], str(len(scores))]
            cells += [f"{interquartile_mean(scores):,.0f} ({low:,.0f} - {high:,.0f})", f"{scores.std(ddof=1):,.0f}"]
            if system == "sb3":
                cells += ["", ""]
            else:
                against = compare(runs, [task], system, "sb3")
                cells += [told(against["deviation"]), told(against["better"])]
            reached, middle = np.isfinite(steps).sum(), float(np.median(steps))
            cells.append(f"{reached} of {len(steps)}" + (f", {middle:,.0f}" if math.isfinite(middle) else ""))
            wall = np.median(trained(mine, "seconds"))
            cells.append(f"{np.median(seconds):.1f} ({seconds.min():.1f} - {seconds.max():.1f}); {wall:.1f}")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(runs: Mapping[str, Mapping[str, Runs]], tasks: list[Task]) -> list[str]:
    """What all tasks say together."""
    complete = [s for s in SYSTEMS if all(s in runs[task.env] for task in tasks)]
    lines = ["| over all tasks (95 %) | " + " | ".join(SYSTEMS[s] for s in complete) + " |"]
    lines.append("|---" * (len(complete) + 1) + "|")
    cells: dict[str, list[str]] = {}
    for system in complete:
        iqm = aggregate_iqm([normalized(task, final(runs[task.env][system])) for task in tasks])
        cells.setdefault("IQM of scores (0: random, 1: threshold)", []).append(told(iqm))
        against = compare(runs, tasks, system, "sb3") if system != "sb3" else {}
        for key, what in (
            ("better", "probability of a better last policy than SB3's"),
            ("sooner_steps", "probability of fewer steps to the threshold"),
            ("sooner_seconds", "probability of fewer processor seconds to the threshold"),
            ("deviation", "std over seeds / SB3's, geometric mean"),
            ("seconds", "processor seconds of training / SB3's, geometric mean"),
        ):
            cells.setdefault(what, []).append(told(against[key]) if against else "")
    return lines + [f"| {what} | " + " | ".join(row) + " |" for what, row in cells.items()]


def told(value: Interval) -> str:
    return "{:.2f} ({:.2f} - {:.2f})".format(*value)


if __name__ == "__main__":
    sys.exit(main())

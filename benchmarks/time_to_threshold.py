"""How soon? Seconds of training until a task is solved, ours against every other system that installs.

    bash benchmarks/peers/install.sh peers                                          # the others, about 8 GB
    python benchmarks/time_to_threshold.py --peers-python peers/*/bin/python        # whatever is not in the results yet
    python benchmarks/time_to_threshold.py --only Pendulum-v1 --seeds 10 ...        # one task, one seed
    python benchmarks/time_to_threshold.py --disturbed ...                          # again what others held up
    python benchmarks/time_to_threshold.py --table                                  # no runs: table and picture

A task is solved when the mean return of the last 20 training episodes, exploration on, reaches its threshold. On
BipedalWalker it is solved when the mean return of 20 evaluation episodes without exploration does, every 25,000 steps:
the training episodes of ours are shorter there. The clock starts at the first environment step: imports and
construction are not counted, what JAX compiles while training is.
Ours are the settings that ship with the library, with evaluations and commits as a user has them; the others evaluate
and write nothing. No setting was chosen while looking at the default seeds (10 to 14). The others have mostly the
settings of RL Baselines3 Zoo (the modules of `peers` have them). Each run is a process of its own with one thread for
torch and XLA's default threads for SBX. Ours and SBX use all cores and run alone; the others have a core each, and as
many run at a time as there are cores. Seeds go round the systems, so that a busy minute affects all alike. The clock
also counts what else runs on the machine: a run that had less than 80 % of a core is marked with * and only its
processor seconds, over all threads, mean something. Where several agents of a system are listed the fastest by median
counts.

The usually fastest others come first, and no run of any system may take more than a limit or three times the median of
the fastest other so far (--factor): the table says "not reached in" that many seconds. The fastest, SBX and
Stable-Baselines3, have twice the limit. A process that does not even end then is killed with all that it started. All
four tasks take a little more than an hour on two cores; the table says when they were run.

Not here are CleanRL, since what PyPI has of it (0.4.8) are scripts that import `gym.wrappers.Monitor`, which gym has no
more; LeanRL, Spinning Up and rlpyt, which PyPI has not; Acme (0.4.0), which wants a TensorFlow older than Python 3.11;
BenchMARL and EPyMARL, which are for several agents. RSL-RL has continuous actions only.

Results accumulate in results/time_to_threshold.json after every run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from common import RESULTS, environment, write_json
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from threshold_run import NOT_INSTALLED

NAME = "time_to_threshold.json"
NAMES = {"ours": "elegantrl", "sb3": "Stable-Baselines3", "sbx": "SBX", "skrl": "skrl", "tianshou": "Tianshou",
         "rllib": "RLlib", "rl_games": "rl_games", "sample_factory": "Sample Factory",
         "torchrl": "TorchRL", "agilerl": "AgileRL", "xuance": "XuanCe", "elegantrl_public": "ElegantRL (PyPI)",
         "rsl_rl": "RSL-RL", "pufferlib": "PufferLib", "pfrl": "PFRL", "mushroom_rl": "MushroomRL"}  # fmt: skip
ABSENT = "it is not installed (see --peers-python)"
START_UP = 120
"""Seconds that a process may take besides training, to import, build and end."""
Runs = dict[str, dict[str, Any]]


class Task(NamedTuple):
    env: str
    threshold: float
    limit: float
    """Seconds after which a run is given up: at least three times what ours take."""
    systems: tuple[str, ...]
    """In the order in which they run: first the others that were fastest before, as they set the limit."""
    episodes: int = 20
    """Over which returns are averaged."""
    patience: float = 2
    """How many times the limit a run may take on a busy machine."""
    evaluate_every: int | None = None
    """Steps between evaluations without exploration, which decide instead of training episodes."""


OTHERS = ("skrl/ppo", "tianshou/ppo", "rllib/ppo", "rl_games/ppo", "sample_factory/ppo", "torchrl/ppo",
          "pufferlib/ppo", "pfrl/ppo", "agilerl/ppo", "xuance/ppo", "mushroom_rl/ppo",
          "elegantrl_public/ppo")  # fmt: skip
TASKS = [
    Task("CartPole-v1", 475, 30, ("sbx/ppo", "sb3/ppo", "ours/ppo", *OTHERS)),
    Task("Pendulum-v1", -200, 45, ("sbx/ppo", "sb3/ppo", "ours/ppo", "sbx/sac", "sbx/td3", *OTHERS, "rsl_rl/ppo")),
    Task("LunarLander-v3", 200, 40, ("sbx/ppo", "sb3/ppo", "ours/ppo", *OTHERS)),
    Task("Hopper-v5", 2000, 50, ("sbx/ppo", "sb3/ppo", "ours/ppo", "sbx/ppo-zoo", *OTHERS, "rsl_rl/ppo")),
    Task("Walker2d-v5", 2000, 120, ("sbx/ppo", "ours/ppo", "sbx/ppo-zoo")),
    Task("HalfCheetah-v5", 4500, 240, ("sbx/sac", "ours/sac", "sbx/td3", "ours/td3")),
    Task("BipedalWalker-v3", 280, 480, ("sbx/sac", "ours/sac", "sbx/td3"), evaluate_every=25_000),
]
FASTEST = ("sbx/ppo", "sb3/ppo")
"""Others that may take twice the limit."""
ON_ALL_CORES = ("ours", "sbx")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers-python", type=Path, nargs="+", default=[Path(sys.executable)],
                        help="interpreters of the environments with the other systems")  # fmt: skip
    parser.add_argument("--only", nargs="*", choices=[task.env for task in TASKS], default=[], help="tasks to run")
    parser.add_argument("--systems", nargs="*", default=[], help="systems to run, for example ours/ppo sbx/ppo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14], help="seeds to run")
    parser.add_argument("--disturbed", action="store_true", help="repeat runs that had less than 80 %% of a core")
    parser.add_argument("--factor", type=float, default=3.0,
                        help="limit of a run: how many times the fastest other's median")  # fmt: skip
    parser.add_argument("--limit", type=float, help="limit of a run in seconds, instead of the task's")
    parser.add_argument("--table", action="store_true", help="no runs, only table and picture")
    args = parser.parse_args()
    for task in [] if args.table else TASKS:
        if not args.only or task.env in args.only:
            run_task(task, args)
    runs = load()["runs"]
    measured = [task for task in TASKS if runs.get(task.env)]
    table = "\n".join(
        [HEAD, *(row for task in measured for row in rows(task, runs[task.env])), *map(times_of_day, runs.items())]
    )
    (RESULTS / "time_to_threshold.md").write_text(table + "\n")
    print(table)
    print(draw([task for task in measured if len(runs[task.env]) > 1], runs))
    return 0


# ---- running


def run_task(task: Task, args: argparse.Namespace) -> None:
    """What is missing, seed by seed; with ``--disturbed`` also what was disturbed."""
    absent: set[str] = set()
    free: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        free.put(core)

    def take(system: str, seed: int, core: int | None) -> None:
        runs = load()["runs"].get(task.env, {})
        before = runs.get(system, {}).get(str(seed))
        if system in absent or (before is not None and not (args.disturbed and disturbed(before))):
            return
        most = (args.limit or task.limit) * (2 if system in FASTEST else 1)
        result = run(task, system, seed, limit(runs, most, args.factor), args.peers_python, core)
        print(f"{task.env} {system} seed {seed}: {line(result)}", flush=True)
        if isinstance(result, str):
            absent.add(system)
        else:
            save(task, system, seed, result)

    def take_on_a_core(system: str, seed: int) -> None:
        core = free.get()
        try:
            take(system, seed, core)
        finally:
            free.put(core)

    for seed in args.seeds:
        chosen = [system for system in task.systems if not args.systems or system in args.systems]
        for system in chosen:
            if system.startswith(ON_ALL_CORES):
                take(system, seed, None)
        with ThreadPoolExecutor(free.qsize()) as pool:
            on_one = [system for system in chosen if not system.startswith(ON_ALL_CORES)]
            list(pool.map(lambda system, seed=seed: take_on_a_core(system, seed), on_one))


WRITING = threading.Lock()


def save(task: Task, system: str, seed: int, result: dict[str, Any]) -> None:
    with WRITING:
        results = load()  # again: another run may have added to it meanwhile
        results["runs"].setdefault(task.env, {}).setdefault(system, {})[str(seed)] = result
        results["environment"] = environment()
        write_json(NAME, results)


def line(result: dict[str, Any] | str) -> str:
    if isinstance(result, str):
        return f"skipped, {result}"
    what = "reached" if result["reached"] else f"not reached (best {result['best']})"
    times = f"{result['seconds']:.1f} s, processor {result['cpu_seconds']:.1f} s"
    return f"{what}, {times}, {result['steps']:,} steps"


def limit(runs: dict[str, Runs], most: float, factor: float) -> float:
    """Seconds for the next run: a multiple of what the fastest other took so far."""
    others = [median(taken, "seconds") for system, taken in runs.items() if not system.startswith("ours/")]
    return min([most, *(factor * seconds for seconds in others)])


def run(
    task: Task, system: str, seed: int, seconds: float, pythons: list[Path], core: int | None
) -> dict[str, Any] | str:
    """One run, of the first interpreter that has the system; or why there was none."""
    result: dict[str, Any] | str = ABSENT
    for python in [Path(sys.executable)] if system.startswith("ours/") else pythons:
        result = run_by(python, task, system, seed, seconds, core)
        if result != ABSENT:
            break
    return result


def run_by(python: Path, task: Task, system: str, seed: int, seconds: float, core: int | None) -> dict[str, Any] | str:
    """One run in a process of its own, of which nothing is left afterwards."""
    command = [str(python.absolute())]
    if not system.startswith("ours/"):
        command.append("-E")  # PYTHONPATH is for ours: the public ElegantRL has the name of this package
    command += [str(Path(__file__).absolute().with_name("threshold_run.py")), system, task.env, "--seed", str(seed)]
    command += ["--threshold", str(task.threshold), "--limit", str(seconds), "--episodes", str(task.episodes)]
    command += [] if task.evaluate_every is None else ["--evaluate-every", str(task.evaluate_every)]
    command += [] if core is None else ["--core", str(core)]
    began = datetime.now(UTC).isoformat(timespec="seconds")
    patience = START_UP + task.patience * seconds
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # some leave things where they were started
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
                               start_new_session=True, cwd=folder.name)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return {"reached": False, "killed": True, "seconds": patience, "cpu_seconds": patience, "steps": 0,
                "best": None, "began": began}  # fmt: skip
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        folder.cleanup()
    if process.returncode == NOT_INSTALLED:
        return ABSENT
    if process.returncode != 0:
        return f"it failed with exit code {process.returncode}"
    return json.loads(output.splitlines()[-1]) | {"limit": round(seconds, 1), "began": began}


def disturbed(result: dict[str, Any]) -> bool:
    """Whether others had the processor for so much of the time that the clock says little."""
    return result["cpu_seconds"] < 0.8 * result["seconds"]


def load() -> dict[str, Any]:
    path = RESULTS / NAME
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


# ---- telling

HEAD = """\
| task | system | seconds per seed | median | processor seconds, median | steps, median | against the fastest other |
|---|---|---|---|---|---|---|"""


def rows(task: Task, runs: dict[str, Runs]) -> list[str]:
    """A row for each system; the ratio stands with the fastest of ours."""
    systems = [system for system in task.systems if system in runs]
    asked = max(len(runs[system]) for system in systems)
    times = {system: median(runs[system], "seconds") for system in systems}
    work = {system: median(runs[system], "cpu_seconds") for system in systems}
    ours = min((s for s in systems if s.startswith("ours/")), key=lambda s: times[s], default=None)
    lines = []
    for system in systems:
        taken = [runs[system][seed] for seed in sorted(runs[system], key=int)]
        seeds = " / ".join([*map(told, taken), *["not run"] * (asked - len(taken))])
        steps = f"{statistics.median(r['steps'] for r in taken):,.0f}"
        against = f"{share(times)} (processor {share(work)})" if system == ours else ""
        cells = [f"{task.env} {task.threshold:g}", label(system), seeds, number(times[system]), number(work[system]),
                 steps, against]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def times_of_day(task: tuple[str, dict[str, Runs]]) -> str:
    """When the first and the last run of a task began."""
    began = sorted(result["began"] for taken in task[1].values() for result in taken.values())
    return f"\n{task[0]}: runs began between {began[0]} and {began[-1]}."


def told(result: dict[str, Any]) -> str:
    if result.get("killed"):
        return f"killed after {result['seconds']:.0f}"
    if not result["reached"]:
        return f"not reached in {result['seconds']:.0f}"
    return f"{result['seconds']:.1f}{'*' if disturbed(result) else ''}"


def median(runs: Runs, what: str) -> float:
    """Over seeds; a run that did not reach the threshold took for ever."""
    return statistics.median(r[what] if r["reached"] else math.inf for r in runs.values())


def share(times: dict[str, float]) -> str:
    """What our fastest takes of the time of the fastest other."""
    ours = min(value for system, value in times.items() if system.startswith("ours/"))
    others = min((value for system, value in times.items() if not system.startswith("ours/")), default=math.inf)
    return f"{ours / others:.2f}" if math.isfinite(ours) and math.isfinite(others) else "-"


def number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"


def label(system: str) -> str:
    library, _, name = system.partition("/")
    algorithm, _, rest = name.partition("-")
    return f"{NAMES[library]} {algorithm.upper()}{f' ({rest})' if rest else ''}"


def draw(tasks: list[Task], runs: dict[str, dict[str, Runs]]) -> Path:
    """One panel per task: a dot per seed, a bar at the median; hollow dots ran into the limit."""
    height = 1.2 + 0.34 * max(len(runs[task.env]) for task in tasks)
    figure = Figure(figsize=(10, height * math.ceil(len(tasks) / 2)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(math.ceil(len(tasks) / 2), 2, squeeze=False).flatten()
    for axis in axes[len(tasks) :]:
        axis.set_visible(False)
    for axis, task in zip(axes, tasks, strict=False):
        systems = [system for system in reversed(task.systems) if system in runs[task.env]]
        for row, system in enumerate(systems):
            colour = "#d55e00" if system.startswith("ours/") else "#555555"
            for r in runs[task.env][system].values():
                face = colour if r["reached"] else "none"
                axis.plot(r["seconds"], row, "o", markerfacecolor=face, markeredgecolor=colour)
            middle = median(runs[task.env][system], "seconds")
            if math.isfinite(middle):
                axis.plot([middle] * 2, [row - 0.3, row + 0.3], color=colour)
        axis.set_xscale("log")
        for ticks in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            ticks(lambda value, _: f"{value:g}" if f"{value:g}".strip("0.")[0] in "125" else "")
        axis.set_yticks(range(len(systems)), [label(system) for system in systems])
        axis.set_ylim(-0.6, len(systems) - 0.4)
        axis.set_title(f"{task.env}: return {task.threshold:g}", loc="left")
        axis.grid(axis="x", which="both", alpha=0.2)
        axis.set_xlabel("seconds of training (hollow: not reached)")
    path = RESULTS / "time_to_threshold.png"
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    sys.exit(main())

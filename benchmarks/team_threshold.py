"""How soon does a team learn? Seconds of training until simple_spread_v3 has a return of -60, ours against others.

    bash benchmarks/peers/install.sh peers                                              # the others
    python benchmarks/team_threshold.py --peers-python peers/{agilerl,xuance}/bin/python  # what is not in the results
    python benchmarks/team_threshold.py --systems ours/mappo --seeds 5                  # one system, one seed more
    python benchmarks/team_threshold.py --table                                         # no runs

The return is that of the team, the sum over its three agents, averaged over the last 100 training episodes with
exploration on; a random team has about -79. A run ends when any 100 successive episodes reach the threshold. The clock
starts at the first environment step. Each run is a process of its own with one thread on one core, and one runs at a
time. Ours is MAPPO by its shipped recipes, on `mpe2:simple_spread_v3` itself and on the tensor world TensorSpread, its
dynamics in tensors; evaluations and commits are included. The others train on the task of `mpe2`, evaluate and write
nothing (`peers/team_*.py`): XuanCe with IPPO and the settings that it ships for this task, since on one seed its MAPPO
learnt more slowly and its value-based agents explore for the first 2.5 million steps; AgileRL with its example of IPPO
for another task of particles. Their environments run in the process of the learner, because processes would share its
core.

A run is given up after --limit seconds of the processor. Processor seconds count, because other programs on the machine
disturb them less; seconds of the clock stand beside them. First and last are means of 100 episodes and show whether a
run that was given up learns. Results accumulate in results/team_threshold.json after every run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from common import RESULTS, environment, write_json
from rich.console import Console
from rich.table import Table
from time_to_threshold import NAMES, Task, line, median, number, run

NAME = "team_threshold.json"
ORIGINAL, TENSOR = "mpe2:simple_spread_v3", "TensorSpread"
THRESHOLD, EPISODES, PATIENCE = -60.0, 100, 10
SYSTEMS = (
    ("ours/mappo", ORIGINAL, 5),
    ("ours/mappo", TENSOR, 5),
    ("xuance/ippo", ORIGINAL, 3),
    ("agilerl/ippo", ORIGINAL, 3),
)
"""What is trained, on what, and how many seeds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers-python", type=Path, nargs="+", default=[Path(sys.executable)],
                        help="interpreters of the environments with the other systems")  # fmt: skip
    parser.add_argument("--systems", nargs="*", default=[], help="systems to run, for example ours/mappo xuance/ippo")
    parser.add_argument("--envs", nargs="*", choices=[ORIGINAL, TENSOR], default=[], help="environments to run")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="seeds to run, if not the usual ones")
    parser.add_argument("--limit", type=float, default=600.0, help="processor seconds after which a run is given up")
    parser.add_argument("--table", action="store_true", help="no runs, only the table")
    args = parser.parse_args()
    for system, env, num_seeds in [] if args.table else SYSTEMS:
        if (not args.systems or system in args.systems) and (not args.envs or env in args.envs):
            for seed in args.seeds or range(num_seeds):
                take(system, env, seed, args.limit, args.peers_python)
    show(load()["runs"])
    return 0


def take(system: str, env: str, seed: int, limit: float, pythons: list[Path]) -> None:
    """Run it, unless the results have it: reached, or given up after no less than this limit."""
    before = load()["runs"].get(key(system, env), {}).get(str(seed))
    if before is not None and (before["reached"] or before["limit"] >= limit):
        return
    core = min(os.sched_getaffinity(0))
    task = Task(env, THRESHOLD, limit, (system,), EPISODES, PATIENCE)
    result = run(task, system, seed, limit, pythons, core)
    print(f"{env} {system} seed {seed}: {line(result)}", flush=True)
    if not isinstance(result, str) and not result.get("killed"):  # its processor seconds are not known
        results = load()
        results["runs"].setdefault(key(system, env), {})[str(seed)] = {"limit": limit} | result
        write_json(NAME, {"environment": environment(), "runs": results["runs"]})


def key(system: str, env: str) -> str:
    return f"{system} {env}"


def load() -> dict[str, Any]:
    path = RESULTS / NAME
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


def show(runs: dict[str, dict[str, Any]]) -> None:
    """A row for each system and environment; the ratio is of medians of processor seconds, to ours on the original."""
    table = Table(title=f"simple_spread_v3 to a team return of {THRESHOLD:g}", title_justify="left")
    for column in ("system", "environment", "processor seconds per seed", "median", "clock, median", "steps per seed",
                   "first -> last return per seed", "times ours"):  # fmt: skip
        table.add_column(column)
    ours = median(runs[key("ours/mappo", ORIGINAL)], "cpu_seconds") if key("ours/mappo", ORIGINAL) in runs else math.inf
    for system, env, _ in SYSTEMS:
        if (taken := runs.get(key(system, env))) is None:
            continue
        library, _, algorithm = system.partition("/")
        seeds = [taken[seed] for seed in sorted(taken, key=int)]
        table.add_row(
            f"{NAMES[library]} {algorithm.upper()}",
            env,
            " / ".join(f"{'' if r['reached'] else '> '}{r['cpu_seconds']:.1f}" for r in seeds),
            number(median(taken, "cpu_seconds")),
            number(median(taken, "seconds")),
            " / ".join(f"{r['steps']:,}" for r in seeds),
            " / ".join(f"{r['first']:.0f} -> {r['last']:.0f}" for r in seeds),
            against(taken, ours),
        )
    Console(width=200).print(table)


def against(taken: dict[str, Any], ours: float) -> str:
    """How many times ours; with > if the median was given up."""
    known = median(taken, "cpu_seconds")
    if math.isfinite(known):
        return f"{known / ours:.2f}"
    return f"> {min(r['cpu_seconds'] for r in taken.values() if not r['reached']) / ours:.1f}"


if __name__ == "__main__":
    sys.exit(main())

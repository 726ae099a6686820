"""Evolution side by side: ours, Ray Tune's population based training and AgileRL's, on one task with the same steps.

    bash benchmarks/peers/install.sh peers
    python benchmarks/population_peers.py --peers-python peers/tune/bin/python peers/agilerl/bin/python
    python benchmarks/population_peers.py --table                       # no runs

Eight PPO members on CartPole-v1 with 8 environments each, 20,480 steps of each, a selection after every 4,096. All of
them start with hyper-parameters around those of RL Baselines3 Zoo, ours around those that ship with the library, and
run on the same cores, given by `taskset`. Ray Tune trains Stable-Baselines3 members as actors that all run at a time,
and ranks them by the returns of training; the start of Ray is not counted. AgileRL evaluates its members on 16
episodes, and does not mutate architectures. Ours evaluates on 20 episodes in each period and commits each period to
disk. The score is that of the best member at the end, on 100 fresh episodes. Wall seconds need an idle machine; on a
shared one give a single core, for which the processor seconds of all processes that train are known.

Results accumulate in results/population_peers.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SYSTEMS = {
    "tournament": "elegantrl, tournament",
    "generational": "elegantrl, generational",
    "population_tune": "Ray Tune PBT with Stable-Baselines3",
    "population_agilerl": "AgileRL",
}
NAME = "population_peers.json"
ENV, MEMBERS, PERIODS, PERIOD_STEPS, FRESH = "CartPole-v1", 8, 5, 4_096, 100


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--peers-python", nargs="*", type=Path, default=[], help="interpreters of the other libraries")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--table", action="store_true", help="show the results, without runs")
    parser.add_argument("--run", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run is not None:
        print(json.dumps(run(args.run, args.seeds[0])))
        return 0
    from common import RESULTS, environment, write_json

    path = RESULTS / NAME
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for seed in () if args.table else args.seeds:
        for system in args.only:
            done = data["runs"].setdefault(system, {})
            if str(seed) not in done:
                done[str(seed)] = run_apart(system, seed, args.peers_python)
                print(system, seed, done[str(seed)], flush=True)
                cores = sorted(os.sched_getaffinity(0))
                write_json(NAME, {**data, "environment": {**environment(), "cores_used": len(cores)}})
    print(table(data["runs"]))
    return 0


def run_apart(system: str, seed: int, pythons: list[Path]) -> dict[str, Any]:
    """Run in a process of its own, by the first interpreter that has the library."""
    own = system in ("tournament", "generational")
    for python in [Path(sys.executable)] if own else pythons:
        command = [str(python), __file__, "--run", system, "--seeds", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if done.returncode == 0:
            return dict(json.loads(done.stdout.splitlines()[-1]))
    raise SystemExit(f"{system} ran with none of {[str(python) for python in pythons]}; see --peers-python")


def run(system: str, seed: int) -> dict[str, Any]:
    """Score, steps, and the time from the first step to the last selection."""
    if system in ("tournament", "generational"):
        return ours(system, seed)
    module = importlib.import_module(f"peers.{system}")
    found: dict[str, Any] = module.evolve(ENV, MEMBERS, PERIODS, PERIOD_STEPS, FRESH, seed)
    return found


def ours(mode: str, seed: int) -> dict[str, Any]:
    import tempfile

    from elegantrl import evolve
    from elegantrl.store.trained import TrainedPolicy

    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        wall, busy = time.monotonic(), processor_seconds()
        result = evolve(
            ENV, agents=("ppo",), mode=mode, members=MEMBERS, periods=PERIODS, period_steps=PERIOD_STEPS, seed=seed,
            executor="inline" if cores == 1 else "process", max_running=cores, run_dir=Path(folder) / "p",
            settings={"env": {"num_envs": 8}}, verbose=False,
        )  # fmt: skip
        wall, busy = time.monotonic() - wall, processor_seconds() - busy
        score = TrainedPolicy.load(Path(folder) / "p" / "champion").evaluate(FRESH, seed=10**6 + seed).mean
    # Members in processes are no children of this one, so their time is not known here.
    known = busy if cores == 1 else None
    return {
        "score": score, "env_steps": result.state.total_steps, "wall_seconds": wall, "processor_seconds": known,
    }  # fmt: skip


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def table(runs: dict[str, dict[str, Any]]) -> str:
    lines = ["| system | score, 100 fresh episodes | environment steps | wall seconds | processor seconds |"]
    lines.append("|---|---|---|---|---|")
    for system, name in SYSTEMS.items():
        found = list(runs.get(system, {}).values())
        if found:
            scores = " / ".join(f"{row['score']:,.1f}" for row in found)
            steps = statistics.median(row["env_steps"] for row in found)
            times = [" / ".join(seconds(row[what]) for row in found) for what in ("wall_seconds", "processor_seconds")]
            lines.append(f"| {name} | {scores} | {steps:,.0f} | {times[0]} | {times[1]} |")
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    raise SystemExit(main())

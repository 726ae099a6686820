"""What the demonstrations of the beginner's version reach, seeds 0, 1, 2.

    python benchmarks/helloworld.py                                   # all of them, hours on one core
    python benchmarks/helloworld.py discrete_on/1 continuous_off/1    # CartPole with PPO, Pendulum with SAC

A run stops at its target or after its steps. Its score is the mean of 100 episodes of its best policy, with seeds that
training never used and without exploration. CPU seconds are its time on one core, evaluations included.
Results accumulate in results/helloworld.json; a run is not repeated unless its settings changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from typing import Any

from common import RESULTS, environment, write_json

from elegantrl_helloworld.demo import DEMOS, run_demo

BARS = {
    "CartPole-v1": 475,
    "Pendulum-v1": -200,
    "LunarLander-v3": 200,
    "LunarLanderContinuous-v3": 200,
    "BipedalWalker-v3": 250,
}
"""Every seed has to reach this score."""


def main() -> int:
    known = [f"{name}/{env_id}" for name, (_, envs) in DEMOS.items() for env_id in envs]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demos", nargs="*", choices=[*known, []], metavar="demo", help=f"any of {', '.join(known)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="show what was measured and run nothing")
    given = parser.parse_args()
    for demo in () if given.table else given.demos or known:
        for seed in given.seeds:
            measure(demo, seed)
    show(measured())
    return 0


def measured() -> dict[str, Any]:
    path = RESULTS / "helloworld.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    return found


def measure(demo: str, seed: int) -> None:
    name, _, env_id = demo.partition("/")
    agent, envs = DEMOS[name]
    env, settings = envs[int(env_id)]
    entry = measured()["runs"].get(demo)
    if entry and entry["settings"] == settings and str(seed) in entry["seeds"]:
        return
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = run_demo(name, int(env_id), random_seed=seed, cwd=folder)
    results = measured()  # again: other demonstrations may have run at the same time
    entry = results["runs"].get(demo)
    if entry is None or entry["settings"] != settings:
        entry = {"agent": agent.__name__, "env": env, "settings": settings, "seeds": {}}
    run = {key: value for key, value in result._asdict().items() if key != "cwd"}
    entry["seeds"][str(seed)] = run | {"cpu_seconds": time.process_time() - cpu}
    results["runs"][demo] = entry
    results["environment"] = environment()
    write_json("helloworld.json", results)


def show(results: dict[str, Any]) -> None:
    """Print the table of docs/helloworld.md."""
    print("| demo | agent, environment | at most | steps used | score per seed | bar | reached | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for demo, entry in sorted(results["runs"].items()):
        name, _, env_id = demo.partition("/")
        runs = [run for _, run in sorted(entry["seeds"].items(), key=lambda item: int(item[0]))]
        scores, steps = [run["mean_return"] for run in runs], [run["steps"] for run in runs]
        cells = (
            f"`{name} --env {env_id}`",
            f"{entry['agent'].removeprefix('Agent')}, {entry['env']}",
            f"{entry['settings']['break_step']:,}",
            f"{min(steps):,} - {max(steps):,}",
            ", ".join(f"{score:.1f}" for score in scores),
            str(BARS[entry["env"]]),
            "**yes**" if min(scores) >= BARS[entry["env"]] else "no",
            f"{statistics.fmean(run['cpu_seconds'] for run in runs):.0f}",
        )
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())

"""Is the H-term with its default settings safe, and does it help? With and without it, eight seeds, several tasks.

    python benchmarks/h_term_default.py                          # whatever is not in the results yet
    python benchmarks/h_term_default.py --only sac/Pendulum-v1   # one task
    python benchmarks/h_term_default.py --table                  # no runs, only the table

PPO has the tasks, settings and budgets of stability_run.py. Its runs without the term on the tasks of the comparison
with Stable-Baselines3 are those of the system `ours` in results/stability.json, which have exactly these settings and
seeds; they are read from there and not run again. SAC has small networks and short budgets that were not tuned. The
last policy of a run is scored on 20 episodes. The form of the term and its default settings were chosen on seeds from
100 on. Results accumulate in results/h_term_default.json after every run, also those of several processes with other
tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, environment, write_json
from h_term import compare
from stability import load as load_stability
from stability import locked
from stability_run import H_TERM_TASKS, TASKS
from stability_run import run as run_ppo

import elegantrl
from elegantrl.report.statistics import bootstrap_interval, interquartile_mean

NAME = "h_term_default.json"
SEEDS = range(8)
MORE_SEEDS = {"ppo/Hopper-v5": range(16)}
"""With eight the interval of the gain on Hopper reached from -157 to 1,201."""
SAC_BUDGETS = {
    "Pendulum-v1": 6_000,
    "InvertedDoublePendulum-v5": 6_000,
}
SAC_SETTINGS: dict[str, Any] = {
    "num_envs": 1, "hidden": [64, 64], "batch_size": 128, "lr": 1e-3, "learning_starts": 1000, "gamma": 0.99,
    "tau": 0.01, "updates_per_step": 1.0, "horizon": 1, "n_step": 1, "layer_norm": False, "warm_up_hold": 1,
}  # fmt: skip
PPO_TASKS = TASKS | H_TERM_TASKS
NAMES = [f"ppo/{env}" for env in PPO_TASKS] + [f"sac/{env}" for env in SAC_BUDGETS]
ARMS = {"without": False, "with": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="tasks to run")
    parser.add_argument("--table", action="store_true", help="no runs, only the table")
    args = parser.parse_args()
    for task in [] if args.table else args.only:
        for seed in MORE_SEEDS.get(task, SEEDS):
            for arm in ARMS:
                if str(seed) not in runs_of(task, arm):
                    found = run(task, seed, h_term=ARMS[arm])
                    record(task, arm, seed, found)
                    print(f"{task} {arm} seed {seed}: {found['returns'][-1]:.0f}", flush=True)
    for task in NAMES:
        runs = {arm: runs_of(task, arm) for arm in ARMS}
        if min(len(found) for found in runs.values()) > 1:  # an interval needs two runs of each
            print(row(task, runs))
    print("\n| task | without: IQM (95 %) | with | Stable-Baselines3 | processor seconds, medians |")
    for task in NAMES:
        runs = {arm: runs_of(task, arm) for arm in ARMS} | {"sb3": theirs(task)}
        if min(len(runs[arm]) for arm in ARMS) > 1:
            print(" | ".join([f"| {task}", *map(iqm, runs.values()), f"{seconds(runs)} |"]))
    return 0


def load() -> dict[str, Any]:
    path = RESULTS / NAME
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


def record(task: str, arm: str, seed: int, found: dict[str, Any]) -> None:
    with locked():
        results = load()
        results["runs"].setdefault(task, {}).setdefault(arm, {})[str(seed)] = found
        results["environment"] = environment()
        write_json(NAME, results)


def runs_of(task: str, arm: str) -> dict[str, Any]:
    """Runs by seed: those stored here, and those of PPO without the term from the results of stability.py."""
    found: dict[str, Any] = load()["runs"].get(task, {}).get(arm, {})
    agent, env = task.split("/")
    if agent == "ppo" and env in TASKS and arm == "without":
        stored = load_stability(TASKS[env])["runs"][env].get("ours", {})  # stops if their settings differ
        seeds = [str(seed) for seed in MORE_SEEDS.get(task, SEEDS)]
        return {seed: ppo_result(stored[seed]) for seed in seeds if seed in stored} | found
    return found


def run(task: str, seed: int, *, h_term: bool) -> dict[str, Any]:
    """Train one seed; steps and returns of its evaluations, the last of which is its score."""
    agent, env = task.split("/")
    if agent == "ppo":
        return ppo_result(run_ppo("ours_h" if h_term else "ours", PPO_TASKS[env], seed))
    budget = SAC_BUDGETS[env]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        elegantrl.train(
            agent, env, seed=seed, run_dir=run_dir, max_steps=budget, target_return=float("inf"), verbose=False,
            eval={"interval": budget // 2, "episodes": 20}, h_term=h_term, **SAC_SETTINGS,
        )  # fmt: skip
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    scores = [found for found in rows if found["kind"] == "eval"]
    return {"steps": [x["env_steps"] for x in scores], "returns": [x["eval/mean"] for x in scores]}


def ppo_result(found: dict[str, Any]) -> dict[str, Any]:
    """What is stored of a run of stability_run.py. Its last policy is scored on more episodes than those before."""
    returns = [*found["returns"][:-1], float(np.mean(found["episodes"]))]
    return {"steps": found["steps"], "returns": returns, "cpu_seconds": found["cpu_seconds"][-1]}


def theirs(task: str) -> dict[str, Any]:
    """Runs of Stable-Baselines3's PPO with the same settings and budget, where stability.py has made them."""
    agent, env = task.split("/")
    if agent != "ppo" or env not in TASKS:
        return {}
    return {seed: ppo_result(run) for seed, run in load_stability(TASKS[env])["runs"][env].get("sb3", {}).items()}


def iqm(runs: dict[str, Any]) -> str:
    """The interquartile mean of the last returns, and the interval of it over runs."""
    if not runs:
        return "-"
    values = np.array([[run["returns"][-1]] for run in runs.values()])
    low, high = (float(end[0]) for end in bootstrap_interval(values))
    return f"{float(interquartile_mean(values)[0]):,.1f} ({low:,.1f} to {high:,.1f})"


def seconds(runs: dict[str, dict[str, Any]]) -> str:
    """Processor seconds of training, of each side; where they were not kept, nothing."""
    kept = ([run["cpu_seconds"] for run in found.values() if "cpu_seconds" in run] for found in runs.values())
    return " / ".join(f"{np.median(values):.1f}" if values else "-" for values in kept)


def row(task: str, runs: dict[str, dict[str, Any]]) -> str:
    """A line of the table in docs/stability.md."""
    without, with_term = (np.array([r["returns"][-1] for r in runs[arm].values()]) for arm in ARMS)
    found = compare(with_term, without)
    cells = [task, f"{len(without)}, {len(with_term)}"]
    cells += [f"{x.mean():,.0f} ({x.std(ddof=1):,.0f})" for x in (without, with_term)]
    low, high = found["mean_difference_interval"]
    cells.append(f"{found['mean_difference']:,.0f} ({low:,.0f} to {high:,.0f})")
    low, high = found["variance_ratio_interval"]
    no_spread = math.isnan(found["variance_ratio"])
    cells.append("-" if no_spread else f"{found['variance_ratio']:.2f} ({low:.2f} to {high:.2f})")
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())

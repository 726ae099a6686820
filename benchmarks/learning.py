"""Does it learn? Every (agent, task) of the acceptance set, by the command line with default settings.

    python benchmarks/learning.py                          # everything that is not in the results yet
    python benchmarks/learning.py --only ppo/CartPole-v1   # one pair
    python benchmarks/learning.py --fresh                  # forget earlier results first

A run trains in a fresh folder, then `elegantrl eval` scores its best policy over 20 episodes with seeds that training
never saw. Results accumulate in results/learning.json after every run, so an interrupted benchmark goes on where it
stopped. The evaluations of every run are kept in results/learning/, from which the curves are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from common import RESULTS, environment, write_json
from rich.console import Console
from rich.table import Table

from elegantrl.train.plot import plot_runs


class Task(NamedTuple):
    agent: str
    env: str
    threshold: float
    max_steps: int
    seeds: int

    @property
    def key(self) -> str:
        return f"{self.agent}/{self.env}"

    @property
    def slug(self) -> str:
        return f"{self.agent}_{self.env}"

    def kept(self, seed: int) -> Path:
        """Where the evaluations of a run are kept."""
        return RESULTS / "learning" / self.slug / f"seed{seed}"


TASKS = [
    Task("ppo", "CartPole-v1", 475, 100_000, 5),
    Task("dqn", "CartPole-v1", 475, 100_000, 5),
    Task("a2c", "CartPole-v1", 475, 500_000, 5),
    Task("sac", "Pendulum-v1", -200, 20_000, 5),
    Task("ppo", "Pendulum-v1", -200, 200_000, 5),
    Task("ppo", "LunarLander-v3", 200, 1_000_000, 3),
    Task("ppo", "TensorCartPole", 475, 100_000, 5),
    Task("dqn", "TensorCartPole", 475, 100_000, 5),
    Task("a2c", "TensorCartPole", 475, 500_000, 5),
    Task("sac", "TensorPendulum", -200, 20_000, 5),
    Task("ppo", "TensorPendulum", -200, 200_000, 5),
    Task("double_dqn", "CartPole-v1", 475, 100_000, 3),
    Task("dueling_dqn", "CartPole-v1", 475, 100_000, 3),
    Task("d3qn", "CartPole-v1", 475, 100_000, 3),
    Task("discrete_sac", "CartPole-v1", 475, 100_000, 3),
    Task("ddpg", "Pendulum-v1", -180, 20_000, 3),
    Task("td3", "Pendulum-v1", -180, 20_000, 3),
    Task("mod_sac", "Pendulum-v1", -180, 20_000, 3),
    Task("redq", "Pendulum-v1", -180, 8_000, 3),
    Task("dqn", "Acrobot-v1", -100, 150_000, 3),
    Task("double_dqn", "Acrobot-v1", -100, 150_000, 3),
    Task("dueling_dqn", "Acrobot-v1", -100, 150_000, 3),
    Task("d3qn", "Acrobot-v1", -100, 150_000, 3),
    Task("ppo", "Acrobot-v1", -100, 150_000, 3),
    Task("d3qn", "LunarLander-v3", 200, 300_000, 3),
    Task("sac", "HalfCheetah-v5", 5500, 150_000, 3),
    Task("td3", "HalfCheetah-v5", 4500, 150_000, 3),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="agent/ENV pairs to run")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of the chosen pairs")
    args = parser.parse_args()
    unknown = set(args.only) - {task.key for task in TASKS}
    if unknown:
        parser.error(f"unknown pair {sorted(unknown)[0]}; known: {', '.join(task.key for task in TASKS)}")
    path = RESULTS / "learning.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for task in TASKS:
        if args.only and task.key not in args.only:
            continue
        done = {} if args.fresh else results["runs"].get(task.key, {})
        results["runs"][task.key] = done
        for seed in range(task.seeds):
            if str(seed) not in done:
                done[str(seed)] = run(task, seed)
                results["environment"] = environment()
                write_json("learning.json", results)
        plot_runs([task.kept(seed) for seed in range(task.seeds)], RESULTS / "learning" / f"{task.slug}.png")
    show(results)
    return 0 if all(passed(task, results) for task in TASKS if task.key in results["runs"]) else 1


def run(task: Task, seed: int) -> dict[str, Any]:
    """Train and score one seed in processes of their own, one thread each; keep its evaluations."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    cli = [sys.executable, "-m", "elegantrl.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train = [*cli, "train", task.agent, task.env, "--seed", str(seed), "--run-dir", str(run_dir)]
        subprocess.run(train, check=True, env=env, stdout=subprocess.DEVNULL)
        score = [*cli, "eval", str(run_dir), "--json"]
        scored = json.loads(subprocess.run(score, check=True, env=env, capture_output=True, text=True).stdout)
        summary = json.loads((run_dir / "summary.json").read_text())
        kept = task.kept(seed)
        kept.mkdir(parents=True, exist_ok=True)
        rows = [row for row in (run_dir / "metrics.jsonl").read_text().splitlines() if '"eval"' in row]
        (kept / "metrics.jsonl").write_text("\n".join(rows) + "\n")
        (kept / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    result = {
        name: summary[name] for name in ("env_steps", "wall_seconds", "stop_reason", "best_return", "final_return")
    }
    result |= {"mean_return": scored["mean_return"], "std_return": scored["std_return"]}
    print(f"{task.key} seed {seed}: {result['mean_return']:.1f} after {result['env_steps']:,} steps", flush=True)
    return result


def passed(task: Task, results: dict[str, Any]) -> bool:
    runs = results["runs"][task.key].values()
    return len(runs) >= task.seeds and all(
        r["mean_return"] >= task.threshold and r["env_steps"] <= task.max_steps * 1.02 for r in runs
    )


def show(results: dict[str, Any]) -> None:
    table = Table(title="Learning with default settings (20 evaluation episodes per seed)", title_justify="left")
    for name in ("agent", "task", "threshold", "seeds reached", "mean return", "worst seed", "steps", "seconds"):
        table.add_column(name, justify="left" if name in ("agent", "task") else "right")
    for task in TASKS:
        runs = list(results["runs"].get(task.key, {}).values())
        if not runs:
            continue
        scores = [r["mean_return"] for r in runs]
        table.add_row(
            task.agent,
            task.env,
            f"{task.threshold:g}",
            f"{sum(s >= task.threshold for s in scores)} of {len(runs)}",
            f"{sum(scores) / len(scores):.1f}",
            f"{min(scores):.1f}",
            f"{min(r['env_steps'] for r in runs):,} - {max(r['env_steps'] for r in runs):,}",
            f"{sum(r['wall_seconds'] for r in runs) / len(runs):.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())

"""What many updates per step buy: REDQ against SAC at the same number of environment steps, network and warm-up.

    python benchmarks/redq.py

Both train on HalfCheetah-v5 for 15,000 steps; the last policy of each run is scored over 20 fresh episodes. Results
accumulate in results/redq.json, curves in results/redq.png.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import RESULTS, environment, write_json
from rich.console import Console
from rich.table import Table

from elegantrl.report.plot import plot_runs

ENV, STEPS, SEEDS = "HalfCheetah-v5", 15_000, 3
SAME = ["--max-steps", "15000", "--target-return", "inf", "--eval.interval", "2500", "--eval.episodes", "20"]
SIDES: dict[str, list[str]] = {
    "redq": [],  # our settings for this task
    # Those of REDQ, but two critics and one update per step.
    "sac": [
        "--agent.hidden",
        "128",
        "128",
        "--agent.learning-starts",
        "1000",
        "--agent.lr",
        "0.001",
        "--agent.alpha-init",
        "0.2",
    ],
}


def main() -> int:
    path = RESULTS / "redq.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for seed in range(SEEDS):
        for agent in SIDES:
            done = results["runs"].setdefault(agent, {})
            if str(seed) not in done:
                done[str(seed)] = run(agent, seed)
                results["environment"] = environment()
                write_json("redq.json", results)
    plot_runs([kept(agent, seed) for agent in SIDES for seed in range(SEEDS)], RESULTS / "redq.png")
    table = Table(title=f"{ENV}, last policy after {STEPS:,} steps, 20 episodes", title_justify="left")
    for name in ("agent", "mean over seeds", "seeds", "seconds"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    means = {}
    for agent, runs in results["runs"].items():
        scores = [r["final_return"] for r in runs.values()]
        means[agent] = statistics.fmean(scores)
        seconds = statistics.fmean(r["wall_seconds"] for r in runs.values())
        table.add_row(agent, f"{means[agent]:,.0f}", ", ".join(f"{s:,.0f}" for s in scores), f"{seconds:.0f}")
    Console(width=100).print(table)
    ratio = means["redq"] / means["sac"]
    print(f"ratio {ratio:.1f} (bar 2)" if means["sac"] > 0 else "SAC has no positive return yet: a ratio means nothing")
    return 0


def run(agent: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "elegantrl.cli.main", "train", agent, ENV, "--seed", str(seed)]
        command += ["--run-dir", str(run_dir), *SAME, *SIDES[agent]]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
        target = kept(agent, seed)
        target.mkdir(parents=True, exist_ok=True)
        rows = [row for row in (run_dir / "metrics.jsonl").read_text().splitlines() if '"eval"' in row]
        (target / "metrics.jsonl").write_text("\n".join(rows) + "\n")
        shutil.copy(run_dir / "summary.json", target)
    print(f"{agent} seed {seed}: {summary['final_return']:.0f} in {summary['wall_seconds']:.0f} s", flush=True)
    return {name: summary[name] for name in ("final_return", "best_return", "env_steps", "updates", "wall_seconds")}


def kept(agent: str, seed: int) -> Path:
    """Where the evaluations of a run are kept."""
    return RESULTS / "redq" / agent / f"seed{seed}"


if __name__ == "__main__":
    sys.exit(main())

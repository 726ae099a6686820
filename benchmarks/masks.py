"""How many environment steps action masks save: the same task and settings with and without them.

    python benchmarks/masks.py

Agents with default settings train on Doors, where 4 of 64 keys fit into a door, until an evaluation reaches the target
return of the task; a key that does not fit does nothing. Results are written to results/masks.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import environment, write_json
from rich.console import Console
from rich.table import Table

ENV, SEEDS, MAX_STEPS, BAR = "Doors", 3, 300_000, 0.5
AGENTS = ("ppo", "dqn")
SAME = ["--max-steps", str(MAX_STEPS), "--eval.interval", "1000", "--eval.episodes", "20"]


def main() -> int:
    results: dict[str, Any] = {"env": ENV, "max_steps": MAX_STEPS, "runs": {}}
    table = Table(title=f"{ENV}: environment steps to the target return, seed by seed", title_justify="left")
    for name in ("agent", "with masks", "without", "ratio of means", "bar"):
        table.add_column(name)
    for agent in AGENTS:
        steps = {masks: [steps_to_target(agent, masks, seed) for seed in range(SEEDS)] for masks in (True, False)}
        ratio = statistics.fmean(steps[True]) / statistics.fmean(steps[False])
        results["runs"][agent] = {"with_masks": steps[True], "without": steps[False], "ratio": ratio}
        sides = [", ".join(f"{number:,}" for number in steps[masks]) for masks in (True, False)]
        table.add_row(agent, *sides, f"{ratio:.2f}", f"<= {BAR}")
    Console(width=120).print(table)
    print(write_json("masks.json", results | {"environment": environment()}))
    return 0 if all(run["ratio"] <= BAR for run in results["runs"].values()) else 1


def steps_to_target(agent: str, masks: bool, seed: int) -> int:
    """The environment steps of a run that ends at its target; ``MAX_STEPS`` if it does not reach it."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "elegantrl.cli.main", "train", agent, ENV, "--seed", str(seed)]
        command += ["--masks", str(masks), "--run-dir", str(run_dir), *SAME]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    reached = summary["stop_reason"] == "target_return"
    print(f"{agent}, masks {masks}, seed {seed}: {summary['env_steps']:,} steps{'' if reached else ', not reached'}")
    return int(summary["env_steps"])


if __name__ == "__main__":
    sys.exit(main())

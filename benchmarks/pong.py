"""How far does one core get on Pong from pixels in an hour? PPO and DQN with the settings that ship with the library.

    python benchmarks/pong.py            # trains both at the same time, each on a core of its own
    python benchmarks/pong.py --draw     # no runs: draw the curves again

A run ends after so many seconds of processor time, which other work on the machine does not change. Returns are those
of training episodes, exploration on. Results: results/pong.json, results/pong.png.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import RESULTS, environment, write_json
from matplotlib.figure import Figure

AGENTS = ("ppo", "dqn")
GAME = "ALE/Pong-v5"
COLOURS = {"ppo": "#0072b2", "dqn": "#d55e00"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=3600, help="processor seconds of each run")
    parser.add_argument("--draw", action="store_true", help="only draw the curves again")
    args = parser.parse_args()
    if not args.draw:
        with tempfile.TemporaryDirectory() as folder:
            train_all(Path(folder), args.seconds)
            curves = {agent: read_curve(Path(folder) / agent) for agent in AGENTS}
        write_json("pong.json", {**environment(), "processor_seconds": args.seconds, "curves": curves})
    draw()
    return 0


def train_all(folder: Path, seconds: int) -> None:
    """Train the agents side by side and stop each by a signal, after which it writes a commit."""
    runs = [start(agent, core, folder / agent) for core, agent in enumerate(AGENTS)]
    while any(run.poll() is None for run in runs):
        for run in runs:
            if run.poll() is None and processor_seconds(run.pid) >= seconds:
                run.send_signal(signal.SIGTERM)
                run.wait()
        time.sleep(2)


def start(agent: str, core: int, run_dir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "elegantrl.cli.main", "train", agent, GAME, "--max-steps", "10000000"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen([*command, "--run-dir", str(run_dir)], env=env, stdout=subprocess.DEVNULL)
    os.sched_setaffinity(run.pid, {core % (os.cpu_count() or 1)})
    return run


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def read_curve(run_dir: Path) -> list[tuple[int, float]]:
    """Environment steps, and the mean return of the last training episodes."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    found = [(row["env_steps"], row["train/return"]) for row in rows if row.get("train/return") is not None]
    return found[:: max(1, len(found) // 300)] + found[-1:]


def draw() -> None:
    data = json.loads((RESULTS / "pong.json").read_text())
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    minutes = data["processor_seconds"] // 60
    for agent, curve in data["curves"].items():
        steps, returns = zip(*curve, strict=True)
        axes.plot(steps, returns, color=COLOURS[agent], label=f"{agent.upper()}, {steps[-1]:,} steps")
    axes.axhline(-20.7, color="#777777", lw=1, ls=":", label="random")
    axes.set_title(f"Pong from pixels, {minutes} minutes of one core each, one seed", loc="left", fontweight="bold")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of the last training episodes")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "pong.png", dpi=120)
    print(RESULTS / "pong.png")


if __name__ == "__main__":
    sys.exit(main())

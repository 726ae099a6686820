"""How soon do 4,096 chasers catch their targets? PPO of this library against that of the public ElegantRL.

    python3 -m venv public && public/bin/pip install -c constraints.txt torch numpy matplotlib
    public/bin/pip install --no-deps elegantrl==0.3.6
    python benchmarks/chasing.py --public-python public/bin/python          # 5 seeds on both sides
    python benchmarks/chasing.py --seeds 7 --public-python ...

Both train on `Chasing` with 4,096 environments in one process and on one thread until the mean return of 1,000
evaluation episodes without exploration reaches 6.3, the target return in the public documents, with the same networks
(two hidden layers of 64, ReLU), learning rate, rollouts, minibatches and epochs, which were chosen for ours on seed
100. The public agent has the task as tensors without a loop over lanes, and with rewards that do not reach into the
next episode, as its own environment does not: there the scripted policy of its own has a return of 2.1, so that 6.3 is
out of reach.

Seconds are those of the processor, because the clock also counts what else runs on the machine. Ours are those of a
whole run, evaluations and commits included; the public agent's evaluations are not counted, and it writes nothing.
Results accumulate in results/chasing.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, environment, write_json

import elegantrl

NAME, BAR, NUM_ENVS = "chasing.json", 6.3, 4096
HORIZON, BATCH, EPOCHS, LR, MAX_STEPS = 16, 4096, 2, 2e-3, 20_000_000
PUBLIC = Path(__file__).parent / "peers" / "chasing_public.py"


class Clocks(elegantrl.Callback):
    """From the first step to the first evaluation that reaches the bar; imports and construction are not counted on
    either side. A run of its own would go on until it is sure of it."""

    reached = False

    def on_start(self, event: elegantrl.Event) -> None:
        self.start = time.process_time(), time.perf_counter()

    def on_evaluation(self, event: elegantrl.Event) -> bool:
        self.cpu, self.wall = time.process_time() - self.start[0], time.perf_counter() - self.start[1]
        self.steps, score = event.env_steps, statistics.fmean(event.returns)
        self.reached = score >= BAR
        print(self.steps, round(self.cpu, 2), round(score, 3), file=sys.stderr)
        return not self.reached


def train_ours(seed: int) -> dict[str, Any]:
    """A run of ours in this process; its best policy is scored again over fresh episodes."""
    clocks = Clocks()
    with tempfile.TemporaryDirectory() as folder:
        run = elegantrl.train(
            "ppo", "Chasing", num_envs=NUM_ENVS, seed=seed, horizon=HORIZON, batch_size=BATCH, num_epochs=EPOCHS, lr=LR,
            hidden=[64, 64], target_return=math.inf, max_steps=MAX_STEPS, executor="inline", verbose=False,
            eval={"interval": HORIZON * NUM_ENVS, "episodes": 1000}, run_dir=Path(folder) / "run", callback=clocks,
        )  # fmt: skip
        score = run.load_policy().evaluate(episodes=1000, seed=seed + 1000)
    return {
        "reached": clocks.reached,
        "cpu_seconds": round(clocks.cpu, 2),
        "wall_seconds": round(clocks.wall, 2),
        "steps": clocks.steps,
        "score": round(score.mean, 3),
    }


def run_side(command: list[str], seed: int) -> dict[str, Any]:
    done = subprocess.run([*command, str(seed)], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public-python", help="python of an environment with elegantrl 0.3.6 of PyPI")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--run", type=int, metavar="SEED", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run is not None:
        print(json.dumps(train_ours(args.run)))
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    path = RESULTS / NAME
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"bar": BAR, "runs": {}}
    sides = {"ours": [sys.executable, __file__, "--run"]}
    if args.public_python:
        settings = [str(x) for x in (NUM_ENVS, HORIZON, BATCH, EPOCHS, LR, BAR)]
        sides["public"] = [args.public_python, str(PUBLIC), *settings]
    for seed in args.seeds:
        for side, command in sides.items():
            row = run_side(command, seed)
            results["runs"].setdefault(side, {})[str(seed)] = row
            print(seed, side, row, flush=True)
            write_json(NAME, results | {"environment": environment()})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How soon do 4,096 chasers catch their targets? PPO of this library against that of the public ElegantRL.

    python3 -m venv public && public/bin/pip install -c constraints.txt torch numpy matplotlib
    public/bin/pip install --no-deps elegantrl==0.3.6
    python benchmarks/chasing.py --public-python public/bin/python          # 3 seeds of 2 tasks on both sides
    python benchmarks/chasing.py --tasks Chasing --seeds 5 --public-python ...

Both train with 4,096 environments in one process and on one thread until the mean return of 1,000 evaluation episodes
without exploration reaches 6.3, with the same networks (two hidden layers of 64, ReLU), learning rate, rollouts,
minibatches and epochs. Two tasks:

- `Chasing` is ours. The public agent has it as tensors without a loop over lanes, and with rewards that do not reach
  into the next episode.
- `documented` is the public `PointChasingVecEnv` as its package has it, and the bonus of 8 for a catch that its
  documents add. Without the bonus its own scripted policy has a return of 2.1, so that 6.3, the target return of the
  documents, is out of reach. Ours is the same task as a `TensorEnv`.

Seconds are those of the processor, because the clock also counts what else runs on the machine. Ours are those of a
whole run, evaluations and commits included; the public agent's evaluations are not counted, and it writes nothing.
Results accumulate in results/chasing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, environment, write_json
from torch import Tensor

import elegantrl
from elegantrl.envs.tensor import TensorEnv
from elegantrl.types import ActionSpec

NAME, TASKS, BAR, NUM_ENVS = "chasing.json", ("Chasing", "documented"), 6.3, 4096
HORIZON, BATCH, EPOCHS, LR, MAX_STEPS = 16, 4096, 4, 1e-3, 20_000_000
PUBLIC = Path(__file__).parent / "peers" / "chasing_public.py"


class Documented(TensorEnv):
    """The public task: the target drifts away at random, and a catch within a distance of 2 has a bonus of 8."""

    obs_dim = 8
    action = ActionSpec(dim=2)
    max_episode_steps = 1024

    def initial(self, num_rows: int) -> Tensor:
        place = torch.randn(2, num_rows, 2, generator=self.generator, device=self.device)
        still = torch.zeros_like(place[0])
        return torch.cat([place[0], still, place[1] - 8, still], dim=1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        target, drift, chaser, velocity = state.chunk(4, dim=1)
        before = torch.linalg.vector_norm(target - chaser, dim=1)
        size = torch.linalg.vector_norm(action, dim=1).clamp_min(1)
        velocity = 0.75 * velocity + action / size.unsqueeze(1)
        drift = 0.5 * drift + torch.rand(drift.shape, generator=self.generator, device=self.device)
        target, chaser = target + 0.01 * drift, chaser + 0.01 * velocity
        after = torch.linalg.vector_norm(target - chaser, dim=1)
        caught = after < 2
        reward = before - after - 0.02 * size + 8 * caught
        return torch.cat([target, drift, chaser, velocity], dim=1), reward, caught


class Clocks(elegantrl.Callback):
    """From the first step to the newest evaluation; imports and construction are not counted on either side."""

    def on_start(self, event: elegantrl.Event) -> None:
        self.start = time.process_time(), time.perf_counter()

    def on_evaluation(self, event: elegantrl.Event) -> None:
        self.cpu, self.wall = time.process_time() - self.start[0], time.perf_counter() - self.start[1]
        print(event.env_steps, round(self.cpu, 2), round(statistics.fmean(event.returns), 3), file=sys.stderr)


def train_ours(task: str, seed: int) -> dict[str, Any]:
    """A run of ours in this process; its best policy is scored again over fresh episodes."""
    env: Any = Documented if task == "documented" else task
    clocks = Clocks()
    with tempfile.TemporaryDirectory() as folder:
        run = elegantrl.train(
            "ppo", env, num_envs=NUM_ENVS, seed=seed, horizon=HORIZON, batch_size=BATCH, num_epochs=EPOCHS, lr=LR,
            hidden=[64, 64], target_return=BAR, max_steps=MAX_STEPS, executor="inline", verbose=False,
            eval={"interval": HORIZON * NUM_ENVS, "episodes": 1000}, run_dir=Path(folder) / "run", callback=clocks,
        )  # fmt: skip
        score = run.load_policy().evaluate(episodes=1000, seed=seed + 1000, env=env)
    return {
        "reached": run.summary["stop_reason"] == "target_return",
        "cpu_seconds": round(clocks.cpu, 2),
        "wall_seconds": round(clocks.wall, 2),
        "steps": run.summary["env_steps"],
        "score": round(score.mean, 3),
    }


def run_side(command: list[str], task: str, seed: int) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, task, str(seed)], check=True, env=env, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public-python", help="python of an environment with elegantrl 0.3.6 of PyPI")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--run", nargs=2, metavar=("TASK", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(train_ours(args.run[0], int(args.run[1]))))
        return 0
    path = RESULTS / NAME
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"bar": BAR, "runs": {}}
    sides = {"ours": [sys.executable, __file__, "--run"]}
    if args.public_python:
        settings = [str(x) for x in (NUM_ENVS, HORIZON, BATCH, EPOCHS, LR, BAR)]
        sides["public"] = [args.public_python, str(PUBLIC), *settings]
    for task in args.tasks:
        for seed in args.seeds:
            for side, command in sides.items():
                row = run_side(command, task, seed)
                results["runs"].setdefault(task, {}).setdefault(side, {})[str(seed)] = row
                print(task, seed, side, row, flush=True)
                write_json(NAME, results | {"environment": environment()})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long does a population on one device take, against its members as runs one after the other? One thread.

    python benchmarks/stacked.py             # 16 PPO members with 64 tensor environments each, a few minutes
    python benchmarks/stacked.py --members 4 --steps 20000

Both sides learn with the same settings (the tuned ones of TensorCartPole with 64 environments), seeds and numbers of
steps and evaluations, and both write their results to a folder. Two ratios are printed:

- whole: `train_population` against `train` for each member, from the first call to the last file, as a user has them.
  Targets are switched off, because a run that stops early does less work.
- training: one iteration (rollout and update) against as many iterations of single runs as there are members, without
  evaluations, commits and files. Sides alternate, and the median of the ratios of neighbours in time counts.

Times are those of the processor, because other work may share the core. Results go to results/stacked.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import environment, write_json

import elegantrl
from elegantrl.config.resolve import resolve_config
from elegantrl.envs import make_env
from elegantrl.execute.settle import settle
from elegantrl.population.stacked.actor import StackedActor
from elegantrl.population.stacked.learner import StackedLearner
from elegantrl.registry import find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner

CPU = torch.device("cpu")
AGENT, ENV, NUM_ENVS, BAR = "ppo", "TensorCartPole", 64, 0.4
SINGLES = 4
"""Iterations of a single run beside each iteration of the population."""


def seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def training(members: int, repeats: int) -> dict[str, Any]:
    """The time of an iteration of all members against that of a single run, times the number of members."""
    config, _ = resolve_config(AGENT, ENV, {"env": {"num_envs": NUM_ENVS}})
    horizon, agent = config.agent.horizon, config.agent
    env, lanes = make_env(ENV, NUM_ENVS), make_env(ENV, NUM_ENVS * members)
    learner = Learner(AGENT, agent, env.spec, CPU, 0)
    actor = GroupActor(env, learner.policy_spec(), 0)
    spec = replace(lanes.spec, num_envs=NUM_ENVS)
    stacked = StackedLearner(find_agent(AGENT), [agent] * members, spec, CPU, range(members))
    stacked_actor = StackedActor(lanes, stacked.agent, stacked.members, range(members))

    def single() -> None:
        for _ in range(SINGLES):
            learner.update([actor.sample(learner.weights(), horizon, learner.version)])

    def population() -> None:
        stacked.update(stacked_actor.roll_out(horizon))

    for call in (single, population, single, population):  # kernels are recorded at the first iteration
        call()
    alone, together = [], []
    for _ in range(repeats):
        alone.append(seconds(single) * members / SINGLES)
        together.append(seconds(population))
    ratios = [a / b for a, b in zip(together, alone, strict=True)]
    return {"runs_seconds": alone, "population_seconds": together, "ratios": ratios, "ratio": statistics.median(ratios)}


def whole(members: int, steps: int) -> dict[str, Any]:
    """The time of ``train_population`` against that of ``train`` for each member."""
    settings = {"num_envs": NUM_ENVS, "max_steps": steps}
    never = {"target_return": float("inf"), "executor": "inline", "verbose": False}
    runs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(members):
            run_dir = Path(folder) / f"run-{seed}"
            runs.append(
                seconds(lambda d=run_dir, s=seed: elegantrl.train(AGENT, ENV, run_dir=d, seed=s, **never, **settings))
            )
            print(f"run {seed}: {runs[-1]:.2f} s", flush=True)
        run_dir = Path(folder) / "population"
        taken = seconds(lambda: elegantrl.train_population(AGENT, ENV, members=members, run_dir=run_dir, **settings))
    return {"runs_seconds": runs, "population_seconds": taken, "ratio": taken / sum(runs), "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50_000, help="steps of each member")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    settle(1)
    result = {
        "whole": whole(arguments.members, arguments.steps),
        "training": training(arguments.members, arguments.repeats),
    }
    for name, found in result.items():
        print(f"{name}: the population takes {found['ratio']:.3f} of the time of {arguments.members} runs (bar {BAR})")
    about = {"agent": AGENT, "env": ENV, "num_envs": NUM_ENVS, "members": arguments.members, "bar": BAR}
    print(write_json("stacked.json", {**environment(), **about, **result}))


if __name__ == "__main__":
    main()

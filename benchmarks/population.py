"""Populations: the controller at scale, whether evolution pays, and whether it recovers from bad settings.

    python benchmarks/population.py scale                    # 1,000 members, 5,000 results per second, simulated
    python benchmarks/population.py pays                     # champion against the median of independent runs
    python benchmarks/population.py pays --only CartPole-v1 --repeats 1
    python benchmarks/population.py recovers                 # 75 % of the learning rates are far off
    python benchmarks/population.py table                    # no runs

`scale` runs the real controller and log on a simulated executor whose calls take real time: without any overhead, 1,000
members that take 0.18 s for a period give a little more than 5,000 results per second. The overhead is the time beyond
that, given for the tournament only, because the barrier of a generation waits for the slowest member by design.

`pays` trains 8 PPO members with the same total number of steps three times: as a tournament, as generations, and as 8
independent runs with the hyper-parameters that the members started with and the schedule of a tuned run. Budgets are so
short that independent runs are not yet at their best. All scores are of the last policy, on the same 50 episodes that
no selection has used. `recovers` starts PPO on CartPole with three of four learning rates 100 times or more too small
or too large; survivors are the members of the last generation, or the leaderboard of the tournament.

Results accumulate in results/population.json. Members run one after the other in this process (--executor inline).
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import RESULTS, environment, write_json
from rich.console import Console
from rich.table import Table

from elegantrl.config.resolve import resolve_config
from elegantrl.population.config import PopulationConfig
from elegantrl.population.controller import Controller
from elegantrl.population.display import Quiet
from elegantrl.population.evolve import run_population
from elegantrl.population.log import PopulationLog, read_population
from elegantrl.simulation import SimExecutor, World
from elegantrl.store.storage import LocalStorage
from elegantrl.store.trained import TrainedPolicy

TASKS = {"CartPole-v1": 1_024, "Pendulum-v1": 4_096, "LunarLander-v3": 12_288}
"""Environment steps of a period; a member trains 10 periods."""
MEMBERS, PERIODS, EPISODES, FRESH = 8, 10, 20, 50
FAR_OFF = ({"lr": 1e-6}, {"lr": 0.3}, {"lr": 2e-3}, {"lr": 1e-7})
"""First learning rates of `recovers`: 2e-3 is the tuned one."""
SYSTEMS = ("independent", "tournament", "generational")
FAULTS = {"dies": 0.01, "raises": 0.01, "diverges": 0.01}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=("scale", "pays", "recovers", "table"))
    parser.add_argument("--only", nargs="*", choices=list(TASKS), default=list(TASKS), help="tasks of `pays`")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of `pays` and `recovers`")
    parser.add_argument("--members", type=int, default=1000, help="members of `scale`")
    parser.add_argument("--periods", type=int, default=60, help="periods of each member of `scale`")
    parser.add_argument("--executor", default="inline", help="executor of `pays` and `recovers`")
    args = parser.parse_args()
    if args.what == "scale":
        results = [scale(mode, args.members, args.periods) for mode in ("generational", "tournament")]
        write_json("population_scale.json", {"environment": environment(), "results": results})
        show_scale(results)
        return 0
    path = RESULTS / "population.json"
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}, "recovers": {}}
    if args.what == "pays":
        jobs = [("runs", env, system) for env in args.only for system in SYSTEMS]
    else:
        jobs = [("recovers", "CartPole-v1", mode) for mode in SYSTEMS[1:]] if args.what == "recovers" else []
    for seed in range(args.repeats):
        for what, env, system in jobs:
            done = data[what].setdefault(env, {}).setdefault(system, {})
            if str(seed) not in done:
                run = pay if what == "runs" else recover
                done[str(seed)] = run(env, system, seed, args.executor)
                write_json("population.json", {**data, "environment": environment()})
    show_pays(data)
    show_recovers(data)
    return 0


# ---- scale


def scale(mode: str, members: int, periods: int) -> dict[str, Any]:
    """Wall and processor time of a population whose runs are simulated, and the time of its resume."""
    world = World(seconds=0.18, spread=0.5, **FAULTS)
    config = PopulationConfig(
        env="CartPole-v1", agents=("ppo", "dqn", "a2c"), mode=mode, members=members, periods=periods, period_steps=1000,
        max_running=members, attempts=10,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(Path(folder))
        PopulationLog(storage).begin(config)
        executor = SimExecutor(world=world, paced=True)
        controller = Controller(config, storage, executor, Quiet())
        wall, busy = time.monotonic(), time.process_time()
        controller.run()
        wall, busy = time.monotonic() - wall, time.process_time() - busy
        storage.close()
        began = time.monotonic()
        state = read_population(folder)
        resume = time.monotonic() - began
        size = (Path(folder) / "log").stat().st_size
    ideal = executor.busy / members
    assert state.board == controller.state.board and state.lineage == controller.state.lineage
    return {
        "mode": mode, "members": members, "results": state.num_results, "calls": executor.num_calls,
        "failures": state.num_failures, "wall_seconds": wall, "ideal_seconds": ideal,
        "overhead": wall / ideal - 1.0 if mode == "tournament" else None,
        "results_per_second": state.num_results / wall, "processor_seconds": busy,
        "processor_us_per_result": 1e6 * busy / state.num_results, "fold_seconds": resume, "log_bytes": size,
    }  # fmt: skip


def show_scale(results: list[dict[str, Any]]) -> None:
    table = Table(title="The controller on simulated members", title_justify="left")
    columns = ("mode", "members", "results", "failures", "results_per_second", "overhead", "processor_us_per_result")
    for name in (*columns, "fold_seconds"):
        table.add_column(name.replace("_", " "))
    for row in results:
        cells = [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in columns[:4]]
        cells += [f"{row['results_per_second']:,.0f}", "-" if row["overhead"] is None else f"{row['overhead']:.1%}"]
        table.add_row(*cells, f"{row['processor_us_per_result']:.0f}", f"{row['fold_seconds']:.2f}")
    Console(width=140).print(table)


# ---- does it pay?


def pay(env: str, system: str, seed: int, executor: str) -> dict[str, Any]:
    """The champion of a population, or the scores of independent members."""
    config = PopulationConfig(
        env=env, agents=("ppo",), members=MEMBERS, periods=PERIODS, period_steps=TASKS[env], seed=seed,
        episodes=EPISODES, executor=executor, mode="tournament" if system == "tournament" else "generational",
    )  # fmt: skip
    if system == "independent":  # one generation of the same length, without selection
        schedule = {"agent": {"lr_schedule": resolve_config("ppo", env)[0].agent.lr_schedule}}
        config = replace(config, periods=1, period_steps=TASKS[env] * PERIODS, board=MEMBERS, settings=schedule)
    wall, busy = time.monotonic(), processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        state = run_population(config, env, Path(folder) / "p", verbose=False).state
        entries = state.board if system == "independent" else state.board[:1]
        wall, busy = time.monotonic() - wall, processor_seconds() - busy
        policies = [TrainedPolicy.load(Path(folder) / "p" / entry.run.key) for entry in entries]
        scores = [policy.evaluate(FRESH, seed=10**6 + seed).mean for policy in policies]
    diverged = MEMBERS - len(scores) if system == "independent" else 0
    score = statistics.median([*scores, *[-math.inf] * diverged])
    print(f"{env} {system} {seed}: {score:,.1f} in {busy:.0f} processor seconds", flush=True)
    return {
        "scores": scores, "diverged": diverged, "score": score, "env_steps": state.total_steps,
        "hypers": state.board[0].run.hypers, "agent_steps": state.board[0].run.steps, "failures": state.num_failures,
        "wall_seconds": wall, "processor_seconds": busy,
    }  # fmt: skip


def recover(env: str, mode: str, seed: int, executor: str) -> dict[str, Any]:
    """Fresh scores of the survivors of a population most of whose members begin with a useless learning rate."""
    config = PopulationConfig(
        env=env, agents=("ppo",), members=MEMBERS, periods=12, period_steps=4_096, seed=seed, episodes=EPISODES,
        executor=executor, mode=mode, starts=FAR_OFF,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        state = run_population(config, env, Path(folder) / "p", verbose=False).state
    scores, rates = [e.score for e in state.board], [e.run.hypers["lr"] for e in state.board]
    print(f"recovers {mode} {seed}: mean of survivors {statistics.fmean(scores):,.1f}", flush=True)
    return {"scores": scores, "mean": statistics.fmean(scores), "lr": rates, "env_steps": state.total_steps}


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def show_pays(data: dict[str, Any]) -> None:
    table = Table(title=f"{MEMBERS} members, equal steps: champion against independent runs", title_justify="left")
    for name in ("task", "steps of a member", "repeat", "independent: median (best)", "tournament", "generational"):
        table.add_column(name)
    for env, systems in data["runs"].items():
        wins = dict.fromkeys(SYSTEMS[1:], 0)
        for seed, alone in systems.get("independent", {}).items():
            cells = [f"{alone['score']:,.1f} ({max(alone['scores']):,.1f})"]
            for system in wins:
                row = systems.get(system, {}).get(seed)
                wins[system] += row is not None and row["score"] > alone["score"]
                cells.append("" if row is None else f"{row['score']:,.1f}")
            table.add_row(env, f"{TASKS[env] * PERIODS:,}", seed, *cells)
        table.add_row(env, "", "champion is better", "", *(str(number) for number in wins.values()))
    Console(width=140).print(table)


def show_recovers(data: dict[str, Any]) -> None:
    table = Table("mode", "mean of survivors, one number per repeat", title="75 % of the learning rates far off")
    for mode, runs in data["recovers"].get("CartPole-v1", {}).items():
        table.add_row(mode, " / ".join(f"{run['mean']:,.1f}" for run in runs.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    raise SystemExit(main())

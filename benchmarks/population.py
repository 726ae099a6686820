"""Populations: the controller at scale, and whether evolution pays.

    python benchmarks/population.py scale                    # 1,000 members, 5,000 results per second, simulated
    python benchmarks/population.py pays                     # champion against the median of independent runs
    python benchmarks/population.py pays --only CartPole-v1 --repeats 1
    python benchmarks/population.py table                    # no runs

`scale` runs the real controller and log on a simulated executor whose calls take real time: without any overhead, 1,000
members that take 0.2 s for a period give 5,000 results per second. The overhead is the time beyond that, given for
the tournament only, because the barrier of a generation waits for the slowest member by design.

`pays` trains 8 members with the same total number of steps three times: as a tournament, as generations, and as 8
independent runs with the hyper-parameters that the members started with. All scores are of the last policy on fresh
episodes; the champion's score is one more evaluation after its selection. Results accumulate in
results/population.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import RESULTS, environment, write_json
from rich.console import Console
from rich.table import Table

from elegantrl.population.config import PopulationConfig
from elegantrl.population.controller import Controller
from elegantrl.population.display import Quiet
from elegantrl.population.evolve import run_population
from elegantrl.population.log import PopulationLog, read_population
from elegantrl.simulation import SimExecutor, World
from elegantrl.store.storage import LocalStorage
from elegantrl.store.trained import TrainedPolicy

TASKS = {"CartPole-v1": 4_096, "Pendulum-v1": 10_240, "LunarLander-v3": 40_960}
"""Environment steps of a period; a member trains 10 periods."""
MEMBERS, PERIODS, EPISODES = 8, 10, 50
FAULTS = {"dies": 0.01, "raises": 0.01, "diverges": 0.01}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=("scale", "pays", "table"))
    parser.add_argument("--only", nargs="*", choices=list(TASKS), default=list(TASKS), help="tasks of `pays`")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of `pays`")
    parser.add_argument("--members", type=int, default=1000, help="members of `scale`")
    parser.add_argument("--periods", type=int, default=20, help="periods of each member of `scale`")
    parser.add_argument("--executor", default="auto", help="executor of `pays`")
    args = parser.parse_args()
    if args.what == "scale":
        results = [scale(mode, args.members, args.periods) for mode in ("generational", "tournament")]
        write_json("population_scale.json", {"environment": environment(), "results": results})
        show_scale(results)
        return 0
    path = RESULTS / "population.json"
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for seed in range(args.repeats) if args.what == "pays" else ():
        for env in args.only:
            for system in ("independent", "tournament", "generational"):
                done = data["runs"].setdefault(env, {}).setdefault(system, {})
                if str(seed) not in done:
                    done[str(seed)] = pay(env, system, seed, args.executor)
                    write_json("population.json", {**data, "environment": environment()})
    show_pays(data)
    return 0


# ---- scale


def scale(mode: str, members: int, periods: int) -> dict[str, Any]:
    """Wall and processor time of a population whose runs are simulated, and the time of its resume."""
    world = World(seconds=0.2, spread=0.5, **FAULTS)
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
        env=env, members=MEMBERS, periods=PERIODS, period_steps=TASKS[env], seed=seed, episodes=EPISODES,
        executor=executor, mode="tournament" if system == "tournament" else "generational",
    )  # fmt: skip
    if system == "independent":  # one generation of the same length, without selection
        config = replace(config, periods=1, period_steps=TASKS[env] * PERIODS, board=MEMBERS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = run_population(config, env, Path(folder) / "p")
        state = result.state
        scores = [entry.score for entry in state.board]
        champion = TrainedPolicy.load(Path(folder) / "p" / "champion").evaluate(EPISODES, seed=10**6 + seed).mean
        ensemble = result.load_ensemble().evaluate(EPISODES, seed=10**6 + seed).mean
    return {
        "scores": scores, "median": statistics.median(scores), "champion": champion, "ensemble": ensemble,
        "agent": state.board[0].run.agent, "hypers": state.board[0].run.hypers, "env_steps": state.total_steps,
        "failures": state.num_failures, "wall_seconds": time.monotonic() - began,
    }  # fmt: skip


def show_pays(data: dict[str, Any]) -> None:
    table = Table(title=f"{MEMBERS} members, equal steps: champion against independent runs", title_justify="left")
    for name in ("task", "repeat", "independent: median (best)", "tournament", "ensemble", "generational", "ensemble"):
        table.add_column(name)
    for env, systems in data["runs"].items():
        for seed, alone in systems.get("independent", {}).items():
            cells = [f"{alone['median']:,.1f} ({max(alone['scores']):,.1f})"]
            for system in ("tournament", "generational"):
                row = systems.get(system, {}).get(seed)
                cells += ["", ""] if row is None else [f"{row['champion']:,.1f}", f"{row['ensemble']:,.1f}"]
            table.add_row(env, seed, *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    raise SystemExit(main())

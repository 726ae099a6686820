"""Populations: the controller at scale, whether evolution pays, and whether it recovers from bad settings.

    python benchmarks/population.py scale                    # 1,000 members, 5,000 results per second, simulated
    python benchmarks/population.py pays                     # champion against the median of independent runs
    python benchmarks/population.py pays --only CartPole-v1 --repeats 1
    python benchmarks/population.py recovers                 # 75 % of the learning rates are far off
    python benchmarks/population.py table                    # no runs

`scale` runs the real controller and log on a simulated executor whose calls take real time: without any overhead, 1,000
members that take 0.18 s for a period give a little more than 5,000 results per second. The overhead is the time beyond
that, given for the tournament only, because the barrier of a generation waits for the slowest member by design. With
`--clock processor` the controller takes its processor time and, for each durable write, the quickest time of one: on a
machine that other programs use, the wall clock would measure those.

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
from elegantrl.population.fold import PopulationState
from elegantrl.population.log import PopulationLog, read_population
from elegantrl.simulation import SimExecutor, World
from elegantrl.store.storage import LocalStorage
from elegantrl.store.trained import TrainedPolicy

TASKS = {"CartPole-v1": 4_096, "Pendulum-v1": 4_096, "LunarLander-v3": 24_576}
"""Environment steps of a period; a member trains 5 periods."""
ENVS = {"CartPole-v1": 8, "Pendulum-v1": 8, "LunarLander-v3": 16}
"""Environments of a member: few enough for a whole episode of each in a period, which begins with new episodes."""
MEMBERS, PERIODS, EPISODES, FRESH = 8, 5, 20, 50
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
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="clock of `scale`")
    parser.add_argument("--executor", default="inline", help="executor of `pays` and `recovers`")
    args = parser.parse_args()
    if args.what == "scale":
        results = [scale(mode, args.members, args.periods, args.clock) for mode in ("generational", "tournament")]
        write_json("population_scale.json", {"environment": environment(), "results": results})
        show_scale(results)
        return 0
    if args.what == "pays":
        jobs = [("runs", env, system) for env in args.only for system in SYSTEMS]
    else:
        jobs = [("recovers", "CartPole-v1", mode) for mode in SYSTEMS[1:]] if args.what == "recovers" else []
    for seed in range(args.repeats):
        for what, env, system in jobs:
            if str(seed) not in load()[what].get(env, {}).get(system, {}):
                run = pay if what == "runs" else recover
                found = run(env, system, seed, args.executor)
                data = load()  # again: another process may have written meanwhile
                data[what].setdefault(env, {}).setdefault(system, {})[str(seed)] = found
                write_json("population.json", {**data, "environment": environment()})
    show_pays(load())
    show_recovers(load())
    return 0


def load() -> dict[str, Any]:
    path = RESULTS / "population.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"runs": {}, "recovers": {}}


# ---- scale


def scale(mode: str, members: int, periods: int, clock: str) -> dict[str, Any]:
    """The time and processor time of a population whose runs are simulated, and the time of its resume."""
    config = PopulationConfig(
        env="CartPole-v1", agents=("ppo", "dqn", "a2c"), mode=mode, members=members, periods=periods, period_steps=1000,
        max_running=members, attempts=10,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        executor = SimExecutor(world=World(seconds=0.18, spread=0.5, **FAULTS), clock=clock)
        storage = Disk(Path(folder), executor)
        PopulationLog(storage).begin(config)
        controller = Controller(config, storage, executor, Quiet())
        began, busy = executor.now, time.process_time()
        controller.run()
        executor.look()
        wall, busy = executor.now - began, time.process_time() - busy
        storage.close()
        began = time.process_time()
        state = read_population(folder)
        resume = time.process_time() - began
        size = (Path(folder) / "log").stat().st_size
    ideal = executor.busy / members
    assert state.board == controller.state.board and state.lineage == controller.state.lineage
    return {
        "mode": mode, "clock": clock, "members": members, "results": state.num_results, "calls": executor.num_calls,
        "failures": state.num_failures, "seconds": wall, "ideal_seconds": ideal,
        "overhead": wall / ideal - 1.0 if mode == "tournament" else None,
        "results_per_second": state.num_results / wall, "processor_seconds": busy,
        "processor_us_per_result": 1e6 * busy / state.num_results, "fold_seconds": resume, "log_bytes": size,
        "log_bytes_per_result": size / state.num_results, "ticks": storage.ticks, "fsync_ms": 1e3 * storage.seconds,
    }  # fmt: skip


class Disk(LocalStorage):
    """Charges the simulated clock for every durable write what the quickest of some takes here."""

    def __init__(self, root: Path, executor: SimExecutor) -> None:
        super().__init__(root)
        self.executor, self.ticks = executor, 0
        waits = []
        for _ in range(20):
            began = time.monotonic()
            super().append("trial", bytes(20_000))
            waits.append(time.monotonic() - began)
        self.seconds = min(waits)

    def append(self, key: str, data: bytes) -> None:
        super().append(key, data)
        self.ticks += 1
        if self.executor.clock == "processor":
            self.executor.pass_seconds(self.seconds)


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
        settings={"env": {"num_envs": ENVS[env]}},
    )  # fmt: skip
    if system == "independent":  # one generation of the same length, without selection
        settings = {**config.settings, "agent": {"lr_schedule": resolve_config("ppo", env)[0].agent.lr_schedule}}
        config = replace(config, periods=1, period_steps=TASKS[env] * PERIODS, board=MEMBERS, settings=settings)
    wall, busy = time.monotonic(), processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        state = complete(config, Path(folder) / "p")
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
        executor=executor, mode=mode, starts=FAR_OFF, settings={"env": {"num_envs": ENVS[env]}},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        state = complete(config, Path(folder) / "p")
    scores, rates = [e.score for e in state.board], [e.run.hypers["lr"] for e in state.board]
    print(f"recovers {mode} {seed}: mean of survivors {statistics.fmean(scores):,.1f}", flush=True)
    return {"scores": scores, "mean": statistics.fmean(scores), "lr": rates, "env_steps": state.total_steps}


def complete(config: PopulationConfig, folder: Path) -> PopulationState:
    """The state of a population at its end."""
    result = run_population(config, config.env, folder, verbose=False)
    if result.summary["stop_reason"] != "complete":
        raise SystemExit(f"stopped by {result.summary['stop_reason']}")
    return result.state


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

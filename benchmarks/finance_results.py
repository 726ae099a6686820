"""What do agents earn on real prices? DDPG, TD3, SAC, PPO and A2C, five seeds each, against every baseline.

    python benchmarks/finance_results.py --run-dir runs/finance_results   # train (or resume) and back-test
    python benchmarks/finance_results.py --run-dir runs/part1 --agents ppo --seeds 2   # train a part
    python benchmarks/finance_results.py --run-dir runs/finance_results --join runs/part1 runs/part2 ...

Stock trading with 20 stocks: trained on 1990 to 2012, chosen on 2013 to 2016, tested on 2017 to 2022; 0.1 % cost.
Writes results/finance_results.json, .md, .png (equity), finance_sharpe.png (intervals) and finance_report.html. A part
is only trained: it says what its runs reach on the validation period, and the test period stays closed.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, environment, write_json
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from elegantrl.finance import StockTradingVecEnv
from elegantrl.finance.experiment import Experiment, ExperimentConfig, load_experiment, run_experiment
from elegantrl.finance.metrics import sharpe_difference
from elegantrl.finance.report import render
from elegantrl.finance.results import Backtest, Row, as_json, of_experiment
from elegantrl.report.draw import style_axes
from elegantrl.report.style import COLOURS, GREY
from elegantrl.store.trained import TrainedPolicy

AGENTS = ("ppo", "a2c", "ddpg", "td3", "sac")
SEEDS, MAX_STEPS, SNAPSHOTS = 5, 102_400, 10
EPISODES = 1024


def is_seed(row: Row) -> bool:
    return " seed " in row.ledger.name


def seeds_of(found: Backtest, row: Row) -> list[Row]:
    """The single runs behind an ensemble of seeds."""
    agent = row.ledger.name.removesuffix(" ensemble")
    return [other for other in found.rows if other.ledger.name.startswith(f"{agent} seed ")]


def shown_rows(found: Backtest) -> list[Row]:
    return [row for row in found.rows if not is_seed(row)]


def spread(values: list[float], form: str) -> str:
    """The mean and the range of some seeds; a policy that never trades has no Sharpe ratio."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    mean, low, high = (format(x, form) for x in (statistics.fmean(known), min(known), max(known)))
    return f"{mean} ({low} .. {high})" + (f" of {len(known)}" if len(known) < len(values) else "")


def figures_table(found: Backtest) -> str:
    """Each agent as its ensemble and its seeds, then the baselines."""
    lines = [
        "| strategy | return per year | of seeds: mean (min .. max) | volatility | max drawdown | Sharpe (95 %) |"
        " of seeds: mean (min .. max) | turnover per year |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in shown_rows(found):
        name, figures, seeds = row.ledger.name, row.performance, [other.performance for other in seeds_of(found, row)]
        cells = [
            f"**{name}**" if row is found.main else name,
            f"{figures.annual_return:+.1%}",
            spread([seed.annual_return for seed in seeds], "+.1%"),
            f"{figures.annual_volatility:.1%}",
            f"{figures.max_drawdown:.1%}",
            f"{row.sharpe.value:.2f} ({row.sharpe.low:.2f} .. {row.sharpe.high:.2f})",
            spread([seed.sharpe for seed in seeds], ".2f"),
            f"{row.yearly_turnover:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def differences(found: Backtest) -> dict[str, dict[str, list[float]]]:
    """Sharpe ratio of each trained strategy minus that of each baseline: value, low, high."""
    shown = shown_rows(found)
    baselines = [row for row in shown if row.is_baseline]
    return {
        row.ledger.name: {
            other.ledger.name: list(sharpe_difference(row.ledger.returns, other.ledger.returns)) for other in baselines
        }
        for row in shown
        if not row.is_baseline
    }


def differences_table(found: Backtest) -> str:
    gaps = differences(found)
    names = list(next(iter(gaps.values())))
    lines = ["| Sharpe of | minus " + " | minus ".join(names) + " |", "|---|" + "---|" * len(names)]
    for strategy, row in gaps.items():
        cells = [f"{value:+.2f} ({low:+.2f} .. {high:+.2f})" for value, low, high in row.values()]
        lines.append("| " + " | ".join([strategy, *cells]) + " |")
    return "\n".join(lines) + "\n"


def draw_equity(found: Backtest, path: Path) -> None:
    figure, axes = canvas(9, 5)
    axes.xaxis.set_major_formatter("{x:.0f}")
    for place, row in enumerate(shown_rows(found)):
        ledger = row.ledger
        years = 1970 + ledger.dates.astype("datetime64[s]").astype(np.float64) / (365.25 * 86400)
        style = "--" if row.is_baseline else "-"
        width = 2.4 if row is found.main else 1.2
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(years, ledger.value / ledger.value[0], style, lw=width, color=colour, label=ledger.name)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 3], ["50 %", "100 %", "200 %", "300 %"])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("value, start = 100 %", color=GREY)
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=140)


def draw_sharpe(found: Backtest, path: Path) -> None:
    """Sharpe ratios with their intervals; the seeds of an agent as dots."""
    shown = shown_rows(found)[::-1]
    figure, axes = canvas(9, 0.42 * len(shown) + 1.2)
    axes.xaxis.set_major_formatter("{x:.1f}")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e6eaed", lw=0.8)
    for place, row in enumerate(shown):
        colour = GREY if row.is_baseline else COLOURS[0]
        axes.plot([row.sharpe.low, row.sharpe.high], [place, place], lw=2, color=colour, solid_capstyle="butt")
        axes.plot([row.sharpe.value], [place], "D", ms=6, color=colour)
        seeds = [other.performance.sharpe for other in seeds_of(found, row)]
        axes.plot(seeds, [place - 0.22] * len(seeds), "o", ms=4, color=COLOURS[1], mew=0)
    axes.set_yticks(range(len(shown)), [row.ledger.name for row in shown])
    axes.set_xlabel("Sharpe ratio 2017 to 2022, 95 % block bootstrap; dots: single seeds", color=GREY)
    figure.savefig(path, dpi=140)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    style_axes(axes)
    return figure, axes


def learned(done: Experiment) -> list[dict[str, Any]]:
    """What each run took, and what its chosen snapshot earns on years of the training and on the validation period."""
    runs = []
    for run in done.trained:
        summary = json.loads((done.folder / run.folder / "summary.json").read_text())
        found = {"training": training_return(policy_actions(done.folder / run.folder)), "validation": run.validation}
        steps = {"env_steps": summary["env_steps"], "wall_seconds": summary["wall_seconds"]}
        runs.append({"agent": run.agent, "seed": run.seed, **steps, **found})
    return runs


def policy_actions(folder: Path) -> Callable[[Tensor], Tensor]:
    """The decisions of a trained policy for lanes."""
    policy = TrainedPolicy.load(folder).policy
    carry = policy.initial_carry(EPISODES)

    def decide(obs: Tensor) -> Tensor:
        nonlocal carry
        action, carry = policy.act(obs, carry)
        return action

    return decide


@torch.no_grad()
def training_return(decide: Callable[[Tensor], Tensor]) -> float:
    """The mean return of episodes of a year that begin at random dates of the training period, the same for all."""
    period = ExperimentConfig(agents=AGENTS).train
    env = StockTradingVecEnv(num_envs=EPISODES, period=period, episode_steps=252, random_start=True)
    obs, total = env.reset(0), torch.zeros(EPISODES)
    for _ in range(252):
        step = env.step(decide(obs))
        obs, total = step.obs, total + step.reward
    return float(total.mean())


def learning_table(runs: list[dict[str, Any]]) -> str:
    """What the chosen snapshots earn where they were trained and chosen, beside random and greedy actions."""
    stream = torch.Generator().manual_seed(0)
    others = {
        "random actions": lambda obs: torch.rand(EPISODES, 20, generator=stream) * 2 - 1,
        "always buy": lambda obs: torch.ones(EPISODES, 20),
    }
    lines = ["| agent | a year of 1990 to 2012: mean (min .. max) | 2013 to 2016: mean (min .. max) |", "|---|---|---|"]
    for agent in dict.fromkeys(run["agent"] for run in runs):
        own = [run for run in runs if run["agent"] == agent]
        training, validation = (spread([run[name] for run in own], "+.1f") for name in ("training", "validation"))
        lines.append(f"| {agent} | {training} | {validation} |")
    lines += [f"| {name} | {training_return(decide):+.1f} | |" for name, decide in others.items()]
    return "\n".join(lines) + "\n"


def join(parts: list[Path], config: ExperimentConfig, folder: Path) -> None:
    """Copy the runs of parts, which must have the settings of ``config`` but for agents and seeds, to ``folder``."""
    for part in parts:
        found = load_experiment(part).config
        if replace(found, agents=config.agents, seeds=config.seeds, first_seed=config.first_seed) != config:
            raise SystemExit(f"{part} was trained with other settings; leave it out")
        for run in sorted((part / "runs").iterdir()):
            if not (folder / "runs" / run.name).exists():
                shutil.copytree(run, folder / "runs" / run.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--agents", nargs="+", default=AGENTS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=MAX_STEPS)
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="folders of parts")
    args = parser.parse_args()
    config = ExperimentConfig(
        agents=tuple(args.agents),
        seeds=args.seeds,
        first_seed=args.first_seed,
        max_steps=args.max_steps,
        snapshots=SNAPSHOTS,
    )
    join(args.join, config, args.run_dir)
    done = run_experiment(config, args.run_dir, resume=(args.run_dir / "finance.yaml").exists(), say=print)
    if (tuple(args.agents), args.seeds, args.first_seed) != (AGENTS, SEEDS, 0):
        return
    runs = learned(done)
    found = of_experiment(done)
    tables = "\n".join([figures_table(found), differences_table(found), learning_table(runs)])
    print(tables)
    data = {"environment": environment(), "trained": runs, **as_json(found), "differences": differences(found)}
    write_json("finance_results.json", json.loads(json.dumps(data, default=str)))
    (RESULTS / "finance_results.md").write_text(tables)
    (RESULTS / "finance_report.html").write_text(render(found))
    draw_equity(found, RESULTS / "finance_results.png")
    draw_sharpe(found, RESULTS / "finance_sharpe.png")


if __name__ == "__main__":
    main()

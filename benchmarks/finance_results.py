"""What do agents earn on real prices? DDPG, TD3, SAC, PPO and A2C, five seeds each, against every baseline.

    python benchmarks/finance_results.py --run-dir runs/finance_results     # train (or resume) and back-test

Stock trading with 20 stocks: trained on 1990 to 2012, chosen on 2013 to 2016, tested on 2017 to 2022; 0.1 % cost.
Writes results/finance_results.json, .md, .png and the page finance_report.html.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, environment, write_json
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from elegantrl.finance.experiment import ExperimentConfig, run_experiment
from elegantrl.finance.report import render
from elegantrl.finance.results import Backtest, as_json, of_experiment
from elegantrl.report.draw import COLOURS, style_axes

AGENTS = ("ppo", "a2c", "ddpg", "td3", "sac")


def rows_of(found: Backtest) -> list[dict[str, Any]]:
    """Each agent as its ensemble and the mean and range of its seeds, then the baselines."""
    all_rows = as_json(found)["strategies"]
    shown = [row for row in all_rows if " seed " not in row["name"]]
    for row in shown:
        agent = row["name"].removesuffix(" ensemble")
        seeds = [other for other in all_rows if other["name"].startswith(f"{agent} seed ")]
        for name in ("annual_return", "sharpe"):
            known = [seed[name] for seed in seeds if seed[name] is not None]
            row[f"{name}_of_seeds"] = [float(np.mean(known)), min(known), max(known)] if known else None
    return shown


def markdown(found: Backtest) -> str:
    lines = [
        "| strategy | return per year | seeds: mean (min .. max) | volatility | max drawdown | Sharpe |"
        " seeds: mean (min .. max) | turnover per year | Sharpe of the chosen one minus this (95 %) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows_of(found):
        returns, sharpes = row["annual_return_of_seeds"], row["sharpe_of_seeds"]
        gap = row["sharpe_difference"]
        cells = [
            f"**{row['name']}**" if gap is None else row["name"],
            f"{row['annual_return']:+.1%}",
            "" if returns is None else f"{returns[0]:+.1%} ({returns[1]:+.1%} .. {returns[2]:+.1%})",
            f"{row['annual_volatility']:.1%}",
            f"{row['max_drawdown']:.1%}",
            f"{row['sharpe']:.2f}",
            "" if sharpes is None else f"{sharpes[0]:.2f} ({sharpes[1]:.2f} .. {sharpes[2]:.2f})",
            f"{row['yearly_turnover']:.1f}",
            "" if gap is None else f"{gap[0]:+.2f} ({gap[1]:+.2f} .. {gap[2]:+.2f})",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(found: Backtest, path: Path) -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.xaxis.set_major_formatter("{x:.0f}")
    shown = [row for row in found.rows if " seed " not in row.ledger.name]
    for place, row in enumerate(shown):
        ledger = row.ledger
        years = 1970 + ledger.dates.astype("datetime64[s]").astype(np.float64) / (365.25 * 86400)
        style = "--" if row.is_baseline else "-"
        width = 2.4 if row is found.main else 1.2
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(years, ledger.value / ledger.value[0], style, lw=width, color=colour, label=ledger.name)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 3], ["50 %", "100 %", "200 %", "300 %"])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("value, start = 100 %")
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--agents", nargs="+", default=AGENTS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-steps", type=int, default=40_960)
    args = parser.parse_args()
    config = ExperimentConfig(agents=tuple(args.agents), seeds=args.seeds, max_steps=args.max_steps, snapshots=5)
    done = run_experiment(config, args.run_dir, resume=(args.run_dir / "finance.yaml").exists(), say=print)
    found = of_experiment(done)
    scores = [{"agent": run.agent, "seed": run.seed, "validation": run.validation} for run in done.trained]
    data = {"environment": environment(), "validation": scores, **as_json(found), "summary": rows_of(found)}
    write_json("finance_results.json", json.loads(json.dumps(data, default=str)))
    (RESULTS / "finance_results.md").write_text(markdown(found))
    (RESULTS / "finance_report.html").write_text(render(found))
    draw(found, RESULTS / "finance_results.png")
    print(markdown(found))


if __name__ == "__main__":
    main()

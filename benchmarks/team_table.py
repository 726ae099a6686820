"""The table of teams in docs/results.md: a random team, ours, and a scripted one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

from common import RESULTS

TEAM_NOTE = """\
Returns are sums over agents. A random and a scripted team of ours (`python benchmarks/team_oracles.py --measure`,
20,000 episodes) show where a score lies: **gap** is the share of the way from the first to the second. A scripted team
is no upper bound. **original** is the score of the same policy in the task of another library, which has the dynamics
of the tensor world and was never seen in training, and the difference in per cent; both over 1,000 episodes per
seed."""

COLUMNS = ("agent", "task", "random", "fresh", "scripted", "gap", "won (random, scripted)", "original")


def bounds() -> dict[str, dict[str, dict[str, float]]]:
    """What a random and a scripted team reach, by task."""
    path = RESULTS / "team_oracles.json"
    found: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text())["tasks"] if path.exists() else {}
    return found


BOUNDS = bounds()


def team_rows(measured: Iterable[tuple[Any, list[dict[str, Any]]]]) -> list[str]:
    """The table, from tasks of the learning benchmark and their runs."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for task, runs in measured:
        random, oracle = BOUNDS[task.env]["random"], BOUNDS[task.env]["oracle"]
        fresh = statistics.fmean(run["mean_return"] for run in runs)
        gap = (fresh - random["return"]) / (oracle["return"] - random["return"])
        digits = 1 if abs(oracle["return"]) > 2 else 2
        scores = (
            " | ".join(f"{score:.{digits}f}" for score in (random["return"], fresh, oracle["return"])) + f" | {gap:.0%}"
        )
        lines.append(f"| {task.name} | {task.env} | {scores} | {wins(runs, random, oracle)} | {original(runs)} |")
    return lines


def wins(runs: list[dict[str, Any]], random: dict[str, float], oracle: dict[str, float]) -> str:
    """The share of battles won, on average over seeds."""
    won = [run["win_rate"] for run in runs if "win_rate" in run]
    return f"{statistics.fmean(won):.0%} ({random['win_rate']:.0%}, {oracle['win_rate']:.0%})" if won else "-"


def original(runs: list[dict[str, Any]]) -> str:
    """The mean return in the task of the other library."""
    found = [(run["mean_return"], run["original_return"]) for run in runs if "original_return" in run]
    if not found:
        return "-"
    ours, theirs = (statistics.fmean(values) for values in zip(*found, strict=True))
    return f"{theirs:.{1 if abs(theirs) > 2 else 2}f} ({(theirs - ours) / abs(ours):+.1%})"

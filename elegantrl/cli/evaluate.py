"""``elegantrl eval RUN``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from ..errors import ConfigError
from ..roles.evaluator import Score
from ..runtime.display import Stdout
from ..store.changes import FROM_THEN_ON, Change, read_changes
from ..store.trained import TrainedPolicy
from .output import write_line
from .parse import parse
from .playing import guard

MAX_EPISODES = 100_000


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Score the best policy of a run, or several runs as one ensemble, without exploration in new environments.

    `elegantrl eval runs/a --episodes 100 --json`: one run; the result is JSON.

    `elegantrl eval runs/a runs/b --weights 3 1`: two runs as one policy; the first has three times the weight.

    `elegantrl eval runs/a --env mine:Env`: a run whose environment is your own code.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]
    """A run folder, or several whose policies are averaged."""
    weights: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="")] = ()
    """Weight of each run in an ensemble; by default all are equal."""
    episodes: int = 20
    """Episodes to play."""
    seed: int = 0
    """Seed of the evaluation environments."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV", help_behavior_hint="")] = None
    """Environment to play in, instead of the one the run was trained on; needed if that is `module:attribute`."""
    allow_import: tyro.conf.FlagCreatePairsOff[bool] = False
    """Trust the folder: import and run the code that it names by import path."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object instead of a table."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl eval")
    if not 1 <= flags.episodes <= MAX_EPISODES:  # each episode has an environment of its own
        raise ConfigError(f"--episodes {flags.episodes} is out of range: it must be >= 1 and <= {MAX_EPISODES}")
    policy = load(flags)
    env = flags.env or policy.env_id
    score = guard(lambda: policy.evaluate(flags.episodes, flags.seed, flags.env), f"evaluation failed in {env}")
    changes = {str(run): found for run in flags.runs if (found := read_changes(run))}
    if flags.json:
        write_line(json.dumps(as_json(flags, policy, env, score, changes)))
    else:
        show(flags, policy, env, score, changes)
    return 0


def as_json(
    flags: Flags, policy: TrainedPolicy, env: str, score: Score, changes: dict[str, list[Change]]
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "agent": policy.config.agent_name,
        "runs": [str(run) for run in flags.runs],
        "env": env,
        "episodes": flags.episodes,
        "seed": flags.seed,
        "mean_return": score.mean,
        "std_return": score.std,
        "ci95": score.ci95,
        "returns": list(score.returns),
    }
    if score.win_rate is not None:
        result |= {"win_rate": score.win_rate, "won": list(score.won)}
    if score.agent_returns:
        columns = zip(score.agent_names, zip(*score.agent_returns, strict=True), strict=True)
        result |= {"agent_means": score.agent_means, "agent_returns": {name: list(x) for name, x in columns}}
    if changes:
        result["changes"] = {run: [change._asdict() for change in found] for run, found in changes.items()}
    return result


def show(flags: Flags, policy: TrainedPolicy, env: str, score: Score, changes: dict[str, list[Change]]) -> None:
    """The same as tables."""
    agent = policy.config.agent_name if len(flags.runs) == 1 else f"ensemble of {len(flags.runs)} runs"
    interval = f"{score.mean - score.ci95:,.1f} .. {score.mean + score.ci95:,.1f}"
    row = {"episodes": str(flags.episodes), "mean": f"{score.mean:,.1f}", "95 % interval": interval}
    numbers = {"std": score.std, "min": min(score.returns), "max": max(score.returns)}
    row |= {name: f"{value:,.1f}" for name, value in numbers.items()}
    if score.win_rate is not None:
        row["won"] = f"{score.win_rate:.0%}"
    table = Table(title=escape(f"{agent} on {env}"), title_justify="left")
    for name in row:
        table.add_column(name, justify="right")
    table.add_row(*row.values())
    Stdout().print(table)
    if score.agent_returns:
        agents = Table("agent")
        agents.add_column("mean return", justify="right")
        for name, mean in score.agent_means.items():
            agents.add_row(escape(name), f"{mean:,.1f}")
        Stdout().print(agents)
    for run, found in changes.items():
        for change in found:
            Stdout().print(f"{run}: {change}; {FROM_THEN_ON}", markup=False, soft_wrap=True)


def load(flags: Flags) -> TrainedPolicy:
    if not flags.runs:
        raise ConfigError("RUN is missing; see elegantrl eval --help")
    if len(flags.runs) == 1 and not flags.weights:
        return TrainedPolicy.load(flags.runs[0], flags.allow_import)
    return TrainedPolicy.ensemble(flags.runs, flags.weights or None, flags.allow_import)

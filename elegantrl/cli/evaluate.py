"""``elegantrl eval RUN``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from ..errors import ConfigError, ElegantRLError, RoleError, format_error
from ..roles.evaluator import Score
from ..runtime.display import Stdout
from ..store.trained import TrainedPolicy
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Score the best policy of a run, or several runs as one ensemble: no exploration, fresh environments."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """The run folder; of several, the policies are averaged."""
    weights: tuple[float, ...] = ()
    """How much each run of an ensemble counts; equally by default."""
    episodes: int = 20
    """Episodes to play."""
    seed: int = 0
    """Seed of the evaluation environments."""
    env: str | None = None
    """Environment to play in, instead of the one the run was trained on; needed if that is `module:attribute`."""
    allow_import: tyro.conf.FlagCreatePairsOff[bool] = False
    """Trust the folder: import and run the code that it names by import path."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object instead of a table."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl eval")
    if flags.episodes < 1:
        raise ConfigError(f"--episodes {flags.episodes} is out of range: it must be >= 1")
    policy = load(flags)
    env = flags.env or policy.config.env.id
    score = play(policy, flags)
    if flags.json:
        result = {
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
        print(json.dumps(result))
        return 0
    agent = policy.config.agent_name if len(flags.runs) == 1 else f"ensemble of {len(flags.runs)} runs"
    table = Table(title=escape(f"{agent} on {env}"), title_justify="left")
    for name in ("episodes", "mean", "95 % interval", "std", "min", "max"):
        table.add_column(name, justify="right")
    interval = f"{score.mean - score.ci95:,.1f} .. {score.mean + score.ci95:,.1f}"
    numbers = [f"{x:,.1f}" for x in (score.std, min(score.returns), max(score.returns))]
    table.add_row(str(flags.episodes), f"{score.mean:,.1f}", interval, *numbers)
    Stdout().print(table)
    return 0


def load(flags: Flags) -> TrainedPolicy:
    if not flags.runs:
        raise ConfigError("RUN is missing; see elegantrl eval --help")
    if len(flags.runs) == 1 and not flags.weights:
        return TrainedPolicy.load(flags.runs[0], flags.allow_import)
    return TrainedPolicy.ensemble(flags.runs, flags.weights or None, flags.allow_import)


def play(policy: TrainedPolicy, flags: Flags) -> Score:
    """The score; whatever the code of an environment raises on the way becomes one sentence."""
    try:
        return policy.evaluate(flags.episodes, flags.seed, flags.env)
    except ElegantRLError:
        raise
    except Exception as error:
        raise RoleError(f"evaluation failed in {flags.env or policy.config.env.id}: {format_error(error)}") from error

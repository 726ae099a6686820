"""``elegantrl eval RUN``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from ..errors import ConfigError, ElegantRLError, NonFinite, RoleError
from ..train.evaluator import Score
from ..train.trained import TrainedPolicy
from .display import Stdout
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Score the best policy of a run: no exploration, fresh environments."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run folder."""
    episodes: int = 20
    """Episodes to play."""
    seed: int = 0
    """Seed of the evaluation environments."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object instead of a table."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl eval")
    if flags.episodes < 1:
        raise ConfigError(f"--episodes {flags.episodes} is out of range: it must be >= 1")
    policy = TrainedPolicy.load(flags.run)
    score = play(policy, flags.episodes, flags.seed)
    if flags.json:
        result = {
            "agent": policy.config.agent_name,
            "env": policy.config.env.id,
            "episodes": flags.episodes,
            "seed": flags.seed,
            "mean_return": score.mean,
            "std_return": score.std,
            "ci95": score.ci95,
            "returns": list(score.returns),
        }
        print(json.dumps(result))
        return 0
    table = Table(title=escape(f"{policy.config.agent_name} on {policy.config.env.id}"), title_justify="left")
    for name in ("episodes", "mean", "95 % interval", "std", "min", "max"):
        table.add_column(name, justify="right")
    interval = f"{score.mean - score.ci95:,.1f} .. {score.mean + score.ci95:,.1f}"
    numbers = [f"{x:,.1f}" for x in (score.std, min(score.returns), max(score.returns))]
    table.add_row(str(flags.episodes), f"{score.mean:,.1f}", interval, *numbers)
    Stdout().print(table)
    return 0


def play(policy: TrainedPolicy, episodes: int, seed: int) -> Score:
    """The score; whatever a foreign environment raises on the way becomes one sentence."""
    try:
        score = policy.evaluate(episodes, seed)
    except ElegantRLError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise RoleError(f"evaluation failed in {policy.config.env.id}: {type(error).__name__}: {text}") from error
    if not math.isfinite(score.mean):
        raise NonFinite(f"{policy.config.env.id} gave a non-finite reward during evaluation; fix the environment")
    return score

"""A stacked population from the settings of a population, shown on the console."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from ...errors import ConfigError
from ...runtime.display import Stdout
from ..config import PopulationConfig
from ..space import default_period_steps
from .train import Standing, train_population

USED = {"env", "agents", "members", "periods", "period_steps", "seed", "fraction", "episodes", "env_kwargs", "settings"}
"""The settings of a population that a stacked one has; it is always generational."""


def evolve_stacked(config: PopulationConfig, run_dir: str | None) -> int:
    """Train, with a line for each generation, and show the members; returns the exit code of the command."""
    for name, default in PopulationConfig(env=config.env).to_dict().items():
        if name not in USED and config.to_dict()[name] != default:
            raise ConfigError(f"population.{name} has no effect with --stacked; leave it out")
    if len(config.agents) != 1:
        raise ConfigError(f"--stacked trains members of one agent, not of {len(config.agents)}; add --agents ppo")
    (agent,) = config.agents
    period_steps = config.period_steps or default_period_steps(config)
    console = Stdout()

    def show(standing: Standing) -> None:
        known = [score for score in standing.returns if math.isfinite(score)]
        best, mean = (max(known), sum(known) / len(known)) if known else (math.nan, math.nan)
        copied = sum(parent != p for p, parent in enumerate(standing.parents))
        console.print(
            f"{standing.env_steps:>11,} steps per member  best {best:,.1f}  mean {mean:,.1f}  {copied} members copied",
            markup=False,
        )

    sections: dict[str, Any] = {name: dict(values) for name, values in config.settings.items()}
    sections.setdefault("eval", {})["episodes"] = config.episodes
    agent_settings, env = sections.pop("agent", {}), sections.pop("env", {})  # flat: two arguments have these names
    env_kwargs = {**env.pop("kwargs", {}), **config.env_kwargs}
    result = train_population(
        agent,
        config.env,
        members=config.members,
        period_steps=period_steps,
        replaced=config.fraction,
        run_dir=run_dir,
        show=show,
        max_steps=config.periods * period_steps,
        seed=config.seed,
        env_kwargs=env_kwargs,
        **agent_settings,
        **env,
        **sections,
    )
    table = Table("member", "return", *result.standings[-1].settings, title=f"{agent} on {config.env}")
    for p, score in enumerate(result.returns):
        values = [f"{values[p]:.3g}" for values in result.standings[-1].settings.values()]
        table.add_row(f"{p}{' (champion)' if p == result.champion else ''}", f"{score:,.1f}", *values)
    console.print(table)
    champion = result.member_folder(result.champion)
    console.print(f"champion  {champion}\nscore it  elegantrl eval {champion}", markup=False, soft_wrap=True)
    return 0

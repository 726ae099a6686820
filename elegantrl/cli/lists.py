"""``elegantrl envs`` and ``elegantrl agents``."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from ..config.recipes import tuned_environments
from ..envs import env_names
from ..envs.games import PACKAGES, installed
from ..registry import agent_names, find_agent
from ..runtime.display import Stdout
from .output import write_line
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class EnvFlags:
    """List the environments that can be trained in by name."""


@dataclass(frozen=True, kw_only=True)
class AgentFlags:
    """List the agents, and the environments each has tuned settings for."""


def envs_main(argv: list[str]) -> int:
    parse(EnvFlags, argv, "elegantrl envs")
    table = Table("environment", "kind", title="Environments", title_justify="left")
    for name, kind in env_names():
        table.add_row(name, kind)
    Stdout().print(table)
    write_line("Also envpool:ID for any EnvPool task, and module:attribute for an environment of your own.")
    missing = [package.extra for package in PACKAGES if not installed(package)]
    if missing:
        write_line(f"More with pip install 'elegantrl[{','.join(missing)}]'.")
    return 0


def agents_main(argv: list[str]) -> int:
    parse(AgentFlags, argv, "elegantrl agents")
    table = Table("agent", "what it is", "tuned for", title="Agents", title_justify="left")
    for name in agent_names():
        table.add_row(name, find_agent(name).summary, ", ".join(tuned_environments(name)))
    Stdout().print(table)
    return 0

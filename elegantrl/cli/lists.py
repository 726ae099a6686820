"""``elegantrl envs`` and ``elegantrl agents``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rich.table import Table

from ..config.recipes import tuned_environments
from ..envs import env_names
from ..envs.games import PACKAGES, installed
from ..nets.encoders import ENCODERS
from ..registry import AgentEntry, agent_names, find_agent
from ..runtime.display import Stdout
from .output import write_line
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class EnvFlags:
    """List the environments that can be trained in by name."""


@dataclass(frozen=True, kw_only=True)
class AgentFlags:
    """List the agents, what each needs, the environments each has tuned settings for, and the encoders of
    observations."""


def envs_main(argv: list[str]) -> int:
    parse(EnvFlags, argv, "elegantrl envs")
    table = Table("environment", "kind", title="Environments", title_justify="left")
    for name, kind in env_names():
        table.add_row(name, kind)
    Stdout().print(table)
    write_line("Also envpool:ID for any EnvPool task, and module:attribute for an environment of your own.")
    missing = dict.fromkeys(package.extra for package in PACKAGES if not installed(package))
    if missing:
        write_line(f"More with pip install 'elegantrl[{','.join(missing)}]'.")
    return 0


def needs_of(entry: AgentEntry) -> str:
    """What an agent needs of an environment, and whether it can have a memory: ``team; discrete; memory``."""
    who = "team" if entry.agent.teams else "one agent"
    kinds = [kind for kind in ("discrete", "multi_discrete", "continuous") if kind in entry.agent.actions]
    has_memory = any(f.name == "memory" for f in fields(entry.config))
    return "; ".join([who, ", ".join(kinds), *["memory"] * has_memory])


def agents_main(argv: list[str]) -> int:
    parse(AgentFlags, argv, "elegantrl agents")
    table = Table("agent", "what it is", "needs", "tuned for", title="Agents", title_justify="left")
    for name in agent_names():
        entry = find_agent(name)
        table.add_row(name, entry.summary, needs_of(entry), ", ".join(tuned_environments(name)))
    Stdout().print(table)
    write_line("needs: one agent or a team; kinds of actions; with memory: --agent.memory gru or lstm adds one.")
    encoders = Table("encoder", "what it is", title="Encoders of observations (--agent.encoder)", title_justify="left")
    encoders.add_row("auto", "one for each part of an observation, selected by its shape and type")
    for name, build in ENCODERS.items():
        encoders.add_row(name, " ".join((build.__doc__ or "").split()))
    Stdout().print(encoders)
    return 0

"""Changed settings of a run that is resumed: which may change, and what the changes since a commit are.

The caller allows each change by name. A commit holds the settings of its agent, so that a run continues from commits of
the time before a change, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..agents.base import AgentConfig
from ..config.fields import check_effect, used_fields
from ..config.names import check_names
from ..config.run import RunConfig, hash_of
from ..config.structure import build_section, plain_section
from ..errors import ConfigError
from ..store.changes import Change, parse_changes
from ..store.manifest import Commit

CHANGEABLE = frozenset(
    {
        "adam_epsilon",
        "batch_size",
        "entropy_schedule",
        "lr_schedule",
        "max_grad_norm",
        "num_epochs",
        "schedule_steps",
        "target_kl",
        "value_coef",
    }
)
"""Settings of agents, besides the tunable ones, on which no saved state depends."""


def changeable(agent: AgentConfig) -> list[str]:
    """The settings of an agent that a resumed run may change."""
    return sorted(f.name for f in used_fields(agent) if "tunable" in f.metadata or f.name in CHANGEABLE)


def with_changes(config: RunConfig, allow: Mapping[str, Any], is_resumed: bool) -> RunConfig:
    """``config`` with the allowed settings; refuses what cannot change."""
    agent, may_change = config.agent, changeable(config.agent)
    check_names(allow, [f.name for f in used_fields(agent)], "agent.")
    for name in allow:
        if name not in may_change:
            raise ConfigError(
                f"agent.{name} cannot change while a run continues, because saved networks or data depend on it; these"
                f" can: {', '.join(may_change)} (or start a new run with --init-from)"
            )
        if not is_resumed:
            raise ConfigError(f"--allow {name} is for a run that is resumed; add --resume, or set agent.{name} instead")
    section = build_section(type(agent), {**plain_section(agent), **allow})
    check_effect(section, allow)
    return replace(config, agent=section)


def new_changes(commit: Commit, config: RunConfig) -> list[Change] | None:
    """The changes since a commit; None if it belongs to a config with other settings than a change may give."""
    info, identity = commit.manifest["info"], config.identity()
    if info.get("config_hash") == config.hash():
        return []
    before, after = info.get("agent"), identity["agent"]
    # The hash shows that all other settings are the same.
    if not isinstance(before, dict) or hash_of({**identity, "agent": before}) != info.get("config_hash"):
        return None
    names = [name for name in sorted({**before, **after}) if before.get(name) != after.get(name)]
    if not set(names) <= set(changeable(config.agent)):
        return None
    return [Change(commit.step, f"agent.{name}", str(before.get(name)), str(after.get(name))) for name in names]


def all_changes(commit: Commit, config: RunConfig) -> list[Change]:
    """The changes up to a commit, and those since."""
    return parse_changes(commit.manifest["info"].get("changes")) + (new_changes(commit, config) or [])

"""Tuned settings per (agent, environment), shipped as data in ``defaults.yaml``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings by section, and a phrase that names their source."""

    name: str
    sections: dict[str, Any] = field(default_factory=dict)


@cache
def _table() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(files("elegantrl.config").joinpath("defaults.yaml").read_text())
    return data


def find_recipe(agent_name: str, env_id: str) -> Recipe:
    """The tuned settings for this pair; for an unknown environment the agent's general ones."""
    table = _table().get(agent_name, {})
    env_id = env_id.removeprefix("envpool:")  # the same task, stepped by another library
    if env_id in table:
        source = table[env_id].get("source", "own")
        return Recipe(f"tuned settings for this pair (source: {source})", table[env_id])
    if "default" in table:
        return Recipe(f"general settings of {agent_name} (no tuned ones for {env_id})", table["default"])
    return Recipe(f"built-in settings of {agent_name}")


def tuned_environments(agent_name: str) -> list[str]:
    """Environments with settings of their own for this agent."""
    return [name for name in _table().get(agent_name, {}) if name != "default"]

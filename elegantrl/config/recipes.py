"""Tuned settings per (agent, environment), shipped as data in ``defaults.yaml``."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
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
    """The tuned settings for this pair or for the family of the environment (``ALE/*``); for an unknown environment the
    agent's general ones."""
    table = _table().get(agent_name, {})
    env_id = env_id.removeprefix("envpool:")  # the same task, stepped by another library
    name = env_id if env_id in table else next((name for name in table if fnmatchcase(env_id, name)), None)
    if name is not None and name != "default":
        pair = "this pair" if name == env_id else f"{agent_name} on {name}"
        return Recipe(f"tuned settings for {pair} (source: {table[name].get('source', 'own')})", table[name])
    if "default" in table:
        return Recipe(f"general settings of {agent_name} (no tuned ones for {env_id})", table["default"])
    return Recipe(f"built-in settings of {agent_name}")


def tuned_environments(agent_name: str) -> list[str]:
    """Environments, and families such as ``ALE/*``, with settings of their own for this agent."""
    return [name for name in _table().get(agent_name, {}) if name != "default"]

"""Translates documented settings to the sections of a ``RunConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..config.resolve import resolve_config
from ..config.run import RunConfig
from ..errors import ConfigError
from ..registry import find_agent
from .fields import FIELDS, FOR_ALL

Sections = dict[str, dict[str, Any]]


def place_of(algorithm: str, name: str) -> tuple[str, str] | None:
    """Section and name of a documented setting in the run's config, if the agent has it."""
    known = {f.name for f in fields(find_agent(algorithm).config)}
    for path in FIELDS[name].paths:
        section, key = path.split(".")
        if section != "agent" or key in known:
            return section, key
    return None


def hidden_of(agent: Any, env_name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The widths given by ``net_dim`` and ``num_layer``; empty if neither is set."""
    if "net_dim" not in values and "num_layer" not in values:
        return {}
    default, _ = resolve_config(agent.algorithm, env_name)
    hidden = default.agent.hidden
    return {"hidden": (values.get("net_dim", hidden[0]),) * values.get("num_layer", len(hidden))}


class Translation:
    """The sections for documented settings; errors use the names that the caller used."""

    def __init__(self, agent: Any, env_name: str, values: Mapping[str, Any], args: Any):
        self.agent, self.env_name = agent, env_name
        self.sections: Sections = {"agent": agent.preset | hidden_of(agent, env_name, values), "env": {}, "train": {}}
        self._names: dict[str, str] = {}
        for name, value in values.items():
            if name in FIELDS:
                self._add(name, value, args)

    def _add(self, name: str, value: Any, args: Any) -> None:
        place = place_of(self.agent.algorithm, name)
        if place is not None:
            section, key = place
            self.sections.setdefault(section, {})[key] = FIELDS[name].to_ours(value, args)
            self._names[f"{section}.{key}"] = name
        elif name not in FOR_ALL:
            raise ConfigError(f"{name} has no meaning for {type(self.agent).__name__}; remove the line")

    def resolve(self) -> RunConfig:
        """The config; errors name a setting as the caller did."""
        try:
            config, _ = resolve_config(self.agent.algorithm, self.env_name, self.sections)
        except ConfigError as error:
            text = str(error)
            for path, name in self._names.items():
                text = text.replace(f"{path}=", f"{name}=")
            raise ConfigError(text) from None
        return config

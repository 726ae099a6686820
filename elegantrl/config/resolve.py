"""From a few words to a complete config: built-in defaults, then tuned settings, then what the caller says."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..registry import find_agent
from .recipes import Recipe, find_recipe
from .run import SECTIONS, RunConfig, build_section, check_names


def resolve_config(
    agent: str, env: str, overrides: dict[str, dict[str, Any]] | None = None
) -> tuple[RunConfig, Recipe]:
    """The agent's own defaults, then the tuned settings for this environment, then ``overrides`` by section."""
    entry, recipe = find_agent(agent), find_recipe(agent.lower(), env)
    overrides = overrides or {}
    check_names(overrides, ["agent", *SECTIONS], "")
    tuned = dict(recipe.sections)
    if "num_groups" in tuned.get("env", {}):
        env_data, execute = tuned["env"] | overrides.get("env", {}), overrides.get("execute", {})
        sizes = env_data["num_envs"], execute.get("num_workers", 1), execute.get("num_learners", 0)
        tuned["env"] = tuned["env"] | {"num_groups": tuned_groups(tuned["env"]["num_groups"], *sizes)}
    agent_data = {**recipe.sections.get("agent", {}), **overrides.get("agent", {})}
    agent_config = build_section(entry.config, {**entry.preset, **agent_data})
    sections: dict[str, Any] = {
        name: build_section(
            kind,
            ({"id": env} if name == "env" else {}) | tuned.get(name, {}) | overrides.get(name, {}),
        )
        for name, kind in SECTIONS.items()
    }
    return RunConfig(agent_name=entry.name, agent=agent_config, **sections), recipe


def tuned_groups(num_groups: int | None, num_envs: int, num_workers: int, num_learners: int) -> int | None:
    """The groups that tuned settings name, if they suit what the caller says; else one per worker."""
    if num_groups is None or num_envs % num_groups or num_workers > num_groups or num_groups % max(1, num_learners):
        return None
    return num_groups


SHORT = {
    "num_envs": "env",
    "num_groups": "env",
    **{f.name: section for section in ("train", "execute") for f in fields(SECTIONS[section])},
}
"""Settings that Python callers and the command line give without their section."""


def split_overrides(agent: str, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat keyword settings by section; what is no run setting must be one of the agent."""
    agent_names = [f.name for f in fields(find_agent(agent).config)]
    overrides: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in SECTIONS:
            overrides.setdefault(name, {}).update(value)
        else:
            check_names({name: value}, [*SHORT, *agent_names, *SECTIONS], "")
            overrides.setdefault(SHORT.get(name, "agent"), {})[name] = value
    return overrides


def env_name(env: Any) -> str:
    """What to call an environment in the config: its id, or the address of its class or function."""
    if isinstance(env, str):
        return env
    gym_id = getattr(getattr(env, "spec", None), "id", None)
    if gym_id is not None:
        return str(gym_id)
    thing = env if hasattr(env, "__qualname__") else type(env)
    return f"{thing.__module__}:{thing.__qualname__}"

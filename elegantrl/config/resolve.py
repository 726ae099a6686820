"""Completes a config: built-in defaults, then tuned settings, then the caller's settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from ..agents.base import Agent, AgentConfig
from ..errors import ConfigError
from ..imports import import_path
from ..registry import AgentEntry, find_agent
from .fields import check_effect, used_fields
from .names import check_names
from .recipes import Recipe, find_recipe
from .run import RunConfig
from .sections import SECTIONS
from .structure import build_section, expect_mapping

Overrides = Mapping[str, Mapping[str, Any]]
"""The caller's settings, by section."""

SHORT = {
    "num_envs": ("env", "num_envs"),
    "num_groups": ("env", "num_groups"),
    "frame_stack": ("env", "frame_stack"),
    "masks": ("env", "masks"),
    "env_kwargs": ("env", "kwargs"),
    "eval_env_kwargs": ("eval", "env_kwargs"),
    **{f.name: (section, f.name) for section in ("train", "execute") for f in used_fields(SECTIONS[section])},
}
"""Section and name of the settings that Python callers give without their section."""


IMPORTABLE = frozenset({"encoder", "network"})
"""Settings of agents that take a class or a function, which becomes its import path."""


class Sections(NamedTuple):
    """The sections of a config that is not built yet, and the recipe they come from."""

    entry: AgentEntry
    agent: AgentConfig
    others: dict[str, Any]
    recipe: Recipe

    def build(self) -> RunConfig:
        return RunConfig(agent_name=self.entry.name, agent=self.agent, **self.others)


def resolve_config(agent: str | type[Agent], env: str, overrides: Overrides | None = None) -> tuple[RunConfig, Recipe]:
    """The agent's own defaults, then the tuned settings for this environment, then ``overrides`` by section."""
    sections = resolve_sections(agent, env, overrides)
    config = sections.build()
    check_schedule(config)
    return config, sections.recipe


def resolve_sections(agent: str | type[Agent], env: str, overrides: Overrides | None = None) -> Sections:
    """The sections of ``resolve_config``; a setting that has no effect is refused if the caller gives it."""
    entry = find_agent(agent)
    recipe = find_recipe(entry.name, env)
    said = {name: expect_mapping(values, name) for name, values in (overrides or {}).items()}
    check_names(said, ["agent", *SECTIONS])
    if "agent" in said:
        named = {name: import_path(said["agent"][name], name) for name in IMPORTABLE & said["agent"].keys()}
        said["agent"] = {**said["agent"], **named}
    tuned = {"env": {"id": env}, **{name: dict(recipe.sections.get(name, {})) for name in ("agent", *SECTIONS)}}
    tuned["env"] = {"id": env} | tuned["env"]
    if "num_groups" in tuned["env"]:
        execute, num_envs = said.get("execute", {}), said.get("env", {}).get("num_envs", tuned["env"]["num_envs"])
        sizes = num_envs, execute.get("num_workers", 1), execute.get("num_learners", 0)
        tuned["env"]["num_groups"] = fitting_groups(tuned["env"]["num_groups"], *sizes)
    tuned["agent"] = {**entry.preset, **tuned["agent"]}

    def build(name: str, kind: Any) -> Any:
        section = build_section(kind, _merged(tuned[name], said.get(name, {})))
        check_effect(section, said.get(name, {}))
        return section

    return Sections(
        entry, build("agent", entry.config), {name: build(name, kind) for name, kind in SECTIONS.items()}, recipe
    )


def _merged(tuned: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Both, with priority for the caller's values; keyword arguments of an environment are merged by name."""
    both = {**tuned, **said}
    for name in tuned.keys() & said.keys():
        if isinstance(tuned[name], Mapping) and isinstance(said[name], Mapping):
            both[name] = {**tuned[name], **said[name]}
    return both


def fitting_groups(num_groups: int | None, num_envs: int, num_workers: int, num_learners: int) -> int | None:
    """The number of groups in the tuned settings, if it fits the caller's settings; else one per worker."""
    if num_groups is None or num_envs % num_groups or num_workers > num_groups or num_groups % max(1, num_learners):
        return None
    return num_groups


def check_schedule(config: RunConfig) -> None:
    """Refuse a run whose learning rate reaches zero long before its end: after that it would learn nothing."""
    agent, max_steps = config.agent, config.train.max_steps
    if agent.lr_schedule == "linear" and max_steps > agent.schedule_steps:
        raise ConfigError(
            f"agent.lr_schedule=linear reaches 0 after agent.schedule_steps={agent.schedule_steps} steps, but"
            f" train.max_steps={max_steps}: use --agent.schedule-steps {max_steps} or --max-steps"
            f" {agent.schedule_steps}"
        )


def split_overrides(agent: str | type[Agent], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat keyword settings by section; a name that is no run setting must be a setting of the agent."""
    agent_names = [f.name for f in used_fields(find_agent(agent).config)]
    sections = ["agent", *SECTIONS]
    dotted = [f"{name}.{f.name}" for name in ("eval", "checkpoint") for f in used_fields(SECTIONS[name])]
    overrides: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in sections:
            overrides.setdefault(name, {}).update(expect_mapping(value, name))
            continue
        if name not in SHORT:
            check_names({name: value}, [*SHORT, *agent_names, *sections, *dotted])
        section, own_name = SHORT.get(name, ("agent", name))
        overrides.setdefault(section, {})[own_name] = value
    return overrides


def env_name(env: Any) -> str:
    """The name of an environment in the config: its id, the import path of its class or function, or ``<name>``.

    Angle brackets mark a source that cannot be imported again: a lambda, a class inside a function.
    """
    if isinstance(env, str):
        return env
    gym_id = getattr(getattr(env, "spec", None), "id", None)
    if gym_id is not None:
        return str(gym_id)
    while isinstance(env, partial):
        env = env.func
    thing = env if hasattr(env, "__qualname__") else type(env)
    name = thing.__qualname__.rpartition(".")[2]
    if "<" in thing.__qualname__:
        return f"<{name.strip('<>')}>"
    return f"{thing.__module__}:{thing.__qualname__}"

"""Ids of Gymnasium: which environment an id names, which family it belongs to, and what it needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from ..errors import ConfigError, SpecError
from . import position_only
from .games import missing, package_of, register_package
from .hints import suggest

MODULES = {"classic_control": None, "toy_text": None, "box2d": "Box2D", "mujoco": "mujoco"}
"""Gymnasium's families that the adapters support, and the module that each needs beyond Gymnasium."""


def find_spec(env_id: str, other_names: Iterable[str]) -> Any:
    """Gymnasium's spec of an id; ``other_names`` are names of environments that are no ids, for suggestions."""
    if env_id in gym.registry:
        return gym.registry[env_id]
    if (package := package_of(env_id)) is not None:
        register_package(package, env_id)
        if env_id in gym.registry:
            return gym.registry[env_id]
    try:
        namespace, base, version = parse_env_id(env_id)
    except gym.error.Error:
        raise _unknown(env_id, other_names) from None
    newest = find_highest_version(namespace, base)
    if newest is None:
        raise _unknown(env_id, other_names)
    if version is None:
        problem = "names no version"
    elif version < newest:
        problem = "is retired"
    else:
        problem = "has no such version"
    raise SpecError(f"environment {env_id!r} {problem}; use {get_env_id(namespace, base, newest)!r}")


def _unknown(name: str, other_names: Iterable[str]) -> SpecError:
    otherwise = "`elegantrl envs` lists the known names, and 'module.path:attribute' imports your own"
    return SpecError(f"unknown environment {name!r}; {suggest(name, [*other_names, *gym.registry], otherwise)}")


def cannot_be_made(spec: Any, error: Exception) -> SpecError | ConfigError:
    """What is missing if an environment cannot be imported."""
    family = family_of(spec)
    module = MODULES.get(family)
    if (package := package_of(spec.id)) is not None:
        return missing(package, spec.id)
    if module is not None and not is_installed(module):
        return ConfigError(f"environment {spec.id!r} needs {module}: pip install 'elegantrl[{family}]'")
    newest = find_highest_version(spec.namespace, spec.name)
    if newest is not None and spec.version < newest:
        return SpecError(f"environment {spec.id!r} is retired; use {get_env_id(spec.namespace, spec.name, newest)!r}")
    return ConfigError(f"environment {spec.id!r} cannot be made: {' '.join(str(error).split())}")


def family_of(spec: Any) -> str:
    """``box2d`` for ``gymnasium.envs.box2d.lunar_lander:LunarLander``, empty for environments of other packages."""
    if str(spec.entry_point).startswith(f"{position_only.__name__}:"):
        return "classic_control"
    prefix = "gymnasium.envs."
    entry_point = spec.entry_point
    return entry_point.removeprefix(prefix).split(".")[0].split(":")[0] if str(entry_point).startswith(prefix) else ""


def is_installed(module: str | None) -> bool:
    if module is None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that was blocked has no spec
        return False

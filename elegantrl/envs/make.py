"""From whatever names an environment to a ``VecEnv``, with one sentence for each way in which that can fail."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from ..errors import ConfigError, ElegantRLError, SpecError, format_error
from .envpool import EnvPoolVecEnv
from .gymnasium import GymVecEnv
from .hints import suggest
from .lanes import lanes_of
from .tensor import CartPoleVecEnv, ChasingVecEnv, PendulumVecEnv
from .vec_env import VecEnv
from .vector import CARTPOLE_ENTRY_POINT, GymVectorVecEnv, VectorEntryEnv

_factories: dict[str, Callable[..., VecEnv]] = {}

_MODULES = {"classic_control": None, "toy_text": None, "box2d": "Box2D", "mujoco": "mujoco"}
"""Gymnasium's families that fit the adapters, and the module that each needs beyond Gymnasium."""

_UNFIT = {"Blackjack-v1", "CarRacing-v3"}  # no built-in network reads their observations: a tuple, a picture


def register_env(name: str, factory: Callable[..., VecEnv]) -> None:
    """Make ``factory(num_envs=, device=, **kwargs)`` available under ``name``."""
    _factories[name] = factory


register_env("TensorCartPole", CartPoleVecEnv)
register_env("TensorPendulum", PendulumVecEnv)
register_env("Chasing", ChasingVecEnv)


def env_names() -> list[tuple[str, str]]:
    """The (name, kind) of every environment that works here: registered ones, then Gymnasium's newest versions."""
    names = [(name, "tensor") for name in _factories]
    for spec in gym.registry.values():
        family = _family(spec)
        newest = spec.version == find_highest_version(spec.namespace, spec.name)
        if family in _MODULES and newest and spec.id not in _UNFIT and _installed(_MODULES[family]):
            names.append((spec.id, family))
    return names


def make_env(
    env: Any, num_envs: int = 1, *, device: torch.device | str = "cpu", first_slot: int | None = None, **kwargs: Any
) -> VecEnv:
    """``env`` as a ``VecEnv`` of ``num_envs`` lanes; ``kwargs`` go to whatever constructs it.

    A class or function that takes ``slot`` is told which environment of the run it makes, counted from ``first_slot``;
    those of an evaluation have no number.

    ``env`` is a registered name, a Gymnasium id, ``envpool:ID``, ``module.path:attribute``, a class, a function, or an
    instance of ``gymnasium.Env``, ``gymnasium.vector.VectorEnv`` or ``VecEnv``.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs} is too small; an environment has at least 1 lane")
    if isinstance(env, str):
        return _make_named(env, num_envs, device, first_slot, kwargs)
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        return _make_called(env, getattr(env, "__name__", type(env).__name__), num_envs, device, first_slot, kwargs)
    if kwargs:
        raise ConfigError(f"settings {sorted(kwargs)} come too late for an instance; pass its class instead")
    return _adapt(env, None, num_envs, device, lambda: lanes_of(env, num_envs, type(env).__name__))


def _make_named(
    name: str, num_envs: int, device: torch.device | str, first_slot: int | None, kwargs: dict[str, Any]
) -> VecEnv:
    if name in _factories:
        return _make_called(_factories[name], name, num_envs, device, first_slot, kwargs)
    if name.startswith("envpool:"):
        return EnvPoolVecEnv(name.removeprefix("envpool:"), num_envs, device, **kwargs)
    module_name, _, attribute = name.rpartition(":")
    if module_name:
        module = _imported(module_name, name)
        if attribute not in gym.registry:
            return _make_called(_attribute(module, attribute, name), name, num_envs, device, first_slot, kwargs)
    return _make_gymnasium(_gymnasium_spec(attribute), num_envs, device, kwargs)


def _make_called(
    factory: Callable[..., Any],
    name: str,
    num_envs: int,
    device: torch.device | str,
    first_slot: int | None,
    kwargs: dict[str, Any],
) -> VecEnv:
    """Call ``factory`` with the lanes and the device if it takes them, else once per lane."""
    offered, taken = {"num_envs": num_envs, "device": device}, _parameters(factory)
    if not (isinstance(factory, type) and issubclass(factory, VecEnv)):
        offered = {key: value for key, value in offered.items() if key in taken}

    def call(lane: int) -> Any:
        slot = {} if first_slot is None or "slot" not in taken else {"slot": first_slot + lane}
        try:
            return factory(**(slot | offered | kwargs))
        except ElegantRLError:
            raise
        except TypeError as error:
            raise ConfigError(
                f"environment {name!r} cannot be made with {sorted(offered | kwargs)}: {_one_line(error)}"
            ) from error
        except Exception as error:
            raise SpecError(f"environment {name!r} cannot be made: {format_error(error)}") from error

    first = call(0)
    return _adapt(first, name, num_envs, device, lambda: [first, *map(call, range(1, num_envs))])


def _adapt(
    env: Any, name: str | None, num_envs: int, device: torch.device | str, lanes: Callable[[], list[Any]]
) -> VecEnv:
    """``env`` itself if it has lanes of its own, else a ``VecEnv`` of ``lanes``."""
    if isinstance(env, VecEnv):
        _require_lanes(env.spec.name, env.spec.num_envs, num_envs)
        return env
    if isinstance(env, gym.vector.VectorEnv):
        _require_lanes(name or type(env).__name__, env.num_envs, num_envs)
        return GymVectorVecEnv(env, name, device)
    return GymVecEnv(lanes(), name, device)


def _require_lanes(name: str, found: int, asked: int) -> None:
    # An instance that comes with its lanes need not be told their number: 1 is what a caller leaves unsaid.
    if asked not in (1, found):
        raise ConfigError(f"environment {name!r} comes with num_envs={found}, but num_envs={asked} was asked for")


def _imported(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise SpecError(
            f"environment {path!r}: cannot import {module_name!r} ({_one_line(error)}); is its folder on PYTHONPATH?"
        ) from error
    except Exception as error:
        raise SpecError(f"environment {path!r}: {module_name} fails when imported: {format_error(error)}") from error


def _attribute(module: Any, attribute: str, path: str) -> Any:
    known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    found = getattr(module, attribute, None)
    if not callable(found):
        raise SpecError(
            f"environment {path!r}: {module.__name__} has no class or function {attribute!r};"
            f" {suggest(attribute, known, 'check its spelling')}"
        )
    return found


def _gymnasium_spec(env_id: str) -> Any:
    if env_id in gym.registry:
        return gym.registry[env_id]
    try:
        namespace, base, version = parse_env_id(env_id)
    except gym.error.Error:
        raise _unknown(env_id) from None
    if namespace == "ALE":
        raise ConfigError(
            f"environment {env_id!r} needs ale_py: pip install 'elegantrl[atari]' and name it 'ale_py:{env_id}'"
        )
    newest = find_highest_version(namespace, base)
    if newest is None:
        raise _unknown(env_id)
    if version is None:
        problem = "names no version"
    elif version < newest:
        problem = "is retired"
    else:
        problem = "has no such version"
    raise SpecError(f"environment {env_id!r} {problem}; use {get_env_id(namespace, base, newest)!r}")


def _unknown(name: str) -> SpecError:
    otherwise = "`elegantrl envs` lists the known names, and 'module.path:attribute' imports your own"
    return SpecError(f"unknown environment {name!r}; {suggest(name, [*_factories, *gym.registry], otherwise)}")


def _make_gymnasium(spec: Any, num_envs: int, device: torch.device | str, kwargs: dict[str, Any]) -> VecEnv:
    if num_envs > 1 and spec.vector_entry_point == CARTPOLE_ENTRY_POINT and kwargs.keys() <= {"max_episode_steps"}:
        settings = {"max_episode_steps": spec.max_episode_steps, **kwargs}
        return VectorEntryEnv(num_envs, spec.id, device, target_return=spec.reward_threshold, **settings)
    # A spec instead of an id spares Gymnasium's coloured remarks; lanes are always reset before they are stepped.
    spec = copy.copy(spec)
    spec.order_enforce = False
    try:
        lanes = [gym.make(spec, disable_env_checker=True, **kwargs) for _ in range(num_envs)]
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing(spec, error) from error
    except (TypeError, gym.error.Error) as error:
        raise ConfigError(f"environment {spec.id!r} cannot be made with {kwargs}: {_one_line(error)}") from error
    return GymVecEnv(lanes, spec.id, device)


def _missing(spec: Any, error: Exception) -> SpecError | ConfigError:
    family = _family(spec)
    module = _MODULES.get(family)
    if module is not None and not _installed(module):
        return ConfigError(f"environment {spec.id!r} needs {module}: pip install 'elegantrl[{family}]'")
    newest = find_highest_version(spec.namespace, spec.name)
    if newest is not None and spec.version < newest:
        return SpecError(f"environment {spec.id!r} is retired; use {get_env_id(spec.namespace, spec.name, newest)!r}")
    return ConfigError(f"environment {spec.id!r} cannot be made: {_one_line(error)}")


def _family(spec: Any) -> str:
    """``box2d`` for ``gymnasium.envs.box2d.lunar_lander:LunarLander``, empty for what is not Gymnasium's own."""
    prefix = "gymnasium.envs."
    entry_point = spec.entry_point
    return entry_point.removeprefix(prefix).split(".")[0].split(":")[0] if str(entry_point).startswith(prefix) else ""


def _installed(module: str | None) -> bool:
    if module is None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that was blocked has no spec
        return False


def _parameters(factory: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(factory).parameters)
    except ValueError:  # a builtin without a signature
        return set()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

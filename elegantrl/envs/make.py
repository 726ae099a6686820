"""Makes a ``VecEnv`` from the name, class, function or instance of an environment; each failure is one sentence."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from gymnasium.envs.registration import find_highest_version

from .. import tree
from ..errors import ConfigError, ElegantRLError, SpecError, format_error
from ..tree import Tree
from ..types import Obs
from .envpool import EnvPoolVecEnv
from .frame_stack import FrameStackVecEnv
from .games import PACKAGES, installed, make_lane, register_package, usual_frames
from .gym_ids import MODULES, cannot_be_made, family_of, find_spec, is_installed
from .gymnasium import GymVecEnv
from .hints import LATE, suggest
from .isaac import adapt_simulator, is_lab_id, is_simulator, make_lab_task, make_mjlab_task
from .lanes import lanes_of
from .pettingzoo import maker_of, missing_package, mpe_names
from .teams import is_team, make_team
from .tensor import (
    CartPoleVecEnv,
    ChasingVecEnv,
    DoorsVecEnv,
    ForagingVecEnv,
    PendulumVecEnv,
    SkirmishVecEnv,
    SpeakerListenerVecEnv,
    SpreadVecEnv,
    TagVecEnv,
)
from .tutorial import TutorialVecEnv, is_tutorial_env
from .vec_env import VecEnv
from .vector import CARTPOLE_ENTRY_POINT, GymVectorVecEnv, VectorEntryEnv

_factories: dict[str, Callable[..., VecEnv]] = {}


def register_env(name: str, factory: Callable[..., VecEnv]) -> None:
    """Make ``factory(num_envs=, device=, **kwargs)`` available under ``name``."""
    _factories[name] = factory


register_env("TensorCartPole", CartPoleVecEnv)
register_env("TensorPendulum", PendulumVecEnv)
register_env("Chasing", ChasingVecEnv)
register_env("Doors", DoorsVecEnv)
register_env("TensorSpread", SpreadVecEnv)
register_env("TensorTag", TagVecEnv)
register_env("TensorSpeakerListener", SpeakerListenerVecEnv)
register_env("TensorForaging", ForagingVecEnv)
register_env("TensorSkirmish", SkirmishVecEnv)


def env_names() -> list[tuple[str, str]]:
    """The (name, kind) of every environment that works here: registered ones, then Gymnasium's newest versions, then
    those of ``mpe2``. A package with thousands of variants has some of them listed."""
    names = [(name, "tensor") for name in _factories] + [(name, "finance") for name in LATE if is_installed("skfolio")]
    packages = [package for package in PACKAGES if installed(package)]
    for each in packages:
        register_package(each, each.extra)
    for spec in list(gym.registry.values()):
        if spec.version != find_highest_version(spec.namespace, spec.name):
            continue
        family = family_of(spec)
        if family in MODULES and is_installed(MODULES[family]):
            names.append((spec.id, family))
        names += [(spec.id, each.extra) for each in packages if each.lists(spec.id)]
    return names + [(name, "marl") for name in mpe_names()]


class _Wanted(NamedTuple):
    """The arguments of ``make_env`` that do not depend on the kind of environment."""

    num_envs: int
    device: torch.device | str
    first_slot: int | None
    masks: bool | None


def make_env(
    env: Any,
    num_envs: int = 1,
    *,
    device: torch.device | str = "cpu",
    first_slot: int | None = None,
    frame_stack: int | None = None,
    masks: bool | None = None,
    **kwargs: Any,
) -> VecEnv:
    """``env`` as a ``VecEnv`` of ``num_envs`` lanes; ``kwargs`` go to its constructor.

    ``env`` is a registered name, a Gymnasium id, also of Atari, MinAtar and MiniGrid, ``envpool:ID``, ``mjlab:TASK``,
    ``module.path:attribute``, a class, a function, or an instance of ``gymnasium.Env``,
    ``gymnasium.vector.VectorEnv`` or ``VecEnv``. Teams of agents have the parallel API of PettingZoo
    (``mpe2:simple_spread_v3``), tuples of actions and observations (``Foraging-8x8-2p-2f-coop-v3``), or the interface
    of SMAC. Simulators with lanes of their own are those of ``envs.isaac``; an instance keeps its device.

    A class or function that takes ``slot`` gets the number of the environment within the run, counted from
    ``first_slot``; environments of an evaluation have none, and play Atari games to their end for their own rewards.
    ``frame_stack`` is the number of frames that a policy sees of every picture; None: as usual for the environment.
    ``masks``: whether observations are ``Obs`` with the actions that may be taken; None: if the environment gives masks
    (``masks.py`` says how). A class or function that takes ``masks`` is told if it is not None.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs} is too small; an environment has at least 1 lane")
    if frame_stack is not None and frame_stack < 1:
        raise ConfigError(f"frame_stack={frame_stack} is too small; a policy sees at least 1 frame")
    made = _make(env, _Wanted(num_envs, device, first_slot, masks), kwargs)
    num_frames = made.usual_frames if frame_stack is None else frame_stack
    is_stacked = env_settings(made.spec.obs)["frame_stack"] == num_frames  # an instance may be
    return made if is_stacked or num_frames == 1 else FrameStackVecEnv(made, num_frames)


def env_settings(obs: Tree) -> dict[str, Any]:
    """The arguments of ``make_env`` that give an environment the observations ``obs``, a tree of ``Leaf``."""
    has_masks = isinstance(obs, Obs) and obs.mask is not None
    return {"frame_stack": max(leaf.stack for leaf in tree.leaves(obs)), "masks": has_masks}


def _make(env: Any, wanted: _Wanted, kwargs: dict[str, Any]) -> VecEnv:
    if isinstance(env, str):
        return _make_named(env, wanted, kwargs)
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        return _make_called(env, getattr(env, "__name__", type(env).__name__), wanted, kwargs)
    if kwargs:
        raise ConfigError(f"settings {sorted(kwargs)} come too late for an instance; pass its class instead")
    return _adapt(env, None, wanted, lambda: lanes_of(env, wanted.num_envs, type(env).__name__))


def _make_named(name: str, wanted: _Wanted, kwargs: dict[str, Any]) -> VecEnv:
    name = LATE.get(name, name)
    if name in _factories:
        return _make_called(_factories[name], name, wanted, kwargs)
    if name.startswith("envpool:"):
        training = wanted.first_slot is not None
        env_id, settings = name.removeprefix("envpool:"), {"masks": wanted.masks, "training": training, **kwargs}
        return EnvPoolVecEnv(env_id, wanted.num_envs, wanted.device, **settings)
    if name.startswith("mjlab:"):
        return _adapt(make_mjlab_task(name, wanted.num_envs, wanted.device, kwargs), name, wanted, list)
    module_name, _, attribute = name.rpartition(":")
    if module_name:
        module = _imported(module_name, name)
        if attribute not in gym.registry:
            return _make_called(_attribute(module, attribute, name), name, wanted, kwargs)
    return _make_gymnasium(find_spec(attribute, [*_factories, *LATE]), wanted, kwargs)


def _make_called(factory: Callable[..., Any], name: str, wanted: _Wanted, kwargs: dict[str, Any]) -> VecEnv:
    """Call ``factory`` with the lanes and the device if it takes them, else once per lane."""
    num_envs, first_slot = wanted.num_envs, wanted.first_slot
    offered, taken = {"num_envs": num_envs, "device": wanted.device}, _parameters(factory)
    if "env_num" in taken and "num_envs" not in taken:  # the tutorial's name of the argument
        offered["env_num"] = num_envs
    if not (isinstance(factory, type) and issubclass(factory, VecEnv)):
        offered = {key: value for key, value in offered.items() if key in taken}
    if wanted.masks is not None and "masks" in taken:
        offered["masks"] = wanted.masks

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
    return _adapt(first, name, wanted, lambda: [first, *map(call, range(1, num_envs))])


def _adapt(env: Any, name: str | None, wanted: _Wanted, lanes: Callable[[], list[Any]]) -> VecEnv:
    """``env`` itself if it has lanes of its own, else a ``VecEnv`` of ``lanes``."""
    if is_simulator(env):
        env = adapt_simulator(env, name)
    if isinstance(env, VecEnv):
        _require_lanes(env.spec.name, env.spec.num_envs, wanted.num_envs)
        if wanted.masks not in (None, env_settings(env.spec.obs)["masks"]):
            raise ConfigError(
                f"masks={wanted.masks} does not fit environment {env.spec.name!r}, whose observations"
                f" {'have none' if wanted.masks else 'have them'}; leave it out"
            )
        return env
    if isinstance(env, gym.vector.VectorEnv):
        _require_lanes(name or type(env).__name__, env.num_envs, wanted.num_envs)
        if env.unwrapped is env and env.spec is not None and not hasattr(env, "env_fns"):
            return _make_gymnasium(find_spec(env.spec.id, ()), *_as_made(env, wanted))
        return GymVectorVecEnv(env, name, wanted.device, wanted.masks)
    if is_team(env):
        return make_team(lanes(), name, wanted.device, wanted.masks)
    if hasattr(env, "step_async") and hasattr(env, "step_wait"):
        raise SpecError(
            f"environment {type(env).__name__!r} is a vector environment of Stable-Baselines3, which does not keep the"
            f" last observation apart; pass the id, class or function of the single environment and num_envs"
        )
    if is_tutorial_env(env):
        made = TutorialVecEnv(env, name, wanted.device)
        _require_lanes(made.spec.name, made.spec.num_envs, wanted.num_envs)
        return made
    return GymVecEnv(lanes(), name, wanted.device, wanted.masks)


def _as_made(env: gym.vector.VectorEnv[Any, Any, Any], wanted: _Wanted) -> tuple[_Wanted, dict[str, Any]]:
    """The arguments that made a vector environment of ``gymnasium.make_vec`` with a class of its own.

    Such a class uses a step of each lane for its reset and cannot reset single lanes, so the environments are made
    again from its spec.
    """
    settings = dict(env.spec.kwargs) if env.spec is not None else {}
    made_by = {"num_envs", "vectorization_mode", "vector_kwargs"}
    kwargs = {key: value for key, value in settings.items() if key not in made_by}
    return wanted._replace(num_envs=env.num_envs), kwargs


def _require_lanes(name: str, found: int, asked: int) -> None:
    # An instance has its number of lanes already: 1 is the default of a caller that did not name one.
    if asked not in (1, found):
        raise ConfigError(f"environment {name!r} comes with num_envs={found}, but num_envs={asked} was asked for")


def _imported(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise missing_package(path, error) or SpecError(
            f"environment {path!r}: cannot import {module_name!r} ({_one_line(error)}); is its folder on PYTHONPATH?"
        ) from error
    except Exception as error:
        raise SpecError(f"environment {path!r}: {module_name} fails when imported: {format_error(error)}") from error


def _attribute(module: Any, attribute: str, path: str) -> Any:
    known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    parts = [part.name for part in pkgutil.iter_modules(getattr(module, "__path__", []))]
    if attribute in parts and not callable(vars(module).get(attribute)):  # a module of PettingZoo
        found = maker_of(_imported(f"{module.__name__}.{attribute}", path))
    else:
        found = vars(module).get(attribute)
    if not callable(found):
        raise SpecError(
            f"environment {path!r}: {module.__name__} has no class or function {attribute!r};"
            f" {suggest(attribute, known + parts, 'check its spelling')}"
        )
    return found


def _make_gymnasium(spec: Any, wanted: _Wanted, kwargs: dict[str, Any]) -> VecEnv:
    num_envs, device = wanted.num_envs, wanted.device
    if is_lab_id(spec):
        return _adapt(make_lab_task(spec, num_envs, device, kwargs), spec.id, wanted, list)
    if (
        num_envs > 1
        and not wanted.masks
        and spec.vector_entry_point == CARTPOLE_ENTRY_POINT
        and kwargs.keys() <= {"max_episode_steps"}
    ):
        settings = {"max_episode_steps": spec.max_episode_steps, **kwargs}
        return VectorEntryEnv(num_envs, spec.id, device, target_return=spec.reward_threshold, **settings)
    # A spec instead of an id avoids Gymnasium's coloured warnings; lanes are always reset before they are stepped.
    spec = copy.copy(spec)
    spec.order_enforce = False
    try:
        lanes = [make_lane(spec, kwargs, wanted.first_slot is not None) for _ in range(num_envs)]
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise cannot_be_made(spec, error) from error
    except (TypeError, ValueError, gym.error.Error) as error:
        raise ConfigError(f"environment {spec.id!r} cannot be made with {kwargs}: {_one_line(error)}") from error
    if is_team(lanes[0]):
        return make_team(lanes, spec.id, device, wanted.masks)
    made = GymVecEnv(lanes, spec.id, device, wanted.masks)
    made.usual_frames = usual_frames(spec, kwargs)
    return made


def _parameters(factory: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(factory).parameters)
    except ValueError:  # a builtin without a signature
        return set()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

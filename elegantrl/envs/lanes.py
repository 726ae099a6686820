"""Copies of a single environment as lanes, a common function to reset each, and what a resume says about them."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from ..errors import SpecError
from .box2d import keeps_its_world, renew_world

log = logging.getLogger(__name__)


def lanes_of(env: Any, num_envs: int, name: str) -> list[Any]:
    """``env`` itself and ``num_envs - 1`` independent copies of it."""
    lanes = [env]
    while len(lanes) < num_envs:
        lanes.append(copy_of(env, name))
    return lanes


def copy_of(env: Any, name: str) -> Any:
    """An independent environment like ``env``, single or vector, as it was made."""
    if isinstance(env, gym.vector.VectorEnv) and hasattr(env, "env_fns"):  # one in processes cannot be deep-copied
        return gym.vector.SyncVectorEnv(env.env_fns, autoreset_mode=env.metadata["autoreset_mode"])
    if not isinstance(env, gym.vector.VectorEnv) and getattr(env, "spec", None) is not None:
        try:
            return gym.make(env.spec, disable_env_checker=True)
        except Exception:  # a wrapper that is not part of the spec; a deep copy may still succeed
            log.debug("environment %r cannot be made from its spec", name, exc_info=True)
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise SpecError(
            f"environment {name!r}: this instance cannot be copied into further lanes ({type(error).__name__});"
            f" pass its class or a function that makes it"
        ) from error


def seeded_reset(env: Any) -> Callable[[int], tuple[Any, Any]]:
    """``reset`` as a function from a seed to the first observation and info, for newer and older interfaces."""
    needs_world = keeps_its_world(env)
    parameters = inspect.signature(env.reset).parameters.values()
    takes_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
    seed_method = getattr(env, "seed", None)  # without a parameter it tells a seed instead
    takes_own_seed = callable(seed_method) and bool(inspect.signature(seed_method).parameters)

    def reset(seed: int) -> tuple[Any, Any]:
        if needs_world:
            renew_world(env)
        if takes_seed:
            result = env.reset(seed=seed)
        else:
            if takes_own_seed:
                env.seed(seed)
            result = env.reset()
        with_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return (result[0], result[1]) if with_info else (result, {})

    return reset


def warn_of_restarts(name: str, num_diverged: int, num_dropped: int, num_envs: int, max_steps: int) -> None:
    """Say in how many lanes a resume could not restore the open episodes, and why."""
    if num_diverged:
        log.warning(
            "environment %r: %d of %d lanes restart their open episodes, which came out differently when replayed;"
            " if its state outlives an episode give it get_state() and set_state(state)",
            *(name, num_diverged, num_envs),
        )
    if num_dropped:
        log.warning(
            "environment %r: %d of %d lanes restart their open episodes, which are longer than the %d steps kept for"
            " replay",
            *(name, num_dropped, num_envs, max_steps),
        )

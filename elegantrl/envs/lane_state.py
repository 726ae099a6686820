"""State of an environment that outlives its episodes: a curriculum, reward statistics, a generator of its own.

If an environment or a wrapper around it has ``get_state()`` and ``set_state(state)`` (or ``state_dict()`` and
``load_state_dict(state)``), its state is read before each episode and restored before a replay. Gymnasium's
``NormalizeReward`` and ``NormalizeObservation`` need no methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from torch import Tensor

from ..errors import SpecError
from ..types import State

METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class Access(NamedTuple):
    """The functions that read and restore the state of one layer, an environment or a wrapper."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


class LaneState:
    """The state of one lane: of every layer that can be saved."""

    def __init__(self, env: Any, name: str):
        self.name = name
        self.layers = list(_layers_with_state(env))

    def get(self) -> State | None:
        """A storable copy of the state, None if no layer has one."""
        if not self.layers:
            return None
        return {str(depth): encode(layer.get(), self.name) for depth, layer in enumerate(self.layers)}

    def set(self, state: State) -> None:
        for depth, layer in enumerate(self.layers):
            layer.set(decode(state[str(depth)]))


def _layers_with_state(env: Any) -> Iterator[Access]:
    while env is not None:
        if isinstance(env, NormalizeReward):
            yield _statistics_of(env, env.return_rms, "discounted_reward")
        elif isinstance(env, NormalizeObservation):
            yield _statistics_of(env, env.obs_rms, None)
        elif access := _own_methods(env):
            yield access
        env = getattr(env, "__dict__", {}).get("env")  # its own attribute, not one that it forwards


def _own_methods(env: Any) -> Access | None:
    """The pair of methods that ``env`` itself defines; other environments use these names with other arguments."""
    for getter, setter in METHODS:
        defined = all(inspect.getattr_static(env, name, None) is not None for name in (getter, setter))
        if defined and _required(getattr(env, getter)) == 0 and _required(getattr(env, setter)) == 1:
            return Access(getattr(env, getter), getattr(env, setter))
    return None


def _required(method: Callable[..., Any]) -> int:
    parameters = inspect.signature(method).parameters.values()
    return sum(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _statistics_of(wrapper: Any, statistics: Any, attribute: str | None) -> Access:
    def get() -> dict[str, Any]:
        fields = {name: np.array(getattr(statistics, name)) for name in ("mean", "var", "count")}
        return fields if attribute is None else fields | {attribute: np.array(getattr(wrapper, attribute))}

    def set_(state: dict[str, Any]) -> None:
        statistics.mean, statistics.var, statistics.count = state["mean"], state["var"], float(state["count"])
        if attribute is not None:
            setattr(wrapper, attribute, state[attribute])

    return Access(get, set_)


def encode(value: Any, name: str, path: str = "") -> Any:
    """``value`` as dicts, tensors and JSON values, each container marked with its kind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() | np.generic() if value.dtype.kind in "biuf":
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            return {kind: torch.from_numpy(np.array(value))}
        case Tensor():
            return {"tensor": value.detach().clone()}
        case bytes():
            return {"bytes": torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)}
        case list() | tuple():
            items = {str(i): encode(item, name, f"{path}[{i}]") for i, item in enumerate(value)}
            return {type(value).__name__ if type(value) in (list, tuple) else "tuple": items}
        case dict() if all(isinstance(key, str) for key in value):
            return {"dict": {key: encode(item, name, f"{path}[{key!r}]") for key, item in value.items()}}
    raise SpecError(
        f"environment {name!r}: its saved state{path} is of type {type(value).__name__}, expected numbers, text, bytes,"
        f" arrays, tensors, and lists, tuples or dicts of these"
    )


def decode(value: Any) -> Any:
    """The inverse of ``encode``."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in ("array", "scalar"):
        array = content.cpu().numpy().copy()
        return array if kind == "array" else array[()]
    if kind in ("list", "tuple"):
        items = [decode(content[str(i)]) for i in range(len(content))]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: decode(item) for key, item in content.items()}
    return content.clone() if kind == "tensor" else bytes(content.to(torch.uint8).tolist())

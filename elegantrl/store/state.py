"""A state as tensors plus a JSON skeleton: the form that a commit stores, which cannot contain code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..types import State

DEPTH_LIMIT = 64


def split_state(state: State) -> tuple[dict[str, Tensor], Any]:
    """The tensors of ``state`` by JSON pointer ("/policy/net.0.weight"), and the rest as plain JSON.

    In the skeleton ``{"$tensor": pointer}`` represents a tensor, ``{"$float": "nan"}`` and ``{"$int": "0x..."}``
    numbers that JSON cannot represent; a key that starts with "$" gets one more.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, "", tensors)


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if path.count("/") > DEPTH_LIMIT:
        raise TypeError(f"state{path[:80]}... is nested deeper than {DEPTH_LIMIT} levels")
    match value:
        case Tensor():
            tensors[path] = value
            return {"$tensor": path}
        case dict():
            if bad := [key for key in value if not isinstance(key, str)]:
                raise TypeError(f"state{path} has the key {bad[0]!r}; keys are strings")
            return {_escape(key): _encode(item, f"{path}/{_pointer(key)}", tensors) for key, item in value.items()}
        case list():
            return [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        case float() if not math.isfinite(value):
            return {"$float": repr(float(value))}
        case int() if value.bit_length() > 4096:  # Python refuses to parse decimals of more than 4300 digits
            return {"$int": hex(value)}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"state{path} is a {type(value).__name__}; only tensors, JSON values, lists and dicts are stored")


def _escape(key: str) -> str:
    return "$" + key if key.startswith("$") else key


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def merge_state(tensors: Mapping[str, Tensor], skeleton: Any) -> State:
    """The inverse of ``split_state``; every tensor must be used exactly once."""
    unused = dict(tensors)
    state = _decode(skeleton, unused, 0)
    if not isinstance(state, dict):
        raise CheckpointError(f"a state is a dict, found a {type(state).__name__}")
    if unused:
        raise CheckpointError(f"{len(unused)} tensors have no place in the state, the first is {min(unused)!r}")
    return state


def _decode(value: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise CheckpointError(f"a state is nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, list):
        return [_decode(item, tensors, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("$tensor", str(name))] if name in tensors:
            return tensors.pop(name)
        case [("$float", "nan" | "inf" | "-inf" as text)]:
            return float(text)
        case [("$int", str(text))] if re.fullmatch("-?0x[0-9a-f]+", text):
            return int(text, 16)
    if bad := [key for key in value if key.startswith("$") and not key.startswith("$$")]:
        raise CheckpointError(f"a state has the malformed or repeated entry {bad[0]}: {value[bad[0]]!r:.80}")
    return {key[1:] if key.startswith("$") else key: _decode(item, tensors, depth + 1) for key, item in value.items()}

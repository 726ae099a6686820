"""Gymnasium spaces as JSON, stored with a trained policy so that it can be used without making its environment."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from gymnasium import spaces

from ..errors import SpecError
from ..types import ActionSpec, EnvSpec

MAX_NUMBERS = 10_000_000
"""Maximum number of values in one observation or action of a description that is read."""


def describe_spaces(observation: Any, action: Any) -> str:
    """JSON text of the spaces of one environment; None for an observation that a policy gets unchanged.

    Those of a team are Dict spaces with a space for each agent under its name, in the order of its agents.
    """
    shown = None if observation is None else _describe(observation)
    return json.dumps({"observation": shown, "action": _describe(action)})


def describe_tensors(spec: EnvSpec) -> str:
    """The same for a tensor environment: a policy gets its observations unchanged, and ``spec`` describes actions."""
    if spec.num_agents is None:
        return describe_spaces(None, _action_space(spec.action, spec.action.dim))
    dims = spec.action.sizes or (spec.action.dim,) * spec.num_agents
    pairs = [(name, _action_space(spec.action, dim)) for name, dim in zip(spec.agent_names, dims, strict=True)]
    return describe_spaces(None, spaces.Dict(pairs))


def _action_space(action: ActionSpec, dim: int) -> Any:
    if action.kind == "continuous":
        return spaces.Box(-1.0, 1.0, (dim,))
    if action.kind == "discrete":
        return spaces.Discrete(action.choices[0])
    return spaces.MultiDiscrete(list(action.choices))


def _describe(space: Any) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        bounds = {"low": _bounds(space.low), "high": _bounds(space.high)}
        return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multi_binary", "shape": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "spaces": {key: _describe(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [_describe(part) for part in space.spaces]}
    raise SpecError(f"a space of kind {type(space).__name__} cannot be described")


def _bounds(array: Any) -> Any:
    """One number if all are the same; JSON has no infinity, so that is text."""
    numbers = array.reshape(-1)
    values = [number if math.isfinite(number) else repr(number) for number in numbers.tolist()]
    return values[0] if values and (numbers == numbers[0]).all() else values


def spaces_from(text: str) -> tuple[Any, Any]:
    """The observation space and the action space in a description; ValueError or similar if it is invalid."""
    described = json.loads(text)
    shown = described["observation"]
    return None if shown is None else _build(shown, 0), _build(described["action"], 0)


def _build(described: dict[str, Any], depth: int) -> Any:
    if depth > 4:
        raise ValueError("its spaces are nested too deeply")
    match described:
        case {"kind": "box", "shape": list(shape), "dtype": str(dtype), "low": low, "high": high}:
            _check_size(shape)
            if np.dtype(dtype).kind not in "fiub":
                raise ValueError(f"a space of {dtype:.20}")
            low, high = (np.broadcast_to(_array(bound, shape), shape).astype(dtype) for bound in (low, high))
            return spaces.Box(low, high, tuple(shape), np.dtype(dtype).type)
        case {"kind": "discrete", "n": int(n), "start": int(start)}:
            return spaces.Discrete(n, start=start)
        case {"kind": "multi_discrete", "nvec": list(nvec), "start": list(start)}:
            return spaces.MultiDiscrete(nvec, start=start)
        case {"kind": "multi_binary", "shape": list(shape)}:
            _check_size(shape)
            return spaces.MultiBinary(shape)
        case {"kind": "dict", "spaces": dict(parts)}:
            # From pairs: a mapping would be sorted, but the order of a team's agents counts.
            return spaces.Dict([(key, _build(part, depth + 1)) for key, part in parts.items()])
        case {"kind": "tuple", "spaces": list(parts)}:
            return spaces.Tuple([_build(part, depth + 1) for part in parts])
    raise ValueError("its spaces are of no known kind")


def _array(bound: Any, shape: list[int]) -> Any:
    if isinstance(bound, list):
        return np.array([float(number) if isinstance(number, str) else number for number in bound]).reshape(shape)
    return float(bound) if isinstance(bound, str) else bound


def _check_size(shape: list[int]) -> None:
    if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) > MAX_NUMBERS:
        raise ValueError(f"a space of shape {shape!r:.80}")

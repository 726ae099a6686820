"""Requests and answers as bytes, in two forms: JSON, and tensors in the safetensors format.

JSON has one object for each row, so that rows have states of their own: ``{"obs": ..., "mask": ..., "state": ...}``
gives ``{"action": ..., "state": ...}``, and a list of objects gives a list. The other form has one tensor [N, ...] for
each input of an exported file, under the same name.

Axes: N rows, G agents.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import safetensors.numpy

from ..envs.masks import empty_lanes
from .graph import OneSide, PolicyGraph
from .ports import FIRST, Array, Port, nest

JSON, TENSORS = "application/json", "application/x-safetensors"
MISSING = object()


class BadRequest(Exception):
    """What is wrong with a request, in a sentence."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of a request."""

    arrays: dict[str, Array]
    """Every input of the graph [N, ...]."""
    num: int
    single: bool
    """Whether the answer is one row and not a list."""
    acting: Array
    """The agents that were given [N, G]; G is 1 without a team."""


class Form(Protocol):
    """One way to write a request and its answer."""

    kind: str

    def read(self, body: bytes) -> Batch: ...

    def write(self, answer: dict[str, Array], batch: Batch) -> bytes: ...


# ---- JSON


class JsonForm:
    """An object for each row."""

    kind = JSON

    def __init__(self, graph: PolicyGraph, max_rows: int):
        self.graph, self.max_rows = graph, max_rows
        self.is_team = bool(graph.policy.team)
        self.keys = {port.path[0]: None for port in graph.inputs if port.path != (FIRST,)}

    def read(self, body: bytes) -> Batch:
        value = parse(body)
        single = isinstance(value, dict)
        rows = [value] if single else value
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise BadRequest('the body is no object {"obs": ...} and no list of such objects')
        check_num(len(rows), self.max_rows)
        acting = np.array([self._acting(row) for row in rows])
        arrays = {port.name: np.empty((len(rows), *port.shape), port.dtype) for port in self.graph.inputs}
        for i, row in enumerate(rows):
            for side, acts in zip(self.graph.side.sides, acting[i], strict=True):
                for port in side.inputs:
                    arrays[port.name][i] = self._value(side, port, row, acts)
            self._read_state(row, arrays, i)
        return Batch(arrays=arrays, num=len(rows), single=single, acting=acting)

    def _acting(self, row: dict[str, Any]) -> list[bool]:
        """The agents of a row, whose keys are checked."""
        for key in row:
            if key not in self.keys:
                raise BadRequest(f"there is no {key!r:.40} in a request; its keys are {', '.join(map(str, self.keys))}")
        if not self.is_team:
            return [True]
        names = [str(side.outputs[0].path[1]) for side in self.graph.side.sides]
        for part in ("obs", "mask"):
            by_agent = row.get(part, {})
            if not isinstance(by_agent, dict):
                raise BadRequest(f"{part} is no object with the names of agents; they are {', '.join(names)}")
            for name in by_agent:
                if name not in names:
                    raise BadRequest(f"there is no agent {name!r:.40} in {part}; the agents are {', '.join(names)}")
        if not row.get("obs"):
            raise BadRequest(f"obs has no agent; give at least one of {', '.join(names)}")
        return [name in row["obs"] for name in names]

    def _value(self, side: OneSide, port: Port, row: dict[str, Any], acts: bool) -> Any:
        value = find(row, port) if acts else MISSING
        if value is not MISSING:
            array = as_array(value, port)
            if port is side.mask:
                check_mask(array[None], side)
            return array
        if acts and port.needed:
            raise BadRequest(f"{port.name} is missing")
        return port is side.mask  # an agent that is left out, or one that may take all options

    def _read_state(self, row: dict[str, Any], arrays: dict[str, Array], i: int) -> None:
        """The state of a row; without one the row begins an episode."""
        if not self.graph.state:
            return
        arrays[FIRST][i] = "state" not in row
        for port in self.graph.state:
            value = find(row, port) if "state" in row else 0
            if value is MISSING:
                raise BadRequest(f"{port.name} is missing; send the whole state of the answer before")
            arrays[port.name][i] = as_array(value, port) if "state" in row else 0

    def write(self, answer: dict[str, Array], batch: Batch) -> bytes:
        sides, state = self.graph.side.sides, self.graph.state
        rows = []
        for i in range(batch.num):
            acted = [side.outputs[0] for side, acts in zip(sides, batch.acting[i], strict=True) if acts]
            rows.append(nest({port.path: answer[port.name][i].tolist() for port in [*acted, *state]}))
        return json.dumps(rows[0] if batch.single else rows, allow_nan=False).encode()


def parse(body: bytes) -> Any:
    """JSON without the numbers that it does not have."""
    try:
        return json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:  # not UTF-8, too deep, a number of too many digits
        raise BadRequest(f"the body is no JSON: {str(error) or type(error).__name__:.100}") from None


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def find(row: Any, port: Port) -> Any:
    """The value at the path of a port."""
    for key in port.path:
        if isinstance(key, int):
            row = row[key] if isinstance(row, list) and key < len(row) else MISSING
        else:
            row = row.get(key, MISSING) if isinstance(row, dict) else MISSING
        if row is MISSING:
            return MISSING
    return row


def as_array(value: Any, port: Port) -> Array:
    """Nested lists as the array of a port, if no number changes by it."""
    # As objects first: among numbers a long text would take its length for each of them.
    objects = np.array(value, dtype=object)
    if objects.shape != port.shape:
        raise BadRequest(f"{port.name} has the shape {objects.shape!s:.60}, expected {port.shape}")
    flags = {bool} if port.dtype == "bool" else set()
    if not {int, float} | flags >= set(map(type, objects.ravel().tolist())):
        raise BadRequest(f"{port.name} holds what is no number; expected {port.dtype}")
    is_float = np.dtype(port.dtype).kind == "f"
    try:
        array = objects.astype(np.float64 if is_float else port.dtype)
    except OverflowError:
        raise out_of_range(port) from None
    fits = np.abs(array) <= port.largest if is_float else array == objects
    if not np.all(fits):
        raise out_of_range(port)
    array = array.astype(port.dtype, copy=False)
    check_bounds(array, port)
    return array


def out_of_range(port: Port) -> BadRequest:
    expected = port.dtype
    if port.low is not None and port.high is not None:
        expected = f"whole numbers from {port.low.tolist()!s:.60} to {port.high.tolist()!s:.60}"
    elif np.dtype(port.dtype).kind == "f":
        expected = f"{port.dtype} from {-port.largest:g} to {port.largest:g}"
    return BadRequest(f"{port.name} has a value that is out of range; expected {expected}")


def check_bounds(array: Array, port: Port) -> None:
    if port.low is not None and ((array < port.low) | (array > port.high)).any():
        raise out_of_range(port)


def check_mask(mask: Array, side: OneSide) -> None:
    if empty_lanes(mask.reshape(len(mask), -1) != 0, side.action):
        assert side.mask is not None
        raise BadRequest(f"{side.mask.name} forbids every action; allow at least one of each choice")


def check_num(num: int, max_rows: int) -> None:
    if num == 0:
        raise BadRequest("the request has no rows; give at least one")
    if num > max_rows:
        raise BadRequest(f"the request has {num} rows, and at most {max_rows} are answered at once; split it")


# ---- tensors


class TensorForm:
    """A tensor for each input and output of an exported file."""

    kind = TENSORS

    def __init__(self, graph: PolicyGraph, max_rows: int):
        self.graph, self.max_rows = graph, max_rows
        self.ports = {port.name: port for port in graph.inputs}

    def read(self, body: bytes) -> Batch:
        try:
            # Copies: torch warns of memory that must not be written.
            given = {name: np.array(x) for name, x in safetensors.numpy.load(body).items()}
        except Exception as error:  # hostile bytes: the parser may raise anything
            raise BadRequest(
                f"the body is not in the safetensors format: {' '.join(str(error).split()):.100}"
            ) from None
        num = self._num_rows(given)
        sides = self.graph.side.sides
        acts = [any(port.name in given for port in side.obs_ports) for side in sides]
        if not any(acts):
            raise BadRequest(f"{sides[0].obs_ports[0].name} is missing")
        arrays: dict[str, Array] = {}
        for side, acting in zip(sides, acts, strict=True):
            for port in side.inputs:
                if acting and port.needed and port.name not in given:
                    raise BadRequest(f"{port.name} is missing")
                arrays[port.name] = given.get(port.name, np.full((num, *port.shape), port is side.mask, port.dtype))
            if side.mask is not None and acting:
                check_mask(arrays[side.mask.name], side)
        self._read_state(given, arrays, num)
        return Batch(arrays=arrays, num=num, single=False, acting=np.tile(acts, (num, 1)))

    def _num_rows(self, given: dict[str, Array]) -> int:
        """N, after every tensor was checked."""
        for name, array in given.items():
            port = self.ports.get(name)
            if port is None:
                raise BadRequest(f"there is no input {name!r:.40}; the inputs are {', '.join(self.ports)}")
            if array.dtype != port.dtype or array.shape[1:] != port.shape or not array.shape:
                raise BadRequest(
                    f"{name} is {array.dtype} {array.shape!s:.60}, expected {port.dtype} {('N', *port.shape)}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise BadRequest(f"{name} has NaN or infinity; expected finite numbers")
            if array.dtype.kind == "f" and (np.abs(array) > port.largest).any():
                raise out_of_range(port)
            check_bounds(array, port)
        sizes = {len(array) for array in given.values()}
        if len(sizes) > 1:
            raise BadRequest(f"the tensors have different numbers of rows: {sorted(sizes)!s:.60}")
        num = min(sizes, default=0)
        check_num(num, self.max_rows)
        return num

    def _read_state(self, given: dict[str, Array], arrays: dict[str, Array], num: int) -> None:
        """The state; without one all rows begin an episode, and with one those for which ``first`` is true."""
        kept = [port.name in given for port in self.graph.state]
        if any(kept) and not all(kept):
            missing = next(port for port, found in zip(self.graph.state, kept, strict=True) if not found)
            raise BadRequest(f"{missing.name} is missing; send the whole state of the answer before")
        for port in self.graph.state:
            arrays[port.name] = given.get(port.name, np.zeros((num, *port.shape), port.dtype))
        if self.graph.state:
            first = given.get(FIRST, np.zeros(num, np.bool_))
            arrays[FIRST] = first if any(kept) else np.ones(num, np.bool_)

    def write(self, answer: dict[str, Array], batch: Batch) -> bytes:
        acted = zip(self.graph.side.sides, batch.acting[0], strict=True)
        ports = [side.outputs[0] for side, acts in acted if acts] + self.graph.state
        return safetensors.numpy.save({port.name: np.ascontiguousarray(answer[port.name]) for port in ports})

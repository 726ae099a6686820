"""Converts sections from plain data and back, with one sentence for the first error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import cattrs

from ..errors import ConfigError
from .fields import Section, used_fields
from .names import check_names

S = TypeVar("S", bound=Section)

_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_unstructure_hook(tuple, list)


@_converter.register_structure_hook
def _to_float(value: Any, _: type[float]) -> float:
    if isinstance(value, str):  # YAML reads 3e-4, without a point, as text
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


@_converter.register_structure_hook
def _to_int(value: Any, _: type[int]) -> int:
    number = float(value) if isinstance(value, str) else value  # YAML reads 1e5 as text
    if isinstance(number, bool) or not isinstance(number, int | float) or number != int(number):
        raise TypeError(f"{value!r} is not a whole number")
    return int(number)


@_converter.register_structure_hook
def _to_bool(value: Any, _: type[bool]) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


@_converter.register_structure_hook
def _to_text(value: Any, _: type[str]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def build_section(kind: type[S], data: Any) -> S:
    """A section from plain data."""
    data = _without_unused(kind, expect_mapping(data, kind.section))
    check_names(data, [f.name for f in used_fields(kind)], f"{kind.section}.")
    try:
        return _converter.structure(data, kind)
    except cattrs.ClassValidationError as group:
        raise _first_error(group, kind, data) from None


def plain_section(section: Section) -> dict[str, Any]:
    """A section as plain data."""
    data = _converter.unstructure(section)
    return {f.name: data[f.name] for f in used_fields(section)}


def _without_unused(kind: type[Section], data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` without unused settings at their defaults, which files of other versions may hold."""
    ignored = {name: f.default for name, f in kind.__dataclass_fields__.items() if f.metadata.get("unused")}
    return {name: value for name, value in data.items() if name not in ignored or value != ignored[name]}


def _first_error(group: cattrs.ClassValidationError, kind: type[Section], data: Mapping[str, Any]) -> ConfigError:
    """The first leaf of cattrs' tree of errors, as one sentence."""
    with_notes, others = group.group_exceptions()
    for error in [*others, *(error for error, _ in with_notes)]:
        if isinstance(error, ConfigError):
            return error
    note = with_notes[0][1]
    if note.name not in data:
        return ConfigError(f"{kind.section}.{note.name} is missing; give it a value")
    return ConfigError(f"{kind.section}.{note.name}={data[note.name]!r} is not {_describe(note.type)}")


def _describe(kind: Any) -> str:
    """A type as readable text."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    words = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
    options = [_describe(option) for option in get_args(kind) if option is not type(None)]
    if len(options) == 1:
        return options[0]
    return words.get(getattr(kind, "__name__", ""), str(kind).replace("typing.", ""))


def expect_mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping of names to values, not {data!r:.80}")
    return data

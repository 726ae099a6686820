"""Declarations of settings: frozen dataclasses whose fields hold limits and other metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import tyro

from ..errors import ConfigError

T = TypeVar("T")
Hidden = Annotated[T, tyro.conf.Suppress]
"""Annotation of a field that has no flag of its own on the command line."""


def setting(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    decides_numbers: bool = True,
    only_with: Mapping[str, Any] | None = None,
    actions: str | None = None,
) -> Any:
    """A field with limits: at least ``ge``, above ``gt``, at most ``le``, below ``lt``.

    ``decides_numbers=False`` marks a setting that may differ between a run and its resume. ``only_with`` names other
    settings of the section and the values that give this one an effect; one of them is enough, a tuple lists several
    values, and True matches every value that is not zero, empty or false.
    ``actions`` names the kind of actions without which the setting has no effect.
    """
    metadata = _metadata((ge, gt, le, lt), decides_numbers, only_with)
    return field(default=default, metadata=metadata | ({"actions": actions} if actions else {}))


def tunable(
    default: float,
    low: float,
    high: float,
    scale: Literal["log", "linear"] = "linear",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    only_with: Mapping[str, Any] | None = None,
) -> Any:
    """A number that population training may change during a run, between ``low`` and ``high``."""
    metadata = _metadata((ge, gt, le, None), True, only_with)
    return field(default=default, metadata=metadata | {"tunable": (low, high, scale)})


def unused(default: Any) -> Any:
    """A field that a subclass inherits and does not use; the subclass redeclares it as ``Hidden``."""
    return field(default=default, metadata={"unused": True})


def _metadata(limits: tuple[float | None, ...], decides_numbers: bool, only_with: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"decides_numbers": decides_numbers}
    if any(limit is not None for limit in limits):
        metadata["limits"] = limits
    return metadata | ({"only_with": dict(only_with)} if only_with else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A group of settings; construction checks every limit."""

    section: ClassVar[str]
    """The name of the group in a config file and on the command line."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            limits = f.metadata.get("limits")
            if limits is None or value is None:
                continue
            ge, gt, le, lt = limits
            low = f">= {ge}" if ge is not None else f"> {gt}" if gt is not None else ""
            high = f"<= {le}" if le is not None else f"< {lt}" if lt is not None else ""
            wanted = " and ".join(filter(None, [low, high]))
            for number in value if isinstance(value, tuple) else (value,):
                if not _within(number, ge, gt, le, lt):
                    raise ConfigError(f"{self.section}.{f.name}={value!r} is out of range: it must be {wanted}")


LARGEST = 2**63
"""Settings must be smaller: the sizes of tensors are 64-bit integers."""


def _within(value: Any, ge: float | None, gt: float | None, le: float | None, lt: float | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        return False
    return not (
        (ge is not None and value < ge)
        or (gt is not None and value <= gt)
        or (le is not None and value > le)
        or (lt is not None and value >= lt)
    )


def used_fields(kind: type[Section] | Section) -> list[Field[Any]]:
    """The settings of a section, without those that it inherits and does not use."""
    return [f for f in fields(kind) if not f.metadata.get("unused")]


def tunable_fields(section: Section) -> dict[str, tuple[float, float, str]]:
    """Low, high and scale of the numbers that population training may change, if they have an effect."""
    found = {}
    for f in used_fields(section):
        if "tunable" in f.metadata and has_effect(section, f.metadata.get("only_with")):
            found[f.name] = f.metadata["tunable"]
    return found


def deciding_fields(section: Section) -> dict[str, Any]:
    """The settings of a section that determine the numbers of a run."""
    return {f.name: getattr(section, f.name) for f in used_fields(section) if f.metadata.get("decides_numbers", True)}


def check_effect(section: Section, names: Iterable[str]) -> None:
    """Refuse the first of these settings that has no effect with the other settings of its section."""
    known = {f.name: f for f in fields(section)}
    for name in names:
        value = getattr(section, name)
        if value == known[name].default or (needed := known[name].metadata.get("only_with")) is None:
            continue
        if not has_effect(section, needed):
            present = {other: wanted for other, wanted in needed.items() if other in known}
            wanted = " or ".join(_condition(section.section, *pair) for pair in present.items())
            raise ConfigError(f"{section.section}.{name}={value!r} has no effect without {wanted}; add that or drop it")


def check_actions(section: Section, kind: str) -> None:
    """Refuse settings that have no effect with actions of this kind."""
    for f in used_fields(section):
        needed, value = f.metadata.get("actions", kind), getattr(section, f.name)
        if needed != kind and value != f.default:
            raise ConfigError(
                f"{section.section}.{f.name}={value!r} has no effect on {kind} actions, only on {needed} ones; drop it"
            )


def has_effect(section: Section, needed: Mapping[str, Any] | None) -> bool:
    """Whether one of the settings that a setting needs has a wanted value."""
    known = {f.name for f in fields(section)}
    pairs = [(name, wanted) for name, wanted in (needed or {}).items() if name in known]
    return needed is None or any(_holds(getattr(section, name), wanted) for name, wanted in pairs)


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return value in wanted
    return bool(value) if wanted is True else value == wanted


def _condition(section: str, name: str, wanted: Any) -> str:
    if isinstance(wanted, tuple):
        wanted = "|".join(map(str, wanted))
    return f"{section}.{name}" if wanted is True else f"{section}.{name}={wanted}"

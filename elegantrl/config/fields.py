"""How a setting is declared: frozen dataclasses whose fields know their limits and whether they may be tuned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from ..errors import ConfigError


def setting(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """A field with limits: at least ``ge``, above ``gt``, at most ``le``, below ``lt``."""
    return field(default=default, metadata={"limits": (ge, gt, le, lt)})


def tunable(
    default: float,
    low: float,
    high: float,
    scale: Literal["log", "linear"] = "linear",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> Any:
    """A number that population training may change during a run, between ``low`` and ``high``."""
    return field(default=default, metadata={"tunable": (low, high, scale), "limits": (ge, gt, le, None)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A group of settings; construction checks every limit."""

    section: ClassVar[str]
    """What the group is called in a config file and on the command line."""

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


def _within(value: Any, ge: float | None, gt: float | None, le: float | None, lt: float | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return not (
        (ge is not None and value < ge)
        or (gt is not None and value <= gt)
        or (le is not None and value > le)
        or (lt is not None and value >= lt)
    )

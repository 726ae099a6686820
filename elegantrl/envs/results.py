"""Converts the result of a single environment's ``step`` to five values of the right types, or raises one sentence.

An error of this module is a fault of one lane: during a run the lane is reset and the others continue.
"""

from __future__ import annotations

import numbers
import traceback
from typing import Any

import numpy as np

from ..errors import SpecError, format_error, innermost_line
from ..types import Fault

NUMBERS: frozenset[Any] = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
"""Types of rewards that need no further check."""


def five_values(name: str, result: Any) -> tuple[Any, ...]:
    """Observation, reward, terminated, truncated and info, also for an older ``step`` that returns one ``done``."""
    if not isinstance(result, tuple | list) or len(result) not in (4, 5):
        found = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise SpecError(
            f"environment {name!r}: step returned {found}, expected 5: obs, reward, terminated, truncated, info"
        )
    if len(result) == 5:
        return tuple(result)
    obs, reward, done, info = result
    done = as_flag(name, "done", done)
    truncated = done and bool((info or {}).get("TimeLimit.truncated", False))
    return obs, reward, done and not truncated, truncated, info


def as_number(name: str, value: Any) -> float:
    """A reward as a float. NumPy would also convert text and None, and broadcast an array of one number."""
    number = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(number, numbers.Real):
        raise SpecError(f"environment {name!r}: step returned reward {value!r}, expected a number")
    return float(number)


def as_flag(name: str, field: str, value: Any) -> bool:
    """A truth value. The numbers 0 and 1 count as well; text does not, since even "False" is true in Python."""
    if value is True or value is False:
        return value
    flag = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(flag, numbers.Real) or flag not in (0, 1):
        raise SpecError(f"environment {name!r}: step returned {field} {value!r}, expected True or False")
    return bool(flag)


def fault_of(lane: int, error: BaseException) -> Fault:
    """What went wrong in a lane, with the place and the traceback of ``error``."""
    trace = "".join(traceback.format_exception(error))
    return Fault(lane, format_error(error), innermost_line(error), trace=trace, is_breach=isinstance(error, SpecError))

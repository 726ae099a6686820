"""Checks of a back-test that anybody can repeat: its accounting, and that it knew nothing of the future.

Look-ahead is found by experiment: prices after a bar are replaced by others, everything is computed again from the raw
prices, features included, and nothing up to that bar may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import SpecError
from ..rng import numpy_stream
from .ledger import Ledger
from .prices import Array, PriceTable, day

Play = Callable[[PriceTable], Ledger]
"""A back-test from raw prices to a ledger."""

TOLERANCE = 1e-9
"""Of the accounting, relative to the value of the account: far above rounding, far below a cent of a million."""


@dataclass(frozen=True)
class Audit:
    """What was checked, and the largest gap of the accounting."""

    cuts: tuple[str, ...]
    accounting_error: float


def other_future(table: PriceTable, row: int, seed: int = 0) -> PriceTable:
    """The same prices up to ``row``, and another future after it."""
    stream = numpy_stream(seed, "other future", row)
    factor = np.exp(0.05 * stream.standard_normal(table.close[row + 1 :].shape)).cumprod(0)[:, None]
    values = np.array(table.values)
    values[row + 1 :] = values[row + 1 :] * factor  # volume and other fields change with the prices
    return replace(table, values=values, turbulence=None)


def refuse_lookahead(play: Play, table: PriceTable, cuts: Sequence[int], ledger: Ledger | None = None) -> None:
    """Raise ``SpecError`` if a ledger depends on prices that come later; ``ledger`` is that of ``table``, if known."""
    ledger = ledger or play(table)
    for row in cuts:
        again = play(other_future(table, row))
        known = ledger.dates <= table.dates[row]
        for name in ("cash", "positions", "traded", "cost"):
            ours, theirs = (_rows(getattr(x, name), known) for x in (ledger, again))
            if not np.array_equal(ours, theirs):
                first = int(np.argmax((ours != theirs).reshape(len(ours), -1).any(1)))
                raise SpecError(
                    f"{ledger.name!r} looks ahead: its {name} on {day(ledger.dates[first])} depends on prices after"
                    f" {day(table.dates[row])}"
                )


def refuse_feature_lookahead(make: Callable[[PriceTable], PriceTable], table: PriceTable, cuts: Sequence[int]) -> None:
    """The same for the features that ``make`` adds to prices."""
    seen = make(table)
    for row in cuts:
        again = make(other_future(table, row))
        for place, name in enumerate(seen.fields):
            if not np.array_equal(seen.values[: row + 1, place], again.values[: row + 1, place]):
                raise SpecError(f"the feature {name!r} looks ahead: it depends on prices after {day(table.dates[row])}")
        before, after = seen.turbulence, again.turbulence
        if before is not None and after is not None and not np.array_equal(before[: row + 1], after[: row + 1]):
            raise SpecError(f"the turbulence looks ahead: it depends on prices after {day(table.dates[row])}")


def _rows(values: Array, known: Array) -> Array:
    return values[: len(known)][known]


def audit(play: Play, table: PriceTable, ledger: Ledger, num_cuts: int = 3) -> Audit:
    """Check the accounting of every bar, and look-ahead at some bars of the ledger's period."""
    error = ledger.accounting_error()
    if not error < TOLERANCE:
        raise SpecError(f"{ledger.name!r} breaks value before = value after + costs by {error:.1e} of the value")
    first, last = (int(np.searchsorted(table.dates, date)) for date in (ledger.dates[0], ledger.dates[-1]))
    cuts = np.linspace(first, last, num_cuts + 2)[1:-1].astype(int).tolist()
    refuse_lookahead(play, table, cuts, ledger)
    return Audit(tuple(day(table.dates[row]) for row in cuts), error)

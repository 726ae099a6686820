"""Training, validation and test periods, and their walk forward through time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ConfigError
from .prices import Period, PriceTable, parse_period

ONE_SECOND = np.timedelta64(1, "s")


class Fold(NamedTuple):
    """Three periods that follow each other."""

    train: Period
    validate: Period
    test: Period


def make_folds(train: str, validate: str, test: str, table: PriceTable, walk_forward: int | None = None) -> list[Fold]:
    """One fold, or with ``walk_forward`` a fold for every so many years of the test period.

    A later fold tests the next years. It validates on as long a period as the first fold does, directly before its test
    period, and trains from the same start to that period. The periods may not overlap: what a choice is tested on must
    be later than everything the choice has seen.
    """
    fold = Fold(parse_period(train), parse_period(validate), parse_period(test))
    for (earlier, first), (later, second) in (
        (("train", fold.train), ("validate", fold.validate)),
        (("validate", fold.validate), ("test", fold.test)),
    ):
        if first.end >= second.start:
            raise ConfigError(
                f"the period {earlier}={first} must end before {later}={second} begins; they overlap or are swapped"
            )
    for period in fold:
        table.span(period)
    return [fold] if walk_forward is None else _walk(fold, walk_forward)


def _walk(fold: Fold, years: int) -> list[Fold]:
    folds = []
    begin, shift = fold.test.start, 0
    while begin < fold.test.end:
        end = min(_later(begin, 12 * years) - ONE_SECOND, fold.test.end)
        train = Period(fold.train.start, _last(fold.train.end, shift))
        validate = Period(_later(fold.validate.start, shift), _last(fold.validate.end, shift))
        folds.append(Fold(train, validate, Period(begin, end)))
        begin, shift = end + ONE_SECOND, shift + 12 * years
    return folds


def _last(moment: np.datetime64, months: int) -> np.datetime64:
    """The last second of a period that ends so many months later."""
    return _later(moment + ONE_SECOND, months) - ONE_SECOND


def _later(moment: np.datetime64, months: int) -> np.datetime64:
    """The same moment of a later month."""
    month = moment.astype("datetime64[M]")
    shifted: np.datetime64 = (month + months).astype("datetime64[s]") + (moment - month.astype("datetime64[s]"))
    return shifted

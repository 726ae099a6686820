"""The interquartile mean and its bootstrap interval, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from elegantrl.report import statistics
from elegantrl.report.statistics import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 4.0], 2.5),
        ([6.0, 0.0, 3.0], 3.0),
        ([0.0, 0.0, 6.0], 1.0),  # 2/3 of the middle one, 1/6 of each of the others
        ([0.0, 12.0, 6.0], 6.0),
        ([12.0, 0.0, 0.0], 2.0),
        ([-1000.0, 1.0, 4.0, 1000.0], 2.5),  # the outer two do not count at all
        ([-1000.0, 10.0, 20.0, 50.0, 1000.0], 26.0),  # 0.3, 0.4 and 0.3 of those in the middle
        ([0.0, 1, 2, 3, 4, 5, 6, 1000], 3.5),
        ([0.0, 3.0, 6.0, 9.0, 12.0, 300.0], 7.5),  # of six: 1/6, 1/3, 1/3, 1/6 of those in the middle
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == pytest.approx(expected)


def test_interquartile_mean_along_either_axis() -> None:
    table = np.array([[1.0, 10], [3, 30]])
    assert interquartile_mean(table, axis=0).tolist() == [2.0, 20.0]
    assert interquartile_mean(table, axis=1).tolist() == [5.5, 16.5]
    assert interquartile_mean(np.zeros((2, 3, 4)), axis=1).shape == (2, 4)


@pytest.mark.parametrize("count", range(1, 12))
def test_interquartile_mean_is_between_the_values_and_moves_with_them(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    mean = interquartile_mean(values)
    assert values.min() <= mean <= values.max()
    assert interquartile_mean(3 * values + 5) == pytest.approx(3 * mean + 5)
    assert interquartile_mean(np.full(count, 4.0)) == pytest.approx(4.0)


def test_interval_of_one_two_and_three_runs_goes_from_the_least_to_the_most() -> None:
    # The same run n times has a chance of n^-n: at best 1/27, more than the 2.5 % that may be left out.
    for values in ([5.0], [1.0, 4.0], [9.0, 0.0, 3.0]):
        low, high = bootstrap_interval(np.array(values)[:, None])
        assert (low.tolist(), high.tolist()) == ([min(values)], [max(values)])


@pytest.mark.parametrize(("confidence", "highest"), [(0.95, 1.0), (0.89, 0.5), (0.5, 0.5), (0.4, 0.0)])
def test_interval_of_four_runs_by_hand(confidence: float, highest: float) -> None:
    # Draws of (0, 0, 0, 1) hold k ones, k ~ Bin(4, 1/4). Their middle half gives 0 for k = 0 or 1 (189/256), 1/2 for
    # k = 2 (54/256) and 1 for k = 3 or 4 (13/256 = 5.1 %).
    low, high = bootstrap_interval(np.array([[0.0], [0.0], [0.0], [1.0]]), confidence)
    assert (low.tolist(), high.tolist()) == ([0.0], [highest])


def test_all_draws_of_few_runs_are_looked_at_once() -> None:
    assert statistics._draws(2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert statistics._draws(5).shape == (5**5, 5)
    assert statistics._draws(6).shape == (statistics.RESAMPLES, 6)


@pytest.mark.parametrize("runs", [4, 9])
def test_runs_are_drawn_whole_and_the_same_way_every_time(runs: int) -> None:
    values = np.random.default_rng(0).normal(size=(runs, 3))
    low, high = bootstrap_interval(values)
    again = bootstrap_interval(values)
    assert low.tolist() == again[0].tolist() and high.tolist() == again[1].tolist()
    # A point does not depend on its neighbours, nor on its scale.
    alone = bootstrap_interval(values[:, 1:2] * 2 + 1)
    np.testing.assert_allclose(alone, [low[1:2] * 2 + 1, high[1:2] * 2 + 1])
    # The order of runs is of no account when all draws are looked at, and of little otherwise.
    shuffled = bootstrap_interval(values[::-1])
    np.testing.assert_allclose(shuffled, (low, high), atol=0 if runs < 6 else 0.2)


def test_interval_holds_the_mean_and_narrows_with_runs() -> None:
    rng = np.random.default_rng(0)

    def width(runs: int) -> float:
        values = rng.normal(size=(runs, 1))
        low, high = bootstrap_interval(values)
        assert low[0] <= interquartile_mean(values)[0] <= high[0]
        return float(high[0] - low[0])

    assert 0 < width(64) < width(8) / 1.5


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(20, 300))  # 300 experiments of 20 runs each; the true value is 0
    low, high = bootstrap_interval(values)
    assert 0.88 <= float(((low <= 0) & (high >= 0)).mean()) <= 0.98


def test_no_points_no_interval() -> None:
    low, high = bootstrap_interval(np.empty((3, 0)))
    assert low.shape == high.shape == (0,)

"""The statistics of the stability benchmark against numbers worked out by hand, and its records; no training."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def stability(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("stability", "stability_run", "stability_picture", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import common
    import stability

    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(stability, "RESULTS", tmp_path)
    return stability


def result(score: float, returns: tuple[float, ...] = (0.0, 0.0)) -> dict[str, Any]:
    clock = [1.0 + i for i in range(len(returns))]
    steps = [100 * (1 + i) for i in range(len(returns))]
    return {
        "steps": steps,
        "returns": list(returns),
        "seconds": clock,
        "cpu_seconds": clock,
        "episodes": [score, score],
    }


def test_probability_counts_pairs_and_halves_ties(stability: ModuleType) -> None:
    # 3 beats 1 and 2; 2 beats 1 and ties with 2: 3.5 of 4 pairs.
    assert stability.probability(np.array([3.0, 2.0]), np.array([1.0, 2.0])) == 0.875
    assert stability.probability(np.array([-math.inf]), np.array([-math.inf])) == 0.5  # neither reached the threshold
    two_draws = stability.probability(np.array([[3.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 2.0], [1.0, 0.0]]))
    assert two_draws.tolist() == [0.875, 0.25]


def test_probability_is_averaged_over_tasks_and_its_interval_over_draws_of_runs(stability: ModuleType) -> None:
    def over(x: list[Any], y: list[Any]) -> Any:
        return stability.over_tasks(stability.arithmetic, stability.probability, x, y)

    better, worse, mixed = np.array([5.0, 6.0]), np.array([1.0, 2.0]), np.array([0.0, 9.0])
    assert over([better, better], [worse, worse]) == (1.0, 1.0, 1.0)
    assert over([better, worse], [worse, better]) == (0.5, 0.5, 0.5)
    # 9 beats both and 0 none. A draw of two has k nines, k ~ Bin(2, 1/2): P is 0, 1/2 or 1, the ends with chance 1/4.
    assert over([mixed], [worse]) == (0.5, 0.0, 1.0)
    # With a task that is always won besides: (1 + P) / 2.
    assert over([mixed, better], [worse, worse]) == (0.75, 0.5, 1.0)


def test_ratio_of_deviations_by_hand(stability: ModuleType) -> None:
    x, y = np.array([0.0, 4.0]), np.array([1.0, 3.0])
    assert stability.deviation_ratio(x, y) == pytest.approx(2.0)
    assert math.isnan(stability.deviation_ratio(x, np.array([1.0, 1.0])))
    both = stability.over_tasks(stability.geometric, stability.deviation_ratio, [x, x], [y, 2 * y])
    assert both[0] == pytest.approx(2**0.5)  # 2 and 1
    # A draw of two runs has the whole spread or none; then there is no ratio, and the other task stands alone.
    assert both[1:] == pytest.approx((1.0, 2.0))
    nothing = stability.over_tasks(stability.geometric, stability.deviation_ratio, [x], [np.ones(2)])
    assert all(map(math.isnan, nothing))


def test_interquartile_mean_over_all_tasks_by_hand(stability: ModuleType) -> None:
    # Of -100, 0, 1, 2, 3, 4, 5, 100 the middle half is 1, 2, 3, 4.
    value, low, high = stability.aggregate_iqm([np.array([-100.0, 1, 3, 5]), np.array([0.0, 2, 4, 100])])
    assert value == 2.5
    assert low < 2.5 < high
    assert stability.aggregate_iqm([np.ones(3), np.ones(3)]) == (1.0, 1.0, 1.0)


def test_time_until_the_threshold_is_that_of_the_first_evaluation_that_reaches_it(stability: ModuleType) -> None:
    runs = {"0": result(1, (3.0, 5.0, 4.0)), "1": result(1, (5.0, 1.0)), "2": result(1, (4.0, 4.9))}
    assert stability.until(runs, 5.0, "steps").tolist() == [200, 100, math.inf]
    assert stability.until(runs, 5.0, "seconds").tolist() == [2.0, 1.0, math.inf]


def test_scores_are_those_of_the_last_episodes_between_random_and_threshold(stability: ModuleType) -> None:
    task = next(iter(stability.TASKS.values()))._replace(floor=10.0, threshold=110.0)
    assert stability.normalized(task, stability.final({"0": result(60.0), "1": result(110.0)})).tolist() == [0.5, 1.0]


def test_records_accumulate_and_refuse_other_settings(stability: ModuleType) -> None:
    task = next(iter(stability.TASKS.values()))
    stability.record(task, "ours", 0, result(1.0))
    stability.record(task, "sb3", 0, result(2.0))
    stability.record(task, "ours", 1, result(3.0))
    runs = stability.load()["runs"][task.env]
    assert {system: list(of) for system, of in runs.items()} == {"ours": ["0", "1"], "sb3": ["0"]}
    with pytest.raises(SystemExit, match=f"runs of {task.env} with other settings"):
        stability.record(task._replace(lr=1.0), "ours", 2, result(1.0))


@pytest.mark.parametrize("system", ["ours", "sb3"])
def test_a_short_run_is_scored_at_ten_fixed_steps(stability: ModuleType, system: str) -> None:
    if system == "sb3":
        pytest.importorskip("stable_baselines3")
    task = stability.TASKS["CartPole-v1"]._replace(budget=1280, steps=16, batch=128, epochs=1)
    found = stability.run(system, task, seed=0)
    assert found["steps"] == [128 * (1 + i) for i in range(10)]
    assert len(found["returns"]) == 10 and len(found["episodes"]) == 20
    assert sorted(found["seconds"]) == found["seconds"] and found["seconds"][0] > 0

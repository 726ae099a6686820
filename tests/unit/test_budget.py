"""Restarts within a sliding window, with growing pauses."""

from __future__ import annotations

import pytest

from elegantrl.config.run import ExecuteConfig
from elegantrl.errors import BudgetSpent, RoleError
from elegantrl.runtime.budget import RestartBudget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_double_and_the_budget_ends() -> None:
    clock = Clock()
    budget = RestartBudget(8, clock, clock.sleep)
    assert [budget.spend("died") for _ in range(8)] == [f"{i} of 8" for i in range(1, 9)]
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    with pytest.raises(RoleError, match=r"^worker 3: died; the budget of 8 restarts within 10 minutes is spent") as e:
        budget.spend("worker 3: died")
    assert e.value.exit_code == 3


def test_the_pause_is_for_those_who_die_again_before_they_work() -> None:
    clock = Clock()
    budget = RestartBudget(100, clock, clock.sleep)
    for who in ("worker 0", "worker 1", "learner"):
        budget.spend("died", who)
    assert clock.pauses == []  # each for the first time
    budget.spend("died", "worker 1")
    budget.spend("died", "worker 1")
    assert clock.pauses == [0.1, 0.2]
    budget.has_recovered("worker 1")
    budget.spend("died", "worker 1")
    assert clock.pauses == [0.1, 0.2]
    budget.spend("died", "worker 0")  # what another has done does not count
    assert clock.pauses == [0.1, 0.2, 0.1]


def test_work_in_between_does_not_stretch_the_budget() -> None:
    clock = Clock()
    budget = RestartBudget(3, clock, clock.sleep)
    for _ in range(3):
        budget.spend("died", "learner")
        budget.has_recovered("learner")
    assert clock.pauses == []
    with pytest.raises(BudgetSpent, match="the budget of 3 restarts"):
        budget.spend("died", "learner")


def test_the_longest_loop_of_deaths_is_over_soon() -> None:
    clock = Clock()
    budget = RestartBudget(ExecuteConfig().max_restarts, clock, clock.sleep)
    with pytest.raises(BudgetSpent):
        while True:
            budget.spend("died", "worker 0")
    assert clock.now < 1012


def test_a_role_that_hangs_for_a_window_each_time_is_given_up() -> None:
    """R14: such deaths are so far apart that the window holds one of them at a time."""
    clock = Clock()
    budget = RestartBudget(10, clock, clock.sleep)
    for _ in range(3):  # with work in between the run goes on
        budget.spend("hung", "worker 0")
        budget.has_recovered("worker 0")
        clock.now += 700
    budget.spend("hung", "worker 0")
    clock.now += 300
    budget.spend("hung", "worker 1")
    clock.now += 300
    with pytest.raises(BudgetSpent, match=r"^hung; it has done no work for 10 minutes"):
        budget.spend("hung", "worker 0")
    budget.spend("hung", "worker 1")


def test_old_restarts_are_forgotten() -> None:
    clock = Clock()
    budget = RestartBudget(2, clock, clock.sleep)
    budget.spend("died")
    clock.now += 400
    budget.spend("died")
    clock.now += 200  # the first is ten minutes old by now
    assert budget.spend("died") == "2 of 2"
    with pytest.raises(RoleError):
        budget.spend("died")


def test_no_budget_at_all() -> None:
    with pytest.raises(RoleError, match="0 restarts"):
        RestartBudget(0).spend("died")

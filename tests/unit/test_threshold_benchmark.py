"""The rule of the benchmarks of time to a threshold, on returns and on a team."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_a_run_is_over_when_the_mean_of_the_last_episodes_reaches_the_threshold():
    from threshold_run import Over, Rule

    rule = Rule(-60, limit=1000, episodes=2)
    rule.start()
    rule.see([-40.0], 25)  # one episode is no mean of two
    rule.see([-90.0, -62.0], 75)
    assert not rule.over
    with pytest.raises(Over):
        rule.see([-57.0, -70.0], 125)
    report = rule.report()
    assert report["reached"]
    assert report["steps"] == 125
    assert (report["first"], report["last"], report["best"]) == (-65.0, -63.5, -59.5)


def test_a_run_that_has_used_its_processor_seconds_is_given_up():
    from threshold_run import Over, Rule

    rule = Rule(-60, limit=-1, episodes=2)
    rule.start()
    with pytest.raises(Over):
        rule.see([-90.0], 25)
    assert not rule.report()["reached"]


def test_where_evaluations_decide_training_episodes_and_the_time_of_an_evaluation_do_not_count():
    from threshold_run import Over, Rule

    rule = Rule(280, limit=1000, episodes=1, evaluate_every=100)
    rule.start()
    rule.see([300.0], 90)
    assert not rule.is_due(99) and rule.is_due(100)
    rule.see([300.0], 110)
    assert not rule.is_due(190)
    rule.judge([250.0, 270.0], seconds=500.0)
    assert rule.seconds < 0  # more was left out than has passed
    with pytest.raises(Over):
        rule.judge([250.0, 310.0])
    assert rule.report()["first"] == 260.0 and rule.report()["best"] == 280.0


def test_the_return_of_a_watched_team_is_the_sum_over_its_agents():
    pytest.importorskip("mpe2")
    from peers.team_common import WatchedTeam, make

    class Seen:
        def __init__(self):
            self.returns, self.starts, self.steps = [], 0, 0

        def start(self):
            self.starts += 1

        def see(self, returns, steps):
            self.returns += returns
            self.steps = steps

    rule = WatchedTeam.rule = Seen()
    env, total = make(), 0.0
    for episode in range(2):
        env.reset(seed=episode)
        while env.agents:
            rewards = env.step({agent: 1 for agent in env.agents})[1]
            assert len(rewards) == 3
            total += sum(rewards.values())
        assert len(rule.returns) == episode + 1
    assert sum(rule.returns) == pytest.approx(total)
    assert (rule.starts, rule.steps) == (1, 50)


def test_a_system_whose_median_was_given_up_takes_at_least_what_was_spent():
    from team_threshold import against

    reached = {"reached": True, "cpu_seconds": 80.0}
    given_up = {"reached": False, "cpu_seconds": 150.0}
    assert against({"0": reached, "1": reached, "2": given_up}, ours=40.0) == "2.00"
    assert against({"0": reached, "1": given_up, "2": given_up}, ours=40.0) == "> 3.8"

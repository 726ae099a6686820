"""Events, folds, the log and the decisions of populations, by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from elegantrl.errors import CheckpointError, ConfigError
from elegantrl.population.config import PopulationConfig
from elegantrl.population.events import (
    Committed,
    Evaluated,
    Event,
    Exploited,
    Failed,
    Nominated,
    Promoted,
    Retired,
    Spawned,
    event_from_json,
)
from elegantrl.population.fold import FUSED, Job, PopulationState, fold, key_of
from elegantrl.population.generational import Generational
from elegantrl.population.log import LOG, PopulationLog, read_population
from elegantrl.population.selection import choose
from elegantrl.population.space import Range, Spaces, base_config, explored, perturbed, resampled
from elegantrl.population.tournament import Tournament
from elegantrl.simulation import MemoryStorage


def config_of(**settings: Any) -> PopulationConfig:
    given = {"env": "CartPole-v1", "agents": ("ppo",), "members": 4, "periods": 3, "period_steps": 100}
    return PopulationConfig(**{**given, "mode": "generational", **settings})


def spawned(number: int) -> list[Event]:
    return [Spawned(f"m{i:03}", "ppo", {"lr": 10.0**-i}) for i in range(number)]


def trained(member: str, period: int, score: float | None, steps: int = 100) -> list[Event]:
    return [Committed(member, period, 0, key_of(member, period), steps), Evaluated(member, period, score)]


# ---- folds


def test_a_generation_by_hand() -> None:
    state = fold(config_of(), [spawned(4)])
    assert list(state.due) == [Job("train", f"m{i:03}", 0) for i in range(4)] and not state.new_generation
    for i, score in enumerate((5.0, 7.0, None)):
        state.apply_all(trained(f"m{i:03}", 0, score))
    assert state.generation == 0 and list(state.due) == [Job("train", "m003", 0)]
    state.apply_all(trained("m003", 0, 6.0))
    assert state.generation == 1 and state.new_generation and state.total_steps == 400
    assert [member.id for member in state.ranked()] == ["m001", "m003", "m000"]
    assert list(state.due) == [Job("train", f"m{i:03}", 1) for i in range(4)]
    copied = Exploited("m002", 1, "m001", "runs/m001-0000", "ppo", {"lr": 0.2})
    state.apply_all([copied])
    member = state.members["m002"]
    assert (member.origin, member.parent, member.hypers, member.steps) == (copied.origin, "m001", {"lr": 0.2}, 100)
    assert state.lineage[-1] == ("m002", 1, "m001", copied.origin, "ppo", {"lr": 0.2})
    assert state.members["m001"].curve == [(0, 100, 7.0)] and state.members["m002"].curve == []


def test_pods_are_fused_when_all_have_ended() -> None:
    state = fold(config_of(members=1, pods=2), [spawned(1)])
    state.apply_all([Committed("m000", 0, 1, "runs/m000-0000-p1", 100)])
    assert list(state.due) == [Job("train", "m000", 0, 0)]
    state.apply_all([Committed("m000", 0, 0, None, 0)])  # this pod diverged
    assert list(state.due) == [Job("fuse", "m000", 0, FUSED)] and state.generation == 0
    assert state.members["m000"].pods == {0: None, 1: "runs/m000-0000-p1"}
    state.apply_all([Committed("m000", 0, FUSED, "runs/m000-0000", 100), Evaluated("m000", 0, 3.0)])
    assert state.generation == 1 and state.members["m000"].key == "runs/m000-0000" and state.total_steps == 100


def test_a_retired_member_is_not_waited_for() -> None:
    state = fold(config_of(members=2), [spawned(2), [Failed("m001", "train", 0, 0, "no"), *trained("m000", 0, 1.0)]])
    assert state.failures == {Job("train", "m001", 0): 1} and state.generation == 0
    state.apply_all([Retired("m001", "no")])
    assert state.generation == 1 and state.new_generation
    assert [member.id for member in state.retired] == ["m001"] and list(state.due) == [Job("train", "m000", 1)]
    state.apply_all([Retired("m000", "no")])
    assert state.is_complete and state.generation == 1


def test_the_leaderboard_keeps_the_highest_scores() -> None:
    # V2: pruning kept the lowest names.
    state = fold(config_of(mode="tournament", board=2), [spawned(4)])
    for i, score in enumerate((-5.0, 30.0, 4.0, 200.0)):
        state.apply_all([*trained(f"m{i:03}", 0, score), Nominated(f"m{i:03}", 0)])
        assert list(state.due)[-1] == Job("evaluate", f"m{i:03}", 0)
        state.apply_all([Evaluated(f"m{i:03}", 0, score, fresh=True), Promoted(f"m{i:03}", 0, score)])
    assert [(entry.score, entry.member) for entry in state.board] == [(200.0, "m003"), (30.0, "m001")]
    assert state.champion is not None and state.champion.run.key == "runs/m003-0000"
    assert state.kept_keys() == {"runs/m003-0000", "runs/m001-0000"} and state.is_complete


def test_an_entry_keeps_the_hyper_parameters_of_its_run() -> None:
    state = fold(config_of(members=2), [spawned(2), trained("m000", 0, 1.0) + trained("m001", 0, 0.0)])
    state.apply_all([Nominated("m000", 0), Exploited("m000", 1, "m001", "runs/m001-0000", "a2c", {"lr": 9.0})])
    state.apply_all([Evaluated("m000", 0, 2.0, fresh=True), Promoted("m000", 0, 2.0)])
    assert state.board[0].run == ("runs/m000-0000", "ppo", {"lr": 1.0}, 100)


EVENTS: list[Event] = [
    *spawned(1),
    Spawned("m001", "dqn", {}, "m000", "runs/m000-0000"),
    *trained("m000", 0, 2.5),
    Exploited("m000", 1, "m001", "runs/m001-0000", "dqn", {"lr": 0.1}),
    Nominated("m000", 0),
    Promoted("m000", 0, 1.5),
    Retired("m000", "why"),
    Failed("m000", "train", 1, 0, "text"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_events_survive_json(event: Event) -> None:
    assert event_from_json(event.to_json()) == event


def test_a_nan_is_no_number_in_the_log() -> None:
    assert Evaluated("m000", 0, math.nan).to_json()["score"] is None
    with pytest.raises(CheckpointError, match="malformed event"):
        event_from_json({"event": "eval", "member": "__import__('os')"})


# ---- the log


def test_a_torn_tick_is_dropped_as_a_whole() -> None:
    storage, config = MemoryStorage(), config_of(members=1)
    log = PopulationLog(storage)
    log.begin(config)
    log.append(spawned(1), 0.5)
    whole = storage.read_all(LOG)
    log.append(trained("m000", 0, 1.0), 1.0)
    for end in range(len(whole), len(storage.read_all(LOG)), 23):
        storage.data[LOG] = bytearray(storage.read_all(LOG)[:end]) if end > len(whole) else bytearray(whole)
        state = PopulationLog(storage).resume(config)
        assert state.num_results == 0 and state.members["m000"].key is None and state.seconds == 0.5
        assert storage.read_all(LOG) == whole
        log.append(trained("m000", 0, 1.0), 1.0)
    assert read_population(storage).num_results == 1


def test_the_log_of_another_population_is_refused() -> None:
    storage = MemoryStorage()
    with pytest.raises(CheckpointError, match="memory holds no population to resume"):
        PopulationLog(storage).resume(config_of())
    PopulationLog(storage).begin(config_of())
    with pytest.raises(ConfigError, match="another population: members is 4 there and 5 here; use the same settings"):
        PopulationLog(storage).resume(config_of(members=5))
    PopulationLog(storage).resume(config_of(attempts=9, executor="inline"))  # neither decides numbers
    storage.append(LOG, b"nonsense\n")
    with pytest.raises(CheckpointError, match="damaged in line 2"):
        read_population(storage)
    storage.write(LOG, b'{"format": 9}\n')
    with pytest.raises(CheckpointError, match="no log of a population, or one of another version"):
        read_population(storage)


# ---- generational decisions


def generation(scores: list[float | None], **settings: Any) -> tuple[Generational, PopulationState]:
    config = config_of(members=len(scores), **settings)
    plan = Generational(config, Spaces(config))
    state = fold(config, [plan.begin()])
    state.apply_all([event for i, score in enumerate(scores) for event in trained(f"m{i:03}", 0, score)])
    return plan, state


def test_copies_of_the_best_replace_the_worst() -> None:
    # V5: the two worst were copied over the rest.
    plan, state = generation([5.0, 90.0, 1.0, 7.0, 80.0, 2.0, 6.0, 8.0])
    decisions = plan.decide(state, [], 8)
    assert decisions[0] == Nominated("m001", 0)
    copies = [event for event in decisions if isinstance(event, Exploited)]
    assert [event.member for event in copies] == ["m002", "m005"]
    assert {event.parent for event in copies} <= {"m001", "m004"}
    for event in copies:
        assert event.origin == f"runs/{event.parent}-0000" and event.agent == "ppo"
        parent = state.members[event.parent].hypers
        assert event.hypers.keys() == parent.keys()
        assert event.hypers["lr"] / parent["lr"] == pytest.approx(0.8) or event.hypers["lr"] in (
            parent["lr"],
            1.25 * parent["lr"],
        )
    again = generation([5.0, 90.0, 1.0, 7.0, 80.0, 2.0, 6.0, 8.0])
    assert again[0].decide(again[1], [], 1) == decisions


def test_a_nan_never_ranks() -> None:
    plan, state = generation([None, 1.0, math.nan, math.inf])
    assert [member.id for member in state.ranked()] == ["m001"]
    decisions = plan.decide(state, [], 4)
    assert decisions[0] == Nominated("m001", 0)
    assert [(e.member, e.parent) for e in decisions[1:] if isinstance(e, Exploited)] == [
        (name, "m001") for name in ("m000", "m002", "m003")
    ]
    plan, state = generation([None, None])
    assert plan.decide(state, [], 2) == []
    fresh = Evaluated("m000", 0, math.nan, fresh=True)
    assert plan.decide(fold(plan.config, [plan.begin()]), [fresh], 1) == []


def test_equal_members_are_left_alone_and_the_last_generation_is_not_changed() -> None:
    plan, state = generation([1.0, 1.0, 1.0, 1.0])
    assert plan.decide(state, [], 4) == [Nominated("m000", 0)]
    plan, state = generation([1.0, 4.0, 3.0, 2.0], periods=1, board=3)
    assert plan.decide(state, [], 4) == [Nominated(f"m00{i}", 0) for i in (1, 2, 3)]


# ---- tournament decisions


def test_a_run_is_evaluated_again_before_it_is_promoted() -> None:
    config = config_of(mode="tournament", members=2, periods=2, board=1)
    plan = Tournament(config, Spaces(config))
    state = fold(config, [plan.begin()])
    news = trained("m000", 0, 10.0)
    state.apply_all(news)
    assert plan.decide(state, news, 1) == [Nominated("m000", 0)]
    state.apply_all([Nominated("m000", 0)])
    assert plan.decide(state, [], 1) == []  # the pool is full
    fresh: list[Event] = [Evaluated("m000", 0, 6.0, fresh=True)]
    state.apply_all(fresh)
    assert plan.decide(state, fresh, 2) == [Promoted("m000", 0, 6.0)]
    state.apply_all([Promoted("m000", 0, 6.0)])
    (child,) = plan.decide(state, [], 2)
    assert isinstance(child, Spawned) and (child.member, child.parent, child.origin) == (
        "m002",
        "m000",
        "runs/m000-0000",
    )
    assert plan.decide(state, trained("m001", 0, 5.0), 1) == []  # below the board
    assert plan.decide(state, [Evaluated("m001", 0, math.nan)], 1) == []


def test_a_child_has_the_algorithm_of_its_parent() -> None:
    config = config_of(mode="tournament", agents=("ppo", "dqn"), members=2, periods=20, max_running=9)
    plan = Tournament(config, Spaces(config))
    state = fold(config, [plan.begin()])
    for i in range(2):
        state.apply_all([*trained(f"m00{i}", 0, 1.0), Nominated(f"m00{i}", 0)])
        state.apply_all([Evaluated(f"m00{i}", 0, 1.0, fresh=True), Promoted(f"m00{i}", 0, 1.0)])
    children = plan.decide(state, [], 9)
    assert len(children) == 9
    for child in children:
        assert isinstance(child, Spawned) and child.parent is not None
        assert child.agent == state.members[child.parent].agent
        assert child.hypers.keys() == state.members[child.parent].hypers.keys()


# ---- choices


def test_strategies_by_their_frequencies() -> None:
    scores, random, draws = [4.0, 2.0, 1.0, 1.0], Random(0), 4000
    shares = {}
    for name in ("truncation", "softmax", "tournament", "random"):
        config = config_of(selection=name, fraction=0.5)
        count = Counter(choose(config, scores, random) for _ in range(draws))
        shares[name] = [count[i] / draws for i in range(4)]
    assert shares["truncation"] == pytest.approx([0.5, 0.5, 0, 0], abs=0.04)
    assert shares["random"] == pytest.approx([0.25] * 4, abs=0.04)
    # Best of three: the best place is i if none of three is better: ((4-i)/4)^3 - ((3-i)/4)^3.
    assert shares["tournament"] == pytest.approx([37 / 64, 19 / 64, 7 / 64, 1 / 64], abs=0.04)
    std = math.sqrt((4 + 0 + 1 + 1) / 4)
    weights = [math.exp((score - 2.0) / std) for score in scores]
    assert shares["softmax"] == pytest.approx([w / sum(weights) for w in weights], abs=0.04)
    assert choose(config_of(selection="softmax"), [3.0, 3.0], Random(1)) in (0, 1)


def test_hyper_parameters_stay_in_their_ranges() -> None:
    space = {"lr": Range(1e-5, 1e-2, "log", 1e-3), "gamma": Range(0.9, 0.999, "linear", 0.99)}
    hypers, random, seen = {"lr": 1e-3, "gamma": 0.99}, Random(3), set()
    for _ in range(300):
        new = perturbed(space, hypers, random)
        seen.add(round(new["lr"] / hypers["lr"], 3))
        assert 1e-5 <= new["lr"] <= 1e-2 and 0.9 <= new["gamma"] <= 0.999
        hypers = new
    assert {0.8, 1.0, 1.25} <= seen
    drawn = [resampled(space, random)["lr"] for _ in range(500)]
    assert (
        min(drawn) < 3e-5
        and max(drawn) > 3e-3
        and sum(x < 10**-3.5 for x in drawn) / 500 == pytest.approx(0.5, abs=0.08)
    )
    far = perturbed(space, {"lr": 1.0, "gamma": 0.99}, Random(0))
    assert 0.8 <= far["lr"] <= 1.0  # outside it may only come back
    assert explored(config_of(explore="resample"), space, hypers, Random(1)) == resampled(space, Random(1))


def test_first_members_start_around_the_tuned_settings() -> None:
    config = config_of(agents=("ppo", "dqn"), members=6)
    spaces = Spaces(config)
    tuned = base_config(config, "ppo").agent
    agent, hypers = spaces.start(0)
    assert agent == "ppo" and hypers["lr"] == tuned.lr == 2e-3 and hypers["gae_lambda"] == 0.8
    assert spaces.start(1)[0] == "dqn" and "tau" in spaces.start(1)[1] and "clip" not in spaces.start(1)[1]
    agent, hypers = spaces.start(2)
    assert agent == "ppo" and hypers != spaces.start(0)[1] and tuned.lr / 3 <= hypers["lr"] <= tuned.lr * 3
    assert spaces.start(2) == Spaces(config).start(2)
    given = Spaces(replace(config, agents=("ppo",), starts=({"lr": 1e-9}, {"lr": 0.5})))
    assert [given.start(i)[1]["lr"] for i in range(3)] == [1e-9, 0.5, 1e-9]
    with pytest.raises(ConfigError, match=r"no setting population.starts: learning_rate; did you mean 'lr'"):
        Spaces(replace(config, starts=({"learning_rate": 1.0},))).start(0)


def test_settings_of_all_runs() -> None:
    config = config_of(agents=("ppo", "dqn"), settings={"agent": {"clip": 0.1, "hidden": [8]}, "env": {"num_envs": 2}})
    ppo, dqn = base_config(config, "ppo"), base_config(config, "dqn")
    assert ppo.agent.clip == 0.1 and ppo.agent.hidden == dqn.agent.hidden == (8,)  # type: ignore[attr-defined]
    assert ppo.env.num_envs == dqn.env.num_envs == 2 and ppo.train.target_return == math.inf
    assert ppo.agent.lr_schedule == "constant" and ppo.execute.executor == "inline"
    with pytest.raises(ConfigError, match=r"no setting agent.clips; did you mean 'clip'"):
        base_config(replace(config, settings={"agent": {"clips": 0.1}}), "ppo")
    with pytest.raises(ConfigError, match=r"train.seed is determined by the population"):
        base_config(replace(config, settings={"train": {"seed": 3}}), "ppo")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"members": 0}, r"population.members=0 is out of range: it must be >= 1"),
        ({"mode": "tournament", "pods": 2}, r"population.pods=2 needs the barrier .* --mode generational"),
        ({"period_seconds": 1.0}, r"period_steps=100 and period_seconds=1.0 contradict"),
        ({"executor": "proces"}, r"population.executor='proces' is unknown; did you mean 'process'\?"),
        ({"env_kwargs": {"num_envs": 3}}, r"has 'num_envs', which is a setting of its own"),
    ],
)
def test_bad_settings_are_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config_of(**settings)


def test_the_config_survives_yaml_and_its_hash_is_its_identity() -> None:
    config = config_of(starts=({"lr": 1e-3},), settings={"agent": {"hidden": [8]}})
    again = PopulationConfig.from_yaml(config.to_yaml())
    assert again == config and again.hash() == config.hash()
    assert replace(config, executor="inline", max_running=3, attempts=1).hash() == config.hash()
    assert replace(config, seed=1).hash() != config.hash()

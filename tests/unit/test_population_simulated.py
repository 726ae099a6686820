"""The real controller on simulated executors: invariants under seeded failures, and the same decisions every time."""

from __future__ import annotations

import math
from typing import Any

import pytest

from elegantrl.errors import ConfigError
from elegantrl.execute.base import Needs
from elegantrl.population.config import PopulationConfig
from elegantrl.population.controller import Controller
from elegantrl.population.display import Quiet
from elegantrl.population.events import Event
from elegantrl.population.fold import PopulationState
from elegantrl.population.log import PopulationLog, read_population
from elegantrl.simulation import MemoryStorage, SimExecutor, World

FAULTS: dict[str, float] = {"dies": 0.05, "hangs": 0.02, "raises": 0.05, "diverges": 0.05}


class Stopping(Quiet):
    """Ends a controller after some ticks, as if it had been killed."""

    def __init__(self, after: int):
        self.left, self.controller = after, None

    def tick(self, state: PopulationState, events: Any) -> None:
        self.left -= 1
        if self.left == 0:
            assert self.controller is not None
            self.controller.request_stop("killed")


def run(
    config: PopulationConfig, world: World, storage: MemoryStorage | None = None, after: int = 0
) -> tuple[Controller, SimExecutor]:
    """Begin or continue a population in ``storage``."""
    storage = storage or MemoryStorage()
    log = PopulationLog(storage)
    state = None
    if storage.read_all("log"):
        state = log.resume(config)
    else:
        log.begin(config)
    executor, watcher = SimExecutor(world=world, storage=storage), Stopping(after)
    for key in storage.runs:
        executor.scores.setdefault(key, 0.0)
    controller = watcher.controller = Controller(config, storage, executor, watcher, state=state)
    controller.run()
    return controller, executor


def config_of(mode: str, members: int = 20, **settings: Any) -> PopulationConfig:
    given: dict[str, Any] = {"periods": 4, "period_steps": 100, "max_running": 6, "agents": ("ppo", "a2c", "dqn")}
    return PopulationConfig(env="CartPole-v1", mode=mode, members=members, **{**given, **settings})  # type: ignore[arg-type]


def facts(state: PopulationState) -> tuple[Any, ...]:
    """Everything of a state but the clock."""
    members = [
        (m.id, m.agent, m.hypers, m.origin, m.steps, m.period, m.status, m.curve) for m in state.members.values()
    ]
    return members, state.lineage, state.board, list(state.due), state.generation, state.total_steps, state.num_failures


def assert_invariants(controller: Controller, executor: SimExecutor) -> None:
    state, config = controller.state, controller.config
    assert (
        state.is_complete
        and not controller.running
        and executor.max_seen <= (config.max_running or executor.num_cpus())
    )
    assert repr(facts(state)) == repr(facts(read_population(controller.storage)))
    scores = [entry.score for entry in state.board]
    assert scores == sorted(scores, reverse=True) and len(scores) <= config.board and all(map(math.isfinite, scores))
    assert {entry.run.key for entry in state.board} <= set(controller.storage.list("runs"))
    assert set(controller.storage.list("runs")) == state.kept_keys()
    for link in state.lineage:
        if link.parent is not None:
            assert link.origin is not None and link.origin.startswith(f"runs/{link.parent}-")
            (run,) = [run for run in state.members[link.parent].runs.values() if run.key == link.origin]
            assert link.agent == run.agent
    for member in state.members.values():
        steps = [point.steps for point in member.curve]
        assert all(point.score == point.score for point in member.curve)
        assert steps == sorted(steps) or config.mode == "generational"  # a copy may have fewer steps


@pytest.mark.parametrize("mode", ["generational", "tournament"])
@pytest.mark.parametrize("seed", range(50))
def test_invariants_under_failures(mode: str, seed: int) -> None:
    config = config_of(mode, seed=seed)
    controller, executor = run(config, World(seed=seed, **FAULTS))
    assert_invariants(controller, executor)
    state = controller.state
    if mode == "tournament":
        assert len(state.members) == config.num_trainings
        assert state.num_results + len(state.retired) == config.num_trainings
    else:
        assert len(state.members) == config.members and state.generation == config.periods
        assert all(member.period == config.periods for member in state.active)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50, 1050))
def test_invariants_under_failures_at_length(seed: int) -> None:
    test_invariants_under_failures("tournament" if seed % 2 else "generational", seed)


@pytest.mark.parametrize("mode", ["generational", "tournament"])
def test_the_same_world_gives_the_same_log(mode: str) -> None:
    one, _ = run(config_of(mode), World(seed=3, **FAULTS))
    two, _ = run(config_of(mode), World(seed=3, **FAULTS))
    assert repr(facts(one.state)) == repr(facts(two.state))


@pytest.mark.parametrize("pods", [1, 3])
def test_a_generational_lineage_depends_neither_on_time_nor_on_failures(pods: int) -> None:
    config = config_of("generational", members=10, pods=pods, attempts=50)
    calm, _ = run(config, World(seed=0))
    for seed in range(1, 6):
        rough, _ = run(config, World(seed=seed, dies=0.2, raises=0.2, spread=1.0))
        assert rough.state.num_failures > 20 and calm.state.num_failures == 0
        assert rough.state.lineage == calm.state.lineage and rough.state.board == calm.state.board


@pytest.mark.parametrize("mode", ["generational", "tournament"])
def test_a_controller_that_is_killed_again_and_again(mode: str) -> None:
    config, storage = config_of(mode, attempts=50), MemoryStorage()
    world = World(seed=1, dies=0.05, raises=0.05)
    scores: dict[str, float] = {}
    for sitting in range(200):
        log = PopulationLog(storage)
        state = log.resume(config) if storage.read_all("log") else log.begin(config)
        executor = SimExecutor(world=World(seed=sitting, dies=0.05, raises=0.05), storage=storage)
        executor.scores = scores  # the quality of stored runs outlives a controller
        watcher = Stopping(after=7)
        controller = watcher.controller = Controller(config, storage, executor, watcher, state=state)
        if controller.run() == "complete":
            break
        storage.append("log", b'{"seconds": 1, "events": [')  # torn
    assert sitting > 5
    assert_invariants(controller, executor)
    if mode == "generational":
        assert controller.state.lineage == run(config, world)[0].state.lineage


def test_evolution_finds_the_learning_rate() -> None:
    for mode in ("generational", "tournament"):
        starts = ({"lr": 1e-6}, {"lr": 1.0}, {"lr": 1e-5}, {"lr": 5e-3})
        config = config_of(mode, members=8, agents=("ppo",), periods=20, starts=starts)
        state = run(config, World(best_lr=1e-3))[0].state
        assert state.champion is not None
        assert 5e-4 < state.champion.run.hypers["lr"] < 2e-3, mode


@pytest.mark.parametrize("selection", ["truncation", "softmax", "tournament", "random"])
@pytest.mark.parametrize("mode", ["generational", "tournament"])
def test_every_strategy_runs(mode: str, selection: str) -> None:
    controller, executor = run(config_of(mode, selection=selection, explore="resample"), World(seed=2, **FAULTS))
    assert_invariants(controller, executor)


@pytest.mark.parametrize("mode", ["generational", "tournament"])
def test_a_thousand_members(mode: str) -> None:
    config = config_of(mode, members=1000, periods=2, max_running=1000)
    controller, executor = run(config, World(seed=0, **FAULTS))
    assert_invariants(controller, executor)
    assert executor.max_seen == 1000


def test_the_pool_grows_and_shrinks_while_it_runs() -> None:
    class Resizing(Quiet):
        def tick(self, state: PopulationState, events: list[Event]) -> None:
            sizes.append(len(controller.running))
            if state.num_results == 10:
                controller.request_running(+4)
            if state.num_results == 40:
                controller.request_running(-controller.max_running)  # one stays

    config, storage, sizes = config_of("tournament", max_running=2), MemoryStorage(), list[int]()
    PopulationLog(storage).begin(config)
    executor = SimExecutor(world=World(), storage=storage)
    controller = Controller(config, storage, executor, Resizing())
    assert controller.run() == "complete" and controller.state.num_results == 80
    assert max(sizes[:8]) <= 2 and max(sizes) > 4 and max(sizes[-10:]) <= 1
    assert executor.max_seen > 5


def test_a_member_that_always_fails_is_retired_and_named() -> None:
    for mode in ("generational", "tournament"):
        controller, _ = run(config_of(mode, members=4, periods=2, attempts=2), World(raises=0.9, seed=5))
        state = controller.state
        assert state.is_complete and state.retired
        assert all(member.reason == "ValueError: a simulated error" for member in state.retired)


class Cluster(SimExecutor):
    """A Ray cluster with two GPUs."""

    assigns_devices = True

    def num_cpus(self) -> int:
        return 64

    def num_gpus(self) -> float:
        return 2.0

    def spawn_all(self, builds: Any, *, needs: Needs) -> Any:  # type: ignore[override]
        asked.append((len(builds), needs))
        return super().spawn_all(builds, needs=needs)


asked: list[tuple[int, Needs]] = []


@pytest.mark.parametrize(("gpus", "room"), [(1.0, 2), (0.25, 8), (0.4, 5)])
def test_members_on_gpus_ask_for_them_and_no_more_run_than_there_are(gpus: float, room: int) -> None:
    asked.clear()
    settings = {"settings": {"train": {"device": "cuda"}}, "gpus": gpus, "max_running": None}
    config, storage = config_of("tournament", **settings), MemoryStorage()
    PopulationLog(storage).begin(config)
    executor = Cluster(world=World(), storage=storage)
    controller = Controller(config, storage, executor, Quiet())
    controller.request_running(+40)
    assert controller.run() == "complete" and executor.max_seen == room
    assert asked == [(room, Needs(cpus=1.0, gpus=gpus))]  # all at the same time, and no others later
    sentence = rf"population\.gpus={gpus:g} for each of 9 at a time is more than the 2 GPUs"
    with pytest.raises(ConfigError, match=sentence):
        Controller(config_of("tournament", **{**settings, "max_running": 9}), storage, executor, Quiet())

"""Where roles run changes no bit: inline and processes, one worker or several, and back again at a resume."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from elegantrl.errors import ConfigError, RoleError
from elegantrl.runtime.run import RunResult
from elegantrl.runtime.supervisor import Supervisor
from elegantrl.testing import FaultEnv

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 2, "normalize_obs": True}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 200, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.2}
CASES = [
    pytest.param("ppo", "CartPole-v1", ON_POLICY, id="ppo-CartPole"),
    pytest.param("ppo", "TensorCartPole", ON_POLICY, id="ppo-TensorCartPole"),
    pytest.param("sac", "Pendulum-v1", REPLAY, id="sac-Pendulum"),
    pytest.param("sac", "TensorPendulum", {**REPLAY, "n_step": 3}, id="sac-TensorPendulum"),
    pytest.param("ppo", "CartPole-v1", {**ON_POLICY, "memory": "gru", "memory_size": 6}, id="ppo-gru"),
    pytest.param(
        "recurrent_dqn", "CartPole-v1", {**REPLAY, "memory": "lstm", "memory_size": 6, "burn_in": 6}, id="recurrent_dqn"
    ),
]


def arguments(settings: dict[str, Any], executor: str, num_workers: int) -> dict[str, Any]:
    layout = {"executor": executor, "num_workers": num_workers, "num_groups": 4, "num_envs": 8}
    # R15: which policies are evaluated, and which is the best, does not depend on the speed of the evaluator.
    return {"seed": 7, "eval": {"interval": 160, "episodes": 2}, "max_steps": 480, **layout, **settings}


LAGS = [0, *(pytest.param(lag, marks=pytest.mark.slow) for lag in (1, 3))]


@pytest.mark.parametrize("max_lag", LAGS)
@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_every_layout_leaves_the_same_bits(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: dict[str, Any],
    max_lag: int,
) -> None:
    hashes = []
    in_flight = {"in_flight"} if max_lag else set()
    for i, layout in enumerate([("inline", 1), ("inline", 3), ("process", 1), ("process", 2), ("process", 4)]):
        run_quietly(agent, env, run_dir=tmp_path / str(i), max_lag=max_lag, **arguments(settings, *layout))
        parts = load_commit(tmp_path / str(i))
        assert set(parts) == {"learner", "supervisor", "group0", "group1", "group2", "group3"} | in_flight
        assert parts["supervisor"]["last_eval"] == 480 and parts["learner"]["agent"]["num_updates"] > 0
        hashes.append({name: hash_state(part) for name, part in parts.items()})
    assert all(other == hashes[0] for other in hashes[1:])
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize(("agent", "env", "settings"), [CASES[0], CASES[3]])
def test_a_run_may_be_resumed_in_another_layout(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: dict[str, Any],
    max_lag: int,
) -> None:
    settings = {**settings, "max_lag": max_lag, "eval": {"interval": 160, "episodes": 2}}
    run_quietly(agent, env, run_dir=tmp_path / "whole", **arguments(settings, "inline", 1))
    stops = [(160, "process", 4), (320, "inline", 2), (480, "process", 3)]
    for i, (steps, *layout) in enumerate(stops):
        stop = arguments(settings, *layout) | {"max_steps": steps}
        run_quietly(agent, env, run_dir=tmp_path / "parts", resume=i > 0, **stop)
    whole, parts = load_commit(tmp_path / "whole"), load_commit(tmp_path / "parts")
    assert {name: hash_state(part) for name, part in parts.items()} == {
        name: hash_state(part) for name, part in whole.items()
    }


@pytest.mark.parametrize("max_lag", [0, 1])
def test_workers_may_come_and_go(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    max_lag: int,
) -> None:
    """By signals in the middle of a run, as `kill -TTIN` sends them; the result stays the same."""
    settings = arguments({**ON_POLICY, "max_lag": max_lag}, "process", 2)
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "steady", **settings)
    learn, signals, seen = Supervisor.learn, [signal.SIGTTIN, signal.SIGTTOU, signal.SIGTTOU], []

    def learn_and_send(self: Supervisor, fragments: Any) -> Any:
        seen.append(len(self.pool.workers))
        yield from learn(self, fragments)
        if signals:
            signal.raise_signal(signals.pop(0))

    monkeypatch.setattr(Supervisor, "learn", learn_and_send)
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "elastic", **settings)
    assert seen == [2, 3, 2]
    steady, elastic = load_commit(tmp_path / "steady"), load_commit(tmp_path / "elastic")
    assert {name: hash_state(part) for name, part in elastic.items()} == {
        name: hash_state(part) for name, part in steady.items()
    }
    assert multiprocessing.active_children() == []


def test_groups_are_part_of_what_a_run_is(run_quietly: Run, tmp_path: Path) -> None:
    settings = arguments(ON_POLICY, "inline", 1)
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, **settings)
    with pytest.raises(ConfigError, match=r"env\.num_groups is 4 there and 2 here"):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, resume=True, **{**settings, "num_groups": 2})


def test_an_instance_belongs_to_one_group(run_quietly: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be shared out among 4 groups"):
        run_quietly("ppo", gym.make("CartPole-v1"), run_dir=tmp_path, **arguments(ON_POLICY, "inline", 1))


def test_an_environment_that_cannot_travel_is_refused_in_one_sentence(run_quietly: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be pickled .*; name a class or a function at the top of a module"):
        run_quietly("ppo", lambda: gym.make("CartPole-v1"), run_dir=tmp_path, **arguments(ON_POLICY, "process", 2))
    assert not list(tmp_path.iterdir()) and multiprocessing.active_children() == []


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_an_error_of_an_environment_reads_the_same_everywhere(run_quietly: Run, tmp_path: Path, executor: str) -> None:
    env = partial(FaultEnv, mode="raise", at_step=30, only_slots=range(8))  # not those of the evaluator
    sentence = (
        r"^worker 0 slot 2: ValueError: .* at step 30 \(.*fault_env\.py:\d+\) in .*; the budget of 2 environment "
    )
    with pytest.raises(RoleError, match=sentence):
        run_quietly("ppo", env, run_dir=tmp_path, **arguments(ON_POLICY, executor, 2), max_restarts=2)
    assert multiprocessing.active_children() == []

"""Workers and evaluators that die or hang in the middle of a run: what is lost, and that the run goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from elegantrl.errors import RoleError
from elegantrl.runtime import training as training_module
from elegantrl.runtime.progress import Silent
from elegantrl.runtime.run import RunResult
from elegantrl.store.commits import Store
from elegantrl.store.runlog import read_metrics
from elegantrl.testing import FaultEnv

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]


def spent(folder: Path) -> int:
    """How often the fault of a ``FaultEnv`` has shown."""
    return len(list(folder.glob("*")))


class Listener(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        if not text.startswith("gradients:"):  # every run says which way it uses
            self.said.append(text)


ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 1}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 300, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.2, "n_step": 3}


def arguments(folder: Path, times: int, mode: str, at_step: int, env_id: str, **more: Any) -> dict[str, Any]:
    env = partial(FaultEnv, env_id=env_id, mode=mode, at_step=at_step, once=folder, times=times)
    layout = {"executor": "process", "num_workers": 2, "num_groups": 4, "num_envs": 8}
    evaluation = {"interval": 10**6, "episodes": 2, "max_episode_steps": 40}
    return {"seed": 3, "max_steps": 800, "eval": evaluation, "env": env, **layout, **more}


@pytest.mark.parametrize("max_lag", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("agent", "env_id", "settings", "mode", "words"),
    [
        ("ppo", "CartPole-v1", ON_POLICY, "sigkill", "died of SIGKILL before it answered sample"),
        ("ppo", "CartPole-v1", ON_POLICY, "hang", "no answer to sample"),
        ("sac", "Pendulum-v1", REPLAY, "segv", "died of SIGSEGV before it answered sample"),
        ("sac", "Pendulum-v1", REPLAY, "exit0", "exited with code 0 before it answered sample"),
    ],
)
def test_a_run_with_a_lost_worker_equals_one_without(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env_id: str,
    settings: dict[str, Any],
    mode: str,
    words: str,
    max_lag: int,
) -> None:
    hashes = []
    for name, times in (("sound", 0), ("faulty", 1)):
        listener = Listener()
        more = {**settings, "max_lag": max_lag, "role_timeout": 8.0 if mode == "hang" else 600.0}
        faults = tmp_path / f"{name}.faults"
        run = run_quietly(
            agent,
            run_dir=tmp_path / name,
            display=listener,
            **arguments(faults, times, mode, 73, env_id, **more),
        )
        assert spent(faults) == times
        parts = load_commit(tmp_path / name)
        hashes.append({part: hash_state(state) for part, state in parts.items()})
        assert run.summary["restarts"] == len(listener.said) == times
        assert run.summary["episodes_lost"] == 0
    assert hashes[0] == hashes[1]
    assert words in listener.said[0] and "restarted (1 of 10 within 10 minutes)" in listener.said[0]
    # A host has two groups of two lanes.
    assert run.summary["steps_lost"] == settings["horizon"] * 4
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_again_at_the_same_place_begins_new_episodes(
    run_quietly: Run, load_commit: LoadCommit, tmp_path: Path
) -> None:
    settings = arguments(tmp_path / "faults", 2, "sigkill", 73, "Pendulum-v1", **REPLAY)
    # One lane: whoever dies is the one that dies again.
    settings |= {"num_workers": 1, "num_groups": 1, "num_envs": 1, "max_steps": 200}
    run = run_quietly("sac", run_dir=tmp_path / "run", **settings)
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (2, 1)
    assert run.summary["env_steps"] == 200
    replay = load_commit(tmp_path / "run")["learner"]["memory"]
    # Pendulum ends nothing before step 200: the one cut is where the old episode was lost, at a fragment's border.
    assert replay["truncated"].nonzero().tolist() == [[69, 0]]


def foreign(num_envs: int, **faulty: Any) -> gym.vector.SyncVectorEnv:
    """A vector environment that cannot be restored: every resume begins new episodes."""
    return gym.vector.SyncVectorEnv([partial(FaultEnv, **faulty)] * num_envs)


def test_episodes_that_cannot_be_restored_are_cut(run_quietly: Run, load_commit: LoadCommit, tmp_path: Path) -> None:
    settings = arguments(tmp_path / "faults", 1, "sigkill", 73, "Pendulum-v1", **REPLAY)
    settings["env"] = partial(foreign, **settings["env"].keywords)
    run = run_quietly("sac", run_dir=tmp_path / "run", **settings)
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (1, 4)
    replay = load_commit(tmp_path / "run")["learner"]["memory"]
    first_row = 100 - len(replay["truncated"])  # a ring: the oldest rows are overwritten by now
    cuts = [(first_row + row, lane) for row, lane in replay["truncated"].nonzero().tolist()]
    assert cuts in ([(69, lane) for lane in range(4)], [(69, lane) for lane in range(4, 8)])


class Moody(FaultEnv):
    """Another course in every process: nothing that was lived through can be repeated. The second lives longer."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.at_step = 43 if spent(settings["once"]) else 23

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs + os.getpid() % 1000 * 1e-3, *rest


def test_a_past_that_cannot_be_repeated_is_cut_off(run_quietly: Run, load_commit: LoadCommit, tmp_path: Path) -> None:
    """Twice: the second successor must not go back behind the cut of the first."""
    settings = arguments(tmp_path / "faults", 2, "sigkill", 23, "Pendulum-v1", **REPLAY)
    settings |= {"num_workers": 1, "num_groups": 1, "num_envs": 1, "max_steps": 100}
    settings["env"] = partial(Moody, **settings["env"].keywords)
    run = run_quietly("sac", run_dir=tmp_path / "run", **settings)
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (2, 2)
    replay = load_commit(tmp_path / "run")["learner"]["memory"]
    commit = Store(tmp_path / "run").latest_valid()
    assert commit is not None and commit.manifest["info"]["exactness"] == "episode"  # R5: it claims no more than it saw
    first, second = replay["truncated"].nonzero()[:, 0].tolist()
    assert first == 19 < second and second % 5 == 4  # the last rows of fragments
    jumps = (replay["obs"][1:, 0] - replay["next_obs"][:-1, 0]).abs().amax(-1).nonzero()[:, 0].tolist()
    assert jumps == [first, second]  # rows fit together everywhere else


def test_a_worker_that_always_dies_ends_the_run(run_quietly: Run, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    settings = arguments(faults, 100, "sigkill", 5, "CartPole-v1", **ON_POLICY, max_restarts=2) | {"num_workers": 1}
    with pytest.raises(RoleError, match=r"died of SIGKILL.*; the budget of 2 restarts within 10 minutes is spent"):
        run_quietly("ppo", run_dir=tmp_path / "run", **settings)
    assert spent(faults) == 3
    assert multiprocessing.active_children() == []


def test_a_lost_evaluator_changes_no_score(
    run_quietly: Run, load_commit: LoadCommit, hash_state: HashState, tmp_path: Path
) -> None:
    hashes = []
    for name, times in (("sound", 0), ("faulty", 1)):
        # Workers take 50 steps in each lane, the evaluator more.
        settings = arguments(tmp_path / f"{name}.faults", times, "sigkill", 60, "Pendulum-v1", **ON_POLICY)
        settings |= {"max_steps": 400, "horizon": 50}
        settings["eval"] = {"interval": 10**6, "episodes": 2}
        run = run_quietly("ppo", run_dir=tmp_path / name, **settings)
        assert run.summary["restarts"] == times
        hashes.append(hash_state(load_commit(tmp_path / name)["supervisor"]))
    assert hashes[0] == hashes[1]
    assert json.loads((tmp_path / "faulty" / "summary.json").read_text())["steps_lost"] == 0


def test_a_worker_that_grows_is_replaced_and_nothing_changes(
    run_quietly: Run, load_commit: LoadCommit, hash_state: HashState, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training_module, "LOG_SECONDS", 0.0)
    hashes = []
    for name, limit in (("large", None), ("small", 1.0)):  # a megabyte: too little for any process
        listener = Listener()
        settings = {
            **arguments(tmp_path / f"{name}.faults", 0, "leak", 0, "CartPole-v1", **ON_POLICY),
            "max_steps": 320,
        }
        run = run_quietly("ppo", run_dir=tmp_path / name, display=listener, max_worker_memory=limit, **settings)
        assert run.summary["restarts"] == run.summary["steps_lost"] == 0
        hashes.append({part: hash_state(state) for part, state in load_commit(tmp_path / name).items()})
    assert hashes[0] == hashes[1]
    # Two workers, replaced after each of two updates.
    assert sum("was replaced" in text for text in listener.said) == 4
    assert "memory_mb/workers" in read_metrics(tmp_path / "small")[0]

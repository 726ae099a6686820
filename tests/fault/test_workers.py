"""Workers and evaluators that die or hang in the middle of a run: what is lost, and that the run goes on."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from elegantrl.errors import RoleError
from elegantrl.train.run import RunResult, Silent

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

FAULTS: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "exit 0": lambda: sys.exit(0),
    "hang": lambda: threading.Event().wait(),
}


class Faulty(gym.Wrapper[Any, Any, Any, Any]):
    """Dies at a step of its life, as long as there is a file left in a folder that says so."""

    def __init__(self, env_id: str, folder: Path, fault: str, at_step: int):
        super().__init__(gym.make(env_id))
        self.folder, self.fault, self.at_step = folder, fault, at_step
        self.total = 0

    def step(self, action: Any) -> Any:
        self.total += 1
        if self.total == self.at_step:
            for bullet in sorted(self.folder.iterdir())[:1]:
                try:
                    bullet.unlink()
                except FileNotFoundError:  # another lane or process was quicker: only one dies of it
                    continue
                FAULTS[self.fault]()
        return super().step(action)


def load(folder: Path, bullets: int) -> Path:
    folder.mkdir()
    for i in range(bullets):
        (folder / f"{i:03}").touch()
    return folder


class Listener(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 1}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 300, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.2, "n_step": 3}


def arguments(folder: Path, fault: str, at_step: int, env_id: str, **more: Any) -> dict[str, Any]:
    env = partial(Faulty, env_id=env_id, folder=folder, fault=fault, at_step=at_step)
    layout = {"executor": "process", "num_workers": 2, "num_groups": 4, "num_envs": 8}
    evaluation = {"interval": 10**6, "episodes": 2, "max_episode_steps": 40}
    return {"seed": 3, "max_steps": 800, "eval": evaluation, "env": env, **layout, **more}


@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize(
    ("agent", "env_id", "settings", "fault", "words"),
    [
        ("ppo", "CartPole-v1", ON_POLICY, "SIGKILL", "died of SIGKILL before it answered sample"),
        ("ppo", "CartPole-v1", ON_POLICY, "hang", "no answer to sample"),
        ("sac", "Pendulum-v1", REPLAY, "SIGSEGV", "died of SIGSEGV before it answered sample"),
        ("sac", "Pendulum-v1", REPLAY, "exit 0", "exited with code 0 before it answered sample"),
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
    fault: str,
    words: str,
    max_lag: int,
) -> None:
    hashes = []
    for name, bullets in (("sound", 0), ("faulty", 1)):
        listener = Listener()
        more = {**settings, "max_lag": max_lag, "role_timeout": 8.0 if fault == "hang" else 600.0}
        bullets_left = load(tmp_path / f"{name}.bullets", bullets)
        run = run_quietly(
            agent,
            run_dir=tmp_path / name,
            display=listener,
            **arguments(bullets_left, fault, 73, env_id, **more),
        )
        assert not list(bullets_left.iterdir())
        parts = load_commit(tmp_path / name)
        hashes.append({part: hash_state(state) for part, state in parts.items()})
        assert run.summary["restarts"] == len(listener.said) == bullets
        assert run.summary["episodes_lost"] == 0
    assert hashes[0] == hashes[1]
    assert words in listener.said[0] and "restarted (1 of 10 within 10 minutes)" in listener.said[0]
    # A host has two groups of two lanes.
    assert run.summary["steps_lost"] == settings["horizon"] * 4
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_again_at_the_same_place_begins_new_episodes(
    run_quietly: Run, load_commit: LoadCommit, tmp_path: Path
) -> None:
    bullets = load(tmp_path / "bullets", 2)
    settings = arguments(bullets, "SIGKILL", 73, "Pendulum-v1", **REPLAY)
    # One lane: whoever dies is the one that dies again.
    settings |= {"num_workers": 1, "num_groups": 1, "num_envs": 1, "max_steps": 200}
    run = run_quietly("sac", run_dir=tmp_path / "run", **settings)
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (2, 1)
    assert run.summary["env_steps"] == 200
    replay = load_commit(tmp_path / "run")["learner"]["replay"]
    # Pendulum ends nothing before step 200: the one cut is where the old episode was lost, at a fragment's border.
    assert replay["truncated"].nonzero().tolist() == [[69, 0]]


def foreign(num_envs: int, **faulty: Any) -> gym.vector.SyncVectorEnv:
    """A vector environment that cannot be restored: every resume begins new episodes."""
    return gym.vector.SyncVectorEnv([partial(Faulty, **faulty)] * num_envs)


def test_episodes_that_cannot_be_restored_are_cut(run_quietly: Run, load_commit: LoadCommit, tmp_path: Path) -> None:
    bullets = load(tmp_path / "bullets", 1)
    settings = arguments(bullets, "SIGKILL", 73, "Pendulum-v1", **REPLAY)
    settings["env"] = partial(foreign, **settings["env"].keywords)
    run = run_quietly("sac", run_dir=tmp_path / "run", **settings)
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (1, 4)
    replay = load_commit(tmp_path / "run")["learner"]["replay"]
    first_row = 100 - len(replay["truncated"])  # a ring: the oldest rows are overwritten by now
    cuts = [(first_row + row, lane) for row, lane in replay["truncated"].nonzero().tolist()]
    assert cuts in ([(69, lane) for lane in range(4)], [(69, lane) for lane in range(4, 8)])


class Moody(Faulty):
    """Another course in every process: nothing that was lived through can be repeated. The second lives longer."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.at_step = 23 if len(list(self.folder.iterdir())) == 2 else 43

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs + os.getpid() % 1000 * 1e-3, *rest


def test_a_past_that_cannot_be_repeated_is_cut_off(run_quietly: Run, load_commit: LoadCommit, tmp_path: Path) -> None:
    """Twice: the second successor must not go back behind the cut of the first."""
    bullets = load(tmp_path / "bullets", 2)
    settings = arguments(bullets, "SIGKILL", 23, "Pendulum-v1", **REPLAY)
    settings |= {"num_workers": 1, "num_groups": 1, "num_envs": 1, "max_steps": 100}
    settings["env"] = partial(Moody, **settings["env"].keywords)
    run = run_quietly("sac", run_dir=tmp_path / "run", **settings)
    assert (run.summary["restarts"], run.summary["episodes_lost"]) == (2, 2)
    replay = load_commit(tmp_path / "run")["learner"]["replay"]
    first, second = replay["truncated"].nonzero()[:, 0].tolist()
    assert first == 19 < second and second % 5 == 4  # the last rows of fragments
    jumps = (replay["obs"][1:, 0] - replay["next_obs"][:-1, 0]).abs().amax(-1).nonzero()[:, 0].tolist()
    assert jumps == [first, second]  # rows fit together everywhere else


def test_a_worker_that_always_dies_ends_the_run(run_quietly: Run, tmp_path: Path) -> None:
    bullets = load(tmp_path / "bullets", 100)
    settings = arguments(bullets, "SIGKILL", 5, "CartPole-v1", **ON_POLICY, max_restarts=2) | {"num_workers": 1}
    with pytest.raises(RoleError, match=r"died of SIGKILL.*; the budget of 2 restarts within 10 minutes is spent"):
        run_quietly("ppo", run_dir=tmp_path / "run", **settings)
    assert len(list(bullets.iterdir())) == 97
    assert multiprocessing.active_children() == []


def test_a_lost_evaluator_changes_no_score(
    run_quietly: Run, load_commit: LoadCommit, hash_state: HashState, tmp_path: Path
) -> None:
    hashes = []
    for name, bullets in (("sound", 0), ("faulty", 1)):
        # Workers take 50 steps in each lane, the evaluator more.
        settings = arguments(load(tmp_path / f"{name}.bullets", bullets), "SIGKILL", 60, "Pendulum-v1", **ON_POLICY)
        settings |= {"max_steps": 400, "horizon": 50}
        settings["eval"] = {"interval": 10**6, "episodes": 2}
        run = run_quietly("ppo", run_dir=tmp_path / name, **settings)
        assert run.summary["restarts"] == bullets
        hashes.append(hash_state(load_commit(tmp_path / name)["supervisor"]))
    assert hashes[0] == hashes[1]
    assert json.loads((tmp_path / "faulty" / "summary.json").read_text())["steps_lost"] == 0

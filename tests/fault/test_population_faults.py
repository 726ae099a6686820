"""Populations under failures and bad input: one sentence, and what can go on goes on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import elegantrl
from elegantrl import failpoints
from elegantrl.errors import ConfigError, RoleError, StorageError
from elegantrl.population.events import Event
from elegantrl.population.fold import PopulationState
from elegantrl.population.log import read_population
from elegantrl.store.trained import TrainedPolicy
from elegantrl.testing import FaultEnv

TINY: dict[str, Any] = {"agent": {"hidden": [8], "horizon": 16}, "env": {"num_envs": 2}, "execute": {"max_restarts": 0}}
TINY |= {"eval": {"max_episode_steps": 20}}
SMALL: dict[str, Any] = {"agents": ("ppo",), "members": 3, "periods": 2, "period_steps": 32, "episodes": 2}
SMALL |= {"settings": TINY, "executor": "inline", "verbose": False}


class Notes:
    """Keeps the messages of a population."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)

    def tick(self, state: PopulationState, events: list[Event]) -> None: ...


@pytest.mark.parametrize("mode", ["generational", "tournament"])
def test_a_member_whose_environment_always_fails_is_retired_and_named(tmp_path: Path, mode: str) -> None:
    faults = {"mode": "raise", "at_step": 3, "only_slots": 0, "once": str(tmp_path / "faults"), "times": 2}
    result = elegantrl.evolve(
        FaultEnv, run_dir=tmp_path / "p", mode=mode, env_kwargs=faults, **{**SMALL, "attempts": 2}
    )
    (retired,) = result.state.retired
    assert retired.id == "m000" and "raise as asked for" in retired.reason
    assert result.summary["retired"] == {"m000": retired.reason} and result.state.num_failures == 2
    assert result.state.num_results == (4 if mode == "generational" else 5) and result.state.champion is not None


def test_the_death_of_a_process_costs_an_attempt(tmp_path: Path) -> None:
    faults = {"mode": "sigkill", "at_step": 3, "only_slots": 0, "once": str(tmp_path / "faults"), "times": 1}
    settings = {**SMALL, "executor": "process", "max_running": 2, "periods": 1}
    result = elegantrl.evolve(FaultEnv, run_dir=tmp_path / "p", mode="generational", env_kwargs=faults, **settings)
    assert result.state.num_failures == 1 and not result.state.retired and result.state.num_results == 3


def test_if_all_members_fail_the_first_reason_is_told(tmp_path: Path) -> None:
    faults = {"mode": "raise", "at_step": 3}
    with pytest.raises(RoleError, match=r"no member could be trained to the end: .*raise as asked for"):
        elegantrl.evolve(FaultEnv, run_dir=tmp_path / "p", mode="tournament", env_kwargs=faults, **SMALL)


def test_a_store_that_refuses_writes_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(failpoints.ARMED, "storage.append", "enospc")
    with pytest.raises(StorageError, match=r"appending to log failed in .*No space left on device"):
        elegantrl.evolve("TensorCartPole", run_dir=tmp_path / "p", **SMALL)
    monkeypatch.delitem(failpoints.ARMED, "storage.append")
    monkeypatch.setitem(failpoints.ARMED, "storage.upload", "enospc")
    with pytest.raises(StorageError, match=r"storing runs/m000-0000 failed in .*No space left"):
        elegantrl.evolve("TensorCartPole", run_dir=tmp_path / "q", **SMALL)
    monkeypatch.delitem(failpoints.ARMED, "storage.upload")
    notes = Notes()
    result = elegantrl.evolve("TensorCartPole", run_dir=tmp_path / "q", resume=True, watcher=notes, **SMALL)
    assert result.state.num_results == 6 and notes.texts[0].startswith("resumed after 0 of 6 periods 0 steps")


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    def refuse(sentence: str, env: Any = "TensorCartPole", **settings: Any) -> None:
        with pytest.raises(ConfigError, match=sentence):
            elegantrl.evolve(env, **{"run_dir": tmp_path / "p", **SMALL, **settings})

    refuse(r"there is no setting member; did you mean 'members'", member=3)
    refuse("there is no agent 'ppoo'; did you mean 'ppo'", agents=("ppoo",))
    refuse("nothing to resume without a folder", run_dir=None, resume=True)
    refuse("an instance of .* cannot be shared out among members", env=gymnasium.make("CartPole-v1"))
    assert not (tmp_path / "p").exists()
    with pytest.raises(elegantrl.ElegantRLError, match="holds no population to resume"):
        elegantrl.evolve("TensorCartPole", run_dir=tmp_path / "p", resume=True, **SMALL)
    assert not (tmp_path / "p").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"failed in .*file/p: Not a directory"):
        elegantrl.evolve("TensorCartPole", run_dir=tmp_path / "file" / "p", **SMALL)
    elegantrl.evolve("TensorCartPole", run_dir=tmp_path / "p", **SMALL)
    refuse("already holds a population; add --resume or choose another --run-dir")
    refuse("belongs to another population: seed is 0 there and 1 here", resume=True, seed=1)


FLAGS = ("--agents", "ppo", "--members", 2, "--periods", 2, "--period-steps", 512, "--episodes", 2)


def test_the_command_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "p"
    words = ("evolve", "TensorCartPole", *FLAGS, "--executor", "inline", "--run-dir", folder, "--restartable")
    done = cli(*words)
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert lines[0].startswith("tournament population on TensorCartPole, seed 0: 2 members (ppo), 4 periods of 512")
    assert any(line.startswith("champion ") and line.endswith("/champion") for line in lines)
    assert read_population(folder).num_results == 4
    assert cli("eval", folder / "champion", "--episodes", 2).code == 0
    assert cli("eval", folder / "ensemble", "--episodes", 2).code == 0
    again = cli("evolve", "--config", folder / "population.yaml", "--run-dir", folder, "--resume")
    for out in (again.out, cli(*words).out):  # a restartable one continues what is there
        assert out.startswith("resumed after 4 of 4 periods 2,048 steps champion m00")
    assert "name it with --run-dir" in cli("evolve", "TensorCartPole", "--restartable").sentence
    assert "did you mean '--members'" in cli("evolve", "TensorCartPole", "--member", 3).sentence
    assert "the environment is missing; for example: elegantrl evolve CartPole-v1" in cli("evolve").sentence
    hostile = tmp_path / "hostile.yaml"
    hostile.write_text("env: os:system\n")
    assert "names os:system, whose import runs code" in cli("evolve", "--config", hostile).sentence


def test_only_an_environment_is_named(cli: Callable[..., Any], tmp_path: Path) -> None:
    short = ("--members", 3, "--periods", 1, "--period-steps", 64, "--episodes", 1, "--executor", "inline")
    cli("evolve", "CartPole-v1", *short, "--run-dir", tmp_path / "discrete")
    assert [m.agent for m in read_population(tmp_path / "discrete").members.values()] == ["ppo", "d3qn", "a2c"]
    cli("evolve", "TensorPendulum", *short, "--run-dir", tmp_path / "continuous")
    assert [m.agent for m in read_population(tmp_path / "continuous").members.values()] == ["ppo", "sac", "td3"]


@pytest.mark.parametrize(
    ("executor", "number", "code"), [("inline", signal.SIGINT, 130), ("process", signal.SIGTERM, 143)]
)
def test_a_signal_stops_a_population_that_can_be_continued(
    tmp_path: Path, executor: str, number: signal.Signals, code: int
) -> None:
    argv = ["evolve", "TensorCartPole", *map(str, FLAGS), "--executor", executor, "--run-dir", str(tmp_path / "p")]
    argv[argv.index("--periods") + 1] = "50"
    child = subprocess.Popen([sys.executable, "-m", "elegantrl", *argv], stdout=subprocess.DEVNULL)
    log = tmp_path / "p" / "log"
    while not log.exists() or log.read_bytes().count(b"\n") < 4:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(number)
    assert child.wait() == code
    state = read_population(tmp_path / "p")
    assert 0 < state.num_results < 100 and (tmp_path / "p" / "leaderboard.json").exists()
    assert not list((tmp_path / "p" / "runs").glob(".tmp-*"))


def test_settings_of_all_runs_on_the_command_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    words = ("evolve", "TensorCartPole", "--agents", "ppo", "dqn", "--members", 2, "--periods", 1, "--period-steps", 64)
    words += ("--episodes", 1, "--executor", "inline", "--run-dir", tmp_path / "p", "--settings")
    done = cli(*words, "env.num_envs=2", "agent.horizon=16", "agent.hidden=[8]", "agent.num_epochs=1")
    assert done.code == 0, done.err
    state = read_population(tmp_path / "p")
    given = {"env": {"num_envs": 2}, "agent": {"horizon": 16, "hidden": [8], "num_epochs": 1}}
    assert state.config.settings == given and {member.steps for member in state.members.values()} == {64}
    assert TrainedPolicy.load(tmp_path / "p" / "champion").config.agent.hidden == (8,)
    for word, sentence in {
        "num_envs=2": "--settings 'num_envs=2' is not section.name=value; for example env.num_envs=8",
        "env.num_envs": "--settings 'env.num_envs' is not section.name=value",
        "agent.hidden=[8": "--settings 'agent.hidden=[8' has a value that is not YAML",
        "env.num_env=2": "there is no setting env.num_env; did you mean 'num_envs'?",
        "envs.num_envs=2": "there is no setting envs; did you mean 'env'?",
        "agent.hiden=8": "there is no setting agent.hiden; did you mean 'hidden'?",
        "train.seed=3": "population.settings: train.seed is determined by the population; leave it out",
    }.items():
        assert sentence in cli(*words, word).sentence
    if not torch.cuda.is_available():
        for executor in ("inline", "process"):
            other = ("--executor", executor, "--run-dir", tmp_path / "q")
            assert "train.device='cuda' needs a CUDA device" in cli(*words, "train.device=cuda", *other).sentence
        assert not (tmp_path / "q" / "log").exists()


def test_a_team_is_a_member(tmp_path: Path) -> None:
    """An environment for teams gets agents for teams, and a champion that plays for all of a team."""
    settings = {"agent": {"hidden": [8], "horizon": 25}, "env": {"num_envs": 2}}
    given = {**SMALL, "agents": (), "period_steps": 100, "settings": settings, "mode": "generational"}
    result = elegantrl.evolve("TensorSpread", run_dir=tmp_path / "p", **given)
    state = result.state
    assert [link.agent for link in state.lineage[:3]] == ["mappo", "qmix", "ippo"] and state.lineage[3].parent
    assert state.num_results == 6 and state.num_failures == 0
    assert result.load_policy().evaluate(2).mean < 0


def test_a_cluster_that_does_not_answer(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("elegantrl.execute.ray_cluster.ray.is_initialized", lambda: False)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = ("evolve", "TensorCartPole", "--executor", "ray", "--run-dir", tmp_path / "p", "--address")
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in cli(*words, f"127.0.0.1:{port}").sentence
    assert "is neither HOST:PORT nor auto" in cli(*words, "nowhere").sentence
    assert not (tmp_path / "p" / "log").exists()
    assert "add --executor ray" in cli("evolve", "TensorCartPole", "--address", "a:1").sentence


def test_missing_extras_are_named(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ray", "fsspec"):
        monkeypatch.setitem(sys.modules, name, None)
    for module in ("elegantrl.execute.ray", "elegantrl.execute.ray_cluster", "elegantrl.store.object_store"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    words = ("evolve", "TensorCartPole", "--executor", "ray", "--run-dir", tmp_path / "p")
    assert "pip install 'elegantrl[ray]'" in cli(*words).sentence
    assert not (tmp_path / "p" / "log").exists()
    assert "pip install 'elegantrl[cloud]'" in cli("evolve", "TensorCartPole", "--run-dir", "s3://bucket/p").sentence

"""On the command line, N steps and ``--resume`` to 2 N leave the same bits as 2 N steps in one go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from elegantrl.cli.main import main
from elegantrl.report import plot as plot_module
from elegantrl.store.loggers import LOGGERS
from elegantrl.store.runlog import read_metrics

LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

REPLAY: tuple[Any, ...] = ("--agent.learning-starts", 100, "--agent.batch-size", 16, "--agent.updates-per-step", 0.25)
REPLAY += ("--agent.buffer-size", 700)  # the ring wraps after the resume

CASES = [
    pytest.param("ppo", "CartPole-v1", (), id="ppo-CartPole"),
    pytest.param("ppo", "Pendulum-v1", ("--agent.normalize-obs", "--agent.horizon", 16), id="ppo-Pendulum"),
    pytest.param("ppo", "TensorCartPole", (), id="ppo-TensorCartPole"),
    pytest.param("ppo", "Chasing", ("--num-envs", 8), id="ppo-Chasing"),
    pytest.param("a2c", "CartPole-v1", (), id="a2c-CartPole"),
    pytest.param("a2c", "TensorPendulum", (), id="a2c-TensorPendulum"),
    pytest.param("dqn", "CartPole-v1", REPLAY, id="dqn-CartPole"),
    pytest.param("dqn", "TensorCartPole", (*REPLAY, "--agent.n-step", 3), id="dqn-TensorCartPole"),
    pytest.param("sac", "Pendulum-v1", REPLAY, id="sac-Pendulum"),
    pytest.param("sac", "TensorPendulum", (*REPLAY, "--num-envs", 4), id="sac-TensorPendulum"),
]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_module, "plot_run", lambda *_: None)
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: Mock())


def train(run_dir: Path, agent: str, env: str, max_steps: int, *more: Any) -> None:
    flags: tuple[Any, ...] = ("--run-dir", run_dir, "--max-steps", max_steps, "--seed", 5, "--agent.hidden", 16, 16)
    flags += ("--eval.interval", 300, "--eval.episodes", 2, "--target-return", "inf")
    assert main([str(word) for word in ("train", agent, env, *flags, *more)]) == 0


@pytest.mark.parametrize(("agent", "env", "more"), CASES)
def test_resume_equals_one_go(
    load_commit: LoadCommit,
    hash_state: HashState,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    agent: str,
    env: str,
    more: tuple[Any, ...],
) -> None:
    train(tmp_path / "whole", agent, env, 1024, *more)
    train(tmp_path / "parts", agent, env, 512, *more)
    half = load_commit(tmp_path / "parts")
    capsys.readouterr()
    train(tmp_path / "parts", agent, env, 1024, *more, "--resume")
    assert "resumed c-0000000005" in capsys.readouterr().out
    whole, parts = load_commit(tmp_path / "whole"), load_commit(tmp_path / "parts")
    assert whole["supervisor"]["env_steps"] == parts["supervisor"]["env_steps"] >= 1024
    for part in ("learner", "group0"):
        assert hash_state(parts[part]) == hash_state(whole[part]) != hash_state(half[part])
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0


def test_resume_beyond_the_end_changes_nothing(load_commit: LoadCommit, hash_state: HashState, tmp_path: Path) -> None:
    train(tmp_path / "run", "a2c", "TensorCartPole", 512)
    before = load_commit(tmp_path / "run")
    train(tmp_path / "run", "a2c", "TensorCartPole", 512, "--resume")
    assert hash_state(load_commit(tmp_path / "run")) == hash_state(before)


def test_the_curve_of_a_resumed_run_has_no_doubled_part(tmp_path: Path) -> None:
    train(tmp_path / "run", "a2c", "TensorCartPole", 600)
    train(tmp_path / "run", "a2c", "TensorCartPole", 1200, "--resume")
    steps = [row["env_steps"] for row in read_metrics(tmp_path / "run") if row["kind"] == "eval"]
    # The evaluation at the first stop (768) moves no later one: an uninterrupted run evaluates at 512, 1024 and 1280.
    assert steps == [512, 768, 1024, 1280]


def test_a_restartable_run_starts_and_then_continues(
    load_commit: LoadCommit, hash_state: HashState, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The same command line, whether a cluster gives it once or again after a kill."""
    train(tmp_path / "whole", "a2c", "TensorCartPole", 1024)
    train(tmp_path / "parts", "a2c", "TensorCartPole", 512, "--restartable")
    capsys.readouterr()
    train(tmp_path / "parts", "a2c", "TensorCartPole", 1024, "--restartable")
    assert "resumed c-" in capsys.readouterr().out
    assert hash_state(load_commit(tmp_path / "parts")) == hash_state(load_commit(tmp_path / "whole"))


def test_a_restartable_run_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "a2c", "TensorCartPole", "--restartable"]) == 2
    assert "name it with --run-dir" in capsys.readouterr().err

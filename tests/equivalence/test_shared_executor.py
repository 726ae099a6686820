"""Several runs in one process on one executor: each leaves the bits that it leaves alone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elegantrl.config.resolve import resolve_config, split_overrides
from elegantrl.config.run import RunConfig
from elegantrl.execute.base import Executor, make_executor
from elegantrl.execute.inline import InlineExecutor
from elegantrl.runtime.build import PRELOAD, open_run
from elegantrl.runtime.progress import Silent
from elegantrl.runtime.run import RunResult, finish
from elegantrl.runtime.supervisor import Supervisor

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

PPO: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 2, "max_lag": 1}
SAC: dict[str, Any] = {"hidden": [8], "horizon": 5, "buffer_size": 200, "learning_starts": 30, "batch_size": 8}
COMMON: dict[str, Any] = {
    "num_envs": 4, "num_groups": 2, "max_steps": 480, "eval": {"interval": 160, "episodes": 2},
    "checkpoint": {"interval": 160},
}  # fmt: skip
RUNS = {"ppo": ("CartPole-v1", PPO), "sac": ("Pendulum-v1", SAC)}
LAYOUTS: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline"},
    "process": {"executor": "process", "num_workers": 2, "num_learners": 1},
}


@pytest.fixture
def executor(layout: str) -> Iterator[Executor]:
    made = make_executor(layout, PRELOAD)
    yield made
    made.close()
    assert multiprocessing.active_children() == []


def config_of(agent: str, layout: str) -> RunConfig:
    env, settings = RUNS[agent]
    config, _ = resolve_config(agent, env, split_overrides(agent, {**COMMON, **settings, **LAYOUTS[layout]}))
    return config


@pytest.mark.parametrize("layout", ["inline", pytest.param("process", marks=pytest.mark.slow)])
def test_runs_that_take_turns_equal_runs_alone(
    run_quietly: Run, executor: Executor, load_commit: LoadCommit, hash_state: HashState, tmp_path: Path, layout: str
) -> None:
    for agent, (env, settings) in RUNS.items():
        run_quietly(agent, env, run_dir=tmp_path / f"{agent}-alone", **COMMON, **settings, **LAYOUTS[layout])
    runs: dict[str, Supervisor] = {}
    for agent, (env, _) in RUNS.items():
        runs[agent] = open_run(config_of(agent, layout), env, tmp_path / agent, executor, Silent())
    threads = torch.get_num_threads()
    waiting, turns = dict(runs), []
    while waiting:
        for agent, run in list(waiting.items()):
            reason = run.advance()
            turns.append(agent)
            if reason is not None:
                assert reason == "max_steps"
                finish(run, reason)
                run.close()
                del waiting[agent]
        futures = [run.waits_for() for run in waiting.values()]
        if futures and all(futures):  # no run can go on by itself
            executor.wait([future for part in futures for future in part])
    assert sum(a != b for a, b in pairwise(turns)) > 4  # they did take turns
    assert torch.get_num_threads() == threads
    for agent in RUNS:
        together, alone = load_commit(tmp_path / agent), load_commit(tmp_path / f"{agent}-alone")
        assert {name: hash_state(part) for name, part in together.items()} == {
            name: hash_state(part) for name, part in alone.items()
        }
        best = [load_file(tmp_path / name / "best.safetensors") for name in (agent, f"{agent}-alone")]
        assert hash_state(best[0]) == hash_state(best[1])


def test_a_run_that_is_closed_leaves_the_executor_to_others(tmp_path: Path) -> None:
    executor = InlineExecutor()
    runs = [open_run(config_of("ppo", "inline"), "CartPole-v1", tmp_path / name, executor, Silent()) for name in "ab"]
    runs[0].advance()
    runs[0].close()
    assert runs[1].run() == "max_steps"
    runs[1].close()
    assert executor.handles == []

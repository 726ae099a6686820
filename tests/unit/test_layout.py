"""Which layout is picked when nobody says, and what it is worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from elegantrl.cli import bench
from elegantrl.cli.train import parse_run
from elegantrl.config.resolve import resolve_config
from elegantrl.runtime.layout import Layout, pick_layout, share


class Waits(gym.Env[Any, Any]):
    """A step takes a while: asleep, or busy."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, seconds: float = 0.01, is_busy: bool = False):
        self.seconds, self.is_busy = seconds, is_busy

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.is_busy:
            end = time.process_time() + self.seconds
            while time.process_time() < end:
                pass
        else:
            time.sleep(self.seconds)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def picked(agent: str, source: Any, num_envs: int, num_cores: int) -> Layout:
    config = resolve_config(agent, "Waits", {"env": {"num_envs": num_envs}})[0]
    return pick_layout(config, source, num_cores)


def test_cheap_and_batched_environments_stay_here() -> None:
    assert picked("ppo", "TensorPendulum", 4096, 8).execute == {"executor": "inline"}
    assert picked("ppo", "Pendulum-v1", 8, 8).execute == {"executor": "inline"}


@pytest.mark.parametrize(
    ("agent", "is_busy", "num_envs", "num_cores", "expected"),
    [
        ("ppo", True, 8, 2, {"executor": "process", "num_workers": 2}),
        ("ppo", True, 6, 4, {"executor": "process", "num_workers": 3}),
        ("ppo", False, 8, 2, {"executor": "process", "num_workers": 8}),  # sleepers need no core
        ("ppo", True, 1, 2, {"executor": "inline"}),
        ("ppo", True, 8, 1, {"executor": "inline"}),
        ("sac", True, 1, 2, {"executor": "process", "num_workers": 1, "max_lag": 2}),
        ("sac", True, 1, 1, {"executor": "inline"}),
        ("sac", False, 1, 1, {"executor": "process", "num_workers": 1, "max_lag": 2}),
    ],
)
def test_costly_environments_get_processes(
    agent: str, is_busy: bool, num_envs: int, num_cores: int, expected: dict[str, Any]
) -> None:
    assert picked(agent, partial(Waits, is_busy=is_busy), num_envs, num_cores).execute == expected


@pytest.mark.parametrize(
    ("agent", "settings", "num_cores", "num_threads"),
    [("sac", {}, 2, 2), ("sac", {}, 8, 2), ("sac", {}, 1, 1), ("sac", {"hidden": (64, 64)}, 2, 1),
     ("sac", {"layer_norm": True}, 2, 1), ("redq", {}, 2, 1), ("td3", {}, 2, 1), ("ppo", {}, 2, 1)],
)  # fmt: skip
def test_another_core_helps_who_learns_much_and_knows_how(
    agent: str, settings: dict[str, Any], num_cores: int, num_threads: int
) -> None:
    wide = {"hidden": (256, 256), "batch_size": 256}
    config = resolve_config(agent, "Pendulum-v1", {"agent": wide | settings})[0]
    layout = pick_layout(config, "Pendulum-v1", num_cores)
    assert (layout.execute, layout.num_threads) == ({"executor": "inline"}, num_threads)


@pytest.mark.parametrize(
    ("is_busy", "num_envs", "num_cores", "num_threads"),
    [(False, 1, 2, 2), (False, 4, 2, 2), (False, 1, 1, 1), (True, 1, 2, 1), (True, 1, 3, 2), (True, 3, 3, 1)],
)
def test_a_core_that_no_worker_needs_helps_too(is_busy: bool, num_envs: int, num_cores: int, num_threads: int) -> None:
    layout = picked("sac", partial(Waits, is_busy=is_busy), num_envs, num_cores)
    assert (layout.execute["executor"], layout.num_threads) == ("process", num_threads)


def test_whoever_asks_for_threads_gets_them(tmp_path: Path) -> None:
    wide = ["--agent.hidden", "256", "256", "--agent.batch-size", "256"]
    assert parse_run("sac", "Pendulum-v1", [*wide, "--num-threads", "1"])[0].train.num_threads == 1
    config = parse_run("sac", "Pendulum-v1", [*wide, "--num-threads", "3"])[0]
    assert config.train.num_threads == 3
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    resumed = parse_run("sac", "Pendulum-v1", [*wide, "--run-dir", str(tmp_path), "--resume"])[0]
    assert resumed.train.num_threads == 3


def test_groups_share_the_cores_where_a_fragment_takes_a_while() -> None:
    def layout(num_groups: int, horizon: int, num_cores: int = 2, agent: str = "ppo") -> Layout:
        settings = {"env": {"num_envs": 8, "num_groups": num_groups}, "agent": {"horizon": horizon}}
        config = resolve_config(agent, "Waits", settings)[0]
        return pick_layout(config, partial(Waits, seconds=1e-4, is_busy=True), num_cores)

    assert layout(2, 128).execute == {"executor": "process", "num_workers": 2}
    assert layout(4, 128, num_cores=3).execute == {"executor": "process", "num_workers": 2}
    assert layout(2, 128, num_cores=1).execute == {"executor": "inline"}
    assert layout(1, 128).execute == {"executor": "inline"}
    assert layout(2, 4).execute == {"executor": "inline"}
    assert layout(2, 128, agent="sac").execute == {"executor": "inline"}


def test_tuned_groups_give_way_to_whoever_says_something_else() -> None:
    def groups(*words: str) -> int:
        return parse_run("ppo", "Hopper-v5", [*words, "--executor", "inline"])[0].num_groups

    assert groups() == resolve_config("ppo", "Hopper-v5")[0].num_groups == 2
    assert groups("--num-envs", "5") == 1 and groups("--num-workers", "4") == 4
    assert groups("--num-envs", "6", "--num-groups", "3") == 3 and groups("--num-envs", "6", "--num-groups", "2") == 2
    assert groups("--num-envs", "6") == resolve_config("ppo", "Hopper-v5", {"env": {"num_envs": 6}})[0].num_groups == 2
    assert resolve_config("ppo", "Hopper-v5", {"env": {"num_envs": 5}})[0].num_groups == 1
    assert resolve_config("ppo", "Hopper-v5", {"execute": {"num_workers": 4}})[0].num_groups == 4


def test_groups_are_equal() -> None:
    assert [share(12, limit) for limit in (1, 2, 5, 7, 100)] == [1, 2, 4, 6, 12]


def test_the_command_line_says_what_was_picked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "elegantrl.cli.train.pick_layout",
        lambda *_: Layout({"executor": "process", "num_workers": 4}, "a step takes 3.0 ms"),
    )
    config, notes, *_ = parse_run("ppo", "CartPole-v1", [])
    assert config.execute.num_workers == 4 and notes.endswith("; a step takes 3.0 ms")
    # Whoever says anything about it decides it all.
    assert parse_run("ppo", "CartPole-v1", ["--executor", "inline"])[0].execute.num_workers == 1
    # A run that is resumed keeps its layout, whatever would be picked now.
    (tmp_path / "config.yaml").write_text(parse_run("ppo", "CartPole-v1", ["--num-workers", "2"])[0].to_yaml())
    resumed, notes, *_ = parse_run("ppo", "CartPole-v1", ["--run-dir", str(tmp_path), "--resume"])
    assert resumed.execute.num_workers == 2 and notes.endswith("in the layout it had")


def test_bench_compares_layouts(cli: Callable[..., Any]) -> None:
    outcome = cli("bench", "ppo", "TensorCartPole", "--num-envs", 2, "--seconds", 4)
    assert outcome.code == 0
    assert "--executor process --num-workers 2 --max-lag 1" in " ".join(outcome.out.split())
    assert "fastest: elegantrl train ppo TensorCartPole --executor" in outcome.out


def test_bench_tries_what_the_machine_allows() -> None:
    config = resolve_config("ppo", "CartPole-v1", {"env": {"num_envs": 6}})[0]
    assert [layout.execute.get("num_workers") for layout in bench.candidates(config, 4)] == [
        None, None, 1, 1, 3, 3, 6, 6,
    ]  # fmt: skip
    assert len(list(bench.candidates(config, 1))) == 5  # without a second core no threads

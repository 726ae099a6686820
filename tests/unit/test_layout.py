"""Which layout is picked if the caller leaves it open, and what it is worth."""

from __future__ import annotations

import subprocess
import sys
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
from elegantrl.config.resolve import resolve_config, split_overrides
from elegantrl.config.run import RunConfig
from elegantrl.envs import make_env
from elegantrl.errors import ConfigError
from elegantrl.runtime.layout import INLINE, Layout, largest_divisor, pick_layout
from elegantrl.runtime.train import prepare


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


def configured(agent: str, env: str, words: list[str], resumed: Path | None = None) -> RunConfig:
    """The config of a command line."""
    return prepare(agent, env, parse_run(agent, env, words)[1], resumed=resumed).config


def picked(agent: str, source: Any, num_envs: int, num_cores: int) -> Layout:
    config = resolve_config(agent, "Waits", {"env": {"num_envs": num_envs}})[0]
    return pick_layout(config, source, num_cores)


def test_cheap_and_batched_environments_stay_here() -> None:
    assert picked("ppo", "TensorPendulum", 4096, 8).execute == INLINE
    assert picked("ppo", "Pendulum-v1", 8, 8).execute == INLINE


@pytest.mark.parametrize(
    ("agent", "is_busy", "num_envs", "num_cores", "expected"),
    [
        ("ppo", True, 8, 2, {"executor": "process", "num_workers": 2, "core_helper": "off"}),
        ("ppo", True, 6, 4, {"executor": "process", "num_workers": 3, "core_helper": "off"}),
        ("ppo", False, 8, 2, {"executor": "process", "num_workers": 8, "core_helper": "off"}),  # sleepers need no core
        ("ppo", True, 1, 2, INLINE),
        ("ppo", True, 8, 1, INLINE),
        ("sac", True, 1, 2, {"executor": "process", "num_workers": 1, "max_lag": 2, "core_helper": "off"}),
        ("sac", True, 1, 1, INLINE),
        ("sac", False, 1, 1, {"executor": "process", "num_workers": 1, "max_lag": 2, "core_helper": "off"}),
    ],
)
def test_costly_environments_get_processes(
    agent: str, is_busy: bool, num_envs: int, num_cores: int, expected: dict[str, Any]
) -> None:
    assert picked(agent, partial(Waits, is_busy=is_busy), num_envs, num_cores).execute == expected


@pytest.mark.parametrize(
    ("agent", "settings", "num_cores", "helper"),
    [("sac", {}, 2, "on"), ("sac", {}, 8, "on"), ("sac", {}, 1, "off"), ("sac", {"hidden": (64, 64)}, 2, "off"),
     ("sac", {"layer_norm": True}, 2, "off"), ("redq", {}, 2, "off"), ("td3", {}, 2, "off"), ("ppo", {}, 2, "off")],
)  # fmt: skip
def test_another_core_helps_an_agent_that_learns_much_and_can_use_it(
    agent: str, settings: dict[str, Any], num_cores: int, helper: str
) -> None:
    wide = {"hidden": (256, 256), "batch_size": 256}
    config = resolve_config(agent, "Pendulum-v1", {"agent": wide | settings})[0]
    layout = pick_layout(config, "Pendulum-v1", num_cores)
    assert layout.execute == {"executor": "inline", "core_helper": helper}


@pytest.mark.parametrize(
    ("is_busy", "num_envs", "num_cores", "helper"),
    [(False, 1, 2, "on"), (False, 4, 2, "on"), (False, 1, 1, "off"), (True, 1, 2, "off"), (True, 1, 3, "on"),
     (True, 3, 3, "off")],
)  # fmt: skip
def test_a_core_that_no_worker_needs_helps_too(is_busy: bool, num_envs: int, num_cores: int, helper: str) -> None:
    layout = picked("sac", partial(Waits, is_busy=is_busy), num_envs, num_cores)
    assert (layout.execute["executor"], layout.execute["core_helper"]) == ("process", helper)


def test_threads_and_the_core_helper_are_settings_of_their_own(tmp_path: Path) -> None:
    # F5: a run with a helper could not be resumed without one, since --num-threads stood for both.
    wide = ["--agent.hidden", "256", "256", "--agent.batch-size", "256", "--executor", "inline"]
    with_helper = configured("sac", "Pendulum-v1", [*wide, "--core-helper", "on"])
    assert (with_helper.train.num_threads, with_helper.execute.core_helper) == (1, "on")
    without = configured("sac", "Pendulum-v1", wide)
    assert without.execute.core_helper == "off" and without.hash() == with_helper.hash()
    assert configured("sac", "Pendulum-v1", [*wide, "--num-threads", "3"]).hash() != without.hash()
    (tmp_path / "config.yaml").write_text(with_helper.to_yaml())
    again = configured("sac", "Pendulum-v1", wide[:-2], resumed=tmp_path)
    assert (again.execute.executor, again.execute.core_helper) == ("inline", "on")
    other = configured("sac", "Pendulum-v1", [*wide[:-2], "--core-helper", "off"], resumed=tmp_path)
    assert (other.execute.executor, other.execute.core_helper) == ("inline", "off")


def test_a_run_with_a_core_helper_goes_on_without_it(
    run_quietly: Callable[..., Any], load_commit: Callable[..., Any], hash_state: Callable[..., str], tmp_path: Path
) -> None:
    # F5
    short = {"executor": "inline", "learning_starts": 50, "verbose": False, "eval": {"interval": 10**6, "episodes": 1}}
    for name, helpers in {"changed": ("on", "off"), "same": ("off", "off")}.items():
        for helper, steps in zip(helpers, (100, 150), strict=True):
            settings = short | {"core_helper": helper, "max_steps": steps, "resume": steps == 150}
            run_quietly("sac", "Pendulum-v1", run_dir=tmp_path / name, **settings)
    same, changed = (load_commit(tmp_path / name)["learner"] for name in ("same", "changed"))
    assert hash_state(same) == hash_state(changed)


def test_a_core_helper_that_cannot_help_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"core_helper=on is for plain SAC"):
        configured("td3", "Pendulum-v1", ["--core-helper", "on"])


def test_python_picks_the_layout_as_the_command_line_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # F4, N2: Python ran inline whatever num_workers said, and knew no "auto".
    monkeypatch.setattr(
        "elegantrl.runtime.layout.pick_layout",
        lambda *_: Layout({"executor": "process", "num_workers": 4}, "a step takes 3.0 ms"),
    )
    expected = [
        ({}, "process", 4),
        ({"executor": "auto"}, "process", 4),
        ({"num_workers": 2}, "process", 2),
        ({"executor": "inline"}, "inline", 1),
    ]
    for settings, executor, workers in expected:
        plan = prepare("ppo", "CartPole-v1", split_overrides("ppo", settings))
        assert (plan.config.execute.executor, plan.config.execute.num_workers) == (executor, workers)


def test_the_layout_is_timed_on_the_class_that_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # F7: one lane of CartPole has another class than sixteen.
    made: list[type] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        env = make_env(*args, **kwargs)
        made.append(type(env))
        return env

    monkeypatch.setattr("elegantrl.runtime.layout.make_env", spy)
    config = resolve_config("ppo", "CartPole-v1", {"env": {"num_envs": 16}})[0]
    pick_layout(config, "CartPole-v1", 2)
    assert made == [type(make_env("CartPole-v1", 16))]


def test_environments_that_cannot_travel_stay_here() -> None:
    class Local(Waits):
        pass

    layout = picked("ppo", partial(Local, is_busy=True), 8, 2)
    assert layout.execute == INLINE and "cannot import" in layout.why
    assert picked("ppo", Waits(), 1, 2).execute == INLINE  # an instance is neither stepped nor closed


SCRIPT = """
from elegantrl.runtime.main_module import main_module_is_guarded

def answer():
    print(main_module_is_guarded())

{}
"""


GUARDED_THREAD = """
if __name__ == "__main__":
    import threading

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(
    ("statement", "guarded"),
    [
        ("answer()", False),
        ("if __name__ == '__main__':\n    answer()", True),
        ("if '__main__' == __name__: answer()", True),
        ("try:\n    if __name__ == '__main__':\n        (answer\n         ())\nfinally:\n    pass", True),
        ("answer()\nif __name__ == '__main__':\n    pass", False),  # the guard is around something else
        ("if __name__ != '__main__':\n    pass\nelse:\n    answer()", False),  # not recognised: stays in one process
        ("import threading\nthread = threading.Thread(target=answer)\nthread.start()\nthread.join()", False),
        (GUARDED_THREAD, True),
    ],
)  # fmt: skip
def test_a_script_says_whether_its_children_may_import_it(tmp_path: Path, statement: str, guarded: bool) -> None:
    # N6: children of a script without a guard would run it again.
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(statement))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{guarded}\n", done.stderr


def test_a_script_without_a_guard_gets_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elegantrl.runtime.layout.main_module_is_guarded", lambda: False)
    layout = picked("ppo", partial(Waits, is_busy=True), 8, 2)
    assert layout.execute == INLINE and 'need `if __name__ == "__main__":`' in layout.why
    monkeypatch.undo()
    assert picked("ppo", partial(Waits, is_busy=True), 8, 2).execute["executor"] == "process"


def test_groups_share_the_cores_where_a_fragment_takes_a_while() -> None:
    def layout(num_groups: int, horizon: int, num_cores: int = 2, agent: str = "ppo") -> Layout:
        settings = {"env": {"num_envs": 8, "num_groups": num_groups}, "agent": {"horizon": horizon}}
        config = resolve_config(agent, "Waits", settings)[0]
        return pick_layout(config, partial(Waits, seconds=1e-4, is_busy=True), num_cores)

    assert layout(2, 128).execute == {"executor": "process", "num_workers": 2, "core_helper": "off"}
    assert layout(4, 128, num_cores=3).execute == {"executor": "process", "num_workers": 2, "core_helper": "off"}
    assert layout(2, 128, num_cores=1).execute == INLINE
    assert layout(1, 128).execute == INLINE
    assert layout(2, 4).execute == INLINE
    assert layout(2, 128, agent="sac").execute["executor"] == "inline"


def test_tuned_groups_give_way_to_what_the_caller_says() -> None:
    def groups(*words: str) -> int:
        return configured("ppo", "Hopper-v5", [*words, "--executor", "inline"]).num_groups

    assert groups() == resolve_config("ppo", "Hopper-v5")[0].num_groups == 2
    assert groups("--num-envs", "5") == 1 and groups("--num-workers", "4") == 4
    assert groups("--num-envs", "6", "--num-groups", "3") == 3 and groups("--num-envs", "6", "--num-groups", "2") == 2
    assert groups("--num-envs", "6") == resolve_config("ppo", "Hopper-v5", {"env": {"num_envs": 6}})[0].num_groups == 2
    assert resolve_config("ppo", "Hopper-v5", {"env": {"num_envs": 5}})[0].num_groups == 1
    assert resolve_config("ppo", "Hopper-v5", {"execute": {"num_workers": 4}})[0].num_groups == 4


def test_groups_are_equal() -> None:
    assert [largest_divisor(12, limit) for limit in (1, 2, 5, 7, 100)] == [1, 2, 4, 6, 12]


def test_the_header_says_what_was_picked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "elegantrl.runtime.layout.pick_layout",
        lambda *_: Layout({"executor": "process", "num_workers": 4}, "a step takes 3.0 ms"),
    )
    plan = prepare("ppo", "CartPole-v1", {})
    assert plan.config.execute.num_workers == 4 and plan.notes.endswith("; a step takes 3.0 ms")
    # A setting of the layout decides it all.
    assert configured("ppo", "CartPole-v1", ["--executor", "inline"]).execute.num_workers == 1
    # A run that is resumed keeps its layout, whatever would be picked now.
    (tmp_path / "config.yaml").write_text(configured("ppo", "CartPole-v1", ["--num-workers", "2"]).to_yaml())
    resumed = prepare("ppo", "CartPole-v1", {}, resumed=tmp_path)
    assert resumed.config.execute.num_workers == 2 and resumed.notes.endswith("in the layout it had")


@pytest.mark.slow  # runs in all layouts one after the other
def test_bench_compares_layouts(cli: Callable[..., Any]) -> None:
    outcome = cli("bench", "ppo", "TensorCartPole", "--num-envs", 2, "--seconds", 1)
    assert outcome.code == 0
    assert "--executor process --num-workers 2 --max-lag 1" in " ".join(outcome.out.split())
    assert "fastest: elegantrl train ppo TensorCartPole --executor" in outcome.out


def test_bench_tries_what_the_machine_allows() -> None:
    config = resolve_config("ppo", "CartPole-v1", {"env": {"num_envs": 6}})[0]
    assert [layout.execute.get("num_workers") for layout in bench.candidates(config, 4)] == [
        None, None, 1, 1, 3, 3, 6, 6,
    ]  # fmt: skip
    assert len(list(bench.candidates(config, 1))) == 5  # without a second core no threads

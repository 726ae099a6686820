"""Callbacks: what they see, that they stop a run, that they change nothing, and what an error in one does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import elegantrl
from elegantrl.errors import CallbackFailed, ConfigError
from elegantrl.runtime.callback import Callback, Event, make_callbacks
from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
SMALL: dict[str, Any] = {
    "hidden": [8],
    "horizon": 8,
    "max_steps": 64,
    "target_return": math.inf,
    "eval": {"interval": 32, "episodes": 2, "max_episode_steps": 20},
    "checkpoint": {"interval": 32},
    "executor": "inline",
    "verbose": False,
}


class Recorder(Callback):
    """Keeps every event, and uses the random numbers of the whole process."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.losses: list[float] = []

    def note(self, event: Event) -> None:
        self.events.append(event)
        torch.rand(3)

    on_start = on_step = on_log = on_evaluation = on_commit = on_end = note

    def on_update(self, event: Event) -> None:
        self.note(event)
        self.losses.append(event.metrics["loss/policy"])

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


def test_a_callback_sees_every_event_of_a_run(run_quietly: Run, tmp_path: Path) -> None:
    seen = Recorder()
    result = run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", callback=seen, **SMALL)
    kinds = [event.kind for event in seen.events]
    assert kinds[:3] == ["start", "step", "update"] and kinds[-1] == "end"
    assert [event.env_steps for event in seen.of("step")] == list(range(8, 65, 8))
    assert [event.env_steps for event in seen.of("update")] == list(range(8, 65, 8))
    assert len(seen.losses) == 8 and all(map(math.isfinite, seen.losses))
    assert [event.evaluated_step for event in seen.of("evaluation")] == [32, 64]
    assert all(len(event.returns) >= 2 for event in seen.of("evaluation"))
    ended = [value for event in seen.of("step") for value in event.returns]
    assert len(ended) == result.summary["episodes"] > 0
    assert [event.commit for event in seen.of("commit")] == [
        tmp_path / f"run/commits/c-{step:012d}" for step in (32, 64)
    ]
    assert all(event.commit is not None and (event.commit / "manifest.json").exists() for event in seen.of("commit"))
    end = seen.events[-1]
    assert (end.stop_reason, end.run_dir, end.config.agent_name) == ("max_steps", tmp_path / "run", "ppo")
    assert end.best_return == result.best_return and seen.of("evaluation")[0].best_return > -math.inf
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_a_callback_changes_no_number(
    run_quietly: Run, tmp_path: Path, agent: str, hash_state: Callable[..., str], load_commit: Callable[..., Any]
) -> None:
    settings = SMALL | ({"learning_starts": 8, "batch_size": 4} if agent == "dqn" else {})
    seen = Recorder()
    seen.on_update = seen.note  # type: ignore[method-assign]  # an object may have methods of its own
    run_quietly(agent, "TensorCartPole", run_dir=tmp_path / "with", callback=[seen, lambda event: None], **settings)
    run_quietly(agent, "TensorCartPole", run_dir=tmp_path / "without", **settings)
    assert seen.of("update")
    assert hash_state(load_commit(tmp_path / "with")) == hash_state(load_commit(tmp_path / "without"))


@pytest.mark.parametrize("kind", ["start", "step", "update", "evaluation", "commit"])
def test_any_event_may_stop_a_run(run_quietly: Run, tmp_path: Path, kind: str) -> None:
    class Stop(Callback):
        pass

    setattr(Stop, f"on_{kind}", lambda self, event: False)
    result = run_quietly(
        "ppo", "TensorCartPole", run_dir=tmp_path / "run", callback=Stop, **SMALL | {"max_steps": 10**6}
    )
    assert result.summary["stop_reason"] == "callback" and result.summary["env_steps"] < 200
    assert (tmp_path / "run" / "commits" / f"c-{result.summary['env_steps']:012d}").is_dir()


@pytest.mark.parametrize("kind", ["start", "step", "update", "evaluation", "commit", "end"])
def test_an_error_in_a_callback_stops_the_run_with_a_commit(run_quietly: Run, tmp_path: Path, kind: str) -> None:
    class Broken(Callback):
        pass

    def fail(self: Any, event: Event) -> None:
        raise KeyError("there is no key")

    setattr(Broken, f"on_{kind}", fail)
    seen = Recorder()
    with pytest.raises(
        CallbackFailed, match=rf"callback Broken failed in on_{kind} at step \d+: KeyError.*test_callback"
    ):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", callback=[seen, Broken()], **SMALL)
    end = seen.events[-1]
    # A commit is written in the background: the run may be complete before the callback is called.
    reasons = {"end": ["max_steps"], "commit": ["max_steps", "callback_error"]}.get(kind, ["callback_error"])
    assert end.kind == "end" and end.stop_reason in reasons
    assert (tmp_path / "run" / "commits" / f"c-{end.env_steps:012d}").is_dir()
    result = run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", resume=True, **SMALL)
    assert result.summary["env_steps"] == 64


def test_a_run_that_stopped_by_an_error_of_a_callback_loses_nothing(
    run_quietly: Run, tmp_path: Path, hash_state: Callable[..., str], load_commit: Callable[..., Any]
) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("too early")

    with pytest.raises(CallbackFailed, match="callback fail failed in on_evaluation"):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "a", callback=fail, **SMALL)
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "a", resume=True, **SMALL)
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "b", **SMALL)
    assert hash_state(load_commit(tmp_path / "a")) == hash_state(load_commit(tmp_path / "b"))


def test_a_run_that_fails_tells_its_callbacks(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elegantrl.runtime.supervisor.Supervisor.run", lambda self: 1 / 0)
    seen = Recorder()
    with pytest.raises(ZeroDivisionError):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", callback=seen, **SMALL)
    assert [event.kind for event in seen.events] == ["start", "end"] and seen.events[-1].stop_reason == "failed"


# ---- naming callbacks


class Once(Callback):
    made: int = 0

    def __init__(self) -> None:
        Once.made += 1

    def on_update(self, event: Event) -> bool:
        return False


class Demanding(Callback):
    def __init__(self, path: str) -> None:
        self.path = path


def test_callbacks_are_given_in_several_forms() -> None:
    once, function = Once(), lambda event: None
    assert make_callbacks(None) == [] and make_callbacks(once) == [once]
    made = make_callbacks([Once, f"{__name__}:Once", function])
    assert [type(one).__name__ for one in made] == ["Once", "Once", "FunctionCallback"]
    assert elegantrl.Callback is Callback and elegantrl.Event is Event


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (3, "is neither an elegantrl.Callback nor a function"),
        (dict, "is neither an elegantrl.Callback nor a function"),
        ("mine", "is no import path; write package.module:Name"),
        ("none_such:Name", "cannot be imported"),
        (Demanding, r"Demanding cannot be made without arguments .*path.*; give them defaults, or pass an object"),
    ],
)
def test_what_is_no_callback_is_refused(tmp_path: Path, run_quietly: Run, given: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", callback=given, **SMALL)
    assert not (tmp_path / "run").exists()


def test_the_command_line_names_callbacks_by_import_path(
    run_quietly: Run, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_hooks.py").write_text(
        "import elegantrl\n"
        "class Stop(elegantrl.Callback):\n"
        "    def on_update(self, event): return event.env_steps < 32\n"
        "class Bad(elegantrl.Callback):\n"
        "    def on_step(self, event): raise ValueError('no such thing')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    short = ["--max-steps", 10**6, "--executor", "inline", "--agent.horizon", 16, "--agent.hidden", 8]
    outcome = cli("train", "ppo", "TensorCartPole", "--run-dir", "a", "--callback", "my_hooks:Stop", *short)
    assert outcome.code == 0 and "callback" in outcome.out
    outcome = cli("train", "ppo", "TensorCartPole", "--run-dir", "b", "--callback", "my_hooks:Bad", *short)
    assert outcome.code == 3 and "the callback Bad failed in on_step" in outcome.sentence
    assert "the run has stopped with a commit" in outcome.sentence and any(Path("b/commits").glob("c-*"))
    outcome = cli("train", "--config", "a/config.yaml", "--run-dir", "c", "--callback", "my_hooks:Stop")
    assert outcome.code == 0 and "callback" in outcome.out

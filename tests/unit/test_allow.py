"""Settings that change when a run is resumed: what is allowed, what it does, and where it is recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elegantrl.agents.ppo import PPOConfig
from elegantrl.config.run import RunConfig
from elegantrl.errors import CheckpointError, ConfigError
from elegantrl.registry import agent_names, find_agent
from elegantrl.report.run_page import run_page
from elegantrl.report.runs import group_runs, read_run
from elegantrl.roles.learner import Learner
from elegantrl.runtime.changes import CHANGEABLE, changeable
from elegantrl.runtime.run import RunResult
from elegantrl.store.changes import Change, parse_changes, read_changes
from elegantrl.store.commits import Store
from elegantrl.store.runlog import read_metrics
from elegantrl.types import EnvSpec

Run = Callable[..., RunResult]
SMALL: dict[str, Any] = {
    "hidden": [8],
    "horizon": 8,
    "lr": 0.001,
    "target_return": math.inf,
    "eval": {"interval": 32, "episodes": 2, "max_episode_steps": 20},
    "executor": "inline",
    "verbose": False,
}


def test_an_allowed_change_takes_effect_and_is_recorded(run_quietly: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=32, **SMALL)
    allow = {"lr": 0.01, "batch_size": 16}
    result = run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=64, resume=True, allow=allow, **SMALL)
    changes = [Change(32, "agent.batch_size", "256", "16"), Change(32, "agent.lr", "0.001", "0.01")]
    assert read_changes(folder) == changes == parse_changes(result.summary["changes"])
    config = RunConfig.from_yaml((folder / "config.yaml").read_text())
    assert isinstance(config.agent, PPOConfig) and (config.agent.lr, config.agent.batch_size) == (0.01, 16)
    commit = Store(folder).latest_valid()
    assert commit is not None and parse_changes(commit.manifest["info"]["changes"]) == changes
    agent = commit.load("learner")["agent"]
    assert agent["modules"]["hypers.lr"] == pytest.approx(0.01)
    # The run has these settings now: a further resume needs nothing, and keeps the record.
    given = SMALL | allow
    result = run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=96, resume=True, **given)
    assert parse_changes(result.summary["changes"]) == read_changes(folder) == changes
    with pytest.raises(ConfigError, match=r"agent.lr is 0.01 there and 0.001 here.*, or --allow lr=0.001 to change it"):
        run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=128, resume=True, **SMALL)


def test_up_to_the_change_nothing_differs_and_without_one_a_resume_is_exact(
    run_quietly: Run, tmp_path: Path, hash_state: Callable[..., str], load_commit: Callable[..., Any]
) -> None:
    for name, allow in (("same", {"lr": 0.001}), ("other", {"lr": 0.01})):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / name, max_steps=32, **SMALL)
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / name, max_steps=64, resume=True, allow=allow, **SMALL)
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "whole", max_steps=64, **SMALL)
    whole = hash_state(load_commit(tmp_path / "whole"))
    assert hash_state(load_commit(tmp_path / "same")) == whole and not read_changes(tmp_path / "same")
    assert hash_state(load_commit(tmp_path / "other")) != whole


def test_a_learner_goes_on_with_its_own_hyper_parameters(make_spec: Callable[..., EnvSpec]) -> None:
    config = PPOConfig(lr=1e-3, gamma=0.9, lr_schedule="linear", schedule_steps=100, hidden=(4,))
    before = Learner("ppo", config, make_spec("discrete"), torch.device("cpu"), seed=0)
    state = before.state_dict() | {"env_steps": 25}
    after = Learner("ppo", replace(config, lr=2e-3, gamma=0.8), make_spec("discrete"), torch.device("cpu"), seed=0)
    after.load_state_dict(state)
    assert float(after.agent.hypers.gamma) == pytest.approx(0.8)
    rates = [float(step.lr) for step in after.agent.grad_steps().values()]
    assert rates == pytest.approx([2e-3 * 0.75] * len(rates)) and rates  # a quarter of the schedule has passed


def test_a_change_survives_a_stop_before_the_next_commit(run_quietly: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=32, **SMALL)
    for _ in range(2):  # nothing is left to do, so there is no other commit
        run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=32, resume=True, allow={"lr": 0.01}, **SMALL)
    result = run_quietly("ppo", "TensorCartPole", run_dir=folder, max_steps=64, resume=True, **SMALL | {"lr": 0.01})
    assert read_changes(folder) == [Change(32, "agent.lr", "0.001", "0.01")]
    assert len([row for row in read_metrics(folder) if row.get("kind") == "change"]) == 1
    assert parse_changes(result.summary["changes"]) == read_changes(folder)


@pytest.mark.parametrize(
    ("allow", "match"),
    [
        ({"hidden": [16]}, r"agent.hidden cannot change while a run continues.*these can: .*gamma, .*lr, "),
        ({"num_envs": 4}, "there is no setting agent.num_envs"),
        ({"learning_rate": 1.0}, r"there is no setting agent.learning_rate; .*lr"),
        ({"lr": -1.0}, r"agent.lr=-1.0 is out of range"),
        ({"lr": "fast"}, r"agent.lr='fast' is not a number"),
    ],
)
def test_what_cannot_change_is_one_sentence(
    run_quietly: Run, tmp_path: Path, allow: dict[str, Any], match: str
) -> None:
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, max_steps=32, **SMALL)
    before = (tmp_path / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=match):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, max_steps=64, resume=True, allow=allow, **SMALL)
    assert (tmp_path / "config.yaml").read_text() == before


def test_a_new_run_has_nothing_to_allow(run_quietly: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--allow lr is for a run that is resumed; add --resume, or set agent.lr"):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", max_steps=32, allow={"lr": 0.01}, **SMALL)


def test_only_what_is_allowed_may_differ(run_quietly: Run, tmp_path: Path) -> None:
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, max_steps=32, **SMALL)
    given = SMALL | {"gamma": 0.9, "max_steps": 64, "resume": True, "run_dir": tmp_path}
    with pytest.raises(ConfigError, match=r"agent.gamma is 0.99 there and 0.9 here"):
        run_quietly("ppo", "TensorCartPole", allow={"lr": 0.01}, **given)


def test_commits_of_other_settings_are_not_continued(run_quietly: Run, tmp_path: Path) -> None:
    """A config file that was exchanged does not make a commit fit: neither another seed nor other networks."""
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, max_steps=32, **SMALL)
    for other in ({"seed": 1}, {"gae_lambda": 0.5, "activation": "tanh"}):
        config = RunConfig.from_yaml((tmp_path / "config.yaml").read_text())
        agent = replace(config.agent, **{name: value for name, value in other.items() if name != "seed"})
        config = replace(config, agent=agent, train=replace(config.train, seed=other.get("seed", 0)))
        (tmp_path / "config.yaml").write_text(config.to_yaml())
        with pytest.raises(CheckpointError, match="it belongs to another config"):
            run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, max_steps=64, resume=True, **SMALL | other)


def test_every_agent_can_change_its_learning_rate() -> None:
    for name in agent_names():
        names = changeable(find_agent(name).config())
        assert "lr" in names and "gamma" in names and not {"hidden", "horizon", "buffer_size", "n_step"} & {*names}
    known = {f for name in agent_names() for f in find_agent(name).config.__dataclass_fields__}
    assert known >= CHANGEABLE


def test_eval_and_report_show_changes(
    run_quietly: Run, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["--executor", "inline", "--target-return", "inf", "--agent.horizon", 16, "--eval.episodes", 2]
    train = ["train", "ppo", "TensorCartPole", "--run-dir", tmp_path / "run", *short]
    assert cli(*train, "--max-steps", 32).code == 0
    assert "is not name=value" in cli(*train, "--resume", "--allow", "lr").sentence
    outcome = cli(*train, "--max-steps", 64, "--resume", "--allow", "lr=1e-4", "clip=0.1")
    assert outcome.code == 0 and "agent.lr changed from" in outcome.out, outcome.err
    shown = cli("eval", tmp_path / "run", "--episodes", 1).out
    assert "agent.clip changed from 0.2 to 0.1 at step" in shown and "not bit for bit" in shown
    found = json.loads(cli("eval", tmp_path / "run", "--episodes", 1, "--json").out)["changes"]
    assert [change["setting"] for change in found[str(tmp_path / "run")]] == ["agent.clip", "agent.lr"]
    (table,) = run_page(tmp_path / "run").tables
    assert [(row[2], row[4]) for row in table.rows] == [("agent.clip", "0.1"), ("agent.lr", "0.0001")]
    run = read_run(tmp_path / "run")
    other = replace(run, name="other", changes=(), settings={k: v for k, v in run.settings.items() if k[:4] != "run."})
    assert len(group_runs([run, other])) == 2  # curves with a change in them are not pooled with others

"""``elegantrl.train`` as Python callers use it: what it shows, takes, refuses and starts from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import elegantrl
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.config.fields import used_fields
from elegantrl.config.resolve import env_name, resolve_config, split_overrides
from elegantrl.config.run import RunConfig
from elegantrl.errors import ConfigError
from elegantrl.registry import agent_names, check_importable, find_agent
from elegantrl.runtime.callback import Event
from elegantrl.runtime.train import prepare
from elegantrl.store.trained import TrainedPolicy

Run = Callable[..., elegantrl.RunResult]
SMALL: dict[str, Any] = {"executor": "inline", "hidden": (8,), "horizon": 16, "max_steps": 64, "verbose": False}
SMALL |= {"eval": {"interval": 10**6, "episodes": 1, "max_episode_steps": 20}}


class AgentMine(AgentPPO):
    """PPO under another name."""

    config: PPOConfig


class Longer(gym.Wrapper[Any, Any, Any, Any]):
    """A CartPole that counts how often one was made."""

    made: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, **kwargs: Any):
        Longer.made.append(kwargs)
        super().__init__(gym.make("CartPole-v1"))


# ---- what is shown


def test_progress_is_printed_unless_silenced(run_quietly: Run, tmp_path: Path, capsys: Any) -> None:
    # N2: Python printed nothing.
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "shown", **(SMALL | {"verbose": True}))
    out = capsys.readouterr().out
    assert out.startswith("ppo on TensorCartPole, seed 0, 1 environment in this process") and "best return" in out
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "silent", **SMALL)
    assert capsys.readouterr().out == ""


def test_a_callback_follows_a_run_and_stops_it(run_quietly: Run, tmp_path: Path) -> None:
    # N16
    events: list[Event] = []

    def callback(event: Event) -> bool:
        events.append(event)
        return event.kind != "evaluation"

    settings = SMALL | {"max_steps": 10**6, "eval": {"interval": 32, "episodes": 2, "max_episode_steps": 20}}
    result = run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", callback=callback, **settings)
    assert result.summary["stop_reason"] == "callback" and result.summary["env_steps"] < 1000
    event = next(event for event in events if event.kind == "evaluation")
    assert event.run_dir == tmp_path / "run" and event.env_steps >= 32 and event.is_best and len(event.returns) >= 2


# ---- environments


def test_environments_take_keyword_arguments(run_quietly: Run, tmp_path: Path) -> None:
    # N9
    Longer.made.clear()
    run_quietly("ppo", Longer, run_dir=tmp_path / "run", env_kwargs={"size": 3}, **SMALL)
    assert Longer.made and all(kwargs == {"size": 3} for kwargs in Longer.made)


def test_evaluation_may_have_an_environment_of_its_own(run_quietly: Run, tmp_path: Path) -> None:
    Longer.made.clear()
    evaluated = SMALL | {"eval": SMALL["eval"] | {"env_kwargs": {"size": 4}}}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "a", eval_env=Longer, **evaluated)
    assert Longer.made == [{"size": 4}]
    config = RunConfig.from_yaml((tmp_path / "a/config.yaml").read_text())
    assert config.eval.env_id == f"{__name__}:Longer" and config.env.kwargs == {}
    Longer.made.clear()
    run_quietly("ppo", Longer, run_dir=tmp_path / "b", env_kwargs={"a": 1}, **evaluated)
    assert Longer.made[-1] == {"a": 1, "size": 4}


def test_what_cannot_be_imported_again_has_a_readable_name(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # N9: folders were called ppo___main__-<lambda>, and evaluate failed in an import.
    class Local(Longer):
        pass

    assert env_name(lambda: None) == "<lambda>" and env_name(Local) == "<Local>"
    assert env_name(partial(Longer, a=1)) == f"{__name__}:Longer"
    monkeypatch.chdir(tmp_path)
    result = run_quietly("ppo", lambda: gym.make("CartPole-v1"), **SMALL)
    assert result.run_dir.name == "ppo_lambda_seed0"
    policy = TrainedPolicy.load(result.run_dir)
    with pytest.raises(ConfigError, match="was a Python object; pass env= to evaluate"):
        policy.evaluate(1)
    assert len(policy.evaluate(1, env="CartPole-v1").returns) == 1


# ---- agents of one's own


def test_an_agent_is_a_name_a_class_or_an_import_path() -> None:
    # N13
    path = f"{__name__}:AgentMine"
    for agent in (AgentMine, path):
        entry = find_agent(agent)
        assert (entry.name, entry.agent, entry.config) == (path, AgentMine, PPOConfig)
    assert find_agent(AgentPPO).name == "ppo"
    with pytest.raises(ConfigError, match="is no agent"):
        find_agent("os:getcwd")
    with pytest.raises(ConfigError, match="cannot be imported"):
        find_agent("no_such_module:Agent")


def test_a_run_of_ones_own_agent_is_evaluated_without_importing_it(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # N13, R1
    run_quietly(AgentMine, "TensorCartPole", run_dir=tmp_path / "run", clip=0.3, **SMALL)
    text = (tmp_path / "run/config.yaml").read_text().replace(__name__, "not_here")
    (tmp_path / "run/config.yaml").write_text(text)
    policy = TrainedPolicy.load(tmp_path / "run")
    assert policy.config.agent_name == "not_here:AgentMine" and len(policy.evaluate(2).returns) == 2


REGISTERED_IN_MAIN = """
import elegantrl
from elegantrl.agents.ppo import AgentPPO, PPOConfig

class Mine(AgentPPO):
    pass

if __name__ == "__main__":
    elegantrl.register_agent("mine", Mine, PPOConfig)
    elegantrl.train("mine", "TensorCartPole", run_dir="run", num_learners=1, max_steps=64, horizon=16, num_envs=2,
                    batch_size=16, hidden=(8,), eval={"interval": 10**6, "episodes": 1, "max_episode_steps": 20})
"""


def test_an_agent_registered_under_main_learns_in_a_process(tmp_path: Path) -> None:
    # F8: the child looked the name up in its own registry.
    (tmp_path / "script.py").write_text(REGISTERED_IN_MAIN)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "run/summary.json").exists()


def test_an_agent_that_other_processes_cannot_import_is_refused() -> None:
    # F8
    class Local(AgentMine):
        pass

    with pytest.raises(ConfigError, match=r"Local is defined inside a function.*num_learners=0"):
        check_importable(find_agent(Local))
    with pytest.raises(ConfigError, match="inside a function"):
        prepare(Local, "TensorCartPole", {"execute": {"num_learners": 1}})


# ---- warm start


def test_a_run_starts_with_the_networks_of_another(run_quietly: Run, load_commit: Any, tmp_path: Path) -> None:
    # N16
    first = SMALL | {"normalize_obs": True, "seed": 1}
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "first", **first)
    learned = load_commit(tmp_path / "first")["learner"]["agent"]["modules"]
    second = first | {"init_from": str(tmp_path / "first"), "lr": 1e-9, "clip": 0.3, "seed": 2, "max_steps": 16}
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "second", **second)
    found = load_commit(tmp_path / "second")["learner"]["agent"]
    weights = [name for name in learned if name.endswith("weight")]
    assert weights and all(torch.allclose(found["modules"][name], learned[name], atol=1e-6) for name in weights)
    assert found["modules"]["hypers.clip"] == pytest.approx(0.3)  # the settings are those of the new run
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "second", resume=True, **(second | {"max_steps": 32}))
    for change, sentence in (
        ({"hidden": (9,)}, r"has shape .* use the same agent\.hidden"),
        ({"normalize_obs": False}, "this run has no policy.norm"),
        ({"init_from": str(tmp_path / "nowhere")}, "is no run folder with a commit"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "third", **(second | change))
    assert not (tmp_path / "third").exists()


# ---- settings without effect


@pytest.mark.parametrize(
    ("agent", "setting", "sentence"),
    [
        ("discrete_sac", {"target_entropy_per_dim": -2.0}, "no setting target_entropy_per_dim"),
        ("discrete_sac", {"warm_up_hold": 3}, "no setting warm_up_hold"),
        ("mod_sac", {"actor_interval": 3}, "no setting actor_interval"),
        ("sac", {"priority_alpha": 0.7}, r"agent\.priority_alpha=0\.7 has no effect without agent\.prioritized"),
        ("sac", {"subset_size": 1}, r"without agent\.target_critics=subset"),
        ("ppo", {"h_length": 3}, r"without agent\.h_term"),
        ("ppo", {"schedule_steps": 5}, r"without agent\.lr_schedule=linear or agent\.entropy_schedule=linear"),
        ("ppo", {"entropy_schedule": "linear"}, r"without agent\.entropy_coef"),
        ("ddpg", {"smooth_clip": 0.1}, r"without agent\.smooth_std"),
    ],
)
def test_a_setting_without_effect_is_refused(agent: str, setting: dict[str, Any], sentence: str) -> None:
    # F6
    with pytest.raises(ConfigError, match=sentence):
        resolve_config(agent, "Nowhere-v0", split_overrides(agent, setting))


def test_a_setting_of_continuous_actions_is_refused_with_others(run_quietly: Any, tmp_path: Path) -> None:
    # F6
    with pytest.raises(ConfigError, match=r"agent\.log_std_init=-1\.0 has no effect on discrete actions, only on cont"):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", log_std_init=-1.0, max_steps=10)
    assert not (tmp_path / "run").exists()


def test_a_setting_with_effect_is_not() -> None:
    resolve_config("sac", "Nowhere-v0", {"agent": {"priority_alpha": 0.7, "prioritized": True}})
    resolve_config(
        "ppo", "Pendulum-v1", {"agent": {"lr_schedule": "constant"}}
    )  # its schedule_steps are not the caller's
    old = resolve_config("mod_sac", "Nowhere-v0")[0].to_dict()
    old["agent"]["actor_interval"] = 1  # in files of other versions, at its default
    assert RunConfig.from_dict(old).agent_name == "mod_sac"


def test_a_learning_rate_that_ends_before_the_run_is_refused() -> None:
    # C5
    with pytest.raises(
        ConfigError, match=r"reaches 0 after agent\.schedule_steps=200000 .* --agent\.schedule-steps 300000"
    ):
        resolve_config("ppo", "Pendulum-v1", {"train": {"max_steps": 300_000}})
    resolve_config("ppo", "Pendulum-v1", {"train": {"max_steps": 300_000}, "agent": {"schedule_steps": 300_000}})


# ---- names


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("learning_rate", "'lr'"),
        ("learnin_rate", "'lr'"),
        ("total_timesteps", "'max_steps'"),
        ("n_envs", "'num_envs'"),
        ("clip_range", "'clip'"),
        ("eval_freq", "'eval.interval'"),
        ("interval", "'checkpoint.interval' or 'eval.interval'"),
        ("gama", "'gamma'"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(name: str, ours: str) -> None:
    # N15
    with pytest.raises(ConfigError, match=f"there is no setting {name}; did you mean {ours}"):
        split_overrides("ppo", {name: 1})


@pytest.mark.parametrize("agent", agent_names())
def test_every_condition_names_a_setting(agent: str) -> None:
    kind = find_agent(agent).config
    names = {f.name for f in used_fields(kind)}
    for f in used_fields(kind):
        needed = f.metadata.get("only_with", {})
        assert not needed or needed.keys() & names, f.name

"""Settings: round trips, unknown names, limits, types, and what belongs to a run's identity."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import yaml

from elegantrl.agents.base import AgentConfig
from elegantrl.agents.dqn import DQNConfig
from elegantrl.agents.ppo import PPOConfig
from elegantrl.config.fields import Section, used_fields
from elegantrl.config.recipes import find_recipe, tuned_environments
from elegantrl.config.resolve import resolve_config, split_overrides
from elegantrl.config.run import SECTIONS, EnvConfig, EvalConfig, RunConfig, TrainConfig, build_section
from elegantrl.errors import ConfigError, did_you_mean
from elegantrl.registry import agent_names, find_agent


def config_of(agent: str, **changes: Any) -> RunConfig:
    entry = find_agent(agent)
    return RunConfig(agent_name=agent, agent=entry.default_config(), env=EnvConfig(id="CartPole-v1"), **changes)


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 + 0.013
    if isinstance(value, tuple):
        return (*value, 3)
    return {
        "constant": "linear",
        "none": "gru",
        "gru": "lstm",
        "relu": "tanh",
        "default": "orthogonal",
        "orthogonal": "default",
        "min": "mean",
        "subset": "mean",
        "gaussian": "ou",
        "mlp": "elegantrl.nets.networks:linear_layers",
        "auto": "flat",
        "advantage": "reward",
        "rollout": "minibatch",
        None: 0.25,
    }[value]


@pytest.mark.parametrize("agent", agent_names())
def test_yaml_round_trip(agent: str) -> None:
    config = config_of(agent)
    assert RunConfig.from_yaml(config.to_yaml()) == config
    fields = used_fields(config.agent)
    other = dataclasses.replace(config.agent, **{f.name: changed(getattr(config.agent, f.name)) for f in fields})
    different = dataclasses.replace(
        config,
        agent=other,
        env=EnvConfig(id="a:b", num_envs=7, kwargs={"x": [1, 2.5, "y"], "z": None}),
        train=TrainConfig(seed=5, max_seconds=1.5, target_return=-math.inf, patience=2),
    )
    again = RunConfig.from_yaml(different.to_yaml())
    assert again == different != config
    assert again.hash() == different.hash() != config.hash()
    assert isinstance(again.agent, find_agent(agent).config) and isinstance(again.agent.hidden, tuple)


def test_yaml_is_plain_and_readable() -> None:
    data = yaml.safe_load(config_of("ppo").to_yaml())
    assert list(data) == ["agent", *SECTIONS]
    assert data["agent"]["name"] == "ppo" and data["agent"]["hidden"] == [64, 64]


def test_numbers_as_yaml_reads_them() -> None:
    text = "agent: {name: ppo, lr: 3e-4, max_grad_norm: 1}\nenv: {id: CartPole-v1}\ntrain: {max_steps: 2.0e+5}"
    config = RunConfig.from_yaml(text)
    assert config.agent.lr == 3e-4 and config.train.max_steps == 200_000
    assert isinstance(config.train.max_steps, int) and isinstance(config.agent.max_grad_norm, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent: {name: ppo, clip_ratio: 0.2}\nenv: {id: x}", r"no setting agent.clip_ratio; "),
        ("agent: {name: ppo, gama: 0.2}\nenv: {id: x}", r"no setting agent.gama; did you mean 'gamma'"),
        ("agent: {name: poo}\nenv: {id: x}", r"no agent 'poo'; did you mean 'ppo'"),
        ("agent: {name: ppo}\nenv: {id: x, num_env: 3}", r"no setting env.num_env; did you mean 'num_envs'"),
        ("agent: {name: ppo}\nenv: {id: x}\ntrian: {}", r"no setting trian; did you mean 'train'"),
        ("agent: {name: ppo}\nenv: {}", r"env.id is missing"),
        ("agent: {name: ppo}", r"env.id is missing"),
        ("env: {id: x}", r"agent must be a mapping"),
        ("agent: {name: ppo, lr: fast}\nenv: {id: x}", r"agent.lr='fast' is not a number"),
        ("agent: {name: ppo, horizon: 1.5}\nenv: {id: x}", r"agent.horizon=1.5 is not a whole number"),
        ("agent: {name: ppo, horizon: true}\nenv: {id: x}", r"agent.horizon=True is not a whole number"),
        ("agent: {name: ppo, vtrace: 1}\nenv: {id: x}", r"agent.vtrace=1 is not true or false"),
        (
            "agent: {name: ppo, activation: sigmoid}\nenv: {id: x}",
            r"agent.activation='sigmoid' is not one of relu, tanh",
        ),
        (
            "agent: {name: ppo, gamma: 1.5}\nenv: {id: x}",
            r"agent.gamma=1.5 is out of range: it must be >= 0.0 and <= 1",
        ),
        (
            "agent: {name: ppo, hidden: [64, 0]}\nenv: {id: x}",
            r"agent.hidden=\(64, 0\) is out of range: it must be >= 1",
        ),
        ("agent: [1, 2]", r"agent must be a mapping"),
        ("just text", r"the config must be a mapping"),
        ("a: [", r"the config is not YAML"),
    ],
)
def test_every_mistake_has_its_sentence(text: str, message: str) -> None:
    # Guards against: K1, a misspelt setting that is silently ignored.
    with pytest.raises(ConfigError, match=message) as caught:
        RunConfig.from_yaml(text)
    assert "\n" not in str(caught.value)


def limited_fields() -> list[Any]:
    kinds: dict[str, type[Section]] = {**SECTIONS, **{name: find_agent(name).config for name in agent_names()}}
    return [
        pytest.param(kind, f, id=f"{name}.{f.name}")
        for name, kind in kinds.items()
        for f in dataclasses.fields(kind)
        if "limits" in f.metadata
    ]


def build_with(kind: type[Section], name: str, value: Any) -> Section:
    # The smallest companions, so that a setting meets its own limit and not another one.
    companions = {"batch_size": 1, "subset_size": 1}
    needed = {n: v for n, v in companions.items() if n in {f.name for f in dataclasses.fields(kind)}}
    return kind(**{**({"id": "x"} if kind is EnvConfig else {}), **needed, name: value})


@pytest.mark.parametrize(("kind", "f"), limited_fields())
def test_each_limit(kind: type[Section], f: Any) -> None:
    ge, gt, le, lt = f.metadata["limits"]
    many = isinstance(f.default, tuple)

    def accepts(value: float) -> bool:
        try:
            build_with(kind, f.name, (value,) if many else value)
        except ConfigError as error:
            assert f"{kind.section}.{f.name}=" in str(error) and "out of range" in str(error)
            return False
        return True

    if ge is not None:
        assert accepts(ge) and not accepts(ge - 1) and not accepts(math.nextafter(ge, -math.inf))
    if gt is not None:
        assert not accepts(gt) and not accepts(gt - 1) and accepts(math.nextafter(gt, math.inf))
    if le is not None:
        assert accepts(le) and not accepts(le + 1)
    if lt is not None:
        assert not accepts(lt)
    assert not accepts(math.nan) and not accepts(True)
    assert any(limit is not None for limit in (ge, gt, le, lt))


@pytest.mark.parametrize("agent", agent_names())
def test_tunable_ranges_lie_within_the_limits_and_hold_the_default(agent: str) -> None:
    kind = find_agent(agent).config
    names = []
    for f in dataclasses.fields(kind):
        if "tunable" in f.metadata:
            low, high, scale = f.metadata["tunable"]
            names.append(f.name)
            assert low <= f.default <= high, f.name
            assert scale in ("log", "linear") and (scale == "linear" or low > 0)
            for value in (low, high):
                kind(**{f.name: value})
    assert {"gamma", "lr"} <= set(names)


def test_settings_are_frozen_and_by_keyword() -> None:
    config = PPOConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        PPOConfig(0.9)  # type: ignore[misc]
    with pytest.raises(TypeError, match="clip_ratio"):
        PPOConfig(clip_ratio=0.1)  # type: ignore[call-arg]


def test_identity_ignores_when_to_stop_and_where_to_write() -> None:
    one = config_of("ppo")
    for section, changes in {
        "train": {"max_steps": 7, "max_seconds": 1.0, "target_return": 3.0, "patience": 4},
        "eval": {"interval": 3, "episodes": 2},
        "checkpoint": {"interval": 3, "keep": 5},
    }.items():
        other = dataclasses.replace(one, **{section: dataclasses.replace(getattr(one, section), **changes)})
        assert other.hash() == one.hash(), section
        assert set(changes) <= {f.name for f in dataclasses.fields(getattr(one, section))}


@pytest.mark.parametrize("agent", agent_names())
def test_identity_covers_everything_else(agent: str) -> None:
    one = config_of(agent)
    for f in used_fields(one.agent):
        change = {f.name: changed(getattr(one.agent, f.name))}
        assert dataclasses.replace(one, agent=dataclasses.replace(one.agent, **change)).hash() != one.hash(), f.name
    for train in (TrainConfig(seed=1), TrainConfig(device="cuda"), TrainConfig(num_threads=2)):
        assert dataclasses.replace(one, train=train).hash() != one.hash()
    for env in (
        EnvConfig(id="x"),
        EnvConfig(id="CartPole-v1", num_envs=2),
        EnvConfig(id="CartPole-v1", kwargs={"a": 1}),
    ):
        assert dataclasses.replace(one, env=env).hash() != one.hash()


def test_identity_survives_a_round_trip_of_whole_numbers() -> None:
    """A run whose config was built in Python must recognise its own folder."""
    agent = PPOConfig(max_grad_norm=1, reward_scale=2)
    config = RunConfig(agent_name="ppo", agent=agent, env=EnvConfig(id="CartPole-v1"))
    assert RunConfig.from_yaml(config.to_yaml()).hash() == config.hash()


def test_identity_survives_a_round_trip_of_tuples_in_environment_arguments() -> None:
    config = config_of("ppo")
    config = dataclasses.replace(config, env=EnvConfig(id="x", kwargs={"size": (3, 4)}))
    assert RunConfig.from_yaml(config.to_yaml()).hash() == config.hash()


def test_resolution_order_is_default_recipe_override() -> None:
    config, recipe = resolve_config("ppo", "CartPole-v1")
    tuned = {name: part for name, part in find_recipe("ppo", "CartPole-v1").sections.items() if name != "source"}
    assert tuned and "tuned" in recipe.name
    for section, values in tuned.items():
        for name, value in values.items():
            assert getattr(getattr(config, section), name) == value
    assert config.agent.reward_scale == PPOConfig().reward_scale
    lr = tuned["agent"]["lr"] * 2
    overridden, _ = resolve_config("PPO", "CartPole-v1", {"agent": {"lr": lr}, "eval": {"episodes": 3}})
    assert (overridden.agent.lr, overridden.eval.episodes) == (lr, 3)
    assert overridden.agent_name == "ppo" and overridden.agent.gamma == config.agent.gamma


def test_an_environment_without_a_recipe_gets_the_general_settings() -> None:
    config, recipe = resolve_config("ppo", "Nowhere-v0")
    assert config.env.id == "Nowhere-v0" and isinstance(config.agent, PPOConfig)
    assert "tuned for" not in recipe.name


def test_a_family_of_environments_shares_a_recipe() -> None:
    pong, breakout = (resolve_config("ppo", env) for env in ("ALE/Pong-v5", "ALE/Breakout-v5"))
    assert pong[0].agent == breakout[0].agent and pong[0].agent.hidden == () and "ALE/*" in pong[1].name
    assert find_recipe("ppo", "CartPole-v1").name.startswith("tuned settings for this pair")


@pytest.mark.parametrize("agent", agent_names())
def test_every_recipe_builds(agent: str) -> None:
    for env in [*tuned_environments(agent), "Nowhere-v0"]:
        config, _ = resolve_config(agent, env)
        assert RunConfig.from_yaml(config.to_yaml()) == config


def test_flat_settings_find_their_section() -> None:
    overrides = split_overrides("ppo", {"seed": 1, "num_envs": 2, "lr": 0.1, "eval": {"episodes": 3}})
    assert overrides == {"train": {"seed": 1}, "env": {"num_envs": 2}, "agent": {"lr": 0.1}, "eval": {"episodes": 3}}
    with pytest.raises(ConfigError, match=r"no setting max_step; did you mean .*'max_steps'"):
        split_overrides("ppo", {"max_step": 1})
    with pytest.raises(ConfigError, match="no setting clip"):  # PPO's, not DQN's
        split_overrides("dqn", {"clip": 0.1})


def test_no_agent_setting_has_the_name_of_a_run_setting() -> None:
    """A flat name must mean one thing."""
    run_names = {f.name for f in dataclasses.fields(TrainConfig)} | {"num_envs", *SECTIONS, "name"}
    for agent in agent_names():
        assert not run_names & {f.name for f in dataclasses.fields(find_agent(agent).config)}, agent


def test_a_missing_value_is_none_and_a_limit_does_not_mind() -> None:
    assert build_section(TrainConfig, {"max_seconds": None}).max_seconds is None
    assert build_section(EvalConfig, {}).episodes == EvalConfig().episodes


def test_suggestions() -> None:
    assert did_you_mean("gama", ["gamma", "lr"]) == "did you mean 'gamma'?"
    assert did_you_mean("GAMMA", ["gamma", "lr"]) == "did you mean 'gamma'?"
    assert did_you_mean("zzz", ["gamma", "lr"]) == "known names: gamma, lr"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("max_step", "max_steps"), ("clip_ratio", "clip"), ("ratio_clip", "clip"), ("env_num", "num_envs")],
)
def test_the_nearest_name_is_suggested_first(name: str, nearest: str) -> None:
    known = [f.name for kind in (PPOConfig, TrainConfig, EnvConfig) for f in dataclasses.fields(kind)]
    assert did_you_mean(name, known).startswith(f"did you mean '{nearest}'")


def test_every_agent_config_is_documented() -> None:
    for agent in agent_names():
        kind = find_agent(agent).config
        assert issubclass(kind, AgentConfig) and kind.__doc__
    assert DQNConfig.section == "agent"


# ---- learners


def with_learners(num_learners: int, num_groups: int = 4, executor: str = "process", **agent: Any) -> RunConfig:
    return RunConfig.from_dict(
        {
            "agent": {"name": "ppo"} | agent,
            "env": {"id": "CartPole-v1", "num_envs": 12, "num_groups": num_groups},
            "execute": {"executor": executor, "num_learners": num_learners},
        }
    )


def test_several_learners_decide_the_numbers_and_one_does_not() -> None:
    before = with_learners(0, executor="inline").hash()
    assert before == with_learners(0).hash() == with_learners(1).hash()
    assert len({before, with_learners(2).hash(), with_learners(4).hash()}) == 3
    assert with_learners(2).identity()["execute"]["num_learners"] == 2
    assert RunConfig.from_yaml(with_learners(2).to_yaml()) == with_learners(2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"num_learners": 1, "executor": "inline"},
            r"execute\.num_learners=1 asks for processes; add --executor process",
        ),
        ({"num_learners": 3}, r"4 groups .* execute\.num_learners=3; use --num-groups 6"),
        ({"num_learners": 2, "batch_size": 25}, r"agent\.batch_size=25 cannot be .* among 2 learners; use 24 or 26"),
        ({"num_learners": 2, "name": "dqn", "batch_size": 1}, r"agent\.batch_size=1 cannot be .*; use 2$"),
    ],
)
def test_learners_that_do_not_work_out(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        with_learners(**settings)


def test_a_rollout_in_one_batch_needs_no_batch_size_that_divides() -> None:
    assert with_learners(3, 3, name="a2c").num_learners == 3
    assert with_learners(3, 3, batch_size=12 * 128 + 1).num_learners == 3


# ---- groups and workers


def with_layout(num_envs: int, num_groups: int | None, num_workers: int, executor: str = "process") -> RunConfig:
    return RunConfig.from_dict(
        {
            "agent": {"name": "ppo"},
            "env": {"id": "CartPole-v1", "num_envs": num_envs, "num_groups": num_groups},
            "execute": {"executor": executor, "num_workers": num_workers},
        }
    )


def test_groups_follow_the_workers_unless_told_otherwise() -> None:
    assert with_layout(8, None, 4).num_groups == 4 and with_layout(8, 8, 4).num_groups == 8


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ((6, 4, 1), r"env\.num_envs=6 cannot be divided equally among 4 groups; use --num-envs 8"),
        ((1, None, 2), r"env\.num_envs=1 cannot be divided equally among 2 groups; use --num-envs 2"),
        ((8, 2, 4), r"execute\.num_workers=4 is more than the 2 groups .*; use --num-workers 2"),
        (
            (8, 2, 1, "cluster"),
            r"execute\.executor='cluster' is unknown; .*auto, inline, process, ray \(or an",
        ),
    ],
)
def test_layouts_that_do_not_work_out(layout: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        with_layout(*layout)


def test_the_groups_decide_the_numbers_and_the_layout_does_not() -> None:
    config = with_layout(8, 4, 4)
    assert config.hash() == with_layout(8, 4, 1, "inline").hash() == with_layout(8, None, 4).hash()
    assert len({with_layout(8, groups, 1).hash() for groups in (1, 2, 4)}) == 3
    one_group = with_layout(8, 1, 1)
    assert one_group.identity()["env"]["num_groups"] == 1

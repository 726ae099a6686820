"""Every setting of every agent changes the run or is refused (F6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from torch import nn

from elegantrl.agents import h_term
from elegantrl.agents.base import AgentConfig
from elegantrl.config.fields import used_fields
from elegantrl.data import trajectories
from elegantrl.errors import ConfigError
from elegantrl.nets.networks import linear_layers
from elegantrl.registry import find_agent
from elegantrl.runtime.progress import Silent
from elegantrl.runtime.run import RunResult
from tests.names import SINGLE_AGENTS

Run = Callable[..., RunResult]

ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}
KINDS = {"ppo": ("discrete", "continuous"), "a2c": ("discrete", "continuous")}
KINDS |= dict.fromkeys(("discrete_sac", "dqn", "double_dqn", "dueling_dqn", "d3qn", "recurrent_dqn"), ("discrete",))
DEFAULT_SUITE = {("ppo", "discrete")}
"""The others take minutes."""
CASES = [
    pytest.param(agent, kind, marks=() if (agent, kind) in DEFAULT_SUITE else pytest.mark.slow)
    for agent in SINGLE_AGENTS
    for kind in KINDS.get(agent, ("continuous",))
]


def doubled(*args: Any, **kwargs: Any) -> nn.Module:
    """Layers of one's own: the usual ones with other parameters."""
    layers = linear_layers(*args, **kwargs)
    for parameter in layers.parameters():
        parameter.data *= 2
    return layers


VALUES: dict[str, Any] = {
    "batch_size": 8,
    "buffer_size": 64,
    "clip": 1e-4,
    "encoder": f"{__name__}:NoEncoder",
    "explore_steps": 10,
    "gae_lambda": 0.5,
    "h_ratio": 1e-4,
    "h_store": 16,
    "log_std_init": -1.0,
    "max_grad_norm": 0.01,
    "network": f"{__name__}:doubled",
    "reward_clip": 0.01,
    "schedule_steps": 2000,
    "target_critics": "mean",
    "target_kl": 1e-9,
    "tau": 0.5,
}
"""Values that are certain to matter within some hundred steps."""

MORE: dict[str, dict[str, Any]] = {
    "double": {"lr": 0.05},
    "h_ratio": {"h_store": 32, "h_select": "reward"},
    "smooth_clip": {"smooth_std": 1.0},
    "subset_size": {"num_critics": 3},
    "target_critics": {"num_critics": 3},
}
"""Other settings that a setting needs to matter within some hundred steps, besides those that its field names."""


def another_value(kind: type[AgentConfig], f: Field[Any], value: Any) -> Any:
    if f.name in VALUES:
        return VALUES[f.name]
    options = [option for option in get_args(get_type_hints(kind)[f.name]) if isinstance(option, str)]
    if options:
        return next(option for option in options if option != value)
    if isinstance(value, bool):
        return not value
    return {int: lambda: value + 1, float: lambda: value * 0.5 + 0.01, tuple: lambda: (*value, 3)}[type(value)]()


def needed_for(settings: dict[str, Field[Any]], name: str, default: AgentConfig) -> dict[str, Any]:
    """Other settings with values that give this one an effect."""
    for other, wanted in settings[name].metadata.get("only_with", {}).items():
        if other in settings:
            value = wanted[0] if isinstance(wanted, tuple) else wanted
            number = wanted is True and type(getattr(default, other)) is float
            return {other: 0.1 if number else value} | MORE.get(name, {})
    return MORE.get(name, {})


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("agent", "kind"), CASES)
def test_every_setting_changes_the_run_or_is_refused(
    agent: str,
    kind: str,
    run_quietly: Run,
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(trajectories, "MIN_STEPS", 16)
    monkeypatch.setattr(h_term, "EXPLAINED", -1e9)  # untrained values explain nothing
    kind_of_config, default = find_agent(agent).config, find_agent(agent).default_config()
    settings = {f.name: f for f in used_fields(kind_of_config)}
    small: dict[str, Any] = {"hidden": (8,), "num_envs": 2, "max_steps": 128, "executor": "inline", "horizon": 32}
    small |= {"batch_size": 16, "eval": {"interval": 10**6, "episodes": 1, "max_episode_steps": 1}}
    if "learning_starts" in settings:
        small |= {"horizon": 4, "learning_starts": 16, "buffer_size": 128}

    def outcome(changes: dict[str, Any]) -> str:
        if "linear" in (changes.get("lr_schedule"), changes.get("entropy_schedule")):
            changes = {"schedule_steps": 1000, **changes}
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        try:
            run_quietly(agent, ENVS[kind], run_dir=folder, display=Silent(), **{**small, **changes})
        except ConfigError:
            return "refused"
        return hash_state({part: state for part, state in load_commit(folder).items() if part != "evaluation"})

    plain: dict[str, str] = {}
    idle = set()
    for name, f in settings.items():
        needed = needed_for(settings, name, default)
        if repr(needed) not in plain:
            plain[repr(needed)] = outcome(needed)
            assert plain[repr(needed)] != "refused", needed
        value = another_value(kind_of_config, f, getattr(default, name))
        if outcome({**needed, name: value}) == plain[repr(needed)]:
            idle.add(name)
    assert idle == set()

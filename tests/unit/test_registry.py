"""Names of agents: lookup, suggestions, presets, third parties, and what a new agent inherits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import elegantrl
from elegantrl import registry
from elegantrl.agents.dqn import AgentDQN, DQNConfig
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.config.resolve import resolve_config
from elegantrl.config.run import RunConfig
from elegantrl.errors import ConfigError
from elegantrl.registry import agent_names, build_agent, find_agent, register_agent
from elegantrl.types import EnvSpec

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


class MyAgent(AgentPPO):
    """Has no word for its family in its name."""


@pytest.fixture(autouse=True)
def keep_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_AGENTS", dict(registry._AGENTS))
    yield


def test_names_are_found_in_any_case() -> None:
    assert {"a2c", "dqn", "ppo", "sac"} <= set(agent_names())
    assert find_agent("PPO").agent is AgentPPO and find_agent("ppo").name == "ppo"


@pytest.mark.parametrize(("name", "message"), [("pppo", "did you mean 'ppo'"), ("rainbow", "known names: a2c, d3qn")])
def test_an_unknown_name_is_answered_with_known_ones(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no agent '{name}'; {message}"):
        find_agent(name)


def test_a_subclass_of_ppo_is_on_policy_and_trains(
    run_quietly: Callable[..., elegantrl.RunResult], tmp_path: Path
) -> None:
    # Guards against: R10, a family told from the letters of a class name.
    assert MyAgent.memory == "rollout"
    register_agent("Mine", MyAgent, PPOConfig, "an example")
    result = run_quietly(
        "mine", "TensorCartPole", run_dir=tmp_path / "r", horizon=16, max_steps=32, hidden=[8],
        eval={"interval": 10**6, "episodes": 2},
    )  # fmt: skip
    assert result.summary["agent"] == "mine" and result.summary["updates"] > 0


def test_a_preset_is_part_of_a_name_and_can_be_overridden() -> None:
    register_agent("d3", AgentDQN, DQNConfig, "double and dueling", double=True, dueling=True)
    default = find_agent("d3").default_config()
    assert isinstance(default, DQNConfig) and default.double and default.dueling
    config, _ = resolve_config("d3", "TensorCartPole")
    assert config.agent == default
    other, _ = resolve_config("d3", "TensorCartPole", {"agent": {"dueling": False}})
    assert isinstance(other.agent, DQNConfig) and other.agent.double and not other.agent.dueling
    assert RunConfig.from_yaml(other.to_yaml()) == other


def test_a_preset_holds_in_a_config_file_that_gives_only_the_name() -> None:
    register_agent("d3", AgentDQN, DQNConfig, "double and dueling", double=True, dueling=True)
    config = RunConfig.from_yaml("agent: {name: d3}\nenv: {id: TensorCartPole}")
    assert config.agent == find_agent("d3").default_config()


@pytest.mark.parametrize("name", ["a2c", "dqn", "ppo", "sac"])
def test_initial_weights_depend_on_the_seed_alone(name: str, make_spec: MakeSpec) -> None:
    entry = find_agent(name)
    spec = make_spec("continuous" if name == "sac" else "discrete")

    def flat(seed: int) -> torch.Tensor:
        agent = build_agent(entry, spec, entry.default_config(), CPU, seed)
        return torch.cat([p.detach().reshape(-1) for p in agent.parameters()])

    torch.manual_seed(1)
    first = flat(0)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(flat(0), first)
    assert not torch.equal(flat(1), first)
    torch.manual_seed(1)
    flat(0)
    assert torch.equal(torch.get_rng_state(), state)  # the global stream is left as it was


def test_every_entry_has_a_summary_and_hot_functions() -> None:
    for name in agent_names():
        entry = find_agent(name)
        assert entry.summary
        assert entry.agent.memory in ("rollout", "replay", "fragments", "episodes")
        hot: tuple[Any, ...] = entry.agent.hot
        assert hot and all(callable(getattr(entry.agent, function)) for function in hot)

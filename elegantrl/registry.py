"""Names of agents. Third parties add theirs with ``register_agent`` or an entry point of group ``elegantrl.agents``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import torch

from .agents.a2c import A2CConfig, AgentA2C
from .agents.base import Agent, AgentConfig
from .agents.discrete_sac import AgentDiscreteSAC, DiscreteSACConfig
from .agents.dqn import AgentDQN, DQNConfig
from .agents.mod_sac import AgentModSAC, ModSACConfig
from .agents.ppo import AgentPPO, PPOConfig
from .agents.redq import AgentREDQ, REDQConfig
from .agents.sac import AgentSAC, SACConfig
from .agents.td3 import AgentDDPG, AgentTD3, DDPGConfig, TD3Config
from .errors import ConfigError, did_you_mean
from .rng import derive_seed
from .types import EnvSpec


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """What a name stands for: a class, its settings, and the settings that the name itself fixes."""

    name: str
    agent: type[Agent]
    config: type[AgentConfig]
    summary: str
    preset: dict[str, Any]

    def default_config(self) -> AgentConfig:
        return replace(self.config(), **self.preset)


_AGENTS: dict[str, AgentEntry] = {}


def register_agent(name: str, agent: type[Agent], config: type[AgentConfig], summary: str = "", **preset: Any) -> None:
    """Make ``elegantrl train NAME ...`` train ``agent`` with ``config``."""
    _AGENTS[name.lower()] = AgentEntry(name.lower(), agent, config, summary, preset)


@cache
def _load_third_parties() -> None:
    for point in entry_points(group="elegantrl.agents"):
        point.load()()


def agent_names() -> list[str]:
    _load_third_parties()
    return sorted(_AGENTS)


def find_agent(name: str) -> AgentEntry:
    """The entry called ``name``, or an error that suggests the nearest names."""
    _load_third_parties()
    entry = _AGENTS.get(name.lower())
    if entry is None:
        raise ConfigError(f"there is no agent {name!r}; {did_you_mean(name, _AGENTS)}")
    return entry


def build_agent(entry: AgentEntry, spec: EnvSpec, config: AgentConfig, device: torch.device, seed: int) -> Agent:
    """A fresh agent whose initial weights depend on ``seed`` alone."""
    # Layers draw their initial weights from torch's global stream: give them one of their own for a moment.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "init"))
        return entry.agent(spec, config, device, seed)


register_agent("a2c", AgentA2C, A2CConfig, "advantage actor-critic; on-policy; discrete and continuous actions")
register_agent("d3qn", AgentDQN, DQNConfig, "dueling double DQN", double=True, dueling=True)
register_agent("ddpg", AgentDDPG, DDPGConfig, "deep deterministic policy gradient; replay; continuous actions")
register_agent("discrete_sac", AgentDiscreteSAC, DiscreteSACConfig, "soft actor-critic; replay; discrete actions")
register_agent("double_dqn", AgentDQN, DQNConfig, "DQN whose online network picks the next action", double=True)
register_agent("dqn", AgentDQN, DQNConfig, "deep Q-learning; replay; discrete actions")
register_agent("dueling_dqn", AgentDQN, DQNConfig, "DQN with a state value and advantages", dueling=True)
register_agent("mod_sac", AgentModSAC, ModSACConfig, "SAC with an actor as frequent as its critics are reliable")
register_agent("ppo", AgentPPO, PPOConfig, "proximal policy optimisation; on-policy; discrete and continuous actions")
register_agent("redq", AgentREDQ, REDQConfig, "SAC with many critics and many updates per step; continuous actions")
register_agent("sac", AgentSAC, SACConfig, "soft actor-critic; replay; continuous actions")
register_agent("td3", AgentTD3, TD3Config, "twin delayed DDPG; replay; continuous actions")

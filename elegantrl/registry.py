"""Names of agents. An agent is found by its registered name or by its import path, ``module:Class``.

Other packages add theirs with ``register_agent`` from an entry point of group ``elegantrl.agents``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any, get_type_hints

import torch

from .agents.a2c import A2CConfig, AgentA2C
from .agents.base import Agent, AgentConfig
from .agents.discrete_sac import AgentDiscreteSAC, DiscreteSACConfig
from .agents.dqn import AgentDQN, DQNConfig
from .agents.mod_sac import AgentModSAC, ModSACConfig
from .agents.ppo import AgentPPO, PPOConfig
from .agents.recurrent_dqn import AgentRecurrentDQN, RecurrentDQNConfig
from .agents.redq import AgentREDQ, REDQConfig
from .agents.sac import AgentSAC, SACConfig
from .agents.td3 import AgentDDPG, AgentTD3, DDPGConfig, TD3Config
from .agents.team.maddpg import AgentMADDPG, AgentMATD3, MADDPGConfig, MATD3Config
from .agents.team.mappo import AgentMAPPO, MAPPOConfig
from .agents.team.qmix import AgentQMix, QMixConfig
from .agents.team.vdn import AgentVDN, VDNConfig
from .errors import ConfigError, did_you_mean
from .imports import find, is_import_path
from .rng import derive_seed
from .types import EnvSpec


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """A registered agent: its class, its settings, and the settings that its name fixes.

    A learner process is sent the entry instead of the name, because an agent that is registered in one process is
    unknown in another.
    """

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


def is_registered(name: str) -> bool:
    return name.lower() in agent_names()


def find_agent(agent: str | type[Agent] | AgentEntry) -> AgentEntry:
    """The entry of a registered name, of an import path ``module:Class``, or of a class."""
    if isinstance(agent, AgentEntry):
        return agent
    if isinstance(agent, type):
        return _entry_of_class(agent)
    _load_third_parties()
    entry = _AGENTS.get(agent.lower())
    if entry is not None:
        return entry
    if is_import_path(agent):
        return _entry_of_class(find(agent, {}, "agent"))
    raise ConfigError(f"there is no agent {agent!r}; {did_you_mean(agent, _AGENTS)}")


def _entry_of_class(agent: Any) -> AgentEntry:
    """An entry for a class that was not registered; the annotation ``config: MyConfig`` names its settings."""
    if not (isinstance(agent, type) and issubclass(agent, Agent)):
        raise ConfigError(f"{agent!r} is no agent; expected a subclass of elegantrl.agents.base.Agent")
    for entry in _AGENTS.values():
        if entry.agent is agent and not entry.preset:
            return entry
    config = get_type_hints(agent).get("config")
    if not (isinstance(config, type) and issubclass(config, AgentConfig)):
        raise ConfigError(f"{agent.__name__} does not say which settings it has; annotate it with `config: ItsConfig`")
    summary = (agent.__doc__ or "").strip().partition("\n")[0]
    return AgentEntry(f"{agent.__module__}:{agent.__qualname__}", agent, config, summary, {})


def check_importable(entry: AgentEntry) -> None:
    """Refuse to learn in another process with an agent that only this process knows."""
    module = sys.modules.get(entry.agent.__module__)
    if entry.agent.__module__ == "__main__" and not hasattr(module, "__file__"):
        where = "in a notebook or an interactive session"
    elif "<locals>" in entry.agent.__qualname__:
        where = "inside a function"
    else:
        return
    raise ConfigError(
        f"{entry.agent.__name__} is defined {where}, where learner processes cannot import it; move it to the top of a"
        f" module, or learn in this process with num_learners=0"
    )


def build_agent(entry: AgentEntry, spec: EnvSpec, config: AgentConfig, device: torch.device, seed: int) -> Agent:
    """A fresh agent whose initial weights depend on ``seed`` alone."""
    # Layers draw their initial weights from torch's global stream, which is replaced while they are built.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "init"))
        return entry.agent(spec, config, device, seed)


register_agent("a2c", AgentA2C, A2CConfig, "advantage actor-critic; on-policy; all kinds of actions")
register_agent("d3qn", AgentDQN, DQNConfig, "dueling double DQN", double=True, dueling=True)
register_agent("ddpg", AgentDDPG, DDPGConfig, "deep deterministic policy gradient; replay; continuous actions")
register_agent("discrete_sac", AgentDiscreteSAC, DiscreteSACConfig, "soft actor-critic; replay; discrete actions")
register_agent("double_dqn", AgentDQN, DQNConfig, "DQN whose online network picks the next action", double=True)
register_agent("dqn", AgentDQN, DQNConfig, "deep Q-learning; replay; discrete and multi-discrete actions")
register_agent("dueling_dqn", AgentDQN, DQNConfig, "DQN with a state value and advantages", dueling=True)
register_agent(
    "ippo",
    AgentMAPPO,
    MAPPOConfig,
    "PPO for each agent of a team; on-policy; all kinds of actions",
    central_value=False,
)
register_agent("mappo", AgentMAPPO, MAPPOConfig, "PPO for teams with a central value; on-policy; all kinds of actions")
register_agent(
    "maddpg", AgentMADDPG, MADDPGConfig,
    "DDPG for teams, each agent with a critic that sees all; replay; discrete and continuous actions",
)  # fmt: skip
register_agent(
    "matd3", AgentMATD3, MATD3Config,
    "TD3 for teams, each agent with twin critics that see all; replay; discrete and continuous actions",
)  # fmt: skip
register_agent(
    "mod_sac", AgentModSAC, ModSACConfig, "SAC that updates its actor less often while its critics are inaccurate"
)
register_agent("ppo", AgentPPO, PPOConfig, "proximal policy optimisation; on-policy; all kinds of actions")
register_agent(
    "qmix", AgentQMix, QMixConfig, "values of agents mixed monotonically; teams; replay of episodes; discrete actions"
)
register_agent("recurrent_dqn", AgentRecurrentDQN, RecurrentDQNConfig, "DQN with memory (R2D2); discrete actions")
register_agent("redq", AgentREDQ, REDQConfig, "SAC with many critics and many updates per step; continuous actions")
register_agent("sac", AgentSAC, SACConfig, "soft actor-critic; replay; continuous actions")
register_agent("td3", AgentTD3, TD3Config, "twin delayed DDPG; replay; continuous actions")
register_agent("vdn", AgentVDN, VDNConfig, "sum of the values of agents; teams; replay of episodes; discrete actions")

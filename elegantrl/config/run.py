"""The frozen description of a run: agent, environment, training, execution, evaluation, commits; YAML in and out.

``RunConfig`` is the single source for the command line, the run folder and the documents. Its identity contains the
settings that determine the numbers of a run, as its fields declare; stop conditions and paths are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from ..agents.base import AgentConfig
from ..agents.off_policy import ReplayConfig
from ..errors import ConfigError
from ..registry import find_agent, is_registered
from .fields import deciding_fields
from .names import check_names
from .per_learner import settings_per_learner
from .sections import SECTIONS, CheckpointConfig, EnvConfig, EvalConfig, ExecuteConfig, TrainConfig
from .structure import build_section, expect_mapping, plain_section
from .yaml_text import parse_yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that describes a run."""

    agent_name: str
    agent: AgentConfig
    env: EnvConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    execute: ExecuteConfig = field(default_factory=ExecuteConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        lanes, groups, workers = self.env.num_envs, self.num_groups, self.execute.num_workers
        if lanes % groups:
            raise ConfigError(
                f"env.num_envs={lanes} cannot be divided equally among {groups} groups;"
                f" use --num-envs {-(-lanes // groups) * groups} or another --num-groups"
            )
        if workers > groups:
            raise ConfigError(
                f"execute.num_workers={workers} is more than the {groups} groups of environments;"
                f" use --num-workers {groups} or more groups"
            )
        learners = self.num_learners
        if groups % learners:
            raise ConfigError(
                f"{groups} groups of environments cannot be divided equally among"
                f" execute.num_learners={learners}; use --num-groups {-(-groups // learners) * learners}"
                f" or another --num-learners"
            )
        settings_per_learner(self.agent, learners, self.agent.horizon * lanes)
        if self.execute.sync_frac < 1.0 and (learners > 1 or isinstance(self.agent, ReplayConfig)):
            raise ConfigError(
                f"execute.sync_frac={self.execute.sync_frac} is for one learner that learns from fresh data; replay and"
                f" several learners need the data of every group: use --sync-frac 1, and --max-lag to go ahead"
            )

    @property
    def num_learners(self) -> int:
        """The number of learners that divide every batch; part of the identity."""
        return max(1, self.execute.num_learners)

    @property
    def num_groups(self) -> int:
        """The number of groups of environments, of equal size; part of the identity."""
        return self.env.num_groups or self.execute.num_workers

    def to_dict(self) -> dict[str, Any]:
        """Plain nested data; the agent's section starts with its name."""
        sections = {name: plain_section(getattr(self, name)) for name in SECTIONS}
        return {"agent": {"name": self.agent_name, **plain_section(self.agent)}, **sections}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], agent_needed: bool = True) -> RunConfig:
        """The inverse of ``to_dict``; unknown names and wrong types are errors that name the field.

        Unless ``agent_needed``, an agent that is not registered here is not imported: the config then holds only the
        settings that every agent has, which is enough to evaluate its policy.
        """
        check_names(data, ["agent", *SECTIONS])
        agent = dict(expect_mapping(data.get("agent"), "agent"))
        name = str(agent.pop("name", ""))
        sections: dict[str, Any] = {name: build_section(kind, data.get(name, {})) for name, kind in SECTIONS.items()}
        if not agent_needed and not is_registered(name):
            common = {f.name for f in fields(AgentConfig)}
            settings = {setting: value for setting, value in agent.items() if setting in common}
            return cls(agent_name=name, agent=build_section(AgentConfig, settings), **sections)
        entry = find_agent(name)
        return cls(agent_name=entry.name, agent=build_section(entry.config, {**entry.preset, **agent}), **sections)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str, agent_needed: bool = True) -> RunConfig:
        return cls.from_dict(expect_mapping(parse_yaml(text), "the config"), agent_needed)

    def identity(self) -> dict[str, dict[str, Any]]:
        """The settings that determine the numbers: a run can continue another run with the same identity."""
        data = {name: deciding_fields(getattr(self, name)) for name in ("agent", *SECTIONS)}
        data["agent"] = {"name": self.agent_name} | data["agent"]
        # The effective numbers: one group is the same whether it was set or follows from the number of workers.
        data["env"]["num_groups"] = self.num_groups
        data["execute"]["num_learners"] = self.num_learners
        return {name: _same_numbers(values) for name, values in data.items() if values}

    def hash(self) -> str:
        return hash_of(self.identity())


def hash_of(identity: Mapping[str, Any]) -> str:
    """A short name for the settings that determine the numbers."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _same_numbers(value: Any) -> Any:
    """Plain data in which 1.0 equals 1, and a tuple equals a list."""
    if isinstance(value, Mapping):
        return {name: _same_numbers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_same_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

"""The frozen description of a run: environment, agent, training, evaluation, checkpoints; YAML in and out.

``RunConfig`` is the one source for the command line, the run folder and the documents. Its identity is everything that
decides the numbers; when to stop and where to write are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

import cattrs
import yaml

from ..agents.base import AgentConfig
from ..agents.off_policy import ReplayConfig
from ..errors import ConfigError, did_you_mean
from ..registry import find_agent
from .fields import Section, setting
from .shares import share_of
from .yaml_text import parse_yaml

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvConfig(Section):
    """What to learn in."""

    section: ClassVar[str] = "env"

    id: str
    """Gymnasium id, tensor environment, `envpool:ID`, or `module:attribute` of your own."""
    num_envs: int = setting(1, ge=1)
    """Environments of the run."""
    num_groups: int | None = setting(None, ge=1)
    """Groups of environments that are acted for together, each with random streams of its own; None: one per worker."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for name in {"num_envs", "device"} & self.kwargs.keys():
            raise ConfigError(f"env.kwargs has {name!r}, which is a setting of its own; use --{name.replace('_', '-')}")
        try:
            json.dumps(self.kwargs)
        except (TypeError, ValueError):
            raise ConfigError(
                f"env.kwargs={self.kwargs!r} cannot be written to a config file; use plain numbers and text, or pass a"
                f" function that makes the environment"
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(Section):
    """How long, where and from which seed to train."""

    section: ClassVar[str] = "train"

    seed: int = setting(0, ge=0)
    """One number fixes everything random."""
    device: str = "cpu"
    """Where to learn: cpu, cuda, cuda:1."""
    max_steps: int = setting(100_000, ge=1)
    """Stop after this many environment steps, counted over all environments."""
    max_seconds: float | None = setting(None, gt=0.0)
    """Stop after this many seconds of training."""
    target_return: float | None = None
    """Stop once evaluation shows with 95 % confidence that the policy reaches this return."""
    patience: int | None = setting(None, ge=1)
    """Stop when this many evaluations in a row fall clearly below the best one."""
    num_threads: int = setting(1, ge=1)
    """Torch threads of the process; more than one rarely pays and may cost a factor of 50."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.target_return is not None and math.isnan(self.target_return):
            raise ConfigError("train.target_return=nan is no number to reach; leave it out or use inf for never")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecuteConfig(Section):
    """Where the roles run; with the same groups of environments only more than one learner changes results."""

    section: ClassVar[str] = "execute"

    executor: Literal["inline", "process"] = "inline"
    """Act and evaluate in this process, or in processes of their own."""
    num_workers: int = setting(1, ge=1)
    """Workers that share the groups of environments."""
    num_learners: int = setting(0, ge=0)
    """0: learn in the process that supervises; R: learners in R processes of their own, which average their
    gradients."""
    max_lag: int = setting(0, ge=0)
    """Updates by which acting may be behind learning; above 0 workers act while the learner learns."""
    sync_frac: float = setting(1.0, gt=0.0, le=1.0)
    """Share of the workers that the learner waits for; below 1 results depend on timing."""
    role_timeout: float | None = setting(None, gt=0.0)
    """Seconds that a worker process may take for a fragment, or an evaluator for a score, before it is replaced; None:
    for a fragment a minute or 20 times the longest so far, for anything else half an hour."""
    max_worker_memory: float | None = setting(None, gt=0.0)
    """Megabytes; a worker process that has grown beyond them is replaced, which changes no result."""
    max_restarts: int = setting(10, ge=0)
    """Restarts of processes, and likewise faults of environments, within 10 minutes before the run gives up."""
    on_nonfinite: Literal["reject", "stop"] = "reject"
    """At a NaN or infinity from an environment, take other steps in place of the fragment, or stop the run."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.num_learners and self.executor != "process":
            raise ConfigError(
                f"execute.num_learners={self.num_learners} asks for processes; add --executor process or leave it out"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig(Section):
    """How the policy is judged: own environments, own seeds, no exploration."""

    section: ClassVar[str] = "eval"

    interval: int = setting(10_000, ge=1)
    """Environment steps between two evaluations."""
    episodes: int = setting(20, ge=1)
    """Episodes per evaluation."""
    max_episode_steps: int = setting(100_000, ge=1)
    """Steps after which an evaluation counts what an endless episode has collected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig(Section):
    """When the run writes a commit from which it can continue exactly."""

    section: ClassVar[str] = "checkpoint"

    interval: int = setting(50_000, ge=1)
    """Environment steps between two commits; one more is written at the end and on Ctrl-C."""
    keep: int = setting(2, ge=1)
    """Commits kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that describes a run."""

    agent_name: str
    agent: AgentConfig
    env: EnvConfig
    train: TrainConfig = TrainConfig()
    execute: ExecuteConfig = ExecuteConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def __post_init__(self) -> None:
        lanes, groups, workers = self.env.num_envs, self.num_groups, self.execute.num_workers
        if lanes % groups:
            raise ConfigError(
                f"env.num_envs={lanes} cannot be shared out equally among {groups} groups;"
                f" use --num-envs {-(-lanes // groups) * groups} or another --num-groups"
            )
        if workers > groups:
            raise ConfigError(
                f"execute.num_workers={workers} is more than the {groups} groups of environments to share out;"
                f" use --num-workers {groups} or more groups"
            )
        learners = self.num_learners
        if groups % learners:
            raise ConfigError(
                f"{groups} groups of environments cannot be shared out equally among"
                f" execute.num_learners={learners}; use --num-groups {-(-groups // learners) * learners}"
                f" or another --num-learners"
            )
        share_of(self.agent, learners, self.agent.horizon * lanes)
        if self.execute.sync_frac < 1.0 and (learners > 1 or isinstance(self.agent, ReplayConfig)):
            raise ConfigError(
                f"execute.sync_frac={self.execute.sync_frac} is for one learner that learns from fresh data; replay and"
                f" several learners need the data of every group: use --sync-frac 1, and --max-lag to go ahead"
            )

    @property
    def num_learners(self) -> int:
        """The learners that share every batch; part of what decides the numbers."""
        return max(1, self.execute.num_learners)

    @property
    def num_groups(self) -> int:
        """The groups of environments, of equal size; part of what decides the numbers."""
        return self.env.num_groups or self.execute.num_workers

    def to_dict(self) -> dict[str, Any]:
        """Plain nested data; the agent's section starts with its name."""
        sections = {name: _converter.unstructure(getattr(self, name)) for name in SECTIONS}
        return {"agent": {"name": self.agent_name, **_converter.unstructure(self.agent)}, **sections}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """The inverse of ``to_dict``; unknown names and wrong types are errors that name the field."""
        check_names(data, ["agent", *SECTIONS], "")
        agent = dict(_mapping(data.get("agent"), "agent"))
        entry = find_agent(str(agent.pop("name", "")))
        sections: dict[str, Any] = {name: build_section(kind, data.get(name, {})) for name, kind in SECTIONS.items()}
        return cls(agent_name=entry.name, agent=build_section(entry.config, {**entry.preset, **agent}), **sections)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        return cls.from_dict(_mapping(parse_yaml(text), "the config"))

    def identity(self) -> dict[str, Any]:
        """What decides the numbers: two runs that share it can continue each other."""
        data = RunConfig.from_dict(self.to_dict()).to_dict()  # 1 and 1.0 are the same setting
        data["train"] = {"seed": self.train.seed, "device": self.train.device, "num_threads": self.train.num_threads}
        data["env"]["num_groups"] = self.num_groups
        data["execute"] = {"num_learners": self.num_learners} | {
            name: data["execute"][name] for name in ("max_lag", "sync_frac")
        }
        return {name: data[name] for name in ("agent", "env", "train", "execute")}

    def hash(self) -> str:
        identity = self.identity()
        if self.num_groups == 1:
            del identity["env"]["num_groups"]  # as it was before there were groups: those runs can still be resumed
        if self.num_learners == 1 and self.execute.max_lag == 0 and self.execute.sync_frac == 1.0:
            del identity["execute"]  # likewise
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


SECTIONS: dict[str, type[Section]] = {
    "env": EnvConfig,
    "train": TrainConfig,
    "execute": ExecuteConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
}

_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_unstructure_hook(tuple, list)


@_converter.register_structure_hook
def _to_float(value: Any, _: type[float]) -> float:
    if isinstance(value, str):  # YAML reads 3e-4, without a point, as text
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


@_converter.register_structure_hook
def _to_int(value: Any, _: type[int]) -> int:
    number = float(value) if isinstance(value, str) else value  # YAML reads 1e5 as text
    if isinstance(number, bool) or not isinstance(number, int | float) or number != int(number):
        raise TypeError(f"{value!r} is not a whole number")
    return int(number)


@_converter.register_structure_hook
def _to_bool(value: Any, _: type[bool]) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def build_section(kind: type[S], data: Any) -> S:
    """A section from plain data, with a sentence for the first thing that is wrong in it."""
    data = _mapping(data, kind.section)
    check_names(data, [f.name for f in fields(kind)], f"{kind.section}.")
    try:
        return _converter.structure(data, kind)
    except cattrs.ClassValidationError as group:
        raise _first_error(group, kind, data) from None


def _first_error(group: cattrs.ClassValidationError, kind: type[Section], data: Mapping[str, Any]) -> ConfigError:
    """The first leaf of cattrs' tree of errors, as one sentence."""
    with_notes, others = group.group_exceptions()
    for error in [*others, *(error for error, _ in with_notes)]:
        if isinstance(error, ConfigError):
            return error
    note = with_notes[0][1]
    if note.name not in data:
        return ConfigError(f"{kind.section}.{note.name} is missing; give it a value")
    return ConfigError(f"{kind.section}.{note.name}={data[note.name]!r} is not {_describe(note.type)}")


def _describe(kind: Any) -> str:
    """A type in a user's words."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    words = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
    return words.get(getattr(kind, "__name__", ""), str(kind).replace("typing.", ""))


def check_names(data: Mapping[str, Any], known: list[str], prefix: str) -> None:
    """Raise for the first unknown name, with a suggestion."""
    for name in data:
        if name not in known:
            raise ConfigError(f"there is no setting {prefix}{name}; {did_you_mean(str(name), known)}")


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping of names to values, not {data!r:.80}")
    return data

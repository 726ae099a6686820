"""The settings of a run that are not the agent's, in sections: environment, training, execution, evaluation, commits.

The docstring of a field is its help text on the command line; flags are made from the class of a section.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ..errors import ConfigError, did_you_mean
from ..execute.base import EXECUTORS
from ..imports import is_import_path
from .fields import Hidden, Section, setting

NamedValues = Annotated[dict[str, Any], tyro.conf.arg(metavar="NAME=VALUE ...")]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvConfig(Section):
    """The environment of training."""

    section: ClassVar[str] = "env"

    id: Hidden[str]
    """Gymnasium id, tensor environment, `envpool:ID`, or `module:attribute` of your own."""
    num_envs: int = setting(1, ge=1)
    """Environments of the run."""
    num_groups: int | None = setting(None, ge=1)
    """Groups of environments that act together, each with random streams of its own; None: one per worker."""
    frame_stack: int | None = setting(None, ge=1)
    """Newest frames of every picture that the policy sees at once; None: 4 for Atari games, 1 for all others."""
    masks: bool | None = None
    """Whether the policy may take only the actions that the environment's masks allow; None: if it gives masks."""
    kwargs: Annotated[NamedValues, tyro.conf.arg(name="env-kwargs")] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        check_kwargs("env.kwargs", self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make_env`` beyond the number of environments and their device."""
        return {"frame_stack": self.frame_stack, "masks": self.masks, **self.kwargs}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(Section):
    """Length, device and seed of training."""

    section: ClassVar[str] = "train"

    seed: int = setting(0, ge=0)
    """Seed of all random streams."""
    device: str = "cpu"
    """Device of the learner: cpu, cuda, cuda:1."""
    max_steps: int = setting(100_000, ge=1, decides_numbers=False)
    """Stop after this many environment steps, counted over all environments."""
    max_seconds: float | None = setting(None, gt=0.0, decides_numbers=False)
    """Stop after this many seconds of training since the run was started or resumed."""
    target_return: float | None = setting(None, decides_numbers=False)
    """Stop once evaluation shows this return with 95 % confidence; None: the environment's own goal; inf: never."""
    patience: int | None = setting(None, ge=1, decides_numbers=False)
    """Stop when this many evaluations in a row fall clearly below the best one."""
    num_threads: int = setting(1, ge=1)
    """Torch threads of each process; more than one is rarely faster and may be 50 times slower. The number of threads
    changes the order of sums, hence the results."""
    gradients: Literal["auto", "autograd", "compiled"] = "auto"
    """How losses are differentiated: `auto` uses the fastest known method for the agent and the device, `autograd` is
    torch's own, `compiled` is autograd through torch.compile. The results agree up to rounding."""
    loggers: tuple[str, ...] = setting(("tensorboard",), decides_numbers=False)
    """Loggers of metrics besides metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, or `module:attribute` of your own."""
    init_from: str | None = None
    """Folder of an earlier run whose networks this run starts with; everything else is new."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.target_return is not None and math.isnan(self.target_return):
            raise ConfigError("train.target_return=nan is no number to reach; leave it out or use inf for never")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecuteConfig(Section):
    """Processes of roles; with the same groups of environments only lag and more than one learner change results."""

    section: ClassVar[str] = "execute"

    executor: str = setting("auto", decides_numbers=False)
    """Act and evaluate in this process (`inline`), in processes of their own (`process`), or in actors of Ray, on many
    machines (`ray`); `auto` chooses one of the first two by the environment and the machine; an import path
    `package.module:Class` names an executor of your own."""
    address: str | None = setting(None, decides_numbers=False)
    """HOST:PORT of the Ray cluster that `--executor ray` uses, or `auto` on one of its nodes; None: that of the
    variable RAY_ADDRESS, or a Ray of its own on this machine."""
    num_workers: int = setting(1, ge=1, decides_numbers=False)
    """Workers among which the groups of environments are divided."""
    num_learners: int = setting(0, ge=0)
    """0: learn in the supervisor's process; R: learners in R processes of their own, which average their gradients."""
    core_helper: Literal["auto", "on", "off"] = setting("auto", decides_numbers=False)
    """A process on a second core that computes half of each update of SAC on a CPU, which changes no result; `auto`
    starts it if the layout is chosen automatically too and it is faster."""
    max_lag: int = setting(0, ge=0)
    """Updates by which acting may lag behind learning; above 0 workers act while the learner learns."""
    sync_frac: float = setting(1.0, gt=0.0, le=1.0)
    """Fraction of the workers that the learner waits for; below 1 results depend on timing."""
    role_timeout: float | None = setting(None, gt=0.0, decides_numbers=False)
    """Seconds that a worker process may take for a fragment, or an evaluator for a score, before it is replaced; None:
    20 times the longest so far, and at least a minute for a fragment and five for a score. A constructor may take ten
    minutes, or this long if it is longer."""
    max_worker_memory: float | None = setting(None, gt=0.0, decides_numbers=False)
    """Megabytes; a worker process that has grown beyond them is replaced, which changes no result."""
    max_restarts: int = setting(10, ge=0, decides_numbers=False)
    """Maximum number of process restarts, and of environment faults, within 10 minutes; one more ends the run."""
    on_nonfinite: Literal["reject", "stop"] = setting("reject", decides_numbers=False)
    """At a NaN or infinity from an environment, replace the fragment by further steps, or stop the run."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.executor not in ("auto", *EXECUTORS) and not is_import_path(self.executor):
            known = did_you_mean(self.executor, ("auto", *EXECUTORS))
            raise ConfigError(
                f"execute.executor={self.executor!r} is unknown; {known} (or an import path, package.module:Class)"
            )
        if self.num_learners and self.executor == "inline":
            raise ConfigError(
                f"execute.num_learners={self.num_learners} asks for processes; add --executor process or leave it out"
            )
        if self.address is not None and self.executor in ("auto", "inline", "process"):
            raise ConfigError(f"execute.address={self.address!r} is that of a Ray cluster; add --executor ray")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig(Section):
    """How the policy is evaluated: own environments, own seeds, no exploration."""

    section: ClassVar[str] = "eval"

    interval: int = setting(10_000, ge=1, decides_numbers=False)
    """Environment steps between two evaluations."""
    episodes: int = setting(20, ge=1, decides_numbers=False)
    """Episodes per evaluation."""
    max_episode_steps: int = setting(100_000, ge=1, decides_numbers=False)
    """Maximum number of steps of an evaluation episode; the return so far counts."""
    env_id: str | None = setting(None, decides_numbers=False)
    """Environment to evaluate in; None: the one of training."""
    env_kwargs: NamedValues = field(default_factory=dict, metadata={"decides_numbers": False})
    """Keyword arguments of that environment, on top of those of training unless `env_id` is given."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        check_kwargs("eval.env_kwargs", self.env_kwargs)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig(Section):
    """When the run writes a commit from which it can continue exactly."""

    section: ClassVar[str] = "checkpoint"

    interval: int = setting(50_000, ge=1, decides_numbers=False)
    """Environment steps between two commits; one more is written at the end and on Ctrl-C."""
    keep: int = setting(2, ge=1, decides_numbers=False)
    """Commits kept."""


SECTIONS: dict[str, type[Section]] = {
    "env": EnvConfig,
    "train": TrainConfig,
    "execute": ExecuteConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
}


def check_kwargs(name: str, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that are settings of their own, and values that a config file cannot hold."""
    for key in {"num_envs", "device", "frame_stack", "masks"} & kwargs.keys():
        raise ConfigError(f"{name} has {key!r}, which is a setting of its own; use --{key.replace('_', '-')}")
    try:
        json.dumps(kwargs)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name}={kwargs!r} cannot be written to a config file; use plain numbers and text, or pass a function that"
            f" makes the environment"
        ) from None

"""``Config`` and the functions that train it, as the documents call them.

A setting that is not made keeps the value tuned for this agent and environment; one that is made counts.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..cli.display import RunDisplay
from ..config.resolve import resolve_config
from ..config.run import RunConfig
from ..envs import make_env
from ..errors import ConfigError
from ..registry import find_agent
from ..runtime.run import RunResult, run_training
from ..store.commits import Store
from ..store.trained import load_config
from .agents import DocumentedAgent, as_agent
from .envs import MEASURED, BuiltEnv, BuiltSingleEnv, Origin, origin_of
from .fields import FIELDS, FOR_ALL, HANDLED, REFUSED, UNUSED, Settings, UnknownField


class Config(Settings):
    """Agent, environment and settings of a run. Arguments are told apart by what they are, not by where they stand."""

    def __init__(
        self, agent_class: Any = None, env_class: Any = None, env_args: Any = None, *,
        agent: Any = None, env: Any = None, env_func: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._agent: DocumentedAgent | None = None
        self._env: Any = None
        self._env_args: Mapping[str, Any] | None = None
        self._built: BuiltEnv | None = None
        self._cwd: str | None = None
        for thing in (agent_class, env_class, env_args, agent, env, env_func):
            if thing is not None:
                self._take(thing)
        if self._env is not None:
            self._build()  # an environment that cannot be made is reported where it is named

    def _take(self, thing: Any) -> None:
        kinds = {"agent": as_agent(thing), "env_args": thing if isinstance(thing, Mapping) else None}
        kind = next((kind for kind, value in kinds.items() if value is not None), "env")
        if getattr(self, f"_{kind}") is not None:
            raise ConfigError(f"Config got two values for {kind}: {getattr(self, f'_{kind}')!r} and {thing!r}")
        setattr(self, kind, kinds.get(kind, thing))

    # ---- agent and environment

    @property
    def agent(self) -> DocumentedAgent:
        if self._agent is None:
            raise ConfigError("this Config has no agent; give it one, as in Config(AgentPPO, 'CartPole-v1')")
        return self._agent

    @agent.setter
    def agent(self, value: Any) -> None:
        agent = as_agent(value)
        if agent is None:
            raise ConfigError(f"{value!r} is no agent; pass a class such as elegantrl.AgentPPO, or an instance of it")
        self._agent = agent

    @property
    def agent_class(self) -> type[DocumentedAgent]:
        return type(self.agent)

    @agent_class.setter
    def agent_class(self, value: Any) -> None:
        self.agent = value

    @property
    def if_off_policy(self) -> bool:
        return self.agent.if_off_policy

    @property
    def env(self) -> BuiltEnv:
        return self._build()

    @env.setter
    def env(self, value: Any) -> None:
        self._env, self._built = value, None

    @property
    def env_class(self) -> Any:
        return self._env

    @env_class.setter
    def env_class(self, value: Any) -> None:
        self.env = value

    env_func = env_class

    @property
    def env_args(self) -> Mapping[str, Any]:
        """Read-only, since the environment is built already; assign a changed copy to build another."""
        return MappingProxyType(dict(self._env_args or {}))

    @env_args.setter
    def env_args(self, value: Mapping[str, Any]) -> None:
        self._env_args, self._built = dict(value), None

    def _build(self) -> BuiltEnv:
        """The environment with one lane, as training will see it."""
        if self._env is None:
            raise ConfigError("this Config has no environment; give it one, as in Config(AgentPPO, 'CartPole-v1')")
        if self._built is None:
            given = isinstance(self._env, BuiltEnv)
            self._built = self._env if given else BuiltSingleEnv(origin_of(self._env, self._env_args))
        return self._built

    # ---- settings

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (*MEASURED, "env_name"):
            if value != getattr(self, name):
                raise ConfigError(f"{name}={value!r} cannot be set: the environment has {getattr(self, name)!r}")
            return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in (*MEASURED, "env_name"):
            return getattr(self.env, name)
        return super().__getattr__(name)

    def _unset(self, name: str) -> Any:
        if name in ("net_dim", "num_layer"):
            widths = self.net_dims
            return widths[0] if name == "net_dim" else len(widths)
        if name in HANDLED or name in UNUSED:
            return (HANDLED | UNUSED)[name]
        if name in REFUSED:
            return REFUSED[name][0]
        if name == "num_envs" and self._lanes > 1:
            return self._lanes
        if name == "target_return":
            return self.env.target_return
        place = self._place(name)
        if place is None:
            raise UnknownField(f"{name} has no meaning for {self.agent_class.__name__}")
        section, key = place
        sections = {"agent": self.agent.preset | self._widths(self._values)}
        config, _ = resolve_config(self.agent.algorithm, self._origin.name, sections)
        return FIELDS[name].to_theirs(getattr(getattr(config, section), key), self)

    def print(self) -> None:
        """Show the run that this describes."""
        print(self.run_config().to_yaml())

    @property
    def _origin(self) -> Origin:
        return self.env.origin if self._env is not None else Origin("", "")

    @property
    def _lanes(self) -> int:
        """Environments that the caller asks for by way of the environment; 1 is what is left unsaid."""
        return self._origin.num_envs

    @property
    def lanes_are_chosen(self) -> bool:
        return "num_envs" in self._values or self._lanes > 1

    def _place(self, name: str) -> tuple[str, str] | None:
        """Section and name of a documented setting in the run's config, if its agent has it."""
        known = {f.name for f in fields(find_agent(self.agent.algorithm).config)}
        for path in FIELDS[name].paths:
            section, key = path.split(".")
            if section != "agent" or key in known:
                return section, key
        return None

    def _widths(self, values: dict[str, Any]) -> dict[str, Any]:
        if "net_dim" not in values and "num_layer" not in values:
            return {}
        default, _ = resolve_config(self.agent.algorithm, self._origin.name)
        hidden = default.agent.hidden
        return {"hidden": (values.get("net_dim", hidden[0]),) * values.get("num_layer", len(hidden))}

    # ---- the run

    def run_config(self) -> RunConfig:
        """The frozen config of the run that this describes."""
        values = self._values | self.agent._values
        sections: dict[str, dict[str, Any]] = {"agent": self.agent.preset | self._widths(values)}
        sections |= {"env": {"num_envs": self.num_envs}, "train": {}}
        used = {}
        for name, value in values.items():
            if name not in FIELDS:
                continue
            place = self._place(name)
            if place is not None:
                section, key = place
                sections.setdefault(section, {})[key] = FIELDS[name].to_ours(value, self)
                used[f"{section}.{key}"] = name
            elif name not in FOR_ALL:
                raise ConfigError(f"{name} has no meaning for {self.agent_class.__name__}; remove the line")
        self._add_special(sections, values)
        try:
            config, _ = resolve_config(self.agent.algorithm, self._origin.name, sections)
        except ConfigError as error:  # in the words that the caller used
            text = str(error)
            for path, name in used.items():
                text = text.replace(f"{path}=", f"{name}=")
            raise ConfigError(text) from None
        return config

    def _add_special(self, sections: dict[str, dict[str, Any]], values: dict[str, Any]) -> None:
        self._check_evaluation(values)
        flag = values.get("if_per_or_gae")
        if self.if_off_policy and flag is not None:
            sections["agent"]["prioritized"] = bool(flag)
        if not self.if_off_policy and flag is False:
            sections["agent"]["gae_lambda"] = 1.0  # without GAE an advantage is the whole return minus the value
        target = float("inf") if values.get("if_allow_break") is False else self.target_return
        sections["train"]["target_return"] = target
        ids = self._learner_ids(values)
        if ids:
            sections["train"]["device"] = "cpu" if ids[0] < 0 else f"cuda:{ids[0]}"
        if len(ids) > 1:
            sections["execute"] = {"executor": "process", "num_learners": len(ids)}
            sections["env"]["num_groups"] = len(ids)
        kwargs = self._origin.kwargs
        sections["env"]["kwargs"] = kwargs if _is_plain(kwargs) else {}

    def _learner_ids(self, values: dict[str, Any]) -> list[int]:
        """The GPU of each learner, -1 for the CPU; empty where nothing is said."""
        given = values.get("learner_gpu_ids", ())
        groups = [given] if isinstance(given, int) else list(given)
        if len(groups) > 1 and not all(isinstance(group, int) for group in groups):
            raise ConfigError(f"learner_gpu_ids={given!r} asks for a tournament, which is not in this interface")
        ids = [int(x) for x in np.ravel(groups)] or [int(x) for x in [values.get("gpu_id")] if x is not None]
        if max(ids, default=-1) >= 0 and not torch.cuda.is_available():
            warnings.warn(f"there is no GPU {ids[0]}; training runs on the CPU", UserWarning, stacklevel=4)
            return [-1]
        wanted = [ids[0] + rank if ids[0] >= 0 else -1 for rank in range(len(ids))]
        if ids != wanted:
            raise ConfigError(f"learner_gpu_ids={given!r}: learners use GPUs in a row; write {wanted}")
        return ids

    def _check_evaluation(self, values: dict[str, Any]) -> None:
        """An evaluation elsewhere than where training happens would be a silent lie: refuse it."""
        env, args = values.get("eval_env_class"), values.get("eval_env_args")
        if env is None and args is None:
            return
        there = origin_of(self._env if env is None else env, self._env_args if args is None else args)
        here = self._origin
        same = there.kwargs.keys() == here.kwargs.keys()
        same = same and all(np.array_equal(value, here.kwargs[name]) for name, value in there.kwargs.items())
        if there.name != here.name or not same:
            raise ConfigError(
                f"eval_env_class and eval_env_args describe {there.name} {there.kwargs}, but training uses {here.name}"
                f" {here.kwargs}; evaluation in another environment is not available"
            )

    def source(self) -> Any:
        """What the core makes environments of."""
        origin = self._origin
        return origin.source if _is_plain(origin.kwargs) else partial(make_env, origin.source, **origin.kwargs)

    # ---- the folder

    @property
    def cwd(self) -> str:
        """The run's folder; chosen at the first look, so that whoever asks before training finds the results there."""
        if self._cwd is None:
            name = f"{self.env.env_name}_{self.agent_class.__name__.removeprefix('Agent')}_{self.random_seed}"
            name = name.replace("/", "-").replace(":", "-")
            path, taken = Path(name), 1
            while not (self.continue_train or self.if_remove) and (path / "config.yaml").exists():
                taken += 1
                path = Path(f"{name}_{taken}")
            self._cwd = f"./{path}"
        return self._cwd

    @cwd.setter
    def cwd(self, value: str | Path) -> None:
        self._cwd = None if value is None else str(value)

    def open_folder(self) -> tuple[Path, bool]:
        """The folder to train in and whether to continue there; it is emptied only where ``if_remove`` is True."""
        folder = Path(self.cwd)
        if self.continue_train and self.if_remove:
            raise ConfigError("continue_train and if_remove contradict each other; set one of them")
        if not (folder / "config.yaml").exists():
            return folder, False
        if self.if_remove is True:
            remove_run(folder)
        elif not self.continue_train:
            raise ConfigError(
                f"{folder} already holds a run; set continue_train to go on with it, if_remove to delete it,"
                f" or another cwd"
            )
        return folder, bool(self.continue_train)


def _is_plain(kwargs: dict[str, Any]) -> bool:
    """Whether a config file can hold these arguments; others are bound to the environment's maker."""
    try:
        return bool(json.loads(json.dumps(kwargs)) == kwargs)
    except (TypeError, ValueError):
        return False


def remove_run(folder: Path) -> None:
    """Delete a run folder: one of ours, in use by nobody, and not the place we stand in."""
    load_config(folder)  # an error unless the folder is one of ours
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ConfigError(f"if_remove would delete {folder.resolve()}, which holds the working folder; set another cwd")
    store = Store(folder)
    store.lock()
    try:
        shutil.rmtree(folder)
    finally:
        store.close()


def train_agent(args: Config, if_single_process: bool = False) -> RunResult:
    """Train what ``args`` describe, with ``num_workers`` above 1 in processes; ``args.cwd`` holds the results."""
    return _train(args, in_processes=args.num_workers > 1 and not if_single_process)


def train_and_evaluate(args: Config) -> RunResult:
    """Train in a single process."""
    return _train(args, in_processes=False)


def train_and_evaluate_mp(args: Config, python_path: str = "") -> RunResult:
    """Train with workers and evaluator in processes; ``python_path`` is accepted for old scripts and has no use."""
    return _train(args, in_processes=True)


def _train(args: Config, in_processes: bool) -> RunResult:
    config, source = args.run_config(), args.source()
    if in_processes:
        config = _with_workers(config, args.num_workers)
    folder, resume = args.open_folder()
    with RunDisplay(config.train.max_steps, Console()) as display:
        return run_training(config, source, folder, resume, display)


def _with_workers(config: RunConfig, num_workers: int) -> RunConfig:
    """Every worker has ``num_envs`` environments of its own, as documented."""
    groups = math.lcm(num_workers, config.num_learners)
    env = replace(config.env, num_envs=config.env.num_envs * num_workers, num_groups=groups)
    return replace(config, env=env, execute=replace(config.execute, executor="process", num_workers=num_workers))

"""``Config``, also called ``Arguments``: agent, environment and settings of a run, as the documents write them.

A setting that is not set has the value tuned for this agent and environment.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from ..config.resolve import resolve_config
from ..config.run import RunConfig
from ..envs import make_env
from ..errors import ConfigError
from .agents import DocumentedAgent, as_agent
from .envs import MEASURED, BuiltEnv, BuiltSingleEnv, Origin, origin_of
from .fields import FIELDS, HANDLED, REFUSED, UNUSED, Settings, UnknownField
from .folder import fresh_folder
from .translate import Sections, Translation, hidden_of, place_of


class Config(Settings):
    """Agent, environment and settings of a run. Arguments are distinguished by type, not by position."""

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
            self._build()  # reports an environment that cannot be made at once

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
        """The environment with one lane, as training will use it."""
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
        if name == "num_envs" and self._origin.num_envs > 1:
            return self._origin.num_envs
        if name == "target_return":
            return self.env.target_return
        return self._tuned(name)

    def _tuned(self, name: str) -> Any:
        """The value of a setting for this agent and environment if nothing is set."""
        place = place_of(self.agent.algorithm, name)
        if place is None:
            raise UnknownField(f"{name} has no meaning for {self.agent_class.__name__}")
        section, key = place
        sections = {"agent": self.agent.preset | hidden_of(self.agent, self._origin.name, self._values)}
        config, _ = resolve_config(self.agent.algorithm, self._origin.name, sections)
        return FIELDS[name].to_theirs(getattr(getattr(config, section), key), self)

    @property
    def _origin(self) -> Origin:
        return self.env.origin if self._env is not None else Origin("", "")

    @property
    def lanes_are_chosen(self) -> bool:
        """Whether the caller set a number of environments; 1 in ``env_args`` counts as not set."""
        return "num_envs" in self._values or self._origin.num_envs > 1

    @property
    def cwd(self) -> str:
        """The run's folder; chosen when it is first read, so that it is known before training."""
        if self._cwd is None:
            name = f"{self.env.env_name}_{self.agent_class.__name__.removeprefix('Agent')}_{self.random_seed}"
            self._cwd = fresh_folder(name, bool(self.continue_train or self.if_remove))
        return self._cwd

    @cwd.setter
    def cwd(self, value: str | Path) -> None:
        self._cwd = None if value is None else str(value)

    # ---- the run

    def print(self) -> None:
        """Print the config of the run."""
        print(self.run_config().to_yaml())

    def run_config(self) -> RunConfig:
        """The frozen config of the run."""
        self.agent.check_trainable()
        values = self._values | self.agent._values
        translation = Translation(self.agent, self._origin.name, values, self)
        translation.sections["env"].setdefault("num_envs", self.num_envs)
        self._add_special(translation.sections, values)
        return translation.resolve()

    def _add_special(self, sections: Sections, values: dict[str, Any]) -> None:
        flag = values.get("if_per_or_gae")
        if self.if_off_policy and flag is not None:
            sections["agent"]["prioritized"] = bool(flag)
        if not self.if_off_policy and flag is False:
            sections["agent"]["gae_lambda"] = 1.0  # without GAE an advantage is the full return minus the value
        target = float("inf") if values.get("if_allow_break") is False else self.target_return
        sections["train"]["target_return"] = target
        ids = self._learner_ids(values)
        if ids:
            sections["train"]["device"] = "cpu" if ids[0] < 0 else f"cuda:{ids[0]}"
        if len(ids) > 1:
            sections["execute"] = {"executor": "process", "num_learners": len(ids)}
            sections["env"]["num_groups"] = len(ids)
        sections["env"]["kwargs"] = plain_kwargs(self._origin)
        if (there := self._eval_origin()) is not None:
            sections.setdefault("eval", {}).update(env_id=there.name, env_kwargs=plain_kwargs(there))

    @property
    def num_tournament_agents(self) -> int:
        """The number of groups of GPUs, each for an agent of its own; 1 if there is no tournament."""
        given = (self._values | self.agent._values).get("learner_gpu_ids", ())
        is_list = not isinstance(given, int) and not all(isinstance(group, int) for group in given)
        return len(given) if is_list else 1

    def _learner_ids(self, values: dict[str, Any]) -> list[int]:
        """The GPU of each learner, -1 for the CPU; empty if not set."""
        given = values.get("learner_gpu_ids", ())
        groups = [given] if isinstance(given, int) else list(given)
        if self.num_tournament_agents > 1:
            groups = groups[:1]
        ids = [int(x) for x in np.ravel(groups)] or [int(x) for x in [values.get("gpu_id")] if x is not None]
        if max(ids, default=-1) >= 0 and not torch.cuda.is_available():
            what = f"GPU {ids[0]}" if len(ids) == 1 else f"GPU for learner_gpus={given!r}"
            warnings.warn(f"there is no {what}; one learner trains on the CPU", UserWarning, stacklevel=4)
            return [-1]
        wanted = [ids[0] + rank if ids[0] >= 0 else -1 for rank in range(len(ids))]
        if ids != wanted:
            raise ConfigError(f"learner_gpu_ids={given!r}: learners use GPUs in a row; write {wanted}")
        return ids

    def _eval_origin(self) -> Origin | None:
        """The environment of evaluation, if it is not that of training."""
        values = self._values | self.agent._values
        env, args = values.get("eval_env_class"), values.get("eval_env_args")
        if env is None and args is None:
            return None
        there, here = (
            origin_of(self._env if env is None else env, self._env_args if args is None else args),
            self._origin,
        )
        same = there.name == here.name and there.kwargs.keys() == here.kwargs.keys()
        same = same and all(np.array_equal(value, here.kwargs[name]) for name, value in there.kwargs.items())
        return None if same else there

    def sources(self) -> tuple[Any, Any]:
        """The sources of the environments of training, and of evaluation if those are different."""
        there = self._eval_origin()
        return source_of(self._origin), None if there is None else source_of(there)


Arguments = Config


def plain_kwargs(origin: Origin) -> dict[str, Any]:
    """The arguments of the environment if a config file can hold them, else none."""
    return origin.kwargs if _is_plain(origin.kwargs) else {}


def source_of(origin: Origin) -> Any:
    """The source from which the core makes environments; arguments that no file can hold are bound to it."""
    return origin.source if _is_plain(origin.kwargs) else partial(make_env, origin.source, **origin.kwargs)


def _is_plain(kwargs: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(kwargs)) == kwargs)
    except (TypeError, ValueError):
        return False

"""Environments as the documents use them: from any source, described by attributes, with the older ``step``.

``reset()`` returns the state alone and ``step(action)`` returns ``(state, reward, done, info)``; a truncation by a time
limit is ``done`` with ``info["TimeLimit.truncated"]``. Continuous actions are in [-1, 1].
"""

from __future__ import annotations

import inspect
import math
import pprint
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ..config.resolve import env_name
from ..envs import GymVecEnv, VecEnv, make_env
from ..envs.tutorial import num_lanes
from ..envs.vec_env import raise_faults
from ..errors import ConfigError, SpecError, did_you_mean
from ..nets.policies.base import agent_leaves
from ..types import EnvSpec, seen_part, vector_dim
from .fields import UnknownField

OLD_IDS = {
    "CartPole-v0": "CartPole-v1",
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}
OLD_IDS |= {
    f"{robot}-v{version}": f"{robot}-v5"
    for robot in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Reacher", "Swimmer", "Walker2d")
    for version in (2, 3)
}

MEASURED = ("max_step", "state_dim", "action_dim", "if_discrete")
DESCRIPTION = {"env_name", "id", "env_num", "num_envs", "target_return", "if_print", *MEASURED}
"""Keys of ``env_args`` that describe an environment and are not arguments of its constructor."""

DEFAULT_MAX_STEP = 12345


def current_id(env_id: str) -> str:
    """The current id of a documented environment."""
    if env_id not in OLD_IDS:
        return env_id
    warnings.warn(f"{env_id} is retired; {OLD_IDS[env_id]} takes its place", UserWarning, stacklevel=3)
    return OLD_IDS[env_id]


def device_of(gpu_id: int) -> str:
    return f"cuda:{gpu_id}" if gpu_id >= 0 and torch.cuda.is_available() else "cpu"


def kwargs_filter(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The items of ``kwargs`` that are parameters of ``function``."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in kwargs.items() if name in names}


# ---- sources of environments


@dataclass(frozen=True, slots=True)
class Origin:
    """Everything needed to make an environment again."""

    source: Any  # the argument of make_env
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)  # the description in env_args
    num_envs: int = 1  # 1 means: not specified


def origin_of(env: Any, env_args: Mapping[str, Any] | None = None) -> Origin:
    """The origin of ``env``, which is an id, a class, a function or an instance; arguments are not changed."""
    args = dict(env_args or {})
    claims = {name: value for name, value in args.items() if name in DESCRIPTION}
    lanes = int(args.get("num_envs", args.get("env_num", 1)))
    if isinstance(env, type) and issubclass(env, BuiltEnv):
        if "num_envs" in args:
            args["env_num"] = lanes
        origin = env.origin_of(**_arguments(env, args))
        return replace(origin, claims=origin.claims | claims)
    if _is_gym_make(env):
        env = args.get("id") or args.get("env_name")
        if env is None:
            raise ConfigError("gym.make needs to know what to make; put env_name into env_args")
    if isinstance(env, str):
        kwargs = {name: value for name, value in args.items() if name not in DESCRIPTION}
        name = current_id(env)
        return Origin(name, name, kwargs, claims, lanes)
    if hasattr(env, "step") and not isinstance(env, type):
        if late := args.keys() - DESCRIPTION:
            raise ConfigError(f"env_args {sorted(late)} come too late for an instance; pass its class instead")
        if isinstance(env, BuiltEnv):
            return env.origin
        lanes = env.spec.num_envs if isinstance(env, VecEnv) else num_lanes(env) or 1
        return Origin(with_spaces(env), env_name(env), {}, claims, lanes)
    if callable(env):
        return _origin_of_factory(env, args, claims, lanes)
    raise ConfigError(f"{env!r} is no environment; pass an id, a class, a function or an instance")


def _origin_of_factory(factory: Any, args: dict[str, Any], claims: dict[str, Any], lanes: int) -> Origin:
    kwargs = _arguments(factory, args)
    if "env_num" in (parameters := inspect.signature(factory).parameters):
        kwargs.pop("env_num", None)  # each group of lanes and the evaluation have a number of their own
        lanes = int(args.get("num_envs", args.get("env_num", parameters["env_num"].default)))
    return Origin(_maker(factory), env_name(factory), kwargs, claims, lanes)


def _is_gym_make(thing: Any) -> bool:
    package = str(getattr(thing, "__module__", ""))
    ours = package == "elegantrl.compat.gym"
    return (ours or package.split(".")[0] in ("gym", "gymnasium")) and getattr(thing, "__name__", "") == "make"


def _arguments(factory: Callable[..., Any], args: dict[str, Any]) -> dict[str, Any]:
    """The part of ``args`` for ``factory``; the rest must be keys of ``DESCRIPTION``."""
    parameters = inspect.signature(factory).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in args:
        if name not in parameters and name not in DESCRIPTION and not takes_all:
            raise UnknownField(f"env_args has no use for {name!r}; {did_you_mean(name, parameters)}")
    wanted = {name: value for name, value in args.items() if name in parameters or name not in DESCRIPTION}
    wanted.pop("num_envs", None)  # the core passes it to factories that take it
    return wanted


def _maker(factory: Any) -> Callable[..., Any]:
    """``factory`` for the core: environments without spaces get them."""
    makes_lanes = bool(kwargs_filter(factory, {"num_envs": 1, "env_num": 1}))
    if makes_lanes or (isinstance(factory, type) and issubclass(factory, VecEnv)):
        made: Callable[..., Any] = factory
        return made
    return _Maker(factory)


class _Maker:
    """A class and not a nested function, so that it can be sent to other processes."""

    def __init__(self, factory: Any):
        self.factory, self.__name__ = factory, getattr(factory, "__name__", "environment")

    def __call__(self, **kwargs: Any) -> Any:
        return with_spaces(self.factory(**kwargs))


def with_spaces(env: Any) -> Any:
    """``env`` itself, or a wrapper with spaces if it has only the documented attributes."""
    if isinstance(env, VecEnv) or hasattr(env, "action_space") or hasattr(env, "get_env_info"):  # the last: of SMAC
        return env
    name = type(env).__name__
    if missing := [a for a in ("state_dim", "action_dim", "if_discrete") if not hasattr(env, a)]:
        raise SpecError(f"environment {name!r} has neither an action_space nor the attribute {missing[0]}; add one")
    # The core has an adapter for environments that step several lanes themselves.
    return env if (num_lanes(env) or 1) > 1 else _WithSpaces(env)


class _WithSpaces:
    """An environment described by ``state_dim``, ``action_dim`` and ``if_discrete``, truncated after ``max_step``."""

    def __init__(self, env: Any) -> None:
        self.unwrapped = env
        self.observation_space = Box(-np.inf, np.inf, (env.state_dim,), np.float32)
        self.action_space = Discrete(env.action_dim) if env.if_discrete else Box(-1, 1, (env.action_dim,), np.float32)
        self.max_step = getattr(env, "max_step", DEFAULT_MAX_STEP)
        self._elapsed = 0

    def reset(self, seed: int | None = None) -> Any:
        self._elapsed = 0
        env = self.unwrapped
        if hasattr(env, "seed") and callable(env.seed):
            env.seed(seed)
        return env.reset(**kwargs_filter(env.reset, {"seed": seed}))

    def step(self, action: Any) -> tuple[Any, ...]:
        self._elapsed += 1
        state, reward, terminated, *rest = self.unwrapped.step(action)
        info = rest[-1] or {}
        if len(rest) == 2:
            cut = rest[0]
        else:  # four values: one flag for both kinds of end
            cut = terminated and info.get("TimeLimit.truncated", False)
            terminated = terminated and not cut
        return state, reward, terminated, cut or self._elapsed >= self.max_step, info


# ---- results of build_env


class BuiltEnv:
    """The documented attributes of an environment; subclasses implement ``step`` for one lane and for many."""

    def __init__(self, origin: Origin, num_envs: int = 1, device: str = "cpu") -> None:
        self.vec = make_env(origin.source, num_envs, device=device, **origin.kwargs)
        spec = self.vec.spec
        lane = self.vec.envs[0] if isinstance(self.vec, GymVecEnv) else self.vec
        raw = getattr(lane, "unwrapped", lane)
        self.origin = origin
        self.env_name = str(getattr(raw, "env_name", origin.name))
        self.num_envs = self.env_num = spec.num_envs
        self.max_step = int(spec.max_episode_steps or origin.claims.get("max_step") or DEFAULT_MAX_STEP)
        self.num_agents, self.agent_names = spec.num_agents, spec.agent_names
        self.state_dim = spec.obs_dim if spec.num_agents is None else agent_dim(spec)
        self.action_dim = spec.action.num_outputs
        self.if_discrete = spec.action.kind == "discrete"
        targets = (origin.claims.get("target_return"), getattr(raw, "target_return", None), spec.target_return)
        self.target_return = next((t for t in targets if t is not None and math.isfinite(t)), None)
        self.num_uses = 0
        """Resets and steps that the caller took; an agent that explores here detects them by this counter."""
        self._num_resets = 0
        self._running = False
        self._drew_nothing = False
        for name in MEASURED:
            claim = origin.claims.get(name)
            if claim is not None and np.prod(claim) != getattr(self, name):
                warnings.warn(
                    f"env_args say {name}={claim}, but {self.env_name} has {getattr(self, name)}, which counts",
                    UserWarning,
                    stacklevel=4,
                )

    @classmethod
    def origin_of(cls, *args: Any, **kwargs: Any) -> Origin:
        """The origin of an environment made with these arguments."""
        return cls(*args, **kwargs).origin

    def _reset(self, seed: int | None) -> Tensor:
        """Each reset has a seed of its own, so episodes differ and a script is reproducible."""
        self._num_resets += 1
        self.num_uses += 1
        self._running = True
        return self.vec.reset(self._num_resets if seed is None else seed)

    def render(self) -> Any:
        """A frame, or a window with ``build_env(id, {"render_mode": "human"})``."""
        lane: Any = self.vec.envs[0] if isinstance(self.vec, GymVecEnv) else self.vec
        if getattr(lane, "render_mode", None) is None:
            if not self._drew_nothing:  # once, since documents call this at every step
                text = f"{self.env_name} draws nothing without a render_mode in env_args"
                warnings.warn(text, UserWarning, stacklevel=2)
            self._drew_nothing = True
            return None
        return lane.render()

    def close(self) -> None:
        self.vec.close()


class BuiltSingleEnv(BuiltEnv):
    """One environment, NumPy in and out. States, actions and rewards of a team have the axis of its agents in front."""

    def reset(self, seed: int | None = None) -> Any:
        return seen_part(self._reset(seed))[0].cpu().numpy()

    def step(self, action: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
        if not self._running:
            raise ConfigError("an episode begins with reset(); call it before the first step and after done")
        self.num_uses += 1
        dtype = torch.int64 if self.if_discrete else torch.float32
        x = torch.as_tensor(np.asarray(action)).to(self.vec.device, dtype)
        step = raise_faults(self.vec, self.vec.step(x.reshape(1, *self.vec.spec.action_leaf.shape)))
        cut = bool(step.truncated)
        done = cut or bool(step.terminated)
        self._running = not done
        reward = float(step.reward) if self.num_agents is None else step.reward[0].cpu().numpy()
        state = seen_part(step.next_obs)[0].cpu().numpy()
        return state, reward, done, {"TimeLimit.truncated": True} if cut else {}


class BuiltVecEnv(BuiltEnv):
    """Many environments, tensors in and out; lanes that end are reset automatically."""

    def reset(self, seed: int | None = None) -> Tensor:
        return self._reset(seed)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        self.num_uses += 1
        step = raise_faults(self.vec, self.vec.step(action))
        info = {"TimeLimit.truncated": step.truncated, "next_state": step.next_obs}
        return step.obs, step.reward, step.terminated | step.truncated, info


class ChasingVecEnv(BuiltVecEnv):
    """``env_num`` point masses, each chasing another one through ``dim`` dimensions; on the CPU if there is no GPU."""

    def __init__(self, dim: int = 2, env_num: int = 4096, device_id: int = 0) -> None:
        origin = Origin("Chasing", "Chasing", {"dim": dim}, num_envs=env_num)
        super().__init__(origin, env_num, device_of(device_id))


class ChasingEnv(BuiltSingleEnv):
    """One point mass that chases another one through ``dim`` dimensions."""

    def __init__(self, dim: int = 2) -> None:
        super().__init__(Origin("Chasing", "Chasing", {"dim": dim}))


class PendulumEnv(BuiltSingleEnv):
    """The pendulum, or another environment, with a target return."""

    def __init__(self, gym_env_name: str = "Pendulum-v1", target_return: float = -200) -> None:
        super().__init__(origin_of(gym_env_name, {"target_return": target_return}))


def agent_dim(spec: EnvSpec) -> int:
    """The numbers that an agent of a team sees."""
    return vector_dim(agent_leaves(seen_part(spec.obs), spec.team), spec.name)


def build_env(env_class: Any, env_args: Mapping[str, Any] | None = None, gpu_id: int = -1) -> BuiltEnv:
    """An environment with the documented attributes, from an id, a class, a function or an instance."""
    origin = origin_of(env_class, env_args)
    kind = BuiltVecEnv if origin.num_envs > 1 else BuiltSingleEnv
    return kind(origin, origin.num_envs, device_of(gpu_id))


def get_gym_env_args(env: Any, if_print: bool) -> dict[str, Any]:
    """``env_args`` of an environment, for ``Config`` and ``build_env``: its documented attributes as a dict."""
    built = env if isinstance(env, BuiltEnv) else build_env(env)
    names = ("env_name", "num_envs", *MEASURED, "target_return")
    env_args = {name: getattr(built, name) for name in names}
    if if_print:
        print("env_args =", pprint.pformat(env_args, sort_dicts=False))
    return env_args

"""The documented agent classes: settings of a run, an agent driven by a script, a trained agent from a folder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..agents.base import Agent, AgentConfig
from ..errors import CheckpointError, ConfigError
from ..registry import agent_names, find_agent
from ..store.tensors import load_weights
from ..store.trained import TrainedPolicy
from ..types import ActionSpec, EnvSpec, vector_dim
from .by_hand import STATE_FILE, ByHand
from .envs import BuiltEnv, build_env, device_of
from .fields import FIELDS, Settings, UnknownField
from .names import AGENTS
from .nets import PolicyNet
from .paths import CallableModule
from .replay import Explored
from .translate import Translation, place_of

UNNAMED = "by hand"
"""Name of the environment of an agent that has seen none."""

BY_HAND = {
    "explore_env", "explore_one_env", "explore_vec_env", "update_net", "get_obj_critic_raw", "get_obj_critic_per",
}  # fmt: skip
"""Documented methods with which a script trains an agent step by step."""

INNER = {
    "explore_action", "update_objectives", "get_advantages", "get_cumulative_rewards", "get_obj_critic",
    "optimizer_backward", "optimizer_backward_amp", "soft_update",
}  # fmt: skip
"""Documented methods that have no counterpart in a core agent."""


class DocumentedAgent(Settings):
    """An agent as documents use it.

    As an argument of ``Config`` it contributes its algorithm and its settings. A script can also call ``explore_env``
    and ``update_net`` itself; the networks are built when they are first needed, so that the environment can determine
    the kind of actions.
    """

    algorithm: ClassVar[str]
    preset: ClassVar[dict[str, Any]] = {}
    if_off_policy: ClassVar[bool]
    class_settings: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, net_dims: Any = None, state_dim: int | None = None, action_dim: int | None = None,
        gpu_id: int = -1, args: Settings | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._by_hand: ByHand | None = None
        self._args, self._gpu_id = args, gpu_id
        self._dims = (state_dim, action_dim)
        self._values.update(self.class_settings, **(args._values if args else {}))
        if net_dims is not None:
            self.net_dims = net_dims

    def __init_subclass__(cls) -> None:
        """Treat and check attributes in the body of a subclass as settings."""
        own = {n: v for n, v in vars(cls).items() if not n.startswith("_") and not hasattr(DocumentedAgent, n)}
        own = {n: v for n, v in own.items() if n not in DocumentedAgent.__annotations__}
        settings = {n: v for n, v in own.items() if not callable(v) and not isinstance(v, property)}
        checked = Settings()
        checked._values.update(cls.class_settings)
        for name, value in settings.items():
            setattr(checked, name, value)  # checks the setting
            delattr(cls, name)
        cls.class_settings = checked._values

    def __getattr__(self, name: str) -> Any:
        if name in INNER:
            raise UnknownField(f"{type(self).__name__} has no {name}: update_net does a whole update; {self._remedy()}")
        return super().__getattr__(name)

    @classmethod
    def _remedy(cls) -> str:
        core = find_agent(cls.algorithm).agent
        return (
            f"to change an algorithm, subclass {core.__module__}.{core.__name__} and register it with"
            f" elegantrl.register_agent"
        )

    @classmethod
    def check_trainable(cls) -> None:
        """Refuse to train a class with methods of its own that a run would never call."""
        ours = next(base for base in cls.__mro__ if base.__module__.startswith(str(__package__)))
        changed = {name for name in BY_HAND if getattr(cls, name) is not getattr(ours, name)}
        if ignored := changed | {name for name in INNER if hasattr(cls, name)}:
            raise ConfigError(f"{cls.__name__}.{min(ignored)} would never be called; {cls._remedy()}")

    def init(self, net_dim: int, state_dim: int, action_dim: int, gpu_id: int = -1, **settings: Any) -> None:
        """Set sizes and settings; networks of an earlier ``init`` are dropped."""
        self._dims, self._gpu_id, self._by_hand = (state_dim, action_dim), gpu_id, None
        self.net_dim = net_dim
        for name, value in settings.items():
            setattr(self, name, value)

    # ---- by hand

    def explore_env(self, env: Any, horizon_len: int, if_random: bool = False) -> Explored:
        """``horizon_len`` steps of every environment in ``env``; continues where the last call ended."""
        built = self._built(env)
        return self._core(built.vec.spec).explore(built, int(horizon_len), if_random)

    explore_one_env = explore_vec_env = explore_env

    def update_net(self, buffer: Any) -> tuple[float, float]:
        """Learn from a ``ReplayBuffer``, on-policy agents from a rollout; returns the critic's and the actor's loss."""
        with torch.enable_grad():
            return self._core().update(buffer)

    def get_obj_critic_raw(self, buffer: Any, batch_size: int) -> tuple[Tensor, Tensor]:
        """The critic's loss on a minibatch, and the minibatch's states."""
        return self._core().critic_loss(buffer, batch_size)

    get_obj_critic_per = get_obj_critic_raw

    @property
    def act(self) -> PolicyNet:
        """The policy: states in, best known actions out."""
        return PolicyNet(self._core().agent.policy)

    @property
    def cri(self) -> nn.Module:
        """The critic; for DQN the same network as ``act``."""
        return self._core().critic

    @property
    def last_state(self) -> Tensor | None:
        """The states from which the next exploration continues; assigning them has no effect."""
        return None if self._by_hand is None else self._by_hand.last_state

    @last_state.setter
    def last_state(self, value: Any) -> None:
        """Exploration resets environments by itself."""

    def select_action(self, state: Any) -> Any:
        """The best known action for one state or a batch of them: a choice, or numbers in [-1, 1] as NumPy."""
        core = self._core()
        x = torch.as_tensor(np.asarray(state, dtype=np.float32))
        if x.shape[-1:] != (core.spec.obs_dim,):
            raise ConfigError(
                f"a state of shape {tuple(x.shape)} does not fit an agent of state_dim={core.spec.obs_dim}"
            )
        device = next(core.agent.policy.parameters()).device
        with torch.no_grad():
            action = self.act(x.reshape(-1, core.spec.obs_dim).to(device)).cpu().numpy()
        # [()] turns a single choice into a number.
        return action if x.dim() > 1 else action[0][()]

    def save_or_load_agent(self, cwd: str | Path, if_save: bool) -> None:
        """Save this agent in ``cwd``, or load an agent that a script or a run saved there."""
        folder = Path(cwd)
        if if_save:
            self._core().save(folder)
        elif (folder / STATE_FILE).exists():
            tensors, about = load_weights(folder / STATE_FILE)
            if self._by_hand is None:
                self._by_hand = self._build(replace(self._spec(), name=about.get("env", UNNAMED)))
            self._by_hand.load(folder, tensors, about)
        else:
            self._load_run(TrainedPolicy.load(folder), folder)

    def _load_run(self, trained: TrainedPolicy, folder: Path) -> None:
        """Load the best policy of a run; the critic is new."""
        name, config = trained.config.agent_name, trained.config.agent
        if find_agent(name).agent is not find_agent(self.algorithm).agent:
            raise CheckpointError(
                f"the agent in {folder} is {name!r}, not {self.algorithm!r}; load it with its own class"
            )
        found = vector_dim(trained.spec.obs), trained.spec.action.num_outputs
        if any(wanted not in (None, actual) for wanted, actual in zip(self._dims, found, strict=True)):
            raise CheckpointError(f"the agent in {folder} has (state_dim, action_dim) {found}, not {self._dims}")
        spec = EnvSpec(trained.config.env.id, trained.spec.obs, trained.spec.action, 1)
        self._by_hand = self._build(spec, config, name)
        self._by_hand.agent.policy.load_state_dict(trained.policy.state_dict())

    # ---- its networks

    def _built(self, env: Any) -> BuiltEnv:
        """``env`` with the documented attributes; the same object again for the same environment."""
        if isinstance(env, BuiltEnv):
            return env
        known: tuple[Any, BuiltEnv] | None = self.__dict__.get("_wrapped")
        if known is None or known[0] is not env:
            self._wrapped = known = (env, build_env(env))
        return known[1]

    def _core(self, spec: EnvSpec | None = None) -> ByHand:
        if self._by_hand is None:
            self._by_hand = self._build(spec or self._spec())
        return self._by_hand

    def _spec(self) -> EnvSpec:
        """The specification of the environment, from the settings alone."""
        state_dim, action_dim = self._dims
        if state_dim is None or action_dim is None:
            raise ConfigError(
                f"this {type(self).__name__} has no networks yet; call init(net_dim, state_dim, action_dim), or load"
                f" one with save_or_load_agent(cwd, if_save=False)"
            )
        kinds = find_agent(self.algorithm).agent.actions
        env = getattr(self._args, "_env", None)
        if len(kinds & {"discrete", "continuous"}) == 1:
            discrete = "discrete" in kinds
        elif env is not None:
            discrete = bool(self._args.if_discrete)  # type: ignore[union-attr]
        else:
            discrete = "Discrete" in type(self).__name__
        return EnvSpec(UNNAMED, (state_dim,), action_spec(discrete, action_dim), 1)

    def _build(self, spec: EnvSpec, config: AgentConfig | None = None, name: str | None = None) -> ByHand:
        wanted = [given for given in zip(self._dims, (spec.obs_dim, spec.action.num_outputs), strict=True) if given[0]]
        if any(mine != theirs for mine, theirs in wanted):
            raise ConfigError(
                f"this {type(self).__name__} is for (state_dim, action_dim) {self._dims}, but {spec.name} has"
                f" {(spec.obs_dim, spec.action.num_outputs)}"
            )
        values = self._values
        if config is None:
            mine = {n: v for n, v in values.items() if n not in FIELDS or is_of_agent(self.algorithm, n)}
            mine.pop("horizon_len", None)  # an argument of explore_env
            config = Translation(self, spec.name, mine, spec).resolve().agent
        seed = int(values.get("random_seed", 0))
        return ByHand(name or self.algorithm, config, spec, torch.device(device_of(self._gpu_id)), seed)


AgentBase = DocumentedAgent


def action_spec(discrete: bool, action_dim: int) -> ActionSpec:
    return ActionSpec(choices=(action_dim,)) if discrete else ActionSpec(dim=action_dim)


def is_of_agent(algorithm: str, name: str) -> bool:
    """Whether a documented setting is one of agents, rather than of the run around them."""
    place = place_of(algorithm, name)
    return place is None or place[0] == "agent"


@cache
def documented_agent(name: str) -> type[DocumentedAgent]:
    """The class of a documented name."""
    return _agent_class(name, *AGENTS[name])


def __getattr__(name: str) -> Any:
    if name in AGENTS:
        return documented_agent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _agent_class(name: str, algorithm: str, preset: dict[str, Any]) -> type[DocumentedAgent]:
    from .teams import DocumentedTeam  # it inherits from the class above

    agent = find_agent(algorithm).agent
    replays = agent.memory != "rollout"
    body = {"algorithm": algorithm, "preset": preset, "if_off_policy": replays, "__module__": "elegantrl"}
    return type(name, (DocumentedTeam if agent.teams else DocumentedAgent,), body)


def as_agent(thing: Any) -> DocumentedAgent | None:
    """``thing`` as an agent if it is one: a documented class or instance, or a class registered with the core."""
    if isinstance(thing, CallableModule):
        thing = thing.__wrapped__
    if isinstance(thing, DocumentedAgent):
        return thing
    if isinstance(thing, type) and issubclass(thing, DocumentedAgent):
        return thing()
    if isinstance(thing, type) and issubclass(thing, Agent):
        names = [name for name in agent_names() if find_agent(name).agent is thing]
        if names:  # of several, the one that fixes no settings
            return _agent_class(thing.__name__, min(names, key=lambda name: len(find_agent(name).preset)), {})()
        raise ConfigError(f"{thing.__name__} is not registered; call elegantrl.register_agent with it first")
    return None

"""The documented agent classes: a name, the settings made on it, and later the trained policy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..agents.base import Agent
from ..errors import CheckpointError, ConfigError
from ..registry import agent_names, find_agent
from ..store.trained import TrainedPolicy
from .fields import Settings

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "AgentA2C": ("a2c", {}),
    "AgentDiscreteA2C": ("a2c", {}),
    "AgentPPO": ("ppo", {}),
    "AgentDiscretePPO": ("ppo", {}),
    "AgentDQN": ("dqn", {}),
    "AgentDoubleDQN": ("dqn", {"double": True}),
    "AgentDuelingDQN": ("dqn", {"dueling": True}),
    "AgentD3QN": ("dqn", {"double": True, "dueling": True}),
    "AgentSAC": ("sac", {}),
    "AgentDiscreteSAC": ("discrete_sac", {}),
    "AgentModSAC": ("mod_sac", {}),
    "AgentREDQ": ("redq", {}),
    "AgentDDPG": ("ddpg", {}),
    "AgentTD3": ("td3", {}),
    "AgentPPO_H": ("ppo", {"h_term": True}),
    "AgentPPOHterm": ("ppo", {"h_term": True}),
    "AgentSAC_H": ("sac", {"h_term": True}),
    "AgentReSACHtermK": ("sac", {"h_term": True}),
    "AgentDDPGHterm": ("ddpg", {"h_term": True}),
}
"""Documented name -> registered agent and the settings that the name stands for."""

TRAINING_METHODS = {
    "explore_env", "explore_one_env", "explore_vec_env", "explore_action", "update_net", "update_objectives",
    "get_advantages", "get_cumulative_rewards", "get_obj_critic", "get_obj_critic_raw", "get_obj_critic_per",
    "optimizer_backward", "optimizer_backward_amp", "soft_update",
}  # fmt: skip
"""What the documents let an agent do while it trains; here it is the core's business."""


class DocumentedAgent(Settings):
    """An agent as documents use it: settings before a run, ``select_action`` after it. It does not train by itself."""

    algorithm: ClassVar[str]
    preset: ClassVar[dict[str, Any]] = {}
    if_off_policy: ClassVar[bool]
    class_settings: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, net_dims: Any = None, state_dim: int | None = None, action_dim: int | None = None,
        gpu_id: int = -1, args: Settings | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._policy: TrainedPolicy | None = None
        self._dims = (state_dim, action_dim)
        self._values.update(self.class_settings, **(args._values if args else {}))
        if net_dims is not None:
            self.net_dims = net_dims

    def __init_subclass__(cls) -> None:
        """Settings of a subclass's body are settings; a training method would never be called, so it is an error."""
        own = {n: v for n, v in vars(cls).items() if not n.startswith("_") and not hasattr(DocumentedAgent, n)}
        own = {n: v for n, v in own.items() if n not in DocumentedAgent.__annotations__}
        if ignored := TRAINING_METHODS & own.keys():
            raise ConfigError(
                f"{cls.__name__}.{min(ignored)} would never be called; to change an algorithm, subclass"
                f" {find_agent(cls.algorithm).agent.__module__}.{find_agent(cls.algorithm).agent.__name__}"
                f" and register it with elegantrl.register_agent"
            )
        settings = {n: v for n, v in own.items() if not callable(v) and not isinstance(v, property)}
        checked = Settings()
        checked._values.update(cls.class_settings)
        for name, value in settings.items():
            setattr(checked, name, value)  # with the checks of any setting
            delattr(cls, name)
        cls.class_settings = checked._values

    def init(self, net_dim: int, state_dim: int, action_dim: int, **settings: Any) -> None:
        """Say what the agent is for; its networks come with ``save_or_load_agent``."""
        self._dims = (state_dim, action_dim)
        self.net_dim = net_dim
        for name, value in settings.items():
            setattr(self, name, value)

    def save_or_load_agent(self, cwd: str | Path, if_save: bool) -> None:
        """Load the best policy of the run in ``cwd``."""
        if if_save:
            raise ConfigError("training saves the agent by itself; call save_or_load_agent with if_save=False to load")
        policy = TrainedPolicy.load(cwd)
        found = policy.spec.kwargs["obs_dim"], policy.spec.kwargs["action_dim"]
        if any(wanted not in (None, actual) for wanted, actual in zip(self._dims, found, strict=True)):
            raise CheckpointError(f"the agent in {cwd} has (state_dim, action_dim) {found}, not {self._dims}")
        self._policy = policy

    def select_action(self, state: Any) -> Any:
        """The best known action for one state or a batch of them: a choice, or numbers in [-1, 1] as NumPy."""
        if self._policy is None:
            raise ConfigError("this agent is untrained; load one with save_or_load_agent(cwd, if_save=False)")
        action = self._policy.act(state)
        # A Gaussian policy may leave the range, which environments clip; [()] turns a lone choice into a number.
        return (action.clip(-1, 1) if action.dtype.kind == "f" else action)[()]


@cache
def documented_agent(name: str) -> type[DocumentedAgent]:
    """The class of a documented name."""
    algorithm, preset = AGENTS[name]
    return _agent_class(name, algorithm, preset)


def _agent_class(name: str, algorithm: str, preset: dict[str, Any]) -> type[DocumentedAgent]:
    replays = find_agent(algorithm).agent.data == "replay"
    body = {"algorithm": algorithm, "preset": preset, "if_off_policy": replays, "__module__": "elegantrl"}
    return type(name, (DocumentedAgent,), body)


def as_agent(thing: Any) -> DocumentedAgent | None:
    """``thing`` as an agent if it is one: a documented class or instance, or a class registered with the core."""
    if isinstance(thing, DocumentedAgent):
        return thing
    if isinstance(thing, type) and issubclass(thing, DocumentedAgent):
        return thing()
    if isinstance(thing, type) and issubclass(thing, Agent):
        for name in agent_names():
            if find_agent(name).agent is thing:
                return _agent_class(thing.__name__, name, {})()
        raise ConfigError(f"{thing.__name__} is not registered; call elegantrl.register_agent with it first")
    return None

"""The documented agents of teams: settings of a run, and a trained team from a folder.

The documents show parts of training loops for teams, such as ``update_agent`` and ``ppo_update``. These parts fit no
common loop, and what they take (batches, samples and buffers of other packages) is described nowhere; each is refused
with one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError
from ..registry import find_agent
from ..store.team_units import TeamUnits
from ..store.trained import TrainedPolicy
from ..types import EnvSpec
from .agents import DocumentedAgent
from .by_hand import ByHand
from .fields import UnknownField

PARTS = {"update_agent", "train", "ppo_update"}
"""Documented methods that do a part of an update."""


class DocumentedTeam(DocumentedAgent):
    """A team as documents use it; it is trained by ``train_agent`` and loaded by ``save_or_load_agent``."""

    def __getattr__(self, name: str) -> Any:
        if name in PARTS:
            raise UnknownField(self._refusal(name))
        return super().__getattr__(name)

    def _refusal(self, name: str) -> str:
        kind = type(self).__name__
        return (
            f"{kind} has no {name} for scripts: the documents show only parts of a loop for teams; train with"
            f" train_agent(Config({kind}, env_class, env_args)), or change the algorithm in"
            f" {find_agent(self.algorithm).agent.__module__}"
        )

    def explore_env(self, env: Any, horizon_len: int, if_random: bool = False) -> Any:
        raise ConfigError(self._refusal("explore_env"))

    explore_one_env = explore_vec_env = explore_env

    def update_net(self, buffer: Any, *settings: Any) -> Any:
        raise ConfigError(self._refusal("update_net"))

    def _core(self, spec: EnvSpec | None = None) -> ByHand:
        raise ConfigError(self._refusal("networks"))

    # ---- a trained team

    def save_or_load_agent(self, cwd: str | Path, if_save: bool) -> None:
        """Load the best policy of a run; the run itself has saved it."""
        if if_save:
            raise ConfigError(self._refusal("saving"))
        trained = TrainedPolicy.load(cwd)
        if find_agent(trained.config.agent_name).agent is not find_agent(self.algorithm).agent:
            raise CheckpointError(
                f"the agent in {cwd} is {trained.config.agent_name!r}, not {self.algorithm!r}; load it with its own"
                f" class"
            )
        self._trained: TrainedPolicy | None = trained

    def select_actions(self, states: Sequence[Any]) -> list[Any]:
        """The best known action of each agent, in the units of its environment, from a list of their states."""
        trained = self.__dict__.get("_trained")
        if trained is None:
            raise ConfigError(
                f"this {type(self).__name__} is not trained; load one with save_or_load_agent(cwd, if_save=False)"
            )
        assert isinstance(trained.units, TeamUnits)
        names = list(trained.units.agents)
        if len(states) != len(names):
            raise ConfigError(f"there are {len(states)} states for {len(names)} agents: {', '.join(names)}")
        return list(trained.act(dict(zip(names, states, strict=True))).values())

    def select_action(self, state: Any) -> list[Any]:
        """The same under the name of single agents."""
        return self.select_actions(state)

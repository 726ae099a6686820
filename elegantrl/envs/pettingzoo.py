"""Environments with the parallel API of PettingZoo, such as ``mpe2:simple_spread_v3``.

Axes: G agents, S state.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import ConfigError, SpecError
from .lane_state import LaneState
from .lanes import seeded_reset
from .masks import MASK_KEY
from .results import as_flag
from .spaces import Array
from .team_env import TeamLane, team_rewards
from .team_spaces import TeamObs

log = logging.getLogger(__name__)

EXTRA_MODULES = ("pettingzoo", "mpe2", "lbforaging", "rware")
"""What the extra ``marl`` installs."""


def is_pettingzoo_env(env: Any) -> bool:
    """Whether ``env`` has agents by name, with spaces that methods or dicts give."""
    return any(hasattr(env, name) for name in ("possible_agents", "agent_iter")) and hasattr(env, "step")


def maker_of(module: ModuleType) -> Any:
    """The function of a PettingZoo module that makes its environment, with the parallel API if it has that; None if
    ``module`` is none."""
    return getattr(module, "parallel_env", None) or getattr(module, "env", None)


def mpe_names() -> list[str]:
    """The names of the environments of ``mpe2``, found without importing it."""
    try:
        spec = importlib.util.find_spec("mpe2")
    except ValueError:  # it was blocked
        return []
    folders = list(spec.submodule_search_locations or []) if spec else []
    return sorted(f"mpe2:{path.stem}" for folder in folders for path in Path(folder).glob("*_v[0-9].py"))


def missing_package(env_id: str, error: ImportError) -> ConfigError | None:
    """The remedy if an import failed because of a package that an extra installs, of ours or of PettingZoo."""
    needs = (error.name or "").partition(".")[0]
    if needs in EXTRA_MODULES:
        return ConfigError(f"environment {env_id!r} needs {needs}: pip install 'elegantrl[marl]'")
    root, _, family = env_id.partition(":")[0].partition(".")
    if root == "pettingzoo" and needs:
        return ConfigError(f"environment {env_id!r} needs {needs}: pip install 'pettingzoo[{family}]'")
    return None


def as_parallel(env: Any, name: str) -> Any:
    """``env`` with the parallel API: itself, or converted if its metadata say that this is safe."""
    if not hasattr(env, "agent_iter"):
        return env
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
        raise SpecError(
            f"environment {name!r} lets its agents act in turn (PettingZoo's AEC API), but agents of a team act at the"
            f" same time; if that is sound, set metadata['is_parallelizable'] = True and pass"
            f" pettingzoo.utils.aec_to_parallel(env)"
        )
    from pettingzoo.utils import aec_to_parallel

    return aec_to_parallel(env)


def parallel_lanes(envs: Sequence[Any], name: str) -> list[ParallelLane]:
    """Environments with the parallel API as lanes; the first one is reset to find out what it gives."""
    lanes = [ParallelLane(as_parallel(env, name), name) for env in envs]
    gives_masks, state_size = lanes[0].look()
    for lane in lanes:
        lane.gives_masks, lane.state_size = gives_masks, state_size
    return lanes


class ParallelLane(TeamLane):
    """One such environment. An agent ends when a flag says so or when it leaves ``env.agents``."""

    ends_early = True

    def __init__(self, env: Any, name: str):
        if not getattr(env, "possible_agents", None):
            raise SpecError(
                f"environment {name!r} has no possible_agents; a team needs the list of all agents that can take part"
            )
        self.env, self.name = env, name
        self.ids = list(env.possible_agents)
        self.agents = tuple(map(str, self.ids))
        self.observation_spaces = {str(agent): env.observation_space(agent) for agent in self.ids}
        self.action_spaces = {str(agent): env.action_space(agent) for agent in self.ids}
        limit = getattr(getattr(env, "unwrapped", env), "max_cycles", None)
        self.max_episode_steps = limit if isinstance(limit, int) else None
        self.active = [True] * len(self.ids)
        self._reset = seeded_reset(env)

    def look(self) -> tuple[bool, int | None]:
        """Whether the environment gives masks, and the size of its state; None without a state that works.

        A state that outlives episodes is the same afterwards.
        """
        lane_state = LaneState(self, self.name)
        try:
            before = lane_state.get()
            obs, infos = self._reset(0)
            masks = self._masks(obs, infos)
            state_size = self._state_size()
            if before is not None:
                lane_state.set(before)
        except Exception:  # the reset of the run reports it
            log.debug("environment %r fails at its first reset", self.name, exc_info=True)
            return False, None
        return any(mask is not None for mask in masks), state_size

    def _state_size(self) -> int | None:
        try:
            state = np.asarray(self.env.state())
        except Exception:  # the method is part of the API, and most environments do not implement it
            log.debug("environment %r has no state", self.name, exc_info=True)
            return None
        if state.ndim != 1 or state.dtype.kind not in "fiub":
            log.info("environment %r: its state of shape %s is left out, it is no vector", self.name, state.shape)
            return None
        return state.size

    def reset(self, seed: int) -> tuple[TeamObs, dict[str, Any]]:
        obs, infos = self._reset(seed)
        if not isinstance(obs, dict) or not obs:
            raise SpecError(
                f"environment {self.name!r}: reset returned {obs!r:.60}, expected a dict with an observation of each"
                f" agent, and a dict of infos"
            )
        self._refuse_strangers([*obs, *self.env.agents], self.ids)
        self.active = [agent in self.env.agents for agent in self.ids]
        return self._shown(obs, infos, self.active, "reset"), {}

    def step(self, actions: Sequence[Any]) -> tuple[TeamObs, Array, bool, bool, dict[str, Any]]:
        acted = {agent: action for agent, action in zip(self.ids, actions, strict=True) if action is not None}
        obs, rewards, terminations, truncations, infos = self._five_dicts(self.env.step(acted))
        self._refuse_strangers(self.env.agents, acted)
        over, cut = set(), set()  # agents that end now: their task ended, or a limit of time was reached
        for agent in acted:
            if as_flag(self.name, f"termination of {agent}", terminations.get(agent, False)):
                over.add(agent)
            elif as_flag(self.name, f"truncation of {agent}", truncations.get(agent, False)):
                cut.add(agent)
            elif agent not in self.env.agents:
                over.add(agent)
        self.active = [agent in acted and agent not in over | cut for agent in self.ids]
        values = self._rewards(rewards, acted)
        if any(self.active):
            return self._shown(obs, infos, self.active, "step"), values, False, False, {}
        # The successor of the last step has a value for agents that a limit of time has stopped; where there are none,
        # the team's task has ended, and what its agents saw last is shown as far as it is known.
        last = [agent in cut if cut else agent in acted and agent in obs for agent in self.ids]
        return self._shown(obs, infos, last, "step"), values, not cut, bool(cut), {}

    def _five_dicts(self, result: Any) -> tuple[Any, ...]:
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, dict) for part in result):
            raise SpecError(
                f"environment {self.name!r}: step returned {result!r:.60}, expected 5 dicts by agent: observations,"
                f" rewards, terminations, truncations, infos"
            )
        return result

    def _refuse_strangers(self, found: Iterable[Any], known: Container[Any]) -> None:
        """Agents may end, but none may join a team."""
        for agent in found:
            if agent not in known:
                where = "in the middle of an episode" if agent in self.ids else "that possible_agents does not name"
                raise SpecError(
                    f"environment {self.name!r}: agent {str(agent)!r} appears {where}; a team has the same agents from"
                    f" the first step on, so keep an agent that comes later in it and let it wait"
                )

    def _shown(self, obs: dict[Any, Any], infos: Any, active: Sequence[bool], source: str) -> TeamObs:
        for agent, acts in zip(self.ids, active, strict=True):
            if acts and obs.get(agent) is None:
                raise SpecError(f"environment {self.name!r}: {source} returned no observation of agent {str(agent)!r}")
        seen = [obs[agent] if acts else None for agent, acts in zip(self.ids, active, strict=True)]
        masks = self._masks(obs, infos) if self.gives_masks else None
        return TeamObs(seen, masks, None if self.state_size is None else self.env.state())

    def _masks(self, obs: dict[Any, Any], infos: Any) -> list[Any]:
        """The mask of each agent, from its observation or its info; None where there is none."""
        held = [obs.get(agent) for agent in self.ids]
        told = [(infos or {}).get(agent) or {} for agent in self.ids]
        return [
            part.get(MASK_KEY) if isinstance(part, dict) and MASK_KEY in part else info.get(MASK_KEY)
            for part, info in zip(held, told, strict=True)
        ]

    def _rewards(self, rewards: dict[Any, Any], acted: dict[Any, Any]) -> Array:
        for agent in acted:
            if agent not in rewards:
                raise SpecError(f"environment {self.name!r}: step returned no reward of agent {str(agent)!r}")
        return team_rewards(self.name, self.agents, [rewards[agent] if agent in acted else 0.0 for agent in self.ids])

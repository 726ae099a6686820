"""The same for teams: a dict of observations by agent gives a dict of actions, each in the units of its agent.

Axes: N observations at once, G agents, O observation, A options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..envs.space_text import spaces_from
from ..errors import SpecError
from ..nets.policies import PolicySpec
from ..nets.policies.base import agent_leaves
from ..tree import Tree, leaves, map_leaves
from ..types import ActionSpec, Leaf, Obs, mask_of, seen_part
from .units import Given, Units


class TeamUnits:
    """The units of each agent of a team.

    A policy computes the whole team at once. An agent that is left out is a row of zeros, and a row does not affect
    others.
    """

    def __init__(self, observation_space: Any, action_space: Any, obs: Tree, action: ActionSpec, name: str):
        """``observation_space`` and ``action_space`` have the space of each agent under its name, in the order of G."""
        self.name, self.action_space, self.action = name, action_space, action
        self.seen, self.has_mask = seen_part(obs), mask_of(obs) is not None
        names = list(action_space.spaces)
        self._encodes = observation_space is not None
        own = agent_leaves(self.seen, (len(names),))
        self.agents = {
            agent: Units(
                observation_space.spaces[agent] if self._encodes else None,
                action_space.spaces[agent],
                own,
                f"agent {agent!r} of {name}",
            )
            for agent in names
        }
        for agent in self.agents.values():
            _check_fits(agent, own, action)

    def encode(self, obs: Any, mask: Any = None) -> Given:
        """The policy's observations [N, G, ...] from those of some agents, and their masks."""
        masks = {} if mask is None else mask
        for what, by_agent in (("observations", obs), ("masks", masks)):
            self._check_names(what, by_agent)
        if not obs:
            raise SpecError(f"the observations for {self.name} are of no agent; give those of at least one")
        found = {agent: self.agents[agent].encode_seen(seen_part(obs[agent])) for agent in obs}
        if len({(num, single) for _, num, single in found.values()}) != 1:
            raise SpecError(f"the agents of {self.name} have different numbers of observations; give each the same")
        ((_, num, single), *_) = found.values()
        batch = self._joined({agent: seen for agent, (seen, _, _) in found.items()}, num)
        flags = {agent: self._flags(agent, obs[agent], masks.get(agent)) for agent in obs}
        if self.has_mask:
            free = torch.ones(num, self.action.num_outputs, dtype=torch.bool)
            rows = [self._mask(agent, flags[agent], num) if agent in flags else free for agent in self.agents]
            batch = Obs(batch, torch.stack(rows, 1))
        return Given(batch, num, single, tuple(obs))

    def _check_names(self, what: str, by_agent: Any) -> None:
        if not isinstance(by_agent, dict):
            raise SpecError(
                f"the {what} for {self.name} are a {type(by_agent).__name__}, expected a dict by agent; its agents are"
                f" {', '.join(self.agents)}"
            )
        for agent in by_agent:
            if agent not in self.agents:
                raise SpecError(f"{self.name} has no agent {agent!r:.80}; its agents are {', '.join(self.agents)}")

    def _joined(self, seen: dict[str, Tree], num: int) -> Tree:
        """Observations of agents [N, ...] as those of the team [N, G, ...]."""
        team = map_leaves(lambda leaf: leaf.zeros(num), self.seen)
        for g, agent in enumerate(self.agents):
            if agent not in seen:
                continue
            if self._encodes:  # one vector of all its parts; behind it zeros
                vector = torch.cat([x.reshape(num, -1) for x in leaves(seen[agent])], 1)
                team[:, g, : vector.shape[1]] = vector
            else:
                map_leaves(lambda rows, x, g=g: rows[:, g].copy_(x), team, seen[agent])
        return team

    def _flags(self, agent: str, obs: Any, mask: Any) -> Any:
        """The mask of an agent as it was given; None if it has none."""
        units = self.agents[agent]
        # Masks may have been needed only because agents have different numbers of options.
        is_even = all(other.action.choices == self.action.choices for other in self.agents.values())
        return units.mask_for(obs, mask, self.has_mask, needs_one=is_even)

    def _mask(self, agent: str, flags: Any, num: int) -> Tensor:
        """The options of the team that an agent may take [N, A]; without flags all that it has."""
        units = self.agents[agent]
        if flags is None:
            flags = np.ones((num, units.action.num_outputs), dtype=np.bool_)
        own = torch.split(units.encode_mask(flags, num), list(units.action.choices), -1)
        parts = [torch.zeros(num, options, dtype=torch.bool) for options in self.action.choices]
        for i, part in enumerate(parts):
            if i < len(own):
                part[:, : own[i].shape[1]] = own[i]
            else:
                part[:, 0] = True  # a choice that the agent does not have: one option, which is not used
        return torch.cat(parts, 1)

    def decode(self, action: Tensor, given: Given) -> dict[str, Any]:
        """The actions [N, G, ...] of the agents that were given, each in its own space."""
        order = list(self.agents)
        return {agent: self._own(agent, action[:, order.index(agent)], given) for agent in given.agents}

    def _own(self, agent: str, action: Tensor, given: Given) -> Any:
        units = self.agents[agent]
        if units.action.kind != "discrete":
            action = action[:, : units.action.leaf.shape[0]]
        elif self.action.kind == "multi_discrete":  # of agents with more choices
            action = action[:, 0]
        return units.decode(action, given)

    def next_carry(self, before: Tree, after: Tree, given: Given) -> Tree:
        """The carry after this step, with the rows of agents that were left out as before it."""
        acted = torch.tensor([agent in given.agents for agent in self.agents])  # [G]

        def kept(x: Tensor, y: Tensor) -> Tensor:
            return torch.where(acted.reshape(-1, *(1,) * (y.dim() - 2)), y, x)

        return map_leaves(kept, before, after)


def _check_fits(units: Units, own: Tree, action: ActionSpec) -> None:
    """Refuse a description whose agents do not fit the policy."""
    if units.observation_space is not None and (not isinstance(own, Leaf) or units.num_numbers > own.shape[0]):
        raise ValueError(f"an observation of {units.num_numbers} numbers does not fit {own}")
    fits = bool(units.action.choices) == bool(action.choices) and len(units.action.choices) <= len(action.choices)
    fits = fits and all(mine <= most for mine, most in zip(units.action.choices, action.choices, strict=False))
    if not fits or units.action.dim > action.dim:
        raise ValueError(f"an action of {units.action} does not fit {action}")


AnyUnits = Units | TeamUnits


def units_of(text: str, spec: PolicySpec, name: str) -> AnyUnits:
    """The units for a policy, from the description of the spaces of its environment."""
    observation_space, action_space = spaces_from(text)
    if spec.net.num_agents is None:
        return Units(observation_space, action_space, spec.obs, name)
    return TeamUnits(observation_space, action_space, spec.obs, spec.action, name)

"""Acting for several groups of environments in one process. The assignment of groups to workers changes no result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ..envs.vec_env import VecEnv
from ..nets.policies import PolicySpec
from ..types import EnvSpec, Fragment, State, Weights
from .group import GroupActor

EXACTNESS = ("episode", "replayed", "exact")


def part_name(group: int) -> str:
    """The name of a group's part of a commit."""
    return f"group{group}"


class Worker:
    """A ``GroupActor`` per group. Environments are made first: they determine the shapes of the policy."""

    def __init__(
        self,
        make: Callable[[int], VecEnv],
        groups: Sequence[int],
        *,
        owns_envs: bool = True,
        on_nonfinite: Literal["reject", "stop"] = "reject",
    ):
        self.owns_envs, self.on_nonfinite = owns_envs, on_nonfinite
        self.envs = {group: make(group) for group in groups}
        self.actors: list[GroupActor] = []

    def env_spec(self) -> EnvSpec:
        """The specification of a group's environments."""
        return next(iter(self.envs.values())).spec

    def start(self, policy_spec: PolicySpec, seed: int) -> None:
        self.actors = [
            GroupActor(env, policy_spec, seed, group, owns_env=self.owns_envs, on_nonfinite=self.on_nonfinite)
            for group, env in self.envs.items()
        ]

    def exactness(self) -> str:
        """How much of open episodes a resume restores; the minimum over the groups."""
        return min((actor.exactness() for actor in self.actors), key=EXACTNESS.index)

    def sample(self, weights: Weights, horizon: int, seq: int) -> list[Fragment]:
        return [actor.sample(weights, horizon, seq) for actor in self.actors]

    def state_dict(self) -> dict[str, State]:
        """A part of a commit for each group."""
        return {part_name(actor.slot_group): actor.state_dict() for actor in self.actors}

    def load_state_dict(self, parts: dict[str, State]) -> list[np.ndarray]:
        """Continue from ``parts``; returns for each group which lanes [N] had to begin a new episode."""
        return [actor.load_state_dict(parts[part_name(actor.slot_group)]) for actor in self.actors]

    def close(self) -> None:
        for env in self.envs.values():
            if self.owns_envs:
                env.close()

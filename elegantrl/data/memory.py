"""Memories: they store the steps that a learner receives and return the batches of its updates.

An agent selects its memory: a name in ``MEMORIES``, or the import path of a subclass of ``Memory``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from ..imports import find
from ..types import EnvSpec, Rollout, State, Transition, Update
from .episodes import EpisodeBatch, EpisodeRing, PrioritizedEpisodes
from .fragments import FragmentRing, Sequences
from .prioritized import PrioritizedReplay
from .replay import ReplayBuffer


class Setup(NamedTuple):
    """The arguments of a memory's constructor."""

    config: Any  # the settings of the agent
    spec: EnvSpec
    device: torch.device
    generator: Generator  # the stream from which minibatches are drawn
    gamma: Tensor  # the agent's discount, which may change while it learns
    minimum: Callable[[Tensor], Tensor] | None = None  # the smallest element over all learners, if there are several


class Memory(ABC):
    """Receives rollouts and returns batches for ``Agent.update``."""

    @abstractmethod
    def __init__(self, setup: Setup): ...

    @abstractmethod
    def add(self, rollout: Rollout, env_steps: int) -> None:
        """Store a rollout; ``env_steps`` counts the steps of the run so far, including the rollout."""

    @abstractmethod
    def num_due(self, num_updates: int) -> int:
        """The number of updates that are due after ``num_updates``; 0 or less if none is."""

    @abstractmethod
    def draw(self) -> Any:
        """The batch of the next update."""

    def feed_back(self, batch: Any, update: Update) -> None:  # noqa: B027  most memories do not depend on it
        """Receive the result of the update with ``batch``, such as new priorities."""

    def end_open_episodes(self, lanes: Tensor) -> None:  # noqa: B027  a rollout has no open episodes
        """The newest step of the given lanes [N] has no successor: their episodes end there."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:  # noqa: B027
        """Continue from ``state``."""


class LatestRollout(Memory):
    """Keeps each rollout for one update."""

    def __init__(self, setup: Setup):
        self.rollout: Rollout | None = None

    def add(self, rollout: Rollout, env_steps: int) -> None:
        self.rollout = rollout

    def num_due(self, num_updates: int) -> int:
        return 1

    def draw(self) -> Rollout:
        rollout, self.rollout = self.rollout, None
        assert rollout is not None, "a rollout is added before each update"
        return rollout


class Replay(Memory):
    """Uniform minibatches of transitions from a ring, at a constant ratio of updates to environment steps."""

    ring: ReplayBuffer

    def __init__(self, setup: Setup):
        self.setup, self.config = setup, setup.config
        self.env_steps = 0
        self.ring = self.build_ring()

    def build_ring(self) -> ReplayBuffer:
        return ReplayBuffer(self.config.buffer_size, self.setup.spec, self.setup.device)

    def add(self, rollout: Rollout, env_steps: int) -> None:
        self.env_steps = env_steps
        self.ring.add(rollout._replace(reward=self.config.learned_rewards(rollout.reward)))

    def num_due(self, num_updates: int) -> int:
        learned_steps = max(0, self.env_steps - self.config.learning_starts)
        return int(learned_steps * self.config.updates_per_step) - num_updates

    def draw(self) -> Transition:
        c = self.config
        return self.ring.sample(c.batch_size, self.setup.gamma, c.n_step, self.setup.generator)

    def end_open_episodes(self, lanes: Tensor) -> None:
        self.ring.truncate_newest(lanes)

    def state_dict(self) -> State:
        return self.ring.state_dict() | {"sampler": self.setup.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        self.ring.load_state_dict(state)
        self.setup.generator.set_state(state["sampler"].cpu())


class Prioritized(Replay):
    """Minibatches in proportion to the size of temporal-difference errors, which ``feed_back`` receives."""

    ring: PrioritizedReplay

    def build_ring(self) -> PrioritizedReplay:
        c, setup = self.config, self.setup
        exponents = (c.priority_alpha, c.priority_beta)
        return PrioritizedReplay(c.buffer_size, setup.spec, setup.device, *exponents, setup.minimum)

    def add(self, rollout: Rollout, env_steps: int) -> None:
        super().add(rollout, env_steps)
        passed = min(1.0, env_steps / self.config.schedule_steps)
        self.ring.beta = self.config.priority_beta + (1.0 - self.config.priority_beta) * passed

    def feed_back(self, batch: Transition, update: Update) -> None:
        assert batch.rows is not None and update.td_error is not None
        self.ring.update_priorities(batch.rows, update.td_error)


class Episodes(Replay):
    """Whole episodes, padded to the same length, for sequences and teams."""

    ring: EpisodeRing  # type: ignore[assignment]

    def build_ring(self) -> EpisodeRing:  # type: ignore[override]
        return EpisodeRing(self.config.buffer_size, self.setup.spec, self.setup.device)

    def num_due(self, num_updates: int) -> int:
        return super().num_due(num_updates) if len(self.ring) else 0

    def draw(self) -> EpisodeBatch:  # type: ignore[override]
        return self.ring.sample(self.config.batch_size, self.setup.generator)


class EpisodesByPriority(Prioritized, Episodes):
    """Whole episodes in proportion to the mean size of their temporal-difference errors."""

    ring: PrioritizedEpisodes  # type: ignore[assignment]

    def build_ring(self) -> PrioritizedEpisodes:  # type: ignore[override]
        c, setup = self.config, self.setup
        exponents = (c.priority_alpha, c.priority_beta)
        return PrioritizedEpisodes(c.buffer_size, setup.spec, setup.device, *exponents, setup.minimum)


class Fragments(Replay):
    """Sequences that begin with the carry of the policy that acted, for agents with memory."""

    ring: FragmentRing

    def build_ring(self) -> FragmentRing:
        c, setup = self.config, self.setup
        return FragmentRing(c.buffer_size, setup.spec, setup.device, c.horizon, c.burn_in)

    def num_due(self, num_updates: int) -> int:
        return super().num_due(num_updates) if self.ring.num_starts else 0

    def draw(self) -> Sequences:  # type: ignore[override]
        return self.ring.sample_sequences(self.config.batch_size, self.setup.generator)


MEMORIES: dict[str, type[Memory]] = {
    "rollout": LatestRollout,
    "replay": Replay,
    "prioritized": Prioritized,
    "episodes": Episodes,
    "prioritized_episodes": EpisodesByPriority,
    "fragments": Fragments,
}


def build_memory(name: str, setup: Setup) -> Memory:
    """The memory called ``name``, or the one at an import path."""
    memory: Memory = find(name, MEMORIES, "memory")(setup)
    return memory

"""Learning: the agent, its data, and the version counter. Does not know where fragments come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from .. import tree
from ..agents.averaging import OneRank
from ..agents.base import Agent, AgentConfig
from ..agents.h_term import HTermConfig
from ..agents.off_policy import TD_ERROR, ReplayConfig
from ..config.shares import share_of
from ..data.prioritized import PrioritizedReplay
from ..data.replay import ReplayBuffer
from ..data.rollout import join_fragments
from ..data.trajectories import TrajectoryStore
from ..devices import device_of_rank
from ..errors import RoleError
from ..imports import import_fast
from ..nets.policies import PolicySpec, joined
from ..registry import AgentEntry, build_agent, find_agent
from ..rng import torch_stream
from ..types import EnvSpec, Fragment, Metrics, Rollout, State, Transition, Weights
from .ranks import Ranks, connect
from .warm_start import load_networks

COMMON = ("agent", "env_steps", "version")
"""The parts of a learner's state that are the same for all ranks."""


class Report(NamedTuple):
    """What came of an update, in few pieces: metrics as one tensor; weights from rank 0 alone."""

    names: tuple[str, ...]
    values: Tensor  # [len(names)]
    weights: Weights | None


class Learner:
    """Turns fragments into newer weights.

    One of ``num_learners`` ranks has its share of the lanes, of every batch and of the replay buffer; what is counted
    in environment steps counts those of all ranks. ``config`` and ``spec`` are those of the whole run. ``gradients``
    says how losses are differentiated; with ``core_helper`` a process on a second core computes a part of each update,
    which changes no bit. ``networks`` is the training state of an earlier agent whose networks this one starts with.
    """

    def __init__(
        self,
        agent: AgentEntry | str,
        config: AgentConfig,
        spec: EnvSpec,
        device: torch.device,
        seed: int,
        rank: int = 0,
        num_learners: int = 1,
        gradients: str = "auto",
        core_helper: bool = False,
        networks: State | None = None,
    ):
        config = share_of(config, num_learners, config.horizon * spec.num_envs)
        spec = replace(spec, num_envs=spec.num_envs // num_learners)
        device = device_of_rank(device, rank)
        self.agent: Agent = build_agent(find_agent(agent), spec, config, device, seed)
        self.averaging = OneRank()
        if num_learners > 1:
            self.averaging = Ranks(rank, num_learners)
            self.agent.average_with(self.averaging, seed)
        self.config, self.device = config, device
        fast = import_fast("learning")
        if fast is not None:
            self.agent.gradients = fast.gradients_of(self.agent, gradients, core_helper)
        if networks is not None:
            load_networks(self.agent, networks)
        self.policy_tensors = self.agent.policy.tensors()  # to look for them takes as long as to copy them
        self.env_steps = 0
        self.version = 0
        self.replay: ReplayBuffer | None = None
        if self.agent.data == "replay":
            least = self.averaging.minimum if num_learners > 1 else None
            self.replay = build_replay(cast(ReplayConfig, config), spec, device, least)
            stream = ("replay", rank) if rank else ("replay",)
            self.sampler = torch_stream(seed, *stream, device=device)
        self.trajectories: TrajectoryStore | None = None
        if self.agent.h_term is not None:
            self.trajectories = TrajectoryStore(cast(HTermConfig, config).h_store, spec, device)
        self.agent.schedule(0)

    def connect(self, address: str) -> None:
        """Connect to the other ranks, which are given the same address; only then is this one ready to learn."""
        assert isinstance(self.averaging, Ranks)
        self.averaging.group = connect(address, self.averaging.rank, self.averaging.size, self.device)
        self.check_agreement()

    def check_agreement(self) -> None:
        """Refuse to learn together with ranks that have other parameters: averages would mean nothing."""
        state = self.agent.training_state()
        del state["generator"]  # the one thing that differs
        own = torch.tensor(digest(state | {"env_steps": self.env_steps}), dtype=torch.float64, device=self.device)
        if not bool(self.averaging.average(own.clone()) == own):
            raise RoleError(f"learner {self.averaging.rank} and the others do not hold the same parameters")

    def policy_spec(self) -> PolicySpec:
        """How workers and evaluators build their copy of the policy."""
        return self.agent.policy_spec

    def num_updates(self) -> int:
        return self.agent.num_updates

    def is_finite(self) -> bool:
        """Whether parameters and optimisers hold no NaN and no infinity."""
        return bool(self.agent.is_finite())

    def weights(self) -> Weights:
        """The policy as it is now, as a copy that later updates do not touch."""
        return Weights(self.version, joined(self.policy_tensors))

    def update(self, fragments: Sequence[Fragment]) -> Metrics:
        """Learn from new fragments; metrics are empty while a replay buffer is still warming up."""
        rollout = join_fragments(fragments)
        rollout = tree.to(rollout, self.device)
        self.env_steps += rollout.num_steps * self.averaging.size
        if self.trajectories is not None:
            self.choose_windows(rollout, self.trajectories)
        if self.replay is not None:
            metrics = self.learn_from_replay(rollout, self.replay)
        else:
            metrics = self.agent.update(rollout)
        self.agent.schedule(self.env_steps)
        self.version += 1
        return metrics

    def learn(self, fragments: Sequence[Fragment]) -> tuple[Metrics, Weights]:
        """``update``, and the weights that came of it."""
        return self.update(fragments), self.weights()

    def report(self, fragments: Sequence[Fragment]) -> Report:
        """``learn`` for a caller in another process: few tensors travel faster than many; metrics are of all ranks."""
        metrics = self.update(fragments)
        values = torch.stack([x.detach().float() for x in metrics.values()]) if metrics else torch.empty(0)
        if metrics:
            values = self.averaging.average(values)
        return Report(tuple(metrics), values, self.weights() if self.averaging.rank == 0 else None)

    def choose_windows(self, rollout: Rollout, trajectories: TrajectoryStore) -> None:
        """Let the H-term learn from the best windows of what was lived through lately."""
        config = cast(HTermConfig, self.config)
        trajectories.add(rollout)
        windows = trajectories.top_windows(config.h_windows, config.h_length, self.agent.hypers.h_gamma)
        if windows is not None:
            assert self.agent.h_term is not None
            self.agent.h_term.load(windows)

    def learn_from_replay(self, rollout: Rollout, replay: ReplayBuffer) -> Metrics:
        """Store, then take the updates that the constant ratio of updates to steps asks for by now."""
        config = cast(ReplayConfig, self.config)
        learned_steps = max(0, self.env_steps - config.learning_starts)
        due = int(learned_steps * config.updates_per_step) - self.agent.num_updates
        replay.add(rollout._replace(reward=rollout.reward * config.reward_scale))
        self.agent.observe(rollout.obs)
        metrics: Metrics = {}
        if isinstance(replay, PrioritizedReplay):
            passed = min(1.0, self.env_steps / config.schedule_steps)
            replay.beta = config.priority_beta + (1.0 - config.priority_beta) * passed
        for _ in range(due):
            batch = self.draw(replay)
            metrics = self.agent.update(batch)
            if isinstance(replay, PrioritizedReplay) and batch.rows is not None:
                replay.update_priorities(batch.rows, metrics.pop(TD_ERROR))
        return metrics

    def draw(self, replay: ReplayBuffer) -> Transition:
        """A minibatch."""
        config = cast(ReplayConfig, self.config)
        return replay.sample(config.batch_size, self.agent.hypers.gamma, config.n_step, self.sampler)

    def state_dict(self) -> State:
        """All that is needed to continue; without what rank 0 has for all if this is another rank."""
        if self.averaging.rank == 0:
            state: State = {"agent": self.agent.training_state(), "env_steps": self.env_steps, "version": self.version}
        else:
            state = {"generator": self.agent.generator.get_state()}
        if self.replay is not None:
            state["replay"] = self.replay.state_dict()
            state["sampler"] = self.sampler.get_state()
        if self.trajectories is not None:
            state["trajectories"] = self.trajectories.state_dict()
        return state

    def load_state_dict(self, state: State, own: State | None = None) -> None:
        """Continue from rank 0's state; another rank also gets its own, and of rank 0's only what is common."""
        self.agent.load_training_state(state["agent"])
        self.env_steps, self.version = state["env_steps"], state["version"]
        if own is not None:
            self.agent.generator.set_state(own["generator"].cpu())
            state = own
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
            self.sampler.set_state(state["sampler"].cpu())
        if self.trajectories is not None:
            self.trajectories.load_state_dict(state["trajectories"])
        if self.averaging.size > 1:
            self.check_agreement()

    def end_open_episodes(self, restarted: Sequence[np.ndarray]) -> None:
        """Cut the newest transition of every lane whose episode could not be continued after a resume."""
        for store in (self.replay, self.trajectories):
            if store is not None:
                store.truncate_newest(torch.from_numpy(np.concatenate(restarted)))

    def close(self) -> None:
        self.agent.gradients.close()


def build_replay(
    config: ReplayConfig, spec: EnvSpec, device: torch.device, least: Callable[[Tensor], Tensor] | None = None
) -> ReplayBuffer:
    if not config.prioritized:
        return ReplayBuffer(config.buffer_size, spec, device)
    exponents = (config.priority_alpha, config.priority_beta)
    return PrioritizedReplay(config.buffer_size, spec, device, *exponents, least)


def digest(value: Any) -> int:
    """48 bits of every name, number and tensor in a nested state: a float64 holds the sum of many of them exactly."""
    found = hashlib.blake2b(digest_size=6)

    def take(value: Any) -> None:
        if isinstance(value, dict):
            for name in sorted(value):
                found.update(name.encode())
                take(value[name])
        elif isinstance(value, Tensor):
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())

    take(value)
    return int.from_bytes(found.digest(), "little")

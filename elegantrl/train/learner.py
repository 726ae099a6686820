"""Learning: the agent, its data, and the version counter. Does not know where fragments come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from ..agents.base import Agent, AgentConfig
from ..agents.h_term import HTermConfig
from ..agents.off_policy import TD_ERROR, ReplayConfig
from ..data.prioritized import PrioritizedReplay
from ..data.replay import ReplayBuffer
from ..data.rollout import join_fragments
from ..data.trajectories import TrajectoryStore
from ..nets.policies import PolicySpec
from ..registry import build_agent, find_agent
from ..rng import torch_stream
from ..types import EnvSpec, Fragment, Metrics, Rollout, State, Weights


class Learner:
    """Turns fragments into newer weights."""

    def __init__(self, agent_name: str, config: AgentConfig, spec: EnvSpec, device: torch.device, seed: int):
        self.agent: Agent = build_agent(find_agent(agent_name), spec, config, device, seed)
        self.config, self.device = config, device
        self.env_steps = 0
        self.version = 0
        self.replay: ReplayBuffer | None = None
        if self.agent.data == "replay":
            self.replay = build_replay(cast(ReplayConfig, config), spec, device)
            self.sampler = torch_stream(seed, "replay", device=device)
        self.trajectories: TrajectoryStore | None = None
        if self.agent.h_term is not None:
            self.trajectories = TrajectoryStore(cast(HTermConfig, config).h_store, spec, device)
        self.agent.schedule(0)

    def policy_spec(self) -> PolicySpec:
        """How workers and evaluators build their copy of the policy."""
        return self.agent.policy_spec

    def num_updates(self) -> int:
        return self.agent.num_updates

    def weights(self) -> Weights:
        """The policy as it is now, as a copy that later updates do not touch."""
        return Weights(self.version, self.agent.policy.to_flat())

    def update(self, fragments: Sequence[Fragment]) -> Metrics:
        """Learn from new fragments; metrics are empty while a replay buffer is still warming up."""
        rollout = join_fragments(fragments)
        rollout = Rollout(*(x.to(self.device, non_blocking=True) for x in rollout))
        self.env_steps += rollout.reward.numel()
        if self.trajectories is not None:
            self.choose_windows(rollout, self.trajectories)
        if self.replay is not None:
            metrics = self.learn_from_replay(rollout, self.replay)
        else:
            metrics = self.agent.update(rollout)
        self.agent.schedule(self.env_steps)
        self.version += 1
        return metrics

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
        replay.add(rollout._replace(reward=rollout.reward * config.reward_scale))
        self.agent.observe(rollout.obs)
        learned_steps = max(0, self.env_steps - config.learning_starts)
        due = int(learned_steps * config.updates_per_step) - self.agent.num_updates
        metrics: Metrics = {}
        if isinstance(replay, PrioritizedReplay):
            passed = min(1.0, self.env_steps / config.schedule_steps)
            replay.beta = config.priority_beta + (1.0 - config.priority_beta) * passed
        for _ in range(due):
            batch = replay.sample(config.batch_size, self.agent.hypers.gamma, config.n_step, self.sampler)
            metrics = self.agent.update(batch)
            if isinstance(replay, PrioritizedReplay) and batch.rows is not None:
                replay.update_priorities(batch.rows, metrics.pop(TD_ERROR))
        return metrics

    def state_dict(self) -> State:
        state: State = {"agent": self.agent.training_state(), "env_steps": self.env_steps, "version": self.version}
        if self.replay is not None:
            state["replay"] = self.replay.state_dict()
            state["sampler"] = self.sampler.get_state()
        if self.trajectories is not None:
            state["trajectories"] = self.trajectories.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        self.agent.load_training_state(state["agent"])
        self.env_steps, self.version = state["env_steps"], state["version"]
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
            self.sampler.set_state(state["sampler"].cpu())
        if self.trajectories is not None:
            self.trajectories.load_state_dict(state["trajectories"])

    def end_open_episodes(self, restarted: Sequence[np.ndarray]) -> None:
        """Cut the newest transition of every lane whose episode could not be continued after a resume."""
        for store in (self.replay, self.trajectories):
            if store is not None:
                store.truncate_newest(torch.from_numpy(np.concatenate(restarted)))

    def close(self) -> None:
        """Nothing to release; executors call it on every role."""


def build_replay(config: ReplayConfig, spec: EnvSpec, device: torch.device) -> ReplayBuffer:
    if not config.prioritized:
        return ReplayBuffer(config.buffer_size, spec, device)
    return PrioritizedReplay(config.buffer_size, spec, device, config.priority_alpha, config.priority_beta)

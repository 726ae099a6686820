"""Learning: the agent, its memory, and the version counter; independent of where fragments come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import tree
from ..agents.averaging import OneRank
from ..agents.base import Agent, AgentConfig
from ..agents.gradients import Gradients
from ..config.per_learner import settings_per_learner
from ..data.memory import Setup, build_memory
from ..data.rollout import join_fragments
from ..errors import RoleError
from ..imports import import_fast
from ..nets.policies import PolicySpec, joined
from ..registry import AgentEntry, build_agent, find_agent
from ..rng import torch_stream
from ..types import EnvSpec, Fragment, Metrics, State, Update, Weights
from .ranks import LOOPBACK, Ranks, connect, open_store
from .warm_start import load_networks

COMMON = ("agent", "env_steps", "version")
"""The parts of a learner's state that are the same for all ranks."""


class Report(NamedTuple):
    """The result of an update in few tensors: metrics as one tensor; weights only from rank 0."""

    names: tuple[str, ...]
    values: Tensor  # [len(names)]
    weights: Weights | None


class Learner:
    """Turns fragments into newer weights.

    Each of ``num_learners`` ranks has an equal part of the lanes, of every batch and of the replay buffer; environment
    steps are counted over all ranks. ``config`` and ``spec`` are those of the whole run. ``gradients`` selects how
    losses are differentiated; with ``core_helper`` a process on a second core computes a part of each update, which
    changes no bit. ``networks`` is the training state of an earlier agent whose networks this one starts with.
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
        config = settings_per_learner(config, num_learners, config.horizon * spec.num_envs)
        spec = replace(spec, num_envs=spec.num_envs // num_learners)
        self.agent: Agent = build_agent(find_agent(agent), spec, config, device, seed)
        self.averaging = OneRank()
        if num_learners > 1:
            self.averaging = Ranks(rank, num_learners)
            self.agent.average_with(self.averaging, seed)
        self.config, self.device = config, device
        fast = import_fast("learning")
        if fast is not None:
            self.agent.gradients = fast.gradients_of(self.agent, gradients, core_helper)
        elif gradients == "compiled":
            self.agent.gradients = Gradients("autograd (compiled gradients need the package elegantrl.fast)")
        if networks is not None:
            load_networks(self.agent, networks)
        self.policy_tensors = self.agent.policy.tensors()  # collecting them takes as long as copying them
        self.env_steps = 0
        self.version = 0
        stream = torch_stream(seed, *(("replay", rank) if rank else ("replay",)), device=device)
        minimum = self.averaging.minimum if num_learners > 1 else None
        setup = Setup(config, spec, device, stream, self.agent.hypers.gamma, minimum)
        self.memory = build_memory(self.agent.memory_name(), setup)
        self.agent.schedule(0)

    def open_meeting(self, host: str) -> str:
        """Open the place where ranks on several machines meet, on the machine of this rank; returns its address."""
        assert isinstance(self.averaging, Ranks)
        self.averaging.store = open_store(host, self.averaging.size)
        return f"tcp://{host}:{self.averaging.store.port}"

    def connect(self, address: str, host: str = LOOPBACK) -> None:
        """Connect to the other ranks, which get the same address; a rank can learn only when it is connected.

        ``host`` is the address under which they reach the machine of this rank.
        """
        ranks = self.averaging
        assert isinstance(ranks, Ranks)
        ranks.group = connect(address, ranks.rank, ranks.size, self.device, host, ranks.store)
        self.check_agreement()

    def check_agreement(self) -> None:
        """Refuse to learn with ranks that have other parameters: averages over them would be meaningless."""
        state = self.agent.training_state()
        del state["generator"]  # the one thing that differs
        own = torch.tensor(digest(state | {"env_steps": self.env_steps}), dtype=torch.float64, device=self.device)
        if not bool(self.averaging.average(own.clone()) == own):
            raise RoleError(f"learner {self.averaging.rank} and the others do not hold the same parameters")

    def policy_spec(self) -> PolicySpec:
        """The specification from which workers and evaluators build their copy of the policy."""
        return self.agent.policy_spec

    def num_updates(self) -> int:
        return self.agent.num_updates

    def gradients(self) -> str:
        """A description of how losses are differentiated."""
        return self.agent.gradients.description

    def encoder(self) -> str:
        """A description of what turns observations into features; empty if nothing does."""
        encoder = self.agent.policy.encoder
        return "" if encoder is None else encoder.description

    def is_finite(self) -> bool:
        """Whether parameters and optimisers hold no NaN and no infinity."""
        return bool(self.agent.is_finite())

    def weights(self) -> Weights:
        """A copy of the policy's weights, which later updates do not change."""
        return Weights(self.version, joined(self.policy_tensors))

    def update(self, fragments: Sequence[Fragment]) -> Metrics:
        """Learn from new fragments; metrics are empty if no update was due."""
        rollout = tree.to(join_fragments(fragments), self.device)
        self.env_steps += rollout.num_steps * self.averaging.size
        self.agent.see(rollout)
        self.memory.add(rollout, self.env_steps)
        update = Update({})
        for _ in range(self.memory.num_due(self.agent.num_updates)):
            batch = self.memory.draw()
            update = self.agent.update(batch)
            self.memory.feed_back(batch, update)
        self.agent.schedule(self.env_steps)
        self.version += 1
        return update.metrics

    def learn(self, fragments: Sequence[Fragment]) -> tuple[Metrics, Weights]:
        """``update``, and the new weights."""
        return self.update(fragments), self.weights()

    def report(self, fragments: Sequence[Fragment]) -> Report:
        """``learn`` for a caller in another process: few tensors are sent faster than many; metrics cover all ranks."""
        metrics = self.update(fragments)
        values = torch.stack([x.detach().float() for x in metrics.values()]) if metrics else torch.empty(0)
        if metrics:
            values = self.averaging.average(values)
        return Report(tuple(metrics), values, self.weights() if self.averaging.rank == 0 else None)

    def state_dict(self) -> State:
        """Everything needed to continue; ranks other than 0 leave out the ``COMMON`` parts."""
        if self.averaging.rank == 0:
            state: State = {"agent": self.agent.training_state(), "env_steps": self.env_steps, "version": self.version}
        else:
            state = {"generator": self.agent.generator.get_state()}
        return state | {"memory": self.memory.state_dict(), "seen": self.agent.seen_state()}

    def load_state_dict(self, state: State, own: State | None = None) -> None:
        """Continue from rank 0's state; another rank also gets its ``own`` and uses only rank 0's ``COMMON`` parts.

        Hyper-parameters stay those of this learner's config.
        """
        hypers = {f"hypers.{name}": value.clone() for name, value in self.agent.hypers.state_dict().items()}
        agent = state["agent"]
        self.agent.load_training_state({**agent, "modules": agent["modules"] | hypers})
        self.env_steps, self.version = state["env_steps"], state["version"]
        self.agent.schedule(self.env_steps)  # with these hyper-parameters
        if own is not None:
            self.agent.generator.set_state(own["generator"].cpu())
            state = own
        self.memory.load_state_dict(state["memory"])
        self.agent.load_seen_state(state["seen"])
        if self.averaging.size > 1:
            self.check_agreement()

    def inherit(self, state: State) -> None:
        """Begin with the agent, the memory and the counters of another run of the same agent.

        Hyper-parameters and random streams stay those of this learner; the caller ends the open episodes.
        """
        own = self.state_dict()
        agent = {**state["agent"], "generator": own["agent"]["generator"]}
        streams = {name: own["memory"][name] for name in ("sampler",) if name in own["memory"]}
        memory = state["memory"] | streams
        self.load_state_dict({**state, "agent": agent, "memory": memory, "version": self.version})

    def end_open_episodes(self, restarted: Sequence[np.ndarray]) -> None:
        """End the episodes that could not be continued after a resume; ``restarted`` has an array [N] per group."""
        lanes = torch.from_numpy(np.concatenate(restarted))
        self.memory.end_open_episodes(lanes)
        self.agent.end_open_episodes(lanes)

    def close(self) -> None:
        self.agent.gradients.close()


def digest(value: Any) -> int:
    """A 48-bit hash of all names, numbers and tensors in a state: a float64 holds the sum of many hashes exactly."""
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

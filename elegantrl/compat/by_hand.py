"""A core agent outside a run: a script calls its exploration and its updates.

Axes: T rollout steps, N environments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..agents.base import Agent, AgentConfig
from ..agents.off_policy import AgentActorCritic, ReplayConfig
from ..errors import CheckpointError, ConfigError
from ..registry import build_agent, find_agent
from ..rng import torch_stream
from ..roles.group import GroupActor
from ..store.state import merge_state, split_state
from ..store.tensors import save_actor_pth, save_weights
from ..types import ActionSpec, EnvSpec, Metrics, Rollout, Transition, Weights
from .envs import BuiltEnv
from .replay import Explored, ReplayBuffer, rollout_of

STATE_FILE = "agent.safetensors"


class ByHand:
    """A core agent with the objects that a run would add: an actor in an environment, counters, random streams."""

    def __init__(self, name: str, config: AgentConfig, spec: EnvSpec, device: torch.device, seed: int):
        self.agent: Agent = build_agent(find_agent(name), spec, config, device, seed)
        self.config, self.spec, self.seed = config, spec, seed
        self.sampler = torch_stream(seed, "replay", device=device)
        self.steps = 0
        """Steps that were explored with the policy, without random ones."""
        self.last: Explored | None = None
        self._actor: GroupActor | None = None
        self._env: tuple[BuiltEnv, int] | None = None
        self._num_actors = 0
        self._schedule()

    def _schedule(self, at_random: bool = False) -> None:
        warm_up = self.config.learning_starts if isinstance(self.config, ReplayConfig) else 0
        self.agent.schedule(0 if at_random else warm_up + self.steps)

    # ---- exploring

    def explore(self, env: BuiltEnv, horizon: int, at_random: bool) -> Explored:
        """``horizon`` steps of every environment; continues where the last call ended."""
        self._check_fits(env)
        self._schedule(at_random)
        weights = Weights(self.agent.num_updates, self.agent.policy.to_flat())
        rollout = self._actor_in(env).sample(weights, horizon, 0).rollout
        self._schedule()
        if not at_random:
            self.steps += rollout.reward.numel()
        self.agent.see(rollout)
        self.last = Explored(rollout, with_logprobs=self.agent.memory == "rollout")
        return self.last

    def _actor_in(self, env: BuiltEnv) -> GroupActor:
        """The actor of the last call, or a new one in new episodes if the environment was used in between."""
        if self._actor is None or self._env != (env, env.num_uses):
            self._actor = GroupActor(env.vec, self.agent.policy_spec, self.seed + self._num_actors, owns_env=False)
            self._env = (env, env.num_uses)
            self._num_actors += 1
        return self._actor

    def _check_fits(self, env: BuiltEnv) -> None:
        here, there = self.spec, env.vec.spec
        if (here.obs_dim, here.action) != (there.obs_dim, there.action):
            raise ConfigError(
                f"the agent is built for state_dim={here.obs_dim} and {describe(here.action)}, but {env.env_name} has"
                f" state_dim={there.obs_dim} and {describe(there.action)}"
            )
        if self.agent.h_term is not None and here.num_envs != there.num_envs:
            raise ConfigError(
                f"the trajectories of the H-term are kept for num_envs={here.num_envs}, but {env.env_name} has"
                f" num_envs={there.num_envs}; explore it before anything else is asked of this agent"
            )

    @property
    def last_state(self) -> Tensor | None:
        """The states [N, O] from which the next exploration continues."""
        return None if self._actor is None else self._actor.obs

    # ---- learning

    def update(self, buffer: Any) -> tuple[float, float]:
        """Learn from a rollout or a replay buffer; returns the critic's and the actor's loss of the last update."""
        metrics = self._learn_from_replay(buffer) if self.agent.memory == "replay" else self._learn_from_rollout(buffer)
        self._schedule()
        return tuple(_first(metrics, names) for names in (CRITIC_LOSSES, ACTOR_LOSSES))  # type: ignore[return-value]

    def _learn_from_rollout(self, items: Any) -> Metrics:
        return self.agent.update(self._rollout(items)).metrics

    def _rollout(self, items: Any) -> Rollout:
        if isinstance(items, Explored):
            return items.rollout
        if isinstance(items, ReplayBuffer) or not isinstance(items, list | tuple):
            raise ConfigError(f"this agent learns from what explore_env returned, not from a {type(items).__name__}")
        if self.last is not None and list(map(id, items)) == list(map(id, self.last)):
            return self.last.rollout  # copied into a list, as documents do
        state = self.last_state
        return rollout_of(tuple(items), items[0][-1] if state is None else state)

    def _learn_from_replay(self, buffer: Any) -> Metrics:
        if not isinstance(buffer, ReplayBuffer):
            raise ConfigError(f"this agent learns from a ReplayBuffer, not from a {type(buffer).__name__}")
        assert isinstance(self.config, ReplayConfig)
        metrics: Metrics = {}
        for _ in range(max(1, round(buffer.take_added() * self.config.updates_per_step))):
            batch = self.draw(buffer, self.config.batch_size)
            update = self.agent.update(batch)
            metrics = update.metrics
            if batch.rows is not None:
                assert update.td_error is not None
                buffer.td_error_update_for_per(batch.rows, update.td_error)
        return metrics

    def draw(self, buffer: ReplayBuffer, batch_size: int) -> Transition:
        """A minibatch with rewards as they are learned from."""
        c = self.config
        assert isinstance(c, ReplayConfig)
        batch = buffer.ring.sample(batch_size, self.agent.hypers.gamma, c.n_step, self.sampler)
        return batch._replace(reward=c.learned_rewards(batch.reward))

    def critic_loss(self, buffer: Any, batch_size: int) -> tuple[Tensor, Tensor]:
        """The critic's loss on a minibatch, and the minibatch's states."""
        if self.agent.memory != "replay" or not isinstance(buffer, ReplayBuffer):
            raise ConfigError("the critic's loss on a minibatch needs an agent with replay and a ReplayBuffer")
        batch = self.draw(buffer, batch_size)
        noise = (self.agent.draw_noise(batch),) if isinstance(self.agent, AgentActorCritic) else ()
        loss, _ = getattr(self.agent, self.agent.hot[0])(batch, *noise)
        return loss, batch.obs

    @property
    def critic(self) -> nn.Module:
        """The network that estimates values; DQN's is its policy."""
        found = (getattr(self.agent, name, None) for name in ("critic", "value"))
        return next((net for net in found if isinstance(net, nn.Module)), self.agent.policy)

    # ---- files

    def save(self, cwd: Path) -> None:
        """Save everything that learning depends on, and the policy alone under its documented name."""
        cwd.mkdir(parents=True, exist_ok=True)
        state = {"agent": self.agent.training_state(), "steps": self.steps, "sampler": self.sampler.get_state()}
        tensors, skeleton = split_state(state)
        # The name of the environment selects tuned settings.
        save_weights(cwd / STATE_FILE, tensors, {"skeleton": json.dumps(skeleton), "env": self.spec.name})
        save_actor_pth(cwd / "actor.pth", self.agent.policy.state_dict())

    def load(self, cwd: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
        """Continue from the tensors and the metadata of the state file in ``cwd``."""
        try:
            state = merge_state(tensors, json.loads(about["skeleton"]))
            self.agent.load_training_state(state["agent"])
            self.steps = int(state["steps"])
            self.sampler.set_state(state["sampler"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            text = " ".join(str(error).split())
            raise CheckpointError(f"{cwd / STATE_FILE} does not fit this agent: {text}") from None
        self._schedule()


def describe(action: ActionSpec) -> str:
    return f"action_dim={action.num_outputs} ({action.kind})"


CRITIC_LOSSES = ("loss/critic", "loss/value")
ACTOR_LOSSES = ("loss/actor", "loss/policy")


def _first(metrics: Metrics, names: tuple[str, ...]) -> float:
    return next((float(metrics[name]) for name in names if name in metrics), 0.0)

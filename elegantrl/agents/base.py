"""The agent contract that the runtime uses. It is independent of processes, environments, files and clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..config.fields import Section, setting, tunable
from ..errors import SpecError
from ..nets.layers import Activation, Init
from ..nets.networks import NetSpec
from ..nets.normalize import build_stats
from ..nets.policies import Policy, PolicySpec
from ..rng import torch_stream
from ..tree import Tree
from ..types import EnvSpec, Metrics, Rollout, State, Update, Windows, seen_part
from .averaging import OneRank
from .gradients import Gradients, LazyMetrics
from .h_term import HTerm, HTermConfig, energy
from .optim import GradStep

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig(Section):
    """Settings every agent has."""

    section: ClassVar[str] = "agent"

    gamma: float = tunable(0.99, 0.9, 0.999, ge=0.0, le=1.0)
    """Discount per environment step."""
    lr: float = tunable(3e-4, 1e-5, 1e-2, "log", gt=0.0)
    """Learning rate of Adam."""
    adam_epsilon: float = setting(1e-5, gt=0.0)
    """Added to the root of Adam's second moment: larger values damp steps along directions with small gradients."""
    lr_schedule: Schedule = "constant"
    """`linear` lets the learning rate fall to zero over `schedule_steps`."""
    schedule_steps: int = setting(
        100_000, ge=1, only_with={"lr_schedule": "linear", "entropy_schedule": "linear", "prioritized": True}
    )
    """Environment steps over which schedules run. A schedule never depends on when a run is stopped."""
    hidden: tuple[int, ...] = setting((64, 64), ge=1)
    """Widths of the hidden layers of every network."""
    activation: Activation = "relu"
    """Non-linearity between layers; on a CPU tanh costs several times relu."""
    init: Init = "default"
    """How layers start: torch's own way, or orthogonal with a small policy head."""
    max_grad_norm: float | None = setting(None, gt=0.0)
    """Gradients longer than this are shortened to it."""
    reward_clip: float | None = setting(None, gt=0.0)
    """Rewards beyond this size are cut to it before learning; reported returns are not."""
    reward_scale: float = setting(1.0, gt=0.0)
    """Rewards are multiplied by this before learning; reported returns are not."""
    normalize_obs: bool = False
    """Normalise observations to mean 0 and variance 1, measured while training; not pictures and one-hot choices."""
    encoder: str = "auto"
    """Turns observations into features: `auto`, a name (`elegantrl agents` lists them), or an import path."""
    network: str = "mlp"
    """Network of policies and critics: `mlp`, or the import path of a class or function with the arguments of
    `elegantrl.nets.networks:linear_layers`. Joint critics of teams keep linear layers."""
    layer_norm: bool = False
    """Layer-normalise the hidden layers of networks that estimate values."""
    horizon: int = setting(32, ge=1)
    """Steps each environment takes between two learning phases."""

    def learned_rewards(self, reward: Tensor) -> Tensor:
        """Rewards of single steps as they are learned from."""
        clip = self.reward_clip
        return (reward if clip is None else reward.clamp(-clip, clip)) * self.reward_scale

    def net(self) -> NetSpec:
        """The settings that all networks share."""
        return NetSpec(self.hidden, self.activation, self.init, self.normalize_obs, self.network, self.encoder)


class Hypers(nn.Module):
    """The tunable fields of a config as 0-dim buffers: changed without a rebuild, one value per population member."""

    def __init__(self, config: AgentConfig):
        super().__init__()
        for f in fields(config):
            if "tunable" in f.metadata:
                self.register_buffer(f.name, torch.tensor(float(getattr(config, f.name))))

    def __getattr__(self, name: str) -> Tensor:  # only for type checkers: a hyper-parameter is a tensor
        return super().__getattr__(name)  # type: ignore[return-value]


class Agent(nn.Module, ABC):
    """The part of an algorithm that stays in the learner; its ``policy`` is sent to workers.

    A subclass builds the networks; ``update`` trains them on data.
    """

    memory: ClassVar[str]
    """The source of batches for ``update``: a name in ``data.memory.MEMORIES``, or a ``Memory``'s import path."""
    hot: ClassVar[tuple[str, ...]]
    """Pure functions of (parameters, buffers, arguments), which may be compiled or mapped over a population."""
    actions: ClassVar[frozenset[str]] = frozenset({"discrete", "continuous"})
    teams: ClassVar[bool] = False
    """Whether the agent trains a team (``EnvSpec.num_agents``); otherwise it trains one agent."""

    policy: Policy
    policy_spec: PolicySpec
    averaging: OneRank = OneRank()
    """Statistics over the parts of a batch that several learners hold."""
    h_term: HTerm | None
    """The Hamiltonian term beside the policy's loss, where it is switched on."""
    gradients: Gradients = Gradients()
    """How hot functions are differentiated."""

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: torch.device, seed: int):
        super().__init__()
        if spec.action.kind not in self.actions:
            able = " or ".join(sorted(self.actions))
            raise SpecError(
                f"{type(self).__name__} needs {able} actions, but {spec.name} has {spec.action.kind} ones; "
                f"choose another agent (`elegantrl agents` lists them)"
            )
        if (spec.num_agents is not None) != self.teams:
            found = "has one agent" if spec.num_agents is None else f"has a team of {spec.num_agents}"
            raise SpecError(
                f"{type(self).__name__} learns for {'a team' if self.teams else 'one agent'}, but {spec.name} {found};"
                f" choose another agent (`elegantrl agents` lists what each needs)"
            )
        self.config = config
        self.hypers = Hypers(config).to(device)
        self.generator = torch_stream(seed, "agent", device=device)
        self.common = self.generator
        """The stream of numbers that must be equal on all learners; a separate stream if there are several."""
        self.num_updates = 0
        self.obs_stats = build_stats(seen_part(spec.obs), device) if config.normalize_obs else None
        self.h_term = None
        if isinstance(config, HTermConfig) and config.h_term:
            self.h_term = HTerm(config, spec, device)

    @abstractmethod
    def update(self, batch: Any) -> Update:
        """Learn from a batch of the memory; metrics are device scalars."""

    def memory_name(self) -> str:
        """The memory for the present settings."""
        return self.memory

    def see(self, rollout: Rollout) -> None:
        """Update the agent's own statistics with new steps, before the memory receives them."""
        if self.h_term is not None:
            self.h_term.see(rollout, self.state_values, self.hypers, self.config.learned_rewards)

    def seen_state(self) -> State:
        """The state that ``see`` keeps for this learner's lanes."""
        return {} if self.h_term is None else {"h_term": self.h_term.state_dict()}

    def load_seen_state(self, state: State) -> None:
        if self.h_term is not None:
            self.h_term.load_state_dict(state["h_term"])

    def end_open_episodes(self, lanes: Tensor) -> None:
        """The newest step of the given lanes [N] has no successor."""
        if self.h_term is not None:
            self.h_term.trajectories.truncate_newest(lanes)

    def build_policy(self, kind: str, spec: EnvSpec, device: torch.device, **extra: Any) -> Any:
        """The policy of this kind with the config's network settings; other processes rebuild it from its spec."""
        net = replace(self.config.net(), num_agents=spec.num_agents)
        self.policy_spec = PolicySpec(kind, spec.obs, spec.action, net, extra)
        policy = self.policy_spec.build(allow_import=True).to(device)
        if self.h_term is not None:
            self.h_term.build_direction(policy)
        return policy

    def schedule(self, env_steps: int) -> None:
        """Set scheduled values for the update at this many environment steps."""
        lr = self.hypers.lr * self.schedule_factor(self.config.lr_schedule, env_steps)
        for step in self.grad_steps().values():
            step.lr.copy_(lr)

    def schedule_factor(self, schedule: Schedule, env_steps: int) -> float:
        """The factor, from 1 down to 0, by which a schedule scales its value."""
        return 1.0 if schedule == "constant" else max(0.0, 1.0 - env_steps / self.config.schedule_steps)

    def optimizer(self, params: Iterable[nn.Parameter]) -> GradStep:
        """Adam with the config's settings on these parameters."""
        c = self.config
        return GradStep(params, self.hypers.lr, c.max_grad_norm, c.adam_epsilon)

    def is_finite(self) -> Tensor:
        """Whether all gradients and their squares were finite: a device scalar, read when the caller needs it."""
        return torch.stack([step.sum_of_squares for step in self.grad_steps().values()]).isfinite().all()

    def grad_steps(self) -> dict[str, GradStep]:
        """The optimisers by attribute name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, GradStep)}

    def observe(self, obs: Tree) -> None:
        """Update the observation normaliser; the policy of workers changes with the next version."""
        if self.obs_stats is not None:
            self.obs_stats.update(seen_part(obs), self.averaging.average, self.averaging.size)
            self.obs_stats.write_to(self.policy.norm)

    def average_with(self, ranks: OneRank, seed: int) -> None:
        """Learn as one of several ranks: gradients and statistics are averaged, random streams are the rank's own."""
        self.averaging = ranks
        for step in self.grad_steps().values():
            step.averaging = ranks
        device = self.generator.device
        self.generator = torch_stream(seed, "agent", ranks.rank, device=device)
        self.common = torch_stream(seed, "agent", "common", device=device)

    def normal_like(self, x: Tensor) -> Tensor:
        """Standard normal noise from the agent's own stream."""
        return torch.empty_like(x).normal_(generator=self.generator)

    def descend(self, name: str, step: GradStep, *args: Any) -> tuple[LazyMetrics, Tensor]:
        """One descent step on the hot function ``name``; returns its metrics and the norm of its gradient."""
        grad, metrics_of = self.gradients(self, name, step, *args)
        return metrics_of, step.follow(grad)

    def descend_policy(self, name: str, step: GradStep, *args: Any) -> tuple[LazyMetrics, Tensor]:
        """``descend`` on the policy's loss, to whose gradient the H-term adds its own where it is switched on.

        The policy's parameters are the first ones of ``step``.
        """
        if self.h_term is None:
            return self.descend(name, step, *args)
        grad, metrics_of = self.gradients(self, name, step, *args)
        own, energy_of = self.gradients(self, "h_energy", step, self.h_term.next_windows())
        share = self.h_term.add(own, grad, self.hypers.h_lambda)
        return lambda: metrics_of() | energy_of() | {"h_term/share": share}, step.follow(grad)

    def h_energy(self, windows: Windows) -> tuple[Tensor, Metrics]:
        """The energy of the H-term: a hot function of its own, so that the usual loss stays as it is."""
        loss = energy(self.policy.logp_above_entropy(windows.obs, windows.action), windows.weight)
        return loss, {"h_term/energy": loss.detach()}

    def state_values(self, obs: Tree) -> Tensor:
        """What the agent expects of observations [B, ...]: the discounted rewards [B] of its present policy."""
        raise NotImplementedError(f"{type(self).__name__} has no values of observations")

    def training_state(self) -> State:
        """Everything learning depends on: parameters, optimisers, normaliser, counters and the random stream."""
        state: State = {
            "modules": {name: value.detach().clone() for name, value in self.state_dict().items()},
            "optimizers": {name: step.state_dict() for name, step in self.grad_steps().items()},
            "obs_stats": self.obs_stats.state_dict() if self.obs_stats else {},
            "generator": self.generator.get_state(),
            "num_updates": self.num_updates,
        }
        if self.common is not self.generator:
            state["common"] = self.common.get_state()
        return state

    def load_training_state(self, state: State) -> None:
        self.load_state_dict(state["modules"])
        for name, step in self.grad_steps().items():
            step.load_state_dict(state["optimizers"][name])
        if self.obs_stats:
            self.obs_stats.load_state_dict(state["obs_stats"])
        self.generator.set_state(state["generator"].cpu())
        if self.common is not self.generator:
            self.common.set_state(state["common"].cpu())
        self.num_updates = state["num_updates"]

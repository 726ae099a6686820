"""Policies: the half of an agent that travels. A worker needs this file and an environment, nothing else.

Axes: N lanes, B rows, O observation, A action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from ..types import State
from .distributions import Categorical, DiagGaussian, squash
from .layers import Activation, Init, Stack, flatten_, mlp
from .normalize import ObsNorm

Noise = Literal["gaussian", "ou"]


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """How to build a policy anywhere: a kind and plain keyword arguments."""

    kind: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Policy:
        return POLICIES[self.kind](**self.kwargs)


class Policy(nn.Module, ABC):
    """Acts on observations. All its parameters and buffers are float32 and travel as one flat tensor."""

    norm: nn.Module
    remembers: bool = False
    """Whether exploration depends on the steps before: only then does a worker call the three methods below."""

    def __init__(self, obs_dim: int, normalize_obs: bool):
        super().__init__()
        self.norm = ObsNorm(obs_dim) if normalize_obs else nn.Identity()

    @abstractmethod
    def act(self, obs: Tensor, explore: bool, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities [N]; the best known action if not ``explore``."""

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [...] of actions above what the policy expects of its own.

        Densities depend on the units of an action, this excess does not: a change of units shifts both alike. Only
        the log-probability has a gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} has no probabilities")

    def explore_state(self) -> State:
        """What exploration remembers of the steps before."""
        return {}

    def load_explore_state(self, state: State) -> None:
        """Explore on from ``state``."""

    def forget(self, ended_N: Tensor) -> None:
        """Explore anew in the lanes whose episode ended."""

    def tensors(self) -> list[Tensor]:
        """Everything that travels, in a fixed order."""
        return [*self.parameters(), *self.buffers()]

    @torch.no_grad()
    def to_flat(self) -> Tensor:
        return torch.cat([t.reshape(-1) for t in self.tensors()])


class FlatPolicy:
    """A policy whose weights are views of one flat tensor: a new version is one copy."""

    def __init__(self, spec: PolicySpec, device: torch.device):
        # Initial weights are overwritten at once: they must not cost a draw from torch's global stream.
        with torch.random.fork_rng(devices=[]):
            self.policy = spec.build().to(device).requires_grad_(False)
        self.flat = flatten_(self.policy.tensors())
        for module in self.policy.modules():
            if isinstance(module, Stack):
                module.freeze()

    def load(self, flat: Tensor) -> Policy:
        self.flat.copy_(flat)
        return self.policy


class CategoricalPolicy(Policy):
    """Softmax over A choices."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        init: Init = "orthogonal",
        normalize_obs: bool = False,
    ):
        super().__init__(obs_dim, normalize_obs)
        self.net = mlp((obs_dim, *hidden, action_dim), activation, init=init, head_gain=0.01)

    def dist(self, obs: Tensor) -> Categorical:
        return Categorical.from_logits(self.net(self.norm(obs)))

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        return _excess(self.dist(obs), action)

    def act(self, obs: Tensor, explore: bool, generator: Generator | None) -> tuple[Tensor, Tensor]:
        dist = self.dist(obs)
        action = dist.sample(generator) if explore else dist.mode()
        return action, dist.log_prob(action)


class GaussianPolicy(Policy):
    """Normal with a state-independent standard deviation. Actions may leave [-1, 1]; the environment clips them."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        init: Init = "orthogonal",
        normalize_obs: bool = False,
        log_std_init: float = 0.0,
    ):
        super().__init__(obs_dim, normalize_obs)
        self.net = mlp((obs_dim, *hidden, action_dim), activation, init=init, head_gain=0.01)
        self.log_std = nn.Parameter(torch.full((action_dim,), log_std_init))

    def dist(self, obs: Tensor) -> DiagGaussian:
        return DiagGaussian(self.net(self.norm(obs)), self.log_std)

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        return _excess(self.dist(obs), action)

    def act(self, obs: Tensor, explore: bool, generator: Generator | None) -> tuple[Tensor, Tensor]:
        dist = self.dist(obs)
        action = dist.sample(generator) if explore else dist.mode()
        return action, dist.log_prob(action)


class SquashedPolicy(Policy):
    """tanh of a normal whose mean and standard deviation depend on the observation (soft actor-critic)."""

    random_frac: Tensor
    LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
    EDGE = 1 - 1e-4
    """Stored actions are taken to lie within this: tanh has no inverse at 1."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (256, 256),
        activation: Activation = "relu",
        init: Init = "default",
        normalize_obs: bool = False,
    ):
        super().__init__(obs_dim, normalize_obs)
        self.net = mlp((obs_dim, *hidden, 2 * action_dim), activation, init=init)
        # Share of uniform random actions: 1 while the buffer warms up, then 0. The learner writes it.
        self.register_buffer("random_frac", torch.ones(()))

    def sample(self, obs: Tensor, noise_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) [B, A] and the log-density [B] of those samples."""
        mean, log_std = self.net(self.norm(obs)).chunk(2, -1)
        return squash(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX), noise_BA)

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self.net(self.norm(obs)).chunk(2, -1)
        # Before the squashing, whose slope at a given action is the same for every policy.
        normal = DiagGaussian(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX))
        return _excess(normal, action.clamp(-self.EDGE, self.EDGE).atanh())

    def act(self, obs: Tensor, explore: bool, generator: Generator | None) -> tuple[Tensor, Tensor]:
        if not explore:
            mean, _ = self.net(self.norm(obs)).chunk(2, -1)
            return mean.tanh(), torch.zeros_like(obs[:, 0])
        mean, log_std = self.net(self.norm(obs)).chunk(2, -1)
        noise = torch.empty_like(mean).normal_(generator=generator)
        action, logp = squash(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX), noise)
        # While actions are random, logp is that of the sample which was not taken; replay has no use for it.
        uniform = torch.empty_like(mean).uniform_(-1, 1, generator=generator)
        coin = torch.empty_like(logp).uniform_(generator=generator) < self.random_frac
        return torch.where(coin.unsqueeze(-1), uniform, action), logp


class DeterministicPolicy(Policy):
    """tanh of a network; exploring adds noise: fresh at every step, or an Ornstein-Uhlenbeck process per lane."""

    random_frac: Tensor
    THETA = 0.15
    """How much of its Ornstein-Uhlenbeck noise a lane loses per step."""
    LEAST_STD = 0.05
    """Where a policy without noise still counts as a normal."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (256, 256),
        activation: Activation = "relu",
        init: Init = "default",
        normalize_obs: bool = False,
        noise: Noise = "gaussian",
        noise_std: float = 0.1,
    ):
        super().__init__(obs_dim, normalize_obs)
        self.net = mlp((obs_dim, *hidden, action_dim), activation, init=init, head_gain=0.01)
        self.noise_std = noise_std
        self.remembers = noise == "ou"
        # The noise of the step before [N, A], on the worker alone: no buffer, because it does not travel.
        self.drift: Tensor | None = None
        # Share of uniform random actions: 1 while the buffer warms up, then 0. The learner writes it.
        self.register_buffer("random_frac", torch.ones(()))

    def action(self, normed_obs: Tensor) -> Tensor:
        """Actions in [-1, 1] [B, A] for observations that are normalised already."""
        return self.net(normed_obs).tanh()

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        # As the normal it explores with.
        log_std = torch.full_like(action[..., :1], math.log(max(self.noise_std, self.LEAST_STD)))
        return _excess(DiagGaussian(self.action(self.norm(obs)), log_std), action)

    def act(self, obs: Tensor, explore: bool, generator: Generator | None) -> tuple[Tensor, Tensor]:
        action = self.action(self.norm(obs))
        logp = torch.zeros_like(action[:, 0])
        if not explore:
            return action, logp
        noise = self.noise_std * torch.empty_like(action).normal_(generator=generator)
        if self.remembers:
            noise = self.drift = noise if self.drift is None else noise + (1 - self.THETA) * self.drift
        uniform = torch.empty_like(action).uniform_(-1, 1, generator=generator)
        coin = torch.empty_like(logp).uniform_(generator=generator) < self.random_frac
        return torch.where(coin.unsqueeze(-1), uniform, (action + noise).clamp(-1, 1)), logp

    def explore_state(self) -> State:
        return {} if self.drift is None else {"drift": self.drift}

    def load_explore_state(self, state: State) -> None:
        self.drift = state["drift"].to(self.random_frac.device) if state else None

    def forget(self, ended_N: Tensor) -> None:
        if self.drift is not None:
            self.drift = self.drift.masked_fill(ended_N.unsqueeze(-1), 0.0)


class QPolicy(Policy):
    """Epsilon-greedy on action values; with ``dueling`` Q = V + A - mean(A)."""

    epsilon: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "relu",
        init: Init = "default",
        normalize_obs: bool = False,
        dueling: bool = False,
        layer_norm: bool = False,
    ):
        super().__init__(obs_dim, normalize_obs)
        self.dueling = dueling
        # One output more: the state value, in front of the advantages.
        self.net = mlp((obs_dim, *hidden, action_dim + dueling), activation, init=init, normed=layer_norm)
        self.register_buffer("epsilon", torch.ones(()))

    def q(self, obs: Tensor) -> Tensor:
        """Action values [B, A]."""
        return self.values(self.norm(obs))

    def values(self, normed_obs: Tensor) -> Tensor:
        """Action values [B, A] of observations that are normalised already."""
        out = self.net(normed_obs)
        if not self.dueling:
            return out
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def act(self, obs: Tensor, explore: bool, generator: Generator | None) -> tuple[Tensor, Tensor]:
        q = self.q(obs)
        greedy = q.argmax(-1)
        logp = torch.zeros_like(q[:, 0])
        if not explore:
            return greedy, logp
        # One coin and one random action per lane.
        coin = torch.empty_like(logp).uniform_(generator=generator) < self.epsilon
        uniform = torch.randint(q.shape[-1], greedy.shape, device=q.device, generator=generator)
        return torch.where(coin, uniform, greedy), logp


def _excess(dist: Categorical | DiagGaussian, action: Tensor) -> Tensor:
    return dist.log_prob(action) + dist.entropy().detach()


POLICIES: dict[str, type[Policy]] = {
    "categorical": CategoricalPolicy,
    "gaussian": GaussianPolicy,
    "squashed": SquashedPolicy,
    "deterministic": DeterministicPolicy,
    "q": QPolicy,
}

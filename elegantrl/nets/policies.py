"""Policies: the half of an agent that travels. A worker needs this file and an environment, nothing else.

Axes: N lanes, B rows, O observation, A action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from ..tree import Tree
from ..types import State
from .distributions import Categorical, DiagGaussian, choice, squash
from .layers import Activation, Array, Init, Stack, flatten_, mlp
from .normalize import ObsNorm

Noise = Literal["gaussian", "ou"]
Draw = tuple[Any, ...]
"""Random numbers for one step: tensors, or arrays for whoever acts in NumPy. Drawn ahead, the little kernels between
two steps of an environment are fewer."""


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
    net: Stack
    remembers: bool = False
    """Whether exploration depends on the steps before: only then does a worker call the last three methods below."""
    keeps: bool = False
    """Whether ``kept`` needs the outputs that actions were made from."""
    chooses_in_numpy: bool = False
    """Whether ``choose`` takes arrays as well as tensors."""

    def __init__(self, obs_dim: int, action_dim: int, normalize_obs: bool):
        super().__init__()
        self.action_dim = action_dim
        self.norm = ObsNorm(obs_dim) if normalize_obs else nn.Identity()

    def output(self, obs: Tensor) -> Tensor:
        """What the network makes of observations."""
        return self.net(self.norm(obs))  # type: ignore[no-any-return]

    def freeze(self) -> None:
        """Make ``output`` lighter, once the storage of the weights stays in place and no gradient is wanted."""
        run, norm = self.net.frozen(), self.norm.forward
        plain = isinstance(self.norm, nn.Identity)
        self.output = run if plain else lambda obs: run(norm(obs))  # type: ignore[method-assign, assignment]

    def in_numpy(self, num_lanes: int) -> Callable[[Array], Array] | None:
        """``output`` in NumPy with the present storage, if this policy and so many lanes allow it."""
        run = self.net.in_numpy(num_lanes) if self.chooses_in_numpy else None
        if run is None or not isinstance(self.norm, ObsNorm):
            return run
        norm = self.norm.in_numpy()
        return lambda obs: run(norm(obs))

    @abstractmethod
    def act(self, obs: Tensor) -> Tensor:
        """The best known actions."""

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        """The random numbers of each step of ``explore``; on a CPU the same, however many steps are drawn at once."""
        raise NotImplementedError(f"{type(self).__name__} does not explore")

    def explore(self, obs: Tensor, draw: Draw) -> tuple[Tensor, Tree]:
        """Actions [N, ...] and what ``kept`` needs of the outputs [N, ...] they were made from."""
        out = self.output(obs)
        return self.choose(out, draw), out if self.keeps else ()

    def choose(self, out: Any, draw: Draw) -> Any:
        """Actions made from the network's output and random numbers."""
        raise NotImplementedError(f"{type(self).__name__} does not explore")

    def kept(self, out: Tree, action: Tensor) -> Tree:
        """What learning needs to know of actions [T, N, ...] that ``explore`` chose from ``out`` [T, N, ...]."""
        return ()

    @abstractmethod
    def opinion(self, obs: Tensor) -> Tensor:
        """What an ensemble averages [N, A]: the best known action, or how much speaks for each choice (sums to 1)."""

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

    def to_flat(self) -> Tensor:
        return joined(self.tensors())


@torch.no_grad()
def joined(tensors: Iterable[Tensor]) -> Tensor:
    """One flat copy of them all."""
    return torch.cat([t.reshape(-1) for t in tensors])


class FlatPolicy:
    """A policy whose weights are views of one flat tensor: a new version is one copy.

    With few ``lanes`` and small layers on a CPU it explores in NumPy: between two steps of an environment, where code
    is cold, torch takes several times as long for the same few products.
    """

    def __init__(self, spec: PolicySpec, device: torch.device, lanes: int = 0):
        # Initial weights are overwritten at once: they must not cost a draw from torch's global stream.
        with torch.random.fork_rng(devices=[]):
            self.policy = spec.build().to(device).requires_grad_(False)
        self.flat = flatten_(self.policy.tensors())
        self.policy.freeze()
        self.output = self.policy.in_numpy(lanes) if lanes else None

    def load(self, flat: Tensor) -> Policy:
        self.flat.copy_(flat)
        return self.policy

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        """As the policy's, in the form that ``explore`` takes."""
        draws = self.policy.draw(num_steps, num_lanes, generator)
        return draws if self.output is None else [tuple(part.numpy() for part in draw) for draw in draws]

    def explore(self, obs: Tensor, draw: Draw) -> tuple[Tensor, Tree]:
        """As the policy's."""
        if self.output is None:
            return self.policy.explore(obs, draw)
        out = self.output(obs.numpy())
        kept = torch.from_numpy(out) if self.policy.keeps else ()
        return torch.from_numpy(self.policy.choose(out, draw)), kept


class CategoricalPolicy(Policy):
    """Softmax over A choices."""

    keeps = True
    chooses_in_numpy = True

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        init: Init = "orthogonal",
        normalize_obs: bool = False,
    ):
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.net = mlp((obs_dim, *hidden, action_dim), activation, init=init, head_gain=0.01)

    def dist(self, obs: Tensor) -> Categorical:
        return Categorical.from_logits(self.output(obs))

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        return _excess(self.dist(obs), action)

    def act(self, obs: Tensor) -> Tensor:
        return self.dist(obs).mode()

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        return list(zip(Categorical.noise((num_steps, num_lanes, self.action_dim), generator)))

    def choose(self, out: Any, draw: Draw) -> Any:
        return Categorical(out).sample(*draw)

    def kept(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [T, N]."""
        # With lanes innermost a reduction over the short axis A is several times faster.
        return out.mT.contiguous().log_softmax(-2).gather(-2, action.unsqueeze(-2)).squeeze(-2)

    def opinion(self, obs: Tensor) -> Tensor:
        return self.dist(obs).log_probs.exp()


class GaussianPolicy(Policy):
    """Normal with a state-independent standard deviation. Actions may leave [-1, 1]; the environment clips them."""

    keeps = True
    chooses_in_numpy = True

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
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.net = mlp((obs_dim, *hidden, action_dim), activation, init=init, head_gain=0.01)
        self.log_std = nn.Parameter(torch.full((action_dim,), log_std_init))

    def dist(self, obs: Tensor) -> DiagGaussian:
        return DiagGaussian(self.output(obs), self.log_std)

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        return _excess(self.dist(obs), action)

    def act(self, obs: Tensor) -> Tensor:
        return self.dist(obs).mode()

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        return list(zip(DiagGaussian.noise(self.log_std, (num_steps, num_lanes, self.action_dim), generator)))

    def choose(self, out: Any, draw: Draw) -> Any:
        return DiagGaussian(out, self.log_std).sample(*draw)

    def kept(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [T, N]."""
        # With lanes innermost the sum over the short axis A is several times faster.
        return DiagGaussian(out.mT.contiguous().mT, self.log_std).log_prob(action)

    def opinion(self, obs: Tensor) -> Tensor:
        # Beyond the limits lies what the environment clips: it must not outweigh the others.
        return self.dist(obs).mode().clamp(-1, 1)


class WarmUpPolicy(Policy):
    """Continuous actions, uniform ones while a replay buffer warms up; each of those may be held for a while."""

    random_frac: Tensor

    def __init__(self, obs_dim: int, action_dim: int, normalize_obs: bool, hold: int):
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.hold = hold
        self.remembers = hold > 1
        # The random action of the step before [N, A], on the worker alone: no buffer, because it does not travel.
        self.held: Tensor | None = None
        # Share of uniform random actions: 1 while the buffer warms up, then 0. The learner writes it.
        self.register_buffer("random_frac", torch.ones(()))

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        return [self._draw_step((num_lanes, self.action_dim), generator) for _ in range(num_steps)]

    def _draw_step(self, shape: tuple[int, int], generator: Generator) -> Draw:
        """Normal noise [N, A], which lanes take a random action instead [N, 1], and those actions [N, A]."""
        normal_NA = torch.randn(shape, generator=generator, device=generator.device)
        uniform_NA = torch.empty_like(normal_NA).uniform_(-1, 1, generator=generator)
        if self.hold > 1:
            if self.held is not None:
                # A coin per step, so that stretches of all lengths occur.
                ends_N1 = torch.empty_like(normal_NA[:, :1]).uniform_(generator=generator) < 1 / self.hold
                uniform_NA = torch.where(ends_N1, uniform_NA, self.held)
            self.held = uniform_NA
        coin_N1 = torch.empty_like(normal_NA[:, :1]).uniform_(generator=generator) < self.random_frac
        return normal_NA, coin_N1, uniform_NA

    def explore_state(self) -> State:
        return {} if self.held is None else {"held": self.held}

    def load_explore_state(self, state: State) -> None:
        self.held = state["held"].to(self.random_frac.device) if "held" in state else None


class SquashedPolicy(WarmUpPolicy):
    """tanh of a normal whose mean and standard deviation depend on the observation (soft actor-critic)."""

    chooses_in_numpy = True
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
        hold: int = 1,
    ):
        super().__init__(obs_dim, action_dim, normalize_obs, hold)
        self.net = mlp((obs_dim, *hidden, 2 * action_dim), activation, init=init)

    def sample(self, obs: Tensor, noise_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) [B, A] and the log-density [B] of those samples."""
        mean, log_std = self.output(obs).chunk(2, -1)
        return squash(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX), noise_BA)

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self.output(obs).chunk(2, -1)
        # Before the squashing, whose slope at a given action is the same for every policy.
        normal = DiagGaussian(mean, log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX))
        return _excess(normal, action.clamp(-self.EDGE, self.EDGE).atanh())

    def opinion(self, obs: Tensor) -> Tensor:
        return self.act(obs)

    def act(self, obs: Tensor) -> Tensor:
        mean, _ = self.output(obs).chunk(2, -1)
        return mean.tanh()

    def choose(self, out: Any, draw: Draw) -> Any:
        normal, coin, uniform = draw
        mean, log_std = out[:, : self.action_dim], out[:, self.action_dim :]
        if isinstance(out, np.ndarray):
            std = np.exp(np.minimum(np.maximum(log_std, self.LOG_STD_MIN), self.LOG_STD_MAX))
            return np.where(coin, uniform, np.tanh(mean + std * normal))
        action = (mean + log_std.clamp(self.LOG_STD_MIN, self.LOG_STD_MAX).exp() * normal).tanh()
        return torch.where(coin, uniform, action)


class DeterministicPolicy(WarmUpPolicy):
    """tanh of a network; exploring adds noise: fresh at every step, or an Ornstein-Uhlenbeck process per lane."""

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
        hold: int = 1,
    ):
        super().__init__(obs_dim, action_dim, normalize_obs, hold)
        self.net = mlp((obs_dim, *hidden, action_dim), activation, init=init, head_gain=0.01)
        self.noise_std = noise_std
        self.drifts = noise == "ou"
        self.remembers = self.remembers or self.drifts
        # The noise of the step before [N, A], on the worker alone.
        self.drift: Tensor | None = None

    def action(self, normed_obs: Tensor) -> Tensor:
        """Actions in [-1, 1] [B, A] for observations that are normalised already."""
        return self.net(normed_obs).tanh()

    def opinion(self, obs: Tensor) -> Tensor:
        return self.act(obs)

    def excess_logp(self, obs: Tensor, action: Tensor) -> Tensor:
        # As the normal it explores with.
        log_std = torch.full_like(action[..., :1], math.log(max(self.noise_std, self.LEAST_STD)))
        return _excess(DiagGaussian(self.action(self.norm(obs)), log_std), action)

    def act(self, obs: Tensor) -> Tensor:
        return self.output(obs).tanh()

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        normal, coin, uniform = draw
        noise = self.noise_std * normal
        if self.drifts:
            noise = self.drift = noise if self.drift is None else noise + (1 - self.THETA) * self.drift
        return torch.where(coin, uniform, (out.tanh() + noise).clamp(-1, 1))

    def explore_state(self) -> State:
        return super().explore_state() | ({} if self.drift is None else {"drift": self.drift})

    def load_explore_state(self, state: State) -> None:
        super().load_explore_state(state)
        self.drift = state["drift"].to(self.random_frac.device) if "drift" in state else None

    def forget(self, ended_N: Tensor) -> None:
        if self.drift is not None:
            self.drift = self.drift.masked_fill(ended_N.unsqueeze(-1), 0.0)


class QPolicy(Policy):
    """Epsilon-greedy on action values; with ``dueling`` Q = V + A - mean(A)."""

    chooses_in_numpy = True

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
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.dueling = dueling
        # One output more: the state value, in front of the advantages.
        self.net = mlp((obs_dim, *hidden, action_dim + dueling), activation, init=init, normed=layer_norm)
        self.register_buffer("epsilon", torch.ones(()))

    def q(self, obs: Tensor) -> Tensor:
        """Action values [B, A]."""
        return self._join(self.output(obs))

    def values(self, normed_obs: Tensor) -> Tensor:
        """Action values [B, A] of observations that are normalised already."""
        return self._join(self.net(normed_obs))

    def _join(self, out: Tensor) -> Tensor:
        if not self.dueling:
            return out
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def opinion(self, obs: Tensor) -> Tensor:
        q = self.q(obs)  # a vote: values of different runs have different scales
        return one_hot(q.argmax(-1), q.shape[-1]).to(q.dtype)

    def act(self, obs: Tensor) -> Tensor:
        return self.q(obs).argmax(-1)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        draws: list[Draw] = []
        for _ in range(num_steps):
            # One coin and one random action per lane.
            coin = torch.rand(num_lanes, generator=generator, device=generator.device) < self.epsilon
            uniform = torch.randint(self.action_dim, (num_lanes,), generator=generator, device=generator.device)
            draws.append((coin, uniform))
        return draws

    def choose(self, out: Any, draw: Draw) -> Any:
        coin, uniform = draw
        best = choice(out[..., int(self.dueling) :])  # a state value in front shifts all alike
        return (torch.where if isinstance(out, Tensor) else np.where)(coin, uniform, best)


class EnsemblePolicy(Policy):
    """The weighted average of several trained policies: of actions, or of what speaks for each choice."""

    def __init__(self, obs_dim: int, action_dim: int, members: list[dict[str, Any]], weights: list[float]):
        super().__init__(obs_dim, action_dim, normalize_obs=False)  # each member normalises for itself
        built = [PolicySpec(**member).build() for member in members]
        self.members = nn.ModuleList(built)
        self.opinions = [(member.opinion, weight) for member, weight in zip(built, weights, strict=True)]
        self.discrete = isinstance(built[0], CategoricalPolicy | QPolicy)

    def opinion(self, obs: Tensor) -> Tensor:
        return torch.stack([opinion(obs) * weight for opinion, weight in self.opinions]).sum(0)

    def freeze(self) -> None:
        for member in self.members:
            member.freeze()  # type: ignore[operator]

    def act(self, obs: Tensor) -> Tensor:
        """The action all members together think best; an ensemble is for deployment and does not explore."""
        opinion = self.opinion(obs)
        return opinion.argmax(-1) if self.discrete else opinion


def _excess(dist: Categorical | DiagGaussian, action: Tensor) -> Tensor:
    return dist.log_prob(action) + dist.entropy().detach()


POLICIES: dict[str, type[Policy]] = {
    "categorical": CategoricalPolicy,
    "gaussian": GaussianPolicy,
    "squashed": SquashedPolicy,
    "deterministic": DeterministicPolicy,
    "q": QPolicy,
    "ensemble": EnsemblePolicy,
}

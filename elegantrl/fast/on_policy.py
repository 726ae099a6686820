"""Minibatch steps of small networks on a CPU with gradients derived by hand.

With 64 units per layer most of the time of a step is torch's bookkeeping, not arithmetic: what stands here takes a
third of it. Small minibatches are done in NumPy, whose calls cost least; large ones with torch's kernels, in blocks of
rows that stay in the cache of a processor. ``AgentOnPolicy.loss`` says what is minimised; tests hold these gradients to
those of autograd.
Axes: B minibatch rows, O obs, I inputs, K outputs, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..agents.a2c import AgentA2C
from ..agents.base import Agent
from ..agents.gradients import Gradients, Tell
from ..agents.on_policy import AgentOnPolicy, Batch
from ..agents.optim import GradStep
from ..agents.ppo import AgentPPO
from ..nets.critics import ScaledValueNet, ValueNet
from ..nets.distributions import LOG_2PI
from ..nets.layers import BLOCK_ROWS, Stack
from ..nets.normalize import ObsNorm
from ..nets.policies import CategoricalPolicy, GaussianPolicy
from ..types import Metrics
from .acting import NARROW, Array

MAX_WIDTH = 128
"""Units of a layer beyond which torch's own way is as fast."""
MAX_NUMPY_ROWS = 1024
"""Rows of a minibatch up to which NumPy is faster."""
T = TypeVar("T", Array, Tensor)
PLAIN = nn.Linear, nn.Tanh, nn.ReLU
KNOWN = {(policy, value) for policy in (CategoricalPolicy, GaussianPolicy) for value in (ValueNet, ScaledValueNet)}


class PolicyLoss(NamedTuple):
    """What the policy minimises on a minibatch."""

    values: Array  # [B]
    slope: Array  # [B] of each value by the log-probability of its action
    terms: dict[str, Array]
    """What the agent's ``diagnose`` wants to see."""


def ppo_slope(agent: Any, new_logp: Array, logp: Array, advantage: Array) -> PolicyLoss:
    free = new_logp - logp
    log_ratio = np.minimum(np.maximum(free, -20), 20)
    gain = np.exp(log_ratio) * advantage
    limit = advantage + float(agent.hypers.clip) * np.abs(advantage)
    follows = (gain <= limit) & (log_ratio == free)
    return PolicyLoss(-np.minimum(gain, limit), -gain * follows, {"log_ratio": log_ratio})


def a2c_slope(agent: Any, new_logp: Array, logp: Array, advantage: Array) -> PolicyLoss:
    return PolicyLoss(-new_logp * advantage, -advantage, {})


SLOPES: dict[Any, Callable[..., PolicyLoss]] = {AgentPPO.policy_loss: ppo_slope, AgentA2C.policy_loss: a2c_slope}
"""By the loss itself: whoever says anew what is minimised has autograd."""


class Slopes(NamedTuple):
    """Of the loss of the policy, summed over rows."""

    out: Array  # [B, K] at the outputs
    log_std: Array | None  # [A] at the deviations of a Gaussian
    entropy: Array  # [B] or [1]
    loss: PolicyLoss


class Layer(NamedTuple, Generic[T]):
    """A linear layer and where its gradient goes: views of flat storage."""

    weight: T  # [K, I]
    bias: T  # [K]
    weight_grad: T
    bias_grad: T


def layers_of(stack: Stack, grads: dict[nn.Parameter, Tensor]) -> list[Layer[Tensor]]:
    linears = [list(layer.parameters()) for layer in stack if isinstance(layer, nn.Linear)]
    return [Layer(*(p.detach() for p in params), *(grads[p] for p in params)) for params in linears]


class Network(ABC):
    """A stack of linear layers with tanh or relu between them."""

    def __init__(self, stack: Stack):
        self.is_tanh = any(isinstance(layer, nn.Tanh) for layer in stack)

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """Outputs [B, K] for inputs [B, I]."""

    @abstractmethod
    def backward(self, slope: Array) -> None:
        """Add to the gradients, which were zero, what follows from the slope [B, K] of the loss at the last outputs."""


class NumpyNetwork(Network):
    """For minibatches that are gone through at once."""

    def __init__(self, stack: Stack, grads: dict[nn.Parameter, Tensor]):
        super().__init__(stack)
        self.layers: list[Layer[Array]] = [Layer(*(x.numpy() for x in layer)) for layer in layers_of(stack, grads)]

    def forward(self, x: Array) -> Array:
        self.inputs: list[Array] = []
        for layer in self.layers:
            if self.inputs:
                x = np.tanh(x, out=x) if self.is_tanh else np.maximum(x, 0, out=x)
            self.inputs.append(x)
            x = np.dot(x, layer.weight.T)
            x += layer.bias
        return x

    def backward(self, slope: Array) -> None:
        for layer, x in zip(reversed(self.layers), reversed(self.inputs), strict=True):
            np.dot(slope.T, x, out=layer.weight_grad)
            slope.sum(0, out=layer.bias_grad)
            if layer is not self.layers[0]:
                slope = np.dot(slope, layer.weight)
                if self.is_tanh:
                    x *= x
                    slope *= np.subtract(1, x, out=x)
                else:
                    slope *= x > 0


class TorchNetwork(Network):
    """For minibatches that are gone through in blocks."""

    def __init__(self, stack: Stack, grads: dict[nn.Parameter, Tensor]):
        super().__init__(stack)
        self.layers = layers_of(stack, grads)

    def forward(self, x: Array) -> Array:
        y = torch.from_numpy(x)
        self.inputs: list[Tensor] = []
        for layer in self.layers:
            if self.inputs:
                y = y.tanh_() if self.is_tanh else y.relu_()
            self.inputs.append(y)
            if len(layer.bias) < NARROW:  # as below: the product the other way round takes a third of the time
                y = torch.mm(layer.weight, y.t()).t().add_(layer.bias)
            else:
                y = torch.mm(y, layer.weight.t()).add_(layer.bias)
        return y.numpy()

    def backward(self, slope: Array) -> None:
        s = torch.from_numpy(slope)
        for layer, x in zip(reversed(self.layers), reversed(self.inputs), strict=True):
            if x.shape[1] < NARROW:
                layer.weight_grad.add_(torch.mm(x.t(), s).t())
            else:
                layer.weight_grad.addmm_(s.t(), x)
            layer.bias_grad.add_(s.sum(0))
            if layer is not self.layers[0]:
                s = torch.mm(s, layer.weight)
                s *= x.square_().neg_().add_(1) if self.is_tanh else x.gt_(0)


class OnPolicyByHand(Gradients):
    """The networks of an on-policy agent as arrays, and the gradient of its loss on a minibatch."""

    def __init__(self, agent: AgentOnPolicy):
        step = agent.step
        self.grad = torch.zeros_like(step.flat)
        parts = torch.split(self.grad, [p.numel() for p in step.params])
        grads = {p: part.view_as(p) for p, part in zip(step.params, parts, strict=True)}
        self.networks = [
            (kind(agent.policy.net, grads), kind(agent.value.net, grads)) for kind in (NumpyNetwork, TorchNetwork)
        ]
        self.slope_of = SLOPES[type(agent).policy_loss]
        if isinstance(agent.policy, GaussianPolicy):
            self.log_std, self.log_std_grad = agent.policy.log_std.detach().numpy(), grads[agent.policy.log_std].numpy()

    @staticmethod
    def suits(agent: Agent) -> bool:
        """Whether the gradients of this agent are known here: small plain networks on a CPU, and a loss known here."""
        return (
            isinstance(agent, AgentOnPolicy)
            and type(agent).loss is AgentOnPolicy.loss
            and type(agent).policy_loss in SLOPES
            and (type(agent.policy), type(agent.value)) in KNOWN
            and agent.step.flat.device.type == "cpu"
            and agent.averaging.size == 1
            and agent.h_term is None
            and max(agent.config.hidden, default=0) <= MAX_WIDTH
            and agent.config.network == "mlp"
            and all(isinstance(layer, PLAIN) for net in (agent.policy.net, agent.value.net) for layer in net)
        )

    def known(self, agent: Any) -> list[tuple[str, GradStep]]:
        return [("loss", agent.step)]

    def trial_batch(self, agent: Any, g: torch.Generator, num_rows: int = 32) -> Batch:
        obs = torch.randn(num_rows, agent.policy.net[0].in_features, generator=g)
        with torch.no_grad():
            out = agent.policy.output(obs)
            action = out + torch.randn(out.shape, generator=g)
            if isinstance(agent.policy, CategoricalPolicy):
                action = torch.randint(out.shape[1], (num_rows,), generator=g)
            logp = agent.policy.dist(obs).log_prob(action) + 0.3 * torch.randn(num_rows, generator=g)
        return Batch(obs, action, logp, *torch.randn(2, num_rows, generator=g))

    def trial_noise(self, agent: Any, b: Batch) -> tuple[()]:
        return ()

    def __call__(self, agent: Any, name: str, step: GradStep, *args: Any) -> tuple[Tensor, Tell]:
        (b,) = args
        self.agent, self.value_coef, self.entropy_coef = agent, agent.config.value_coef, 0.0
        if agent.config.entropy_coef > 0:
            self.entropy_coef = float(agent.hypers.entropy_coef * agent.entropy_left)
        self.policy, self.value = self.networks[len(b.logp) > MAX_NUMPY_ROWS]
        if isinstance(agent.value, ScaledValueNet):
            b = b._replace(value_target=(b.value_target - agent.value.mean) / agent.value.std)
        if isinstance(agent.policy.norm, ObsNorm):
            b = b._replace(obs=agent.policy.norm(b.obs))
        self.grad.zero_()
        columns, num_rows = [x.numpy() for x in b], len(b.logp)
        seen = [
            self.add_block(num_rows, *(x[start : start + BLOCK_ROWS] for x in columns))
            for start in range(0, num_rows, BLOCK_ROWS)
        ]
        self.policy.inputs, self.value.inputs = [], []  # they may lie in memory that a worker waits for
        return self.grad, partial(describe, seen, bool(self.entropy_coef))

    def add_block(self, num_rows: int, obs: Array, *others: Array) -> tuple[Slopes, Array]:
        """Add the share of some rows to the gradient of a minibatch of ``num_rows``; the errors [B] of their values."""
        *taken, value_target = others
        out = self.policy.forward(obs)
        slope_of = self.gaussian_slope if isinstance(self.agent.policy, GaussianPolicy) else self.categorical_slope
        slopes = slope_of(out, *taken)
        self.policy.backward(np.divide(slopes.out, num_rows, out=slopes.out))
        if slopes.log_std is not None:
            self.log_std_grad += slopes.log_std / num_rows
        error: Array = self.value.forward(obs)[:, 0]
        error -= value_target
        self.value.backward((error * (self.value_coef / num_rows))[:, None])
        return slopes, error

    def categorical_slope(self, logits: Array, action: Array, logp: Array, advantage: Array) -> Slopes:
        rows = np.arange(len(logits))
        log_probs = logits - logits.max(1, keepdims=True)
        probs = np.exp(log_probs)
        total = probs.sum(1, keepdims=True)
        probs /= total
        log_probs -= np.log(total)
        loss = self.slope_of(self.agent, log_probs[rows, action], logp, advantage)
        slope = probs * -loss.slope[:, None]
        slope[rows, action] += loss.slope
        entropy = np.zeros(1, np.float32)
        if self.entropy_coef:
            entropy = -(probs * log_probs).sum(1)
            log_probs += entropy[:, None]
            log_probs *= probs
            slope += self.entropy_coef * log_probs
        return Slopes(slope, None, entropy, loss)

    def gaussian_slope(self, mean: Array, action: Array, logp: Array, advantage: Array) -> Slopes:
        inv_std = np.exp(-self.log_std)
        scaled = action - mean
        scaled *= inv_std
        squares = scaled * scaled
        entropy = (self.log_std + (0.5 + 0.5 * LOG_2PI)).sum(keepdims=True)
        new_logp = squares.sum(1)
        new_logp *= -0.5
        new_logp -= entropy - 0.5 * len(inv_std)
        loss = self.slope_of(self.agent, new_logp, logp, advantage)
        squares -= 1
        squares *= loss.slope[:, None]
        scaled *= loss.slope[:, None]
        scaled *= inv_std
        return Slopes(scaled, squares.sum(0) - self.entropy_coef * len(mean), entropy, loss)


def describe(seen: list[tuple[Slopes, Array]], has_entropy: bool) -> Metrics:
    """What is worth logging of a minibatch."""
    metrics = {name: join(slopes.loss.terms[name] for slopes, _ in seen) for name in seen[0][0].loss.terms}
    metrics["loss/policy"] = join(slopes.loss.values for slopes, _ in seen).mean()
    metrics["loss/value"] = 0.5 * join(error for _, error in seen).square().mean()
    if has_entropy:
        metrics["policy/entropy"] = join(slopes.entropy for slopes, _ in seen).mean()
    return metrics


def join(parts: Iterable[Array]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(parts)))

"""Minibatch steps of small networks on a CPU with gradients derived by hand, in NumPy.

With 64 units per layer most of the time of a step is torch's bookkeeping, not arithmetic: what stands here takes a
third of it. ``AgentOnPolicy.loss`` says what is minimised; tests hold these gradients to those of autograd.
Axes: B minibatch rows, O obs, I inputs, K outputs, A action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from ..nets.critics import ScaledValueNet, ValueNet
from ..nets.distributions import LOG_2PI
from ..nets.layers import Array, Stack
from ..nets.policies import CategoricalPolicy, GaussianPolicy
from ..types import Metrics
from .averaging import Ranks
from .optim import GradStep

if TYPE_CHECKING:
    from .on_policy import AgentOnPolicy, Batch

MAX_WIDTH, MAX_ROWS = 128, 1024
"""Units of a layer and rows of a minibatch beyond which torch's own way is as fast."""
PLAIN = nn.Linear, nn.Tanh, nn.ReLU
KNOWN = {
    (GradStep, policy, value) for policy in (CategoricalPolicy, GaussianPolicy) for value in (ValueNet, ScaledValueNet)
}


class PolicyLoss(NamedTuple):
    """What the policy minimises on a minibatch."""

    values: Array  # [B]
    slope: Array  # [B] of each value by the log-probability of its action
    terms: dict[str, Array]
    """What the agent's ``diagnose`` wants to see."""


class Slopes(NamedTuple):
    out: Array  # [B, K] slope of the whole loss at the policy's outputs
    entropy: Array
    loss: PolicyLoss


class Layer(NamedTuple):
    """A linear layer and where its gradient goes: views of flat storage."""

    weight: Array  # [K, I]
    bias: Array  # [K]
    weight_grad: Array
    bias_grad: Array


class Network:
    """A stack of linear layers with tanh or relu between them."""

    def __init__(self, stack: Stack, grads: dict[nn.Parameter, Array]):
        self.layers = [
            Layer(*(p.detach().numpy() for p in m.parameters()), *(grads[p] for p in m.parameters()))
            for m in stack
            if isinstance(m, nn.Linear)
        ]
        self.is_tanh = any(isinstance(m, nn.Tanh) for m in stack)

    def forward(self, x: Array) -> Array:
        """Outputs [B, K] for inputs [B, I]."""
        self.inputs: list[Array] = []
        for layer in self.layers:
            if self.inputs:
                x = np.tanh(x, out=x) if self.is_tanh else np.maximum(x, 0, out=x)
            self.inputs.append(x)
            x = np.dot(x, layer.weight.T)
            x += layer.bias
        return x

    def backward(self, slope: Array) -> None:
        """Set the gradients for the slope [B, K] of the loss at the outputs of the last ``forward``."""
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


class Learner:
    """The networks of an on-policy agent as arrays, and the minibatch steps on them."""

    def __init__(self, agent: AgentOnPolicy):
        self.agent, step = agent, agent.step
        self.grad = torch.zeros_like(step.flat)
        parts = torch.split(self.grad, [p.numel() for p in step.params])
        grads = {p: part.view_as(p).numpy() for p, part in zip(step.params, parts, strict=True)}
        self.policy, self.value = Network(agent.policy.net, grads), Network(agent.value.net, grads)
        if isinstance(agent.policy, GaussianPolicy):
            self.log_std, self.log_std_grad = agent.policy.log_std.detach().numpy(), grads[agent.policy.log_std]
        self.value_coef, self.entropy_coef = agent.config.value_coef, 0.0
        if agent.config.entropy_coef > 0:
            self.entropy_coef = float(agent.hypers.entropy_coef * agent.entropy_left)

    def prepare(self, rows: Batch) -> Batch:
        """What is the same for all minibatches of a rollout is done once."""
        value, target = self.agent.value, rows.value_target
        if isinstance(value, ScaledValueNet):
            target = (target - value.mean) / value.std
        return rows._replace(obs=self.agent.policy.norm(rows.obs), value_target=target)

    def step(self, b: Batch, is_last: bool) -> Metrics:
        """One step on a minibatch of prepared rows; what is worth logging of the last one."""
        obs, action, logp, advantage, value_target = (x.numpy() for x in b)
        out = self.policy.forward(obs)
        # Looked up here: a bound method kept would be a cycle, which holds on to the rollout and the memory it lies in.
        slope_of = self.gaussian_slope if isinstance(self.agent.policy, GaussianPolicy) else self.categorical_slope
        slope, entropy, loss = slope_of(out, action, logp, advantage)
        self.policy.backward(slope)
        error = self.value.forward(obs)[:, 0]
        error -= value_target
        self.value.backward((error * (self.value_coef / len(error)))[:, None])
        norm = self.agent.step.follow(self.grad)
        if not is_last:
            return {}
        metrics = {name: torch.from_numpy(x) for name, x in loss.terms.items()}
        metrics |= {"loss/policy": torch.tensor(loss.values.mean()), "loss/value": torch.tensor(0.5 * (error @ error))}
        metrics["loss/value"] /= len(error)
        if self.entropy_coef:
            metrics["policy/entropy"] = torch.tensor(entropy.mean())
        return metrics | {"loss/grad_norm": norm}

    def categorical_slope(self, logits: Array, action: Array, logp: Array, advantage: Array) -> Slopes:
        """Slope of the mean loss at the logits [B, A]."""
        rows = np.arange(len(logits))
        log_probs = logits - logits.max(1, keepdims=True)
        probs = np.exp(log_probs)
        total = probs.sum(1, keepdims=True)
        probs /= total
        log_probs -= np.log(total)
        loss = self.agent.policy_slope(log_probs[rows, action], logp, advantage)
        slope = probs * -loss.slope[:, None]
        slope[rows, action] += loss.slope
        entropy = np.zeros(1, np.float32)
        if self.entropy_coef:
            entropy = -(probs * log_probs).sum(1)
            log_probs += entropy[:, None]
            log_probs *= probs
            slope += self.entropy_coef * log_probs
        slope /= len(logits)
        return Slopes(slope, entropy, loss)

    def gaussian_slope(self, mean: Array, action: Array, logp: Array, advantage: Array) -> Slopes:
        """Slope of the mean loss at the means [B, A]; sets the gradient of the deviations."""
        inv_std = np.exp(-self.log_std)
        scaled = action - mean
        scaled *= inv_std
        squares = scaled * scaled
        entropy = (self.log_std + (0.5 + 0.5 * LOG_2PI)).sum(keepdims=True)
        new_logp = squares.sum(1)
        new_logp *= -0.5
        new_logp -= entropy - 0.5 * len(inv_std)
        loss = self.agent.policy_slope(new_logp, logp, advantage)
        slope = (loss.slope / len(mean))[:, None]
        squares -= 1
        squares *= slope
        squares.sum(0, out=self.log_std_grad)
        self.log_std_grad -= self.entropy_coef
        scaled *= slope
        scaled *= inv_std
        return Slopes(scaled, entropy, loss)


def can_do(agent: AgentOnPolicy, num_rows: int) -> bool:
    """Whether steps of this agent may be taken by hand: small plain networks on a CPU, and a loss known here."""
    return (
        (type(agent.step), type(agent.policy), type(agent.value)) in KNOWN
        and agent.step.flat.device.type == "cpu"
        and not isinstance(agent.averaging, Ranks)
        and agent.h_term is None
        and min(num_rows, agent.config.batch_size) <= MAX_ROWS
        and max(agent.config.hidden, default=0) <= MAX_WIDTH
        and all(isinstance(layer, PLAIN) for net in (agent.policy.net, agent.value.net) for layer in net)
        # Whoever says anew what is minimised, or has it compiled, has autograd.
        and {"loss", "policy_loss"}.isdisjoint(vars(agent))
        and owner(agent, "policy_loss") is owner(agent, "policy_slope")
    )


def owner(agent: AgentOnPolicy, method: str) -> type:
    """The class that says what ``method`` does."""
    return next(kind for kind in type(agent).__mro__ if method in vars(kind))

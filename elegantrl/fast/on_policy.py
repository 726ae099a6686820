"""The gradient of ``AgentOnPolicy.loss`` for small networks on a CPU, derived by hand.

With 64 units per layer most of a minibatch step is torch's bookkeeping and not arithmetic; the code here takes a third
of the time. Minibatches of up to ``MAX_NUMPY_ROWS`` rows are computed in NumPy, larger ones with torch's kernels in
blocks of rows that stay in the cache. ``AgentOnPolicy.loss`` defines what is minimised: ``learning`` compares the two.
Axes: B minibatch rows, O obs, K outputs, A action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..agents.a2c import AgentA2C
from ..agents.base import Agent
from ..agents.gradients import Gradients, LazyMetrics
from ..agents.on_policy import AgentOnPolicy, Batch
from ..agents.optim import GradStep
from ..agents.ppo import AgentPPO
from ..nets.critics import ScaledValueNet, ValueNet
from ..nets.distributions import LOG_2PI
from ..nets.layers import BLOCK_ROWS
from ..nets.normalize import ObsNorm
from ..nets.policies import CategoricalPolicy, GaussianPolicy
from ..types import Metrics
from .acting import Array, norm_in_numpy
from .network import NumpyNetwork, TorchNetwork, layers_of

MAX_WIDTH = 128
"""Units of a layer beyond which autograd is as fast."""
MAX_NUMPY_ROWS = 1024
"""Rows of a minibatch up to which NumPy is faster than torch."""
CHECK_ROWS = 32
PLAIN_LAYERS = nn.Linear, nn.Tanh, nn.ReLU
KNOWN_NETWORKS = {(p, v) for p in (CategoricalPolicy, GaussianPolicy) for v in (ValueNet, ScaledValueNet)}


class PolicyLoss(NamedTuple):
    """A policy's loss on a minibatch, row by row."""

    values: Array  # [B]
    gradient: Array  # [B] of each value with respect to the log-probability of its action
    terms: dict[str, Array]
    """What the agent's ``diagnose`` reads."""


def ppo_loss(agent: Any, new_logp: Array, logp: Array, advantage: Array) -> PolicyLoss:
    """``AgentPPO.policy_loss``."""
    free = new_logp - logp
    log_ratio = np.minimum(np.maximum(free, -20), 20)
    gain = np.exp(log_ratio) * advantage
    limit = advantage + float(agent.hypers.clip) * np.abs(advantage)
    is_inside = (gain <= limit) & (log_ratio == free)
    return PolicyLoss(-np.minimum(gain, limit), -gain * is_inside, {"log_ratio": log_ratio})


def a2c_loss(agent: Any, new_logp: Array, logp: Array, advantage: Array) -> PolicyLoss:
    """``AgentA2C.policy_loss``."""
    return PolicyLoss(-new_logp * advantage, -advantage, {})


KNOWN_LOSSES: dict[Any, Callable[..., PolicyLoss]] = {AgentPPO.policy_loss: ppo_loss, AgentA2C.policy_loss: a2c_loss}
"""By the function itself: a subclass that overrides ``policy_loss`` is differentiated by autograd."""


class OutputGradient(NamedTuple):
    """Of the policy's loss summed over rows, at what its network puts out."""

    out: Array  # [B, K]
    log_std: Array | None  # [A], for a Gaussian
    entropy: Array  # [B] or [1]
    loss: PolicyLoss


class OnPolicyByHand(Gradients):
    """The gradient of an on-policy agent's loss on a minibatch."""

    def __init__(self, agent: AgentOnPolicy):
        super().__init__("by hand")
        step = agent.step
        self.grad = torch.zeros_like(step.flat)
        parts = torch.split(self.grad, [p.numel() for p in step.params])
        grads = {p: part.view_as(p) for p, part in zip(step.params, parts, strict=True)}
        layers = [layers_of(net, grads) for net in (agent.policy.net, agent.value.net)]
        is_tanh = agent.config.activation == "tanh"
        self.numpy_networks = [NumpyNetwork(x, is_tanh) for x in layers]
        self.torch_networks = [TorchNetwork(x, is_tanh, adds=True) for x in layers]
        self.policy_loss = KNOWN_LOSSES[type(agent).policy_loss]
        # Views of the agent's buffers, which change in place: in NumPy these few operations cost a fifth of torch's.
        value, norm = agent.value, agent.policy.norm
        self.value_units = (value.mean.numpy(), value.std.numpy()) if isinstance(value, ScaledValueNet) else None
        self.obs_norm = norm_in_numpy(norm) if isinstance(norm, ObsNorm) else None
        self.is_gaussian = isinstance(agent.policy, GaussianPolicy)
        if isinstance(agent.policy, GaussianPolicy):
            self.log_std, self.log_std_grad = agent.policy.log_std.detach().numpy(), grads[agent.policy.log_std].numpy()

    @staticmethod
    def suits(agent: Agent) -> bool:
        """Whether the loss and the networks of this agent are known here, and small enough to gain."""
        return (
            isinstance(agent, AgentOnPolicy)
            and type(agent).loss is AgentOnPolicy.loss
            and type(agent).policy_loss in KNOWN_LOSSES
            and (type(agent.policy), type(agent.value)) in KNOWN_NETWORKS
            and agent.step.flat.device.type == "cpu"
            and agent.averaging.size == 1
            and max(agent.config.hidden, default=0) <= MAX_WIDTH
            and agent.config.network == "mlp"
            and agent.policy.encoder is None
            and agent.policy.core is None
            and not agent.reads_state
            and not agent.policy.has_mask
            and not agent.policy.team
            and all(isinstance(layer, PLAIN_LAYERS) for net in (agent.policy.net, agent.value.net) for layer in net)
        )

    def losses(self, agent: Any) -> list[tuple[str, GradStep]]:
        """The hot functions that are differentiated here, in the order of an update."""
        return [("loss", agent.step)]

    def check_args(self, agent: Any, generator: torch.Generator) -> tuple[Batch]:
        """Arguments of the loss on which this gradient is compared with autograd's: ratios on all sides of a clip."""
        normal = partial(torch.randn, generator=generator)
        obs = normal(CHECK_ROWS, agent.policy.net[0].in_features)
        with torch.no_grad():
            out = agent.policy.output(obs)
            action = out + normal(out.shape)
            if isinstance(agent.policy, CategoricalPolicy):
                action = torch.randint(out.shape[1], (CHECK_ROWS,), generator=generator)
            spread = torch.linspace(0.0, 1.0, CHECK_ROWS)
            logp = agent.policy.dist(obs).log_prob(action) + spread * normal(CHECK_ROWS)
        return (Batch(obs, action, logp, *normal(2, CHECK_ROWS)),)

    def __call__(self, agent: Any, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        if name != "loss":
            return super().__call__(agent, name, step, *args)
        (b,) = args
        self.agent, self.value_coef, self.entropy_coef = agent, agent.config.value_coef, 0.0
        if agent.config.entropy_coef > 0:
            self.entropy_coef = float(agent.hypers.entropy_coef * agent.entropy_left)
        self.grad.zero_()
        columns = self.normalized(*(x.numpy() for x in b[:5]))
        num_rows = len(columns[0])
        in_numpy = num_rows <= MAX_NUMPY_ROWS
        add = self.add_in_numpy if in_numpy else self.add_in_torch
        blocks = [
            add(num_rows, *(x[start : start + BLOCK_ROWS] for x in columns)) for start in range(0, num_rows, BLOCK_ROWS)
        ]
        for network in self.numpy_networks if in_numpy else self.torch_networks:
            network.inputs = []  # the rows may lie in memory that a worker waits for
        return self.grad, partial(metrics_of, blocks, bool(self.entropy_coef))

    def normalized(self, obs: Array, *others: Array) -> list[Array]:
        """The columns of a minibatch, with observations and value targets in the units of the networks."""
        *taken, value_target = others
        if self.value_units is not None:
            mean, std = self.value_units
            value_target = (value_target - mean) / std
        if self.obs_norm is not None:
            obs = self.obs_norm(obs)
        return [obs, *taken, value_target]

    def add_in_numpy(self, num_rows: int, obs: Array, *others: Array) -> tuple[OutputGradient, Array]:
        """Add the share of one block of rows to the gradient; the block's policy loss and value errors [B]."""
        policy, value = self.numpy_networks
        *taken, value_target = others
        gradient = self.output_gradient(num_rows, policy.forward(obs), *taken)
        policy.backward(gradient.out)
        error: Array = value.forward(obs)[:, 0]
        error -= value_target
        value.backward((error * (self.value_coef / num_rows))[:, None])
        return gradient, error

    def add_in_torch(self, num_rows: int, obs: Array, *others: Array) -> tuple[OutputGradient, Array]:
        """``add_in_numpy`` with torch's kernels in the networks."""
        policy, value = self.torch_networks
        *taken, value_target = others
        x = torch.from_numpy(obs)
        gradient = self.output_gradient(num_rows, policy.forward(x).numpy(), *taken)
        policy.backward(torch.from_numpy(gradient.out))
        error: Array = value.forward(x)[:, 0].numpy()
        error -= value_target
        value.backward(torch.from_numpy((error * (self.value_coef / num_rows))[:, None]))
        return gradient, error

    def output_gradient(self, num_rows: int, out: Array, *taken: Array) -> OutputGradient:
        """That of the mean over a minibatch of ``num_rows``, for one block of it."""
        gradient = self.gaussian_gradient(out, *taken) if self.is_gaussian else self.categorical_gradient(out, *taken)
        np.divide(gradient.out, num_rows, out=gradient.out)
        if gradient.log_std is not None:
            self.log_std_grad += gradient.log_std / num_rows
        return gradient

    def categorical_gradient(self, logits: Array, action: Array, logp: Array, advantage: Array) -> OutputGradient:
        """d log p(a) / d logit_k = 1[a = k] - p_k, and d entropy / d logit_k = -p_k (log p_k + entropy)."""
        rows = np.arange(len(logits))
        log_probs = logits - logits.max(1, keepdims=True)
        probs = np.exp(log_probs)
        total = probs.sum(1, keepdims=True)
        probs /= total
        log_probs -= np.log(total)
        loss = self.policy_loss(self.agent, log_probs[rows, action], logp, advantage)
        gradient = probs * -loss.gradient[:, None]
        gradient[rows, action] += loss.gradient
        entropy = np.zeros(1, np.float32)
        if self.entropy_coef:
            entropy = -(probs * log_probs).sum(1)
            log_probs += entropy[:, None]
            log_probs *= probs
            gradient += self.entropy_coef * log_probs
        return OutputGradient(gradient, None, entropy, loss)

    def gaussian_gradient(self, mean: Array, action: Array, logp: Array, advantage: Array) -> OutputGradient:
        """With z = (a - mean) / std: d log p / d mean = z / std and d log p / d log std = z^2 - 1."""
        inv_std = np.exp(-self.log_std)
        scaled = action - mean
        scaled *= inv_std
        squares = scaled * scaled
        entropy = (self.log_std + (0.5 + 0.5 * LOG_2PI)).sum(keepdims=True)
        new_logp = squares.sum(1)
        new_logp *= -0.5
        new_logp -= entropy - 0.5 * len(inv_std)
        loss = self.policy_loss(self.agent, new_logp, logp, advantage)
        squares -= 1
        squares *= loss.gradient[:, None]
        scaled *= loss.gradient[:, None]
        scaled *= inv_std
        return OutputGradient(scaled, squares.sum(0) - self.entropy_coef * len(mean), entropy, loss)


def metrics_of(blocks: list[tuple[OutputGradient, Array]], has_entropy: bool) -> Metrics:
    """The metrics of ``AgentOnPolicy.loss`` for a minibatch."""
    gradients, errors = zip(*blocks, strict=True)
    metrics = {name: joined(g.loss.terms[name] for g in gradients) for name in gradients[0].loss.terms}
    metrics["loss/policy"] = joined(g.loss.values for g in gradients).mean()
    metrics["loss/value"] = 0.5 * joined(errors).square().mean()
    if has_entropy:
        metrics["policy/entropy"] = joined(g.entropy for g in gradients).mean()
    return metrics


def joined(parts: Iterable[Array]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(parts)))

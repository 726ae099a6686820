"""One half of a SAC update with gradients derived by hand, in memory that both halves share.

Each half has a critic and its target. Half 0 also samples the policy at the observations, half 1 at the
successors. ``AgentSAC`` defines what is minimised: ``learning`` compares these gradients with autograd's.
Axes: B minibatch rows, O obs, A action, I inputs and K outputs of a layer.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..nets.distributions import LOG_2PI
from ..nets.policies import SquashedPolicy
from .network import Layer, TorchNetwork

CONTROL_BYTES, ALIGN_BYTES = 4096, 64
"""The first page belongs to ``core_helper``; tensors begin at multiples of a cache line."""


class Sizes(NamedTuple):
    """The sizes that determine the layout of the shared memory."""

    obs: int
    action: int
    hidden: tuple[int, ...]
    rows: int

    def policy(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        return list(pairwise((self.obs, *self.hidden, 2 * self.action)))

    def critic(self) -> list[tuple[int, int]]:
        return list(pairwise((self.obs + self.action, *self.hidden, 1)))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shared tensors: parameters, gradients, a minibatch, and results of one half that the other uses."""
        policy, critic = (sum((i + 1) * k for i, k in layers) for layers in (self.policy(), self.critic()))
        rows: tuple[int, ...] = (self.rows,)
        obs, action = (self.rows, self.obs), (self.rows, self.action)
        flats = {"policy": (policy,), "policy_grad": (policy,)}
        flats |= {"critic": (2 * critic,), "target": (2 * critic,), "critic_grad": (2 * critic,)}
        batch = {"obs": obs, "next_obs": obs, "action": action, "noise": action, "next_noise": action}
        results = {"new_action": action, "new_std": action, "new_logp": rows, "next_action": action, "next_logp": rows}
        results |= {"target_q1": rows, "q1": rows, "error1": rows, "new_q0": rows, "new_q1": rows, "gradient1": action}
        for i, (_, outputs) in enumerate(self.policy()):
            results |= {f"policy_output{i}": (self.rows, outputs), f"policy_gradient{i}": (self.rows, outputs)}
        return {**flats, **batch, **results}

    def place(self, memory: Any) -> dict[str, Tensor]:
        """Those tensors in shared memory, after the control page."""
        tensors, start = {}, CONTROL_BYTES
        for name, shape in self.shapes().items():
            count = math.prod(shape)
            tensors[name] = torch.frombuffer(memory, dtype=torch.float32, count=count, offset=start).view(shape)
            start += -(-4 * count // ALIGN_BYTES) * ALIGN_BYTES
        return tensors

    def num_bytes(self) -> int:
        return CONTROL_BYTES + sum(4 * math.prod(shape) + ALIGN_BYTES for shape in self.shapes().values())


def linear_layers(sizes: list[tuple[int, int]], flat: Tensor, grad: Tensor) -> list[Layer[Tensor]]:
    """The layers of a stack of ``nn.Linear``, which stores weights as [K, I]."""
    layers, start = [], 0
    for i, k in sizes:
        weight, weight_grad = (x[start : start + i * k].view(k, i).t() for x in (flat, grad))
        start += i * k
        bias, bias_grad = (x[start : start + k] for x in (flat, grad))
        start += k
        layers.append(Layer(weight, bias, weight_grad, bias_grad))
    return layers


def member_layers(member: int, sizes: list[tuple[int, int]], flat: Tensor, grad: Tensor) -> list[Layer[Tensor]]:
    """The layers of one of two members of a stack of ``EnsembleLinear``, which stores weights as [E, I, K]."""
    layers, start = [], 0
    for i, k in sizes:
        weight, weight_grad = (x[start : start + 2 * i * k].view(2, i, k)[member] for x in (flat, grad))
        start += 2 * i * k
        bias, bias_grad = (x[start : start + 2 * k].view(2, k)[member] for x in (flat, grad))
        start += 2 * k
        layers.append(Layer(weight, bias, weight_grad, bias_grad))
    return layers


class Half:
    """The networks of one half, in the shared memory; ``TASKS`` are the methods that half 1 runs for half 0."""

    def __init__(self, member: int, sizes: Sizes, shared: dict[str, Tensor]):
        self.shared, self.obs_dim = shared, sizes.obs
        policy = linear_layers(sizes.policy(), shared["policy"], shared["policy_grad"])
        self.next_policy = TorchNetwork(policy)
        """The policy at the successors."""
        self.policy_gradients = [shared[f"policy_gradient{i}"] for i in range(len(policy))]
        outputs = [shared[f"policy_output{i}"] for i in range(len(policy))]
        self.policy = TorchNetwork(policy, outputs=outputs, output_gradients=self.policy_gradients)
        """The policy at the observations: half 0 runs it forward, both differentiate it."""
        self.policy.inputs = [shared["obs"], *outputs[:-1]]
        self.critic = TorchNetwork(member_layers(member, sizes.critic(), shared["critic"], shared["critic_grad"]))
        # A target is never differentiated: its parameters are only placeholders for a gradient.
        self.target = TorchNetwork(member_layers(member, sizes.critic(), shared["target"], shared["target"]))

    def sample_actions(self) -> None:
        """Sample the policy at the observations."""
        s = self.shared
        sample(self.policy.forward(s["obs"]), s["noise"], s["new_action"], s["new_logp"], s["new_std"])

    def values(self) -> tuple[Tensor, Tensor]:
        """The target's value [B] of the successor, and the critic's value [B] of the action that was taken."""
        s = self.shared
        target_q = self.target.forward(torch.cat([s["next_obs"], s["next_action"]], -1))[:, 0]
        return target_q, self.critic.forward(torch.cat([s["obs"], s["action"]], -1))[:, 0]

    def differentiate_critic(self, error: Tensor) -> None:
        """Write the critic's gradient, given the errors [B] of its values."""
        self.critic.backward((error / len(error)).unsqueeze(1))

    def new_value(self) -> Tensor:
        """The critic's value [B] of the action that was sampled."""
        return self.critic.forward(torch.cat([self.shared["obs"], self.shared["new_action"]], -1))[:, 0]

    def action_gradient(self, q: Tensor, minimum: Tensor, num_minimal: Tensor) -> Tensor:
        """The part of the gradient [B, A] of -mean(minimum) at that action that flows through this half's critic."""
        gradient = (q == minimum).float().div_(num_minimal * -len(q))
        return self.critic.input_gradient(gradient.unsqueeze(1))[:, self.obs_dim :]

    # ---- tasks of half 1

    def task_sample_next(self) -> None:
        s = self.shared
        sample(self.next_policy.forward(s["next_obs"]), s["next_noise"], s["next_action"], s["next_logp"])

    def task_values(self) -> None:
        target_q, q = self.values()
        self.shared["target_q1"].copy_(target_q)
        self.shared["q1"].copy_(q)

    def task_critic(self) -> None:
        self.differentiate_critic(self.shared["error1"])

    def task_new_value(self) -> None:
        self.shared["new_q1"].copy_(self.new_value())

    def task_action(self) -> None:
        q0, q1 = self.shared["new_q0"], self.shared["new_q1"]
        self.shared["gradient1"].copy_(self.action_gradient(q1, *minimum_of(q0, q1)))

    def task_policy(self) -> None:
        """Write the policy's gradient except for the first layer's."""
        for i, gradient in list(enumerate(self.policy_gradients))[1:]:
            self.policy.differentiate(i, gradient)


TASKS = (
    Half.task_sample_next, Half.task_values, Half.task_critic, Half.task_new_value, Half.task_action, Half.task_policy,
)  # fmt: skip
SAMPLE_NEXT, VALUES, CRITIC, NEW_VALUE, ACTION, POLICY = range(len(TASKS))
PRECEDING = {CRITIC: VALUES, ACTION: NEW_VALUE}
"""Tasks that use results of an earlier task in the private memory of the same process."""


def sample(out: Tensor, noise: Tensor, action: Tensor, logp: Tensor, std: Tensor | None = None) -> None:
    """Actions [B, A] for the policy's outputs [B, 2A] and standard normal noise, and their log-probabilities [B]."""
    mean, log_std = out.chunk(2, -1)
    log_std = log_std.clamp(SquashedPolicy.LOG_STD_MIN, SquashedPolicy.LOG_STD_MAX)
    x = mean + torch.exp(log_std, out=std) * noise
    log_derivative = 2 * (math.log(2) - x - softplus(-2 * x))  # log(1 - tanh(x)^2), without cancellation
    torch.sum(-0.5 * noise.square() - log_std - 0.5 * LOG_2PI - log_derivative, -1, out=logp)
    torch.tanh(x, out=action)


def minimum_of(q0: Tensor, q1: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum of two values [B], and how many of them equal it: equal values share its gradient."""
    return torch.minimum(q0, q1), 1 + (q0 == q1).float()

"""What each of the two lanes of SAC's update (``sac``) computes, in memory that both see.

Gradients are derived by hand. ``AgentSAC`` says what is minimised; tests hold these gradients to those of autograd.
Axes: B minibatch rows, O obs, A action, I inputs, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..nets.distributions import LOG_2PI
from ..nets.policies import SquashedPolicy

CONTROL_BYTES, ALIGN_BYTES = 4096, 64
"""A page in front that is left to the helper, and where tensors may begin."""


class Sizes(NamedTuple):
    """All that the memory of two lanes depends on."""

    obs: int
    action: int
    hidden: tuple[int, ...]
    rows: int

    def policy(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the layers."""
        return list(pairwise((self.obs, *self.hidden, 2 * self.action)))

    def critic(self) -> list[tuple[int, int]]:
        return list(pairwise((self.obs + self.action, *self.hidden, 1)))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What both lanes see: parameters, gradients, a minibatch, and what they tell each other."""
        policy, critic = (sum((i + 1) * k for i, k in layers) for layers in (self.policy(), self.critic()))
        rows: tuple[int, ...] = (self.rows,)
        obs, action = (self.rows, self.obs), (self.rows, self.action)
        flats = {"policy": (policy,), "policy_grad": (policy,)}
        flats |= {"critic": (2 * critic,), "target": (2 * critic,), "critic_grad": (2 * critic,)}
        batch = {"obs": obs, "next_obs": obs, "action": action, "noise": action, "next_noise": action}
        told = {"new_action": action, "new_std": action, "new_logp": rows, "next_action": action, "next_logp": rows}
        told |= {"target_q": rows, "q": rows, "error": rows, "first_q": rows, "second_q": rows, "slope": action}
        # What comes out of the policy's layers at the states themselves, and the slopes of the loss there.
        for i, (_, outputs) in enumerate(self.policy()):
            told |= {f"policy_out{i}": (self.rows, outputs), f"policy_slope{i}": (self.rows, outputs)}
        return {**flats, **batch, **told}

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


class Layer(NamedTuple):
    weight: Tensor  # [I, K]
    bias: Tensor  # [K]
    weight_grad: Tensor | None  # [I, K]
    bias_grad: Tensor | None


class Network:
    """Linear layers with relu between them."""

    def __init__(self, layers: list[Layer], outs: Sequence[Tensor] = ()):
        """``outs`` is where to leave what comes out of each layer, if somebody else is to see it."""
        self.layers, self.outs = layers, outs
        self.inputs: list[Tensor] = []
        """What went into each layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] for inputs [B, I]."""
        inputs = [x]
        for i, layer in enumerate(self.layers):
            if i:
                inputs.append(x.relu_())
            x = torch.mm(x, layer.weight, out=self.outs[i] if self.outs else None)
            x += layer.bias
        self.inputs = inputs
        return x

    def backward(self, slope: Tensor) -> None:
        """Set the gradients for the slope [B, K] of the loss at the last outputs."""
        for i in reversed(range(len(self.layers))):
            self.set_gradient(i, slope)
            if i:
                slope = self.slope_below(i, slope)

    def set_gradient(self, i: int, slope: Tensor) -> None:
        """Of layer ``i`` for the slope [B, K] at its outputs."""
        _, _, weight_grad, bias_grad = self.layers[i]
        assert weight_grad is not None and bias_grad is not None
        torch.mm(self.inputs[i].t(), slope, out=weight_grad)
        torch.sum(slope, 0, out=bias_grad)

    def slope_below(self, i: int, slope: Tensor, out: Tensor | None = None) -> Tensor:
        """At the outputs of layer ``i - 1``, for the slope [B, K] at those of layer ``i``."""
        slope = torch.mm(slope, self.layers[i].weight.t(), out=out)
        return slope_of_relu(slope, self.inputs[i], 0, grad_input=slope)

    def slope_at_inputs(self, slope: Tensor) -> Tensor:
        """The slope of the loss at the last inputs [B, I]."""
        for i in reversed(range(1, len(self.layers))):
            slope = self.slope_below(i, slope)
        return torch.mm(slope, self.layers[0].weight.t())


slope_of_relu = torch.ops.aten.threshold_backward.grad_input


def linear_layers(sizes: list[tuple[int, int]], flat: Tensor, grad: Tensor) -> list[Layer]:
    """A stack of ``nn.Linear``, whose weights lie as [K, I]."""
    layers, start = [], 0
    for i, k in sizes:
        weight, weight_grad = (x[start : start + i * k].view(k, i).t() for x in (flat, grad))
        start += i * k
        bias, bias_grad = (x[start : start + k] for x in (flat, grad))
        start += k
        layers.append(Layer(weight, bias, weight_grad, bias_grad))
    return layers


def member_layers(member: int, sizes: list[tuple[int, int]], flat: Tensor, grad: Tensor | None) -> list[Layer]:
    """One of the two members of a stack of ``EnsembleLinear``, whose weights lie as [E, I, K]."""
    layers, start = [], 0
    for i, k in sizes:
        views = [x[start : start + 2 * i * k].view(2, i, k)[member] if x is not None else None for x in (flat, grad)]
        start += 2 * i * k
        biases = [x[start : start + 2 * k].view(2, k)[member] if x is not None else None for x in (flat, grad)]
        start += 2 * k
        layers.append(Layer(views[0], biases[0], views[1], biases[1]))  # type: ignore[arg-type]
    return layers


class Side:
    """The networks of one lane over the memory of both."""

    def __init__(self, member: int, sizes: Sizes, shared: dict[str, Tensor]):
        self.shared, self.obs_dim = shared, sizes.obs
        policy = linear_layers(sizes.policy(), shared["policy"], shared["policy_grad"])
        self.next_policy = Network(policy)
        """As it is asked about the successors."""
        self.policy = Network(policy, [shared[f"policy_out{i}"] for i in range(len(policy))])
        """As it is asked about the states themselves, by whoever has the time."""
        self.policy.inputs = [shared["obs"], *self.policy.outs[:-1]]
        self.policy_slopes = [shared[f"policy_slope{i}"] for i in range(len(policy))]
        """Of the loss at what came out of its layers."""
        self.critic = Network(member_layers(member, sizes.critic(), shared["critic"], shared["critic_grad"]))
        self.target = Network(member_layers(member, sizes.critic(), shared["target"], None))

    def draw_new(self) -> None:
        """Draw the actions that the policy would take at the states themselves."""
        s = self.shared
        draw(self.policy.forward(s["obs"]), s["noise"], s["new_action"], s["new_logp"], s["new_std"])

    def judge(self) -> tuple[Tensor, Tensor]:
        """What target and critic [B] say of the successor and of the action that was taken."""
        s = self.shared
        target_q = self.target.forward(torch.cat([s["next_obs"], s["next_action"]], -1))[:, 0]
        return target_q, self.critic.forward(torch.cat([s["obs"], s["action"]], -1))[:, 0]

    def learn(self, error: Tensor) -> None:
        """The critic's gradient for the errors [B] of its values."""
        self.critic.backward((error / len(error)).unsqueeze(1))

    def judge_new(self) -> Tensor:
        """What the critic says [B] of the action that the policy would take now."""
        return self.critic.forward(torch.cat([self.shared["obs"], self.shared["new_action"]], -1))[:, 0]

    def climb(self, q: Tensor, least: Tensor, num_least: Tensor) -> Tensor:
        """The slope [B, A] of the loss at that action, as far as this critic's value is the least."""
        slope = (q == least).float().div_(num_least * -len(q))
        return self.critic.slope_at_inputs(slope.unsqueeze(1))[:, self.obs_dim :]

    # ---- lane 1

    def draw_next(self) -> None:
        s = self.shared
        draw(self.next_policy.forward(s["next_obs"]), s["next_noise"], s["next_action"], s["next_logp"])

    def tell_values(self) -> None:
        target_q, q = self.judge()
        self.shared["target_q"].copy_(target_q)
        self.shared["q"].copy_(q)

    def learn_told(self) -> None:
        self.learn(self.shared["error"])

    def tell_new_value(self) -> None:
        self.shared["second_q"].copy_(self.judge_new())

    def tell_slope(self) -> None:
        first, second = self.shared["first_q"], self.shared["second_q"]
        self.shared["slope"].copy_(self.climb(second, *least_of(first, second)))

    def learn_policy(self) -> None:
        """All of its gradient but that of the first layer."""
        for i, slope in list(enumerate(self.policy_slopes))[1:]:
            self.policy.set_gradient(i, slope)


TASKS = (
    Side.draw_next, Side.tell_values, Side.learn_told, Side.tell_new_value, Side.tell_slope,
    Side.learn_policy,
)  # fmt: skip
DRAW_NEXT, VALUES, LEARN, NEW_VALUE, SLOPE, LEARN_POLICY = range(len(TASKS))
BEFORE = {LEARN: VALUES, SLOPE: NEW_VALUE}
"""Tasks that go on from what another left in the memory of its process."""


def draw(out: Tensor, noise: Tensor, action: Tensor, logp: Tensor, std: Tensor | None = None) -> None:
    """Actions [B, A] for the policy's outputs [B, 2A] and standard normal noise, and their log-probabilities [B]."""
    mean, log_std = out.chunk(2, -1)
    log_std = log_std.clamp(SquashedPolicy.LOG_STD_MIN, SquashedPolicy.LOG_STD_MAX)
    x = mean + torch.exp(log_std, out=std) * noise
    log_slope = 2 * (math.log(2) - x - softplus(-2 * x))
    torch.sum(-0.5 * noise.square() - log_std - 0.5 * LOG_2PI - log_slope, -1, out=logp)
    torch.tanh(x, out=action)


def least_of(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The smaller of two values [B], and how many of them are that small: they share its slope."""
    return torch.minimum(first, second), 1 + (first == second).float()

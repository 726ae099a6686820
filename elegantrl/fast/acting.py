"""Acting with less overhead: NumPy for few lanes and small layers, prepared torch calls for the rest.

Between two steps of an environment caches are cold, and a kernel of torch takes several times as long as in a loop of
its own. For the few products of a small network NumPy's calls cost less.

Axes: N lanes, A action.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from .. import tree
from ..nets.layers import Stack
from ..nets.networks import Dueling
from ..nets.normalize import ObsNorm
from ..nets.policies import (
    Acted,
    CategoricalPolicy,
    DeterministicPolicy,
    Draw,
    GaussianPolicy,
    NetPolicy,
    Policy,
    QPolicy,
    SquashedPolicy,
)
from ..nets.recurrent import State
from ..tree import Tree
from ..types import seen_part
from .products import mm
from .recurrent import core_in_numpy

log = logging.getLogger(__name__)

Array = NDArray[Any]
NARROW, MANY_ROWS = 16, 1024
"""Below so many outputs and from so many rows on, a CPU multiplies the transposed matrices three times faster."""
MAX_NUMPY_WEIGHTS, MAX_NUMPY_ROWS, FEW_ROWS = 2**14, 256, 2
"""Weights of a layer and rows up to which NumPy is faster than torch, and rows for which it always is."""
TOLERANCE = 1e-3


class NumpyActor:
    """Explores in NumPy with the storage that the weights of a policy have now."""

    def __init__(
        self,
        policy: NetPolicy,
        output: Callable[[Array], Array],
        choose: Choose,
        core: Callable[[Array, State], State] | None = None,
    ):
        self.policy, self.output, self.choose, self.core = policy, output, choose, core
        self.norm = norm_in_numpy(policy.norm) if isinstance(policy.norm, ObsNorm) else None
        self.act = policy.act

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        """As the policy's, as arrays."""
        return [as_arrays(draw) for draw in self.policy.draw(num_steps, num_lanes, generator)]

    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        x = seen_part(obs).numpy()
        if self.norm is not None:
            x = self.norm(x)
        if self.core is not None:
            carry = self.core(x, carry)
            x = carry[0].numpy()
        out = self.output(x)
        action = torch.from_numpy(self.choose(self.policy, out, draw))
        return Acted(action, torch.from_numpy(out) if self.policy.keeps_out else (), carry)


def as_arrays(draw: Draw) -> Draw:
    return tuple(None if part is None else part.numpy() for part in draw)


def actor_for(policy: Policy, num_lanes: int) -> NumpyActor | None:
    """A faster actor with the methods ``draw``, ``explore`` and ``act`` of ``policy``; None if the policy is as fast.

    The storage of the policy's parameters must not move from now on, and no gradient is computed.
    """
    if type(policy) not in CHOOSE or not isinstance(policy, NetPolicy) or not is_known(policy.net):
        return None
    if policy.encoder is not None or policy.has_mask or policy.team:
        return None
    freeze(policy)
    core, choose = core_in_numpy(policy.core, num_lanes), CHOOSE[type(policy)]
    is_known_carry = policy.initial_carry(1) == () if policy.core is None else core is not None
    output = net_in_numpy(policy.net, num_lanes) if is_known_carry else None
    if output is None or choose is None:
        return None
    actor = NumpyActor(policy, output, choose, core)
    if agrees(policy, actor, num_lanes):
        return actor
    log.warning("actions of %s are not those known to fast/acting.py: the policy itself acts", type(policy).__name__)
    return None


def agrees(policy: NetPolicy, actor: NumpyActor, num_lanes: int) -> bool:
    """Whether both act alike on made-up observations: a policy that was edited acts as it stands."""
    g = torch.Generator().manual_seed(0)
    first = next(layer for layer in (policy.core or policy.net).modules() if isinstance(layer, nn.Linear))
    obs = torch.randn(num_lanes, first.in_features, generator=g)
    carry = tree.map_leaves(lambda x: torch.randn(x.shape, generator=g), policy.initial_carry(num_lanes))
    (draw,) = policy.draw(1, num_lanes, g)
    for flag in (True, False):  # exploring at random, and not
        fixed = [torch.full_like(x, flag) if x is not None and x.dtype == torch.bool else x for x in draw]
        noise = type(draw)(*fixed) if hasattr(draw, "_fields") else tuple(fixed)
        mine, other = policy.explore(obs, carry, noise), actor.explore(obs, carry, as_arrays(noise))
        for x, y in zip(tree.leaves((mine.action, mine.carry)), tree.leaves((other.action, other.carry)), strict=True):
            if x.dtype != y.dtype or not torch.allclose(x.float(), y.float(), TOLERANCE, TOLERANCE):
                return False
    return True


# ---- how actions are made of outputs

Choose = Callable[[Any, Array, Draw], Array]


def choose_category(policy: CategoricalPolicy, out: Array, draw: Draw) -> Array:
    (noise,) = draw
    if out.shape[-1] != 2:
        return pick_best(out - noise)
    return (out[..., 1] - out[..., 0] > noise[..., 0]).astype(np.int64)


def add_noise(policy: GaussianPolicy, out: Array, draw: Draw) -> Array:
    action: Array = out + draw[0]
    return action


def squash(policy: SquashedPolicy, out: Array, draw: Draw) -> Array:
    normal, is_random, uniform, _ = draw
    mean, log_std = out[:, : policy.action_dim], out[:, policy.action_dim :]
    std = np.exp(np.minimum(np.maximum(log_std, policy.LOG_STD_MIN), policy.LOG_STD_MAX))
    return np.where(is_random, uniform, np.tanh(mean + std * normal))


def epsilon_greedy(policy: QPolicy, out: Array, draw: Draw) -> Array:
    is_random, uniform = draw
    return np.where(is_random, uniform, pick_best(out[..., int(policy.dueling) :]))


def pick_best(score: Array) -> Array:
    best: Array = score.argmax(-1)
    return best


CHOOSE: dict[type[Policy], Choose | None] = {
    CategoricalPolicy: choose_category,
    GaussianPolicy: add_noise,
    SquashedPolicy: squash,
    QPolicy: epsilon_greedy,
    DeterministicPolicy: None,
}
"""How the policies known here act in NumPy; None if only their network is prepared."""


# ---- networks


def freeze(policy: NetPolicy) -> None:
    """Replace ``policy.output`` by calls with the present weight tensors."""
    run, norm = frozen(policy.net), policy.norm.forward
    if isinstance(policy.norm, nn.Identity):
        policy.output = lambda obs: run(seen_part(obs))  # type: ignore[method-assign]
    else:
        policy.output = lambda obs: run(norm(seen_part(obs)))  # type: ignore[method-assign]


def is_known(net: nn.Module) -> bool:
    streams = net.children() if type(net) is Dueling else [net]
    return all(type(stream) is Stack for stream in streams)


def frozen(net: Stack | Dueling) -> Callable[[Tensor], Tensor]:
    """The forward pass of ``net`` without the lookups of modules and parameters."""
    if isinstance(net, Dueling):
        parts = [frozen(stack) for stack in net.children()]  # type: ignore[arg-type]
        return partial(_run_streams, torch.cat, *parts)
    steps: list[Callable[[Tensor], Tensor]] = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            linear = _linear
            if layer.weight.device.type == "cpu":
                linear = _narrow_linear if layer.out_features < NARROW else _wide_linear
            steps.append(partial(linear, layer.bias, layer.weight.t()))
        elif isinstance(layer, nn.Tanh):
            steps.append(torch.tanh_)  # the one activation that has no switch for working in place
        else:
            steps.append(layer.forward)
    return partial(_run, steps)


def _run(steps: list[Callable[[Any], Any]], x: Any) -> Any:
    for step in steps:
        x = step(x)
    return x


def _run_streams(cat: Callable[..., Any], trunk: Any, value: Any, advantage: Any, x: Any) -> Any:
    x = trunk(x)
    return cat([value(x), advantage(x)], -1)


def _linear(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight)


def _wide_linear(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    if len(x) < MANY_ROWS:
        return torch.addmm(bias, x, weight)
    return mm(x, weight).add_(bias)  # addmm fills the result with the bias first, which is slower


def _narrow_linear(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    if len(x) < MANY_ROWS:
        return torch.addmm(bias, x, weight)
    return torch.addmm(bias.unsqueeze(1), weight.t(), x.t()).t()


def norm_in_numpy(norm: ObsNorm) -> Callable[[Array], Array]:
    """``norm`` with its present buffers."""
    return partial(_normalize, norm.mean.numpy(), norm.inv_std.numpy(), norm.clip)


def net_in_numpy(net: Stack | Dueling, num_rows: int) -> Callable[[Array], Array] | None:
    """``net`` for ``num_rows`` rows in NumPy; None if torch is faster or NumPy lacks a layer."""
    if isinstance(net, Dueling):
        parts = [net_in_numpy(stack, num_rows) for stack in net.children()]  # type: ignore[arg-type]
        return None if None in parts else partial(_run_streams, np.concatenate, *parts)
    steps: list[Callable[[Array], Array]] = []
    for layer in net:
        if isinstance(layer, nn.Linear) and layer.weight.device.type == "cpu":
            if num_rows > (MAX_NUMPY_ROWS if layer.weight.numel() <= MAX_NUMPY_WEIGHTS else FEW_ROWS):
                return None
            steps.append(partial(_linear_in_numpy, layer.bias.detach().numpy(), layer.weight.detach().numpy().T))
        elif type(layer) in IN_NUMPY:
            steps.append(IN_NUMPY[type(layer)])
        else:
            return None
    return partial(_run, steps)


def _normalize(mean: Array, inv_std: Array, clip: float, obs: Array) -> Array:
    normed: Array = np.minimum(np.maximum((obs - mean) * inv_std, -clip), clip)
    return normed


def _linear_in_numpy(bias: Array, weight: Array, x: Array) -> Array:
    y: Array = np.dot(x, weight)
    y += bias
    return y


IN_NUMPY: dict[type[nn.Module], Callable[[Array], Array]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
}

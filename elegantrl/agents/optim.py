"""The one place that turns a loss into a parameter change: gradient, clipping, Adam, target tracking."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..nets.layers import flatten_
from ..types import State
from .averaging import OneRank


class GradStep:
    """Adam on one flat tensor that the given parameters become views of: every part of a step is one kernel."""

    BETA1, BETA2 = 0.9, 0.999
    averaging = OneRank()
    """Averages gradients over learners; with several learners the agent replaces it."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: Tensor,
        max_grad_norm: float | None = None,
        epsilon: float = 1e-5,
    ):
        self.params = list(params)
        self.flat = flatten_(self.params)
        # A tensor, so that a schedule or a population changes it in place.
        self.lr = lr.detach().clone()
        self.max_grad_norm, self.epsilon = max_grad_norm, epsilon
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = torch.zeros((), device=self.flat.device)
        self.sum_of_squares = torch.zeros((), device=self.flat.device)
        """Sum of all squared gradient norms so far: stays infinite or NaN after a gradient or its square was."""

    def __call__(self, loss: Tensor) -> Tensor:
        """Minimise ``loss`` by one step; return the gradient norm before clipping."""
        return self.follow(self.gradient(loss))

    def gradient(self, loss: Tensor) -> Tensor:
        """The flat gradient, by autograd."""
        # Only these parameters: other networks need no freezing, and no stale .grad remains.
        # Parameters that a loss does not reach, such as those of a value network by the H-term, have gradient 0.
        grads = torch.autograd.grad(loss, self.params, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads])

    def follow(self, grad: Tensor) -> Tensor:
        """One descent step along a flat gradient, which is overwritten; return its norm before clipping."""
        # Averaged before the norm: clipping applies to the gradient of the whole batch.
        grad = self.averaging.average(grad)
        norm = torch.linalg.vector_norm(grad)
        self.sum_of_squares.addcmul_(norm, norm)
        if self.max_grad_norm is not None:
            grad *= (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        self.count += 1
        # The kernel of torch.optim.Adam(fused=True) without an Optimizer's bookkeeping, which takes longer than it.
        torch._fused_adam_(
            [self.flat], [grad], [self.mean], [self.square], [], [self.count], lr=self.lr, beta1=self.BETA1,
            beta2=self.BETA2, weight_decay=0.0, eps=self.epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip
        return norm

    def state_dict(self) -> State:
        return {name: getattr(self, name).clone() for name in ("lr", "mean", "square", "count")}

    def load_state_dict(self, state: State) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)
        self.sum_of_squares.zero_()  # gradients before the load no longer count


class Target:
    """A copy of a network that follows it by moving averages or by copies."""

    def __init__(self, target: nn.Module, source: GradStep):
        target.requires_grad_(False)
        self.params, self.source = list(target.parameters()), source
        self.flat = flatten_(self.params)

    @torch.no_grad()
    def track(self, tau: Tensor) -> None:
        """target += tau * (source - target); ``tau = 1`` copies."""
        self.flat.lerp_(self.source.flat, tau)

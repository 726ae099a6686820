"""The one place that turns a loss into a parameter change: gradient, clipping, Adam, target tracking."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..nets.layers import flatten_
from ..types import State


class GradStep:
    """Adam on one flat tensor that the given parameters become views of: every part of a step is one kernel."""

    def __init__(self, params: Iterable[nn.Parameter], lr: Tensor, max_grad_norm: float | None = None):
        self.params = list(params)
        self.flat = flatten_(self.params)
        # A tensor, so that a schedule or a population changes it in place.
        self.lr = lr.detach().clone()
        self.optimizer = torch.optim.Adam([self.flat], lr=self.lr, fused=True, eps=1e-5)
        self.max_grad_norm = max_grad_norm

    def __call__(self, loss: Tensor) -> Tensor:
        """Minimise ``loss`` by one step; return the gradient norm before clipping."""
        # Only these parameters: no freezing of other networks, no stale .grad anywhere.
        grads = torch.autograd.grad(loss, self.params)
        grad = torch.cat([g.reshape(-1) for g in grads])
        norm = torch.linalg.vector_norm(grad)
        if self.max_grad_norm is not None:
            grad *= (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        self.flat.grad = grad
        self.optimizer.step()
        return norm

    def state_dict(self) -> State:
        moments = self.optimizer.state.get(self.flat, {})
        return {"lr": self.lr.clone()} | {name: value.clone() for name, value in moments.items()}

    def load_state_dict(self, state: State) -> None:
        self.lr.copy_(state["lr"])
        moments = {k: v.to(self.flat.device).clone() for k, v in state.items() if k != "lr"}
        if moments:
            self.optimizer.state[self.flat] = moments


class Target:
    """A copy of a network that follows it, slowly or by jumps."""

    def __init__(self, target: nn.Module, source: GradStep):
        target.requires_grad_(False)
        self.flat, self.source = flatten_(target.parameters()), source

    @torch.no_grad()
    def track(self, tau: float) -> None:
        """target += tau * (source - target); ``tau = 1`` copies."""
        self.flat.lerp_(self.source.flat, tau)

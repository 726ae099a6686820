"""``GradStep`` and ``Target`` of all members at once: flat tensors [P, number of parameters].

The tensors of the members become views of rows, and those of the stacked agent become views of columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...agents.optim import GradStep, Target


def share_rows(tensors: Sequence[Tensor], owners: Sequence[Sequence[Tensor]], flat: Tensor) -> None:
    """Make ``tensors`` views [P, ...] of the columns of ``flat`` [P, n], and those of owner p views of its row p."""
    first = 0
    for i, tensor in enumerate(tensors):
        shape, size = owners[0][i].shape, owners[0][i].numel()
        tensor.data = flat[:, first : first + size].view(len(flat), *shape)
        for row, owner in zip(flat, owners, strict=True):
            owner[i].data = row[first : first + size].view(shape)
        first += size


class StackedStep(GradStep):
    """Adam on all members: norm, clipping and learning rate are those of each member."""

    def __init__(self, steps: Sequence[GradStep], params: list[nn.Parameter]):
        """``params`` are those of the stacked agent. The given steps get views of the stacked tensors."""
        first = steps[0]
        self.params, self.max_grad_norm, self.epsilon = params, first.max_grad_norm, first.epsilon
        self.flat = torch.stack([step.flat for step in steps])
        share_rows(params, [step.params for step in steps], self.flat)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.lr = torch.stack([step.lr for step in steps])
        self.sum_of_squares = torch.zeros_like(self.lr)
        self.count = first.count  # the same for all: every member takes every step
        self.change = torch.zeros_like(self.flat)
        self.full_rate = torch.ones_like(self.count)
        for p, step in enumerate(steps):
            step.flat, step.mean, step.square = self.flat[p], self.mean[p], self.square[p]
            step.lr, step.sum_of_squares, step.count = self.lr[p], self.sum_of_squares[p], self.count

    def gradient(self, loss: Tensor) -> Tensor:
        raise NotImplementedError("the gradients of a population are those of StackedGradients")

    def follow(self, grad: Tensor) -> Tensor:
        """One step of each member along its row of ``grad`` [P, n], which is overwritten; returns the norms [P]."""
        norm = torch.linalg.vector_norm(grad, dim=1)
        self.sum_of_squares.addcmul_(norm, norm)
        if self.max_grad_norm is not None:
            grad *= (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
        self.count += 1
        # The fused kernel takes one learning rate for all. With rate 1 on zeros its result is the direction of the
        # step, which each member follows with a rate of its own.
        self.change.zero_()
        torch._fused_adam_(
            [self.change], [grad], [self.mean], [self.square], [], [self.count], lr=self.full_rate, beta1=self.BETA1,
            beta2=self.BETA2, weight_decay=0.0, eps=self.epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip
        self.flat.addcmul_(self.change, self.lr.unsqueeze(1))
        return norm

    def rows(self) -> list[Tensor]:
        """The tensors [P, ...] that a copy of a member takes over."""
        return [self.flat, self.mean, self.square, self.lr, self.sum_of_squares]


class StackedTarget(Target):
    """The target networks of all members."""

    def __init__(self, targets: Sequence[Target], params: list[nn.Parameter], source: GradStep):
        """``params`` are those of the stacked agent's target network. The given targets get views of the rows."""
        self.params, self.source = params, source
        self.flat = torch.stack([target.flat for target in targets])
        share_rows(params, [target.params for target in targets], self.flat)
        for row, target in zip(self.flat, targets, strict=True):
            target.flat = row

    @torch.no_grad()
    def track(self, tau: Tensor) -> None:
        """``Target.track`` with the ``tau`` [P] of each member."""
        self.flat.lerp_(self.source.flat, tau.unsqueeze(1))

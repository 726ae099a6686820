"""Action distributions as light as the maths allows: no argument checks, explicit random streams.

Axes: B rows, A action. ``torch.distributions`` costs several times the kernels at these sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

LOG_2PI = math.log(2 * math.pi)


class Categorical(NamedTuple):
    """One of A choices."""

    log_probs: Tensor  # [..., A] normalised

    @classmethod
    def from_logits(cls, logits: Tensor) -> Categorical:
        return cls(logits.log_softmax(-1))

    def sample(self, generator: Generator | None) -> Tensor:
        # Inverse transform: count the cumulative probabilities below a uniform number. Without the last one, which
        # rounding may leave below 1, the count is a valid choice always.
        log_probs = self.log_probs
        below = log_probs.exp().cumsum(-1).narrow(-1, 0, log_probs.shape[-1] - 1)
        shape = (*log_probs.shape[:-1], 1)
        return (below < torch.rand(shape, generator=generator, device=log_probs.device)).sum(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class DiagGaussian(NamedTuple):
    """Independent normal components."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # broadcasts against mean

    def sample(self, generator: Generator | None) -> Tensor:
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        scaled = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - 0.5 * LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 + 0.5 * LOG_2PI).expand_as(self.mean).sum(-1)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of mean + std * noise, and the log-density of that very sample: [B, A], [B]."""
    raw = mean + log_std.exp() * noise
    # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which does not underflow for large |x|.
    log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw))
    logp = (-0.5 * noise.square() - log_std - 0.5 * LOG_2PI - log_slope).sum(-1)
    return raw.tanh(), logp

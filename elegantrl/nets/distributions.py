"""Action distributions with few kernels: no argument checks, explicit random streams.

``noise`` draws random numbers, which depend on no observation, and ``sample`` turns them into actions: numbers for many
steps can be drawn at once. ``torch.distributions`` takes several times as long at these sizes.

Axes: B rows, A action, C choices, M options of the largest choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad, softplus

LOG_2PI = math.log(2 * math.pi)
FORBIDDEN = -1e8
"""Score of an option that a mask forbids. Its probability is exactly 0, and unlike infinity it times 0 is no NaN."""
MAX_NOISE = 1e3
"""Bound of the noise for ``Categorical.sample``: it is infinite where ``torch.rand`` returns 0 and below 20 elsewhere,
and infinite noise could make a forbidden option win."""


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores [..., A], with ``FORBIDDEN`` where the mask [..., A] is false; None allows all."""
    return scores if mask is None else scores.masked_fill(~opened(mask), FORBIDDEN)


def opened(mask: Tensor) -> Tensor:
    """The mask [..., A], all true in rows that are all false: the last observation of an episode may forbid all."""
    return mask | ~mask.any(-1, keepdim=True)


def by_choice(x: Tensor, choices: Sequence[int], fill: float) -> Tensor:
    """One number for every option [..., sum of choices] as a row per choice [..., C, M], where M is the largest choice
    and ``fill`` stands behind the options of a smaller one."""
    longest = max(choices)
    if min(choices) == longest:
        return x.reshape(*x.shape[:-1], len(choices), longest)
    parts = torch.split(x, list(choices), -1)
    return torch.stack([pad(part, (0, longest - part.shape[-1]), value=fill) for part in parts], -2)


def choice(score: Tensor) -> Tensor:
    """The best of A choices [...] by their scores [..., A]."""
    # Where the last axis is not the innermost, torch's argmax takes ten times as long as its max.
    return score.max(-1).indices


class Categorical(NamedTuple):
    """One of A choices."""

    log_probs: Tensor  # [..., A] normalised, which sampling and the mode do not need

    @classmethod
    def from_logits(cls, logits: Tensor) -> Self:
        # Over a short last axis torch takes up to five times as long as over the first, with the same result.
        return cls(logits.movedim(-1, 0).contiguous().log_softmax(0).movedim(0, -1))

    @staticmethod
    def noise(shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Noise of ``shape`` [..., A] for ``sample``: negative Gumbel noise, or logistic noise [..., 1] if A is 2."""
        if shape[-1] == 2:
            noise = torch.rand((*shape[:-1], 1), generator=generator, device=generator.device).logit_()
        else:
            noise = torch.rand(shape, generator=generator, device=generator.device).log_().neg_().log_()
        return noise.clamp_(-MAX_NOISE, MAX_NOISE)

    def sample(self, noise: Tensor) -> Tensor:
        """Choices [...]."""
        # The largest log-probability plus Gumbel noise: two kernels. Inverting the cumulative probabilities takes six.
        if self.log_probs.shape[-1] != 2:
            return choice(self.log_probs - noise)
        # With two choices, the difference of their Gumbel noises is logistic: one number decides.
        return (self.log_probs[..., 1] - self.log_probs[..., 0] > noise[..., 0]).long()

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class MultiCategorical(Categorical):
    """C independent choices at once: ``log_probs`` [..., C, M], actions [..., C]. An option beyond the end of a choice
    that has fewer than M is ``FORBIDDEN``."""

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action).sum(-1)

    def entropy(self) -> Tensor:
        return super().entropy().sum(-1)


class DiagGaussian(NamedTuple):
    """Independent normal components."""

    mean: Tensor  # [..., A]
    log_std: Tensor  # broadcasts against mean

    @staticmethod
    def noise(log_std: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Normal noise of ``shape`` [..., A] with standard deviation exp(``log_std``)."""
        noise = torch.empty(shape, device=generator.device)
        for part in noise:  # torch draws normal numbers in blocks: with one call they depend on the number of parts
            part.normal_(generator=generator)
        return noise * log_std.exp()

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        scaled = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - 0.5 * LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 + 0.5 * LOG_2PI).expand_as(self.mean).sum(-1)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of mean + std * noise, and the log-density of this sample: [B, A], [B]."""
    raw = mean + log_std.exp() * noise
    # Derivative of tanh: log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which does not underflow for large |x|.
    log_derivative = 2 * (math.log(2) - raw - softplus(-2 * raw))
    logp = (-0.5 * noise.square() - log_std - 0.5 * LOG_2PI - log_derivative).sum(-1)
    return raw.tanh(), logp

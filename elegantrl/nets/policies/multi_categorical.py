"""A softmax over each of several choices at once."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...tree import Tree
from ..distributions import FORBIDDEN, Categorical, MultiCategorical, by_choice, masked
from .base import Draw
from .categorical import CategoricalPolicy


class MultiCategoricalPolicy(CategoricalPolicy):
    """C choices that are independent given the observation, each of at most M options; logits are [..., C, M]."""

    def dist_from(self, features: Tree, mask: Tensor | None) -> MultiCategorical:
        return MultiCategorical.from_logits(self.output_from(features, mask))

    def output_from(self, features: Tree, mask: Tensor | None) -> Tensor:
        choices = self.action_spec.choices
        logits = by_choice(self.net(features), choices, FORBIDDEN)
        return masked(logits, None if mask is None else by_choice(mask, choices, False))

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        choices = self.action_spec.choices
        shape = (num_steps, num_lanes, *self.team, len(choices), max(choices))
        return list(zip(Categorical.noise(shape, generator)))

    def kept(self, out: Tensor, action: Tensor) -> Tensor:
        return super().kept(out, action).sum(-1)

    def vote(self, obs: Tree) -> Tensor:
        probs = super().vote(obs)
        return torch.cat([probs[..., i, :size] for i, size in enumerate(self.action_spec.choices)], -1)

"""Action values of several choices at once (DQN): one value for each combination."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...errors import SpecError
from ...tree import Tree
from ...types import ActionSpec
from ..distributions import opened
from ..networks import NetSpec
from .base import Draw
from .q import QPolicy

MAX_COMBINATIONS = 1024


class JointQPolicy(QPolicy):
    """Actions [..., C] outside, numbers of combinations [...] inside; the last choice changes fastest."""

    def __init__(
        self,
        obs: Tree,
        action: ActionSpec,
        net: NetSpec = NetSpec(),  # noqa: B008
        dueling: bool = False,
        layer_norm: bool = False,
    ):
        combinations = math.prod(action.choices)
        if combinations > MAX_COMBINATIONS:
            raise SpecError(
                f"the choices {action.choices} have {combinations} combinations, and action values are learned for at"
                f" most {MAX_COMBINATIONS}; use PPO or A2C"
            )
        super().__init__(obs, ActionSpec(choices=(combinations,)), net, dueling, layer_norm)
        self.action_spec = action
        self.strides = [math.prod(action.choices[i + 1 :]) for i in range(len(action.choices))]

    def allowed(self, mask: Tensor | None) -> Tensor | None:
        """A combination is allowed if each of its options is."""
        if mask is None:
            return None
        first, *others = map(opened, torch.split(mask, list(self.action_spec.choices), -1))
        for part in others:
            first = (first.unsqueeze(-1) & part.unsqueeze(-2)).flatten(-2)
        return first

    def index(self, action: Tensor) -> Tensor:
        parts = zip(action.unbind(-1), self.strides, strict=True)
        return torch.stack([part * stride for part, stride in parts]).sum(0)

    def options(self, index: Tensor) -> Tensor:
        """The actions [..., C] with these numbers."""
        sizes = zip(self.strides, self.action_spec.choices, strict=True)
        return torch.stack([index // stride % size for stride, size in sizes], -1)

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        return self.options(super().choose(out, draw))

    def best(self, out: Tensor) -> Tensor:
        return self.options(super().best(out))

    def vote(self, obs: Tree) -> Tensor:
        best = self.best(self.output(obs)).unbind(-1)
        votes = [one_hot(part, size) for part, size in zip(best, self.action_spec.choices, strict=True)]
        return torch.cat(votes, -1).to(self.epsilon.dtype)

"""A softmax over one choice."""

from __future__ import annotations

from torch import Generator, Tensor

from ...tree import Tree
from ...types import ActionSpec, mask_of
from ..distributions import Categorical, masked
from ..networks import NetSpec
from .base import Draw, NetPolicy, above_entropy

DEFAULT_NET = NetSpec(activation="tanh", init="orthogonal")


class CategoricalPolicy(NetPolicy):
    """One of A choices, by probabilities that depend on the observation."""

    keeps_out = True

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec = DEFAULT_NET):
        super().__init__(obs, action, net)
        self.net = net.build(self.feature_leaves, self.action_dim, head_gain=0.01)

    def dist(self, obs: Tree) -> Categorical:
        return self.dist_from(self.features(obs), mask_of(obs))

    def dist_from(self, features: Tree, mask: Tensor | None) -> Categorical:
        """The distribution for features [..., F] and the choices that are allowed [..., A]."""
        return Categorical.from_logits(self.output_from(features, mask))

    def output_from(self, features: Tree, mask: Tensor | None) -> Tensor:
        return masked(self.net(features), mask)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        return list(zip(Categorical.noise((num_steps, num_lanes, *self.team, self.action_dim), generator)))

    def choose(self, out: Tensor, draw: Draw) -> Tensor:
        return Categorical(out).sample(*draw)

    def best(self, out: Tensor) -> Tensor:
        return Categorical.from_logits(out).mode()

    def kept(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities [T, N]."""
        # With lanes innermost a reduction over the short axis A is several times faster.
        return out.mT.contiguous().log_softmax(-2).gather(-2, action.unsqueeze(-2)).squeeze(-2)

    def vote(self, obs: Tree) -> Tensor:
        return self.dist(obs).log_probs.exp()

    def logp_above_entropy(self, obs: Tree, action: Tensor) -> Tensor:
        return above_entropy(self.dist(obs), action)

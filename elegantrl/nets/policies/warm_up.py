"""What continuous policies of replay agents share: random actions until learning starts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ...tree import Tree
from ...types import ActionSpec
from ..networks import NetSpec
from .base import Acted, Draw, NetPolicy


class Carry(NamedTuple):
    """Exploration state that is kept from step to step; a field that is switched off is None."""

    held: Tensor | None  # [N, A] the random action of the step before
    holds: Tensor | None  # [N, 1] bool: whether there is one
    noise: Tensor | None  # [N, A] the Ornstein-Uhlenbeck noise of the step before


class Noise(NamedTuple):
    """The random numbers of one step."""

    normal: Tensor  # [N, A]
    is_random: Tensor  # [N, 1] bool: which lanes take a random action
    uniform: Tensor  # [N, A] those actions
    ends: Tensor | None  # [N, 1] bool: which lanes take a new random action and do not hold the last one


class WarmUpPolicy(NetPolicy):
    """Continuous actions. While the replay buffer warms up they are uniform, and each may be held for some steps."""

    random_frac: Tensor

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec, warm_up_hold: int):
        super().__init__(obs, action, net)
        self.warm_up_hold = warm_up_hold
        # Fraction of uniform random actions: 1 while the buffer warms up, then 0. The learner sets it.
        self.register_buffer("random_frac", torch.ones(()))

    def initial_carry(self, num_lanes: int) -> Tree:
        if self.warm_up_hold == 1:
            return ()
        held = self.random_frac.new_zeros(num_lanes, *self.team, self.action_dim)
        return Carry(held, torch.zeros_like(held[..., :1], dtype=torch.bool), None)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        return [self._draw_step((num_lanes, *self.team, self.action_dim), generator) for _ in range(num_steps)]

    def _draw_step(self, shape: tuple[int, ...], generator: Generator) -> Noise:
        normal_NA = torch.randn(shape, generator=generator, device=generator.device)
        uniform_NA = torch.empty_like(normal_NA).uniform_(-1, 1, generator=generator)
        ends_N1 = None
        if self.warm_up_hold > 1:  # a probability per step, so that actions are held for different numbers of steps
            ends_N1 = torch.empty_like(normal_NA[..., :1]).uniform_(generator=generator) < 1 / self.warm_up_hold
        is_random_N1 = torch.empty_like(normal_NA[..., :1]).uniform_(generator=generator) < self.random_frac
        return Noise(normal_NA, is_random_N1, uniform_NA, ends_N1)

    def explore(self, obs: Tree, carry: Tree, draw: Draw) -> Acted:
        assert isinstance(draw, Noise)
        if self.warm_up_hold > 1:
            held = torch.where(draw.ends | ~carry.holds, draw.uniform, carry.held)
            draw, carry = draw._replace(uniform=held), carry._replace(held=held, holds=torch.ones_like(carry.holds))
        return super().explore(obs, carry, draw)

    def vote(self, obs: Tree) -> Tensor:
        return self.best(self.output(obs))

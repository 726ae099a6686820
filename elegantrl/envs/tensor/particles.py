"""Worlds of round bodies in a plane that push each other away, with the dynamics of ``mpe2`` as tensor operations.

Axes: N environment lanes, G agents of the team, B bodies that move, L landmarks that do not, E = B + L entities, D = 2
dimensions, S state, O observation. A state [N, S] holds x of all entities, y of all entities, the velocities of the
bodies in the same order, and what a world adds. The dynamics have N as their last axis, because operations on the few
numbers of one lane are many times slower if these are next to each other in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad, softplus

from ...errors import ConfigError
from ...tree import Tree
from ...types import ActionSpec
from .base import TensorEnv
from .drawing import BLUE, WHITE, Canvas, Color

SECONDS = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 0.001
VIEW = 1.5
"""Half the width of the square that ``draw`` shows."""

MOVES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
"""The direction of each of the five actions: none, left, right, down, up."""

Difference = tuple[int, int]
"""Two columns of a state; an agent sees the first minus the second."""


class Entity(NamedTuple):
    """A body or a landmark. All have the same mass, 1."""

    size: float
    collides: bool = True
    acceleration: float = 5.0
    max_speed: float = math.inf
    color: Color = BLUE


class ParticleVecEnv(TensorEnv):
    """A subclass names its entities, passes the team's columns to ``_show`` and implements ``dynamics`` with ``_move``.

    An agent pushes its body with one of five actions (``MOVES``) or, if ``continuous_actions`` is set, with five
    numbers, each of which is the strength of one of them: -1 is no push and 1 the full one. The first has no effect.
    """

    max_episode_steps = 25
    num_extra: int = 0
    """Columns of a state beyond positions and velocities."""

    def __init__(
        self,
        bodies: Sequence[Entity],
        landmarks: Sequence[Entity],
        num_envs: int,
        device: torch.device | str,
        max_episode_steps: int | None,
    ) -> None:
        super().__init__(num_envs, device, max_episode_steps)
        self.bodies, self.landmarks = bodies, landmarks
        entities = [*bodies, *landmarks]
        self.num_bodies, self.num_entities = len(bodies), len(entities)
        # A contact begins at the sum of both sizes; minus infinity where there is none, as of a body with itself.
        contact = [
            [a.size + b.size if i != j and a.collides and b.collides else -math.inf for j, b in enumerate(entities)]
            for i, a in enumerate(bodies)
        ]
        touched = [j for j in range(len(entities)) if any(row[j] > 0 for row in contact)]
        self._num_touched = max(touched, default=-1) + 1  # entities up to the last one that a body can touch
        self._contact_BE1 = torch.tensor(contact, device=self.device)[:, : self._num_touched, None]
        self._acceleration_B1 = torch.tensor([[body.acceleration] for body in bodies], device=self.device)
        limits = [[body.max_speed] for body in bodies]
        self._max_speed_B1 = None if min(limits) == [math.inf] else torch.tensor(limits, device=self.device)
        self._moves_D5 = torch.tensor(MOVES, device=self.device).t().contiguous()

    # ---- motion

    def initial(self, num_rows: int) -> Tensor:
        """Bodies at rest and landmarks, anywhere in [-1, 1]^2; 0 in all further columns."""
        size = num_rows, 2 * self.num_entities
        position = torch.rand(size, generator=self.generator, device=self.device) * 2 - 1
        return pad(position, (0, 2 * self.num_bodies + self.num_extra))

    def positions(self, columns: Tensor) -> Tensor:
        """Of all entities [D, E, N], the bodies first; from a state by columns [S, N]."""
        return columns[: 2 * self.num_entities].view(2, self.num_entities, -1)

    def velocities(self, columns: Tensor) -> Tensor:
        """Of the bodies [D, B, N]."""
        first = 2 * self.num_entities
        return columns[first : first + 2 * self.num_bodies].view(2, self.num_bodies, -1)

    def _pushes(self, action: Tensor) -> Tensor:
        """The directions [D, G, N] of actions: int64 [N, G] or float32 [N, G, 5]."""
        if self.action.choices:
            return self._moves_D5[:, action.t()]
        strength = action.permute(2, 1, 0).contiguous()
        # mpe2 takes strengths in [0, 1], half as far apart as ours.
        return (strength[2::2] - strength[1::2]) / 2

    def _move(self, columns: Tensor, push: Tensor) -> Tensor:
        """The positions and velocities [2 E + 2 B, N] after pushes [D, B, N]."""
        position, velocity = self.positions(columns), self.velocities(columns)
        force = push * self._acceleration_B1
        if self._num_touched > 0:
            force = force + self._contact_forces(position)
        body = torch.add(position[:, : self.num_bodies], velocity, alpha=SECONDS)
        velocity = torch.add(velocity * (1 - DAMPING), force, alpha=SECONDS)
        if self._max_speed_B1 is not None:
            velocity = velocity * (self._max_speed_B1 / length(velocity)).clamp(max=1)
        position = torch.cat([body, position[:, self.num_bodies :]], dim=1)
        return torch.cat([position.flatten(0, 1), velocity.flatten(0, 1)])

    def _contact_forces(self, position: Tensor) -> Tensor:
        """The sum of the forces [D, B, N] with which others push a body away; they grow with the overlap."""
        offset = position[:, : self.num_bodies, None] - position[:, None, : self._num_touched]  # [D, B, E, N]
        distance = length(offset)
        overlap = softplus(self._contact_BE1 - distance, beta=1 / CONTACT_MARGIN)
        # Two bodies at the same place have no direction in which they could part, so they do not push each other.
        strength = CONTACT_FORCE * overlap / distance.clamp(min=1e-12)
        return (strength * offset).sum(2)

    # ---- observations

    def _place(self, entity: int) -> list[Difference]:
        return [(axis * self.num_entities + entity, self._blank) for axis in range(2)]

    def _velocity(self, body: int) -> list[Difference]:
        return [(2 * self.num_entities + axis * self.num_bodies + body, self._blank) for axis in range(2)]

    def _relative(self, entities: Iterable[int], body: int) -> list[Difference]:
        """The positions of ``entities`` relative to ``body``."""
        first = [axis * self.num_entities for axis in range(2)]
        return [(axis + entity, axis + body) for entity in entities for axis in first]

    def _extra(self, columns: Iterable[int]) -> list[Difference]:
        """Columns that the world adds, counted from their first."""
        return [(2 * (self.num_entities + self.num_bodies) + column, self._blank) for column in columns]

    def _nothing(self, count: int) -> list[Difference]:
        return [(self._blank, self._blank)] * count

    @property
    def _blank(self) -> int:
        """The column of a 0 behind those of a state."""
        return 2 * (self.num_entities + self.num_bodies) + self.num_extra

    def _show(self, agents: Sequence[list[Difference]]) -> None:
        """Set what each agent sees; shorter observations are filled with 0."""
        width = max(map(len, agents))
        columns = torch.tensor([agent + self._nothing(width - len(agent)) for agent in agents])  # [G, O, 2]
        self._plus, self._minus = columns.to(self.device).flatten(0, 1).unbind(1)

    def observe(self, state: Tensor) -> Tree:
        columns = pad(state, (0, 1)).t().contiguous()
        seen = columns.index_select(0, self._plus) - columns.index_select(0, self._minus)  # [G O, N]
        return rows(seen).view(len(state), *self.spec.team, -1)

    # ---- pictures

    def draw(self, lane: int = 0) -> NDArray[np.uint8]:
        """The world of one lane as a picture [H, W, 3]; places are drawn from the white square at first."""
        assert self._state is not None, "reset comes before draw"
        canvas = Canvas(VIEW, width=400)
        canvas.bar(-1.0, 0.0, 2.0, 2.0, WHITE)
        columns = self._state[lane : lane + 1].t()
        position = self.positions(columns)[..., 0].t().tolist()
        for entity, (x, y) in reversed(list(zip([*self.bodies, *self.landmarks], position, strict=True))):
            canvas.disc(x, y, entity.size, entity.color, opacity=0.85)
        self._draw_more(canvas, columns)
        return canvas.pixels()

    def _draw_more(self, canvas: Canvas, columns: Tensor) -> None:
        """Add what is no entity to the picture of one state, ``columns`` [S, 1]."""


def length(vector: Tensor) -> Tensor:
    """[D, ...] -> [...]"""
    return vector.square().sum(0).sqrt()


def distances(place: Tensor, other: Tensor) -> Tensor:
    """Between all pairs: [D, P, N] and [D, Q, N] -> [P, Q, N]."""
    return length(place.unsqueeze(2) - other.unsqueeze(1))


def rows(columns: Tensor) -> Tensor:
    """[..., N] -> [N, ...], the form in which states, rewards and observations leave an environment."""
    return columns.movedim(-1, 0).contiguous()


def five_actions(continuous_actions: bool) -> ActionSpec:
    """The actions of an agent with a body."""
    return ActionSpec(dim=5) if continuous_actions else ActionSpec(choices=(5,))


def require_count(world: str, name: str, value: int, least: int = 1) -> int:
    """``value`` if it is a number of entities that ``world`` can have."""
    if type(value) is not int or value < least:
        raise ConfigError(f"environment {world!r}: {name}={value!r:.80} is not a number of at least {least}")
    return value

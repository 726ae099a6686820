"""Results of ``explore_env``, and the documented replay buffer.

A documented rollout has no successors: the successor of a row is the next row. The result of ``explore_env`` also
holds the true successors. Axes: T rollout steps, N environments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..data.prioritized import PrioritizedReplay
from ..data.replay import FIELDS
from ..data.replay import ReplayBuffer as Ring
from ..errors import ConfigError
from ..store.tensors import load_weights, save_weights
from ..types import ActionSpec, EnvSpec, Rollout
from .envs import device_of

ALPHA, BETA = 0.6, 0.4
"""Exponents of prioritised replay if no settings are given."""


class Explored(tuple[Tensor, ...]):
    """``(states, actions, rewards, undones, unmasks)``, each [T, N, ...]; on-policy with ``logprobs`` as the third."""

    rollout: Rollout

    def __new__(cls, rollout: Rollout, with_logprobs: bool) -> Explored:
        ends = ((~rollout.terminated).float(), (~rollout.truncated).float())
        logprobs = (rollout.kept,) if with_logprobs else ()
        self = super().__new__(cls, (rollout.obs, rollout.action, *logprobs, rollout.reward, *ends))
        self.rollout = rollout
        return self


def rollout_of(items: tuple[Tensor, ...], last_state: Tensor) -> Rollout:
    """A rollout whose successors are the next rows; the successor of the last row is ``last_state`` [N, O].

    The next row after a time limit is the first of another episode; the row's own state is closer to the successor.
    """
    if len(items) not in (5, 6):
        raise ConfigError(
            f"a rollout is (states, actions, rewards, undones, unmasks), with logprobs as third for on-policy agents;"
            f" got {len(items)} tensors"
        )
    states, actions, *logprobs, rewards, undones, unmasks = items
    actions = actions.squeeze(-1) if not actions.is_floating_point() and actions.dim() == 3 else actions
    next_states = torch.cat([states[1:], last_state.reshape(1, *states.shape[1:])])
    truncated = ~unmasks.bool()
    return Rollout(
        obs=states,
        action=actions if actions.is_floating_point() else actions.long(),
        reward=rewards,
        terminated=~undones.bool(),
        truncated=truncated,
        next_obs=torch.where(truncated.unsqueeze(-1), states, next_states),
        kept=logprobs[0] if logprobs else (),
    )


class ReplayBuffer:
    """A ring of ``max_size`` rows for each of ``num_envs`` environments, allocated at the first ``update``.

    If rows have no successors, the newest one is kept outside the ring until the next ``update`` adds its successor.
    """

    def __init__(
        self, max_size: int, state_dim: int, action_dim: int, gpu_id: int = -1, num_envs: int = 1,
        if_use_per: bool = False, args: Any = None, *, num_seqs: int | None = None, if_discrete: bool | None = None,
    ) -> None:  # fmt: skip
        self.max_size, self.num_seqs = int(max_size), num_seqs or num_envs
        self.if_use_per, self.if_discrete = if_use_per, if_discrete
        self.device = torch.device(device_of(gpu_id))
        self.add_size = 0
        """Rows that the last ``update`` added."""
        self._dims = (state_dim, action_dim)
        self._exponents = (getattr(args, "per_alpha", ALPHA), getattr(args, "per_beta", BETA)) if if_use_per else ()
        self._ring: Ring | None = None
        self._newest: tuple[Tensor, ...] | None = None
        self._added = 0

    @property
    def ring(self) -> Ring:
        """The core's buffer."""
        if self._ring is None or not len(self._ring):
            raise ConfigError("the replay buffer is empty; update it with at least two rows before sampling")
        return self._ring

    @property
    def cur_size(self) -> int:
        """Rows per environment that can be drawn."""
        return 0 if self._ring is None else self._ring.filled

    @property
    def if_full(self) -> bool:
        return self.cur_size == self.max_size

    def __len__(self) -> int:
        return self.cur_size * self.num_seqs

    def update(self, items: tuple[Tensor, ...]) -> None:
        """Append ``(states, actions, rewards, undones, unmasks)``, each ``[T, N, ...]``."""
        found = tuple(items[0].shape)
        if found[1:] != (self.num_seqs, self._dims[0]):
            raise ConfigError(
                f"the replay buffer is for num_envs={self.num_seqs} and state_dim={self._dims[0]}, but states of shape"
                f" {found} came"
            )
        if isinstance(items, Explored):
            rollout = tree.map_leaves(lambda x: x.to(self.device), items.rollout)
            if self._newest is not None:
                self._add(rollout_of(self._newest, rollout.obs[0]))
                self._newest = None
            self._add(rollout)
            return
        rows = tuple(x.to(self.device) for x in items)
        if self._newest is not None:
            rows = tuple(torch.cat(pair) for pair in zip(self._newest, rows, strict=True))
        self._newest = tuple(x[-1:] for x in rows)
        if len(rows[0]) > 1:
            self._add(rollout_of(tuple(x[:-1] for x in rows), rows[0][-1]))

    def _add(self, rollout: Rollout) -> None:
        if self._ring is None:
            self._ring = self._build(discrete=not rollout.action.is_floating_point())
        self._ring.add(rollout)
        self.add_size = len(rollout.reward)
        self._added += rollout.reward.numel()

    def _build(self, discrete: bool) -> Ring:
        state_dim, action_dim = self._dims
        discrete = discrete if self.if_discrete is None else self.if_discrete
        action = ActionSpec(choices=(action_dim,)) if discrete else ActionSpec(dim=action_dim)
        spec = EnvSpec("replay", (state_dim,), action, self.num_seqs)
        kind = PrioritizedReplay if self.if_use_per else Ring
        return kind(self.max_size * self.num_seqs, spec, self.device, *self._exponents)

    def take_added(self) -> int:
        """The number of transitions added since the last call."""
        added, self._added = self._added, 0
        return added

    def sample(self, batch_size: int) -> tuple[Tensor, ...]:
        """``(states, actions, rewards, undones, unmasks, next_states)`` of rows drawn uniformly."""
        index = torch.randint(len(self.ring), (batch_size,), device=self.device)
        return self._rows(index)

    def sample_for_per(self, batch_size: int) -> tuple[Tensor, ...]:
        """As ``sample``, but rows are drawn by priority, with their importance weights and their indices."""
        ring, generator = self._prioritized(), torch.default_generator
        batch = ring.sample(batch_size, torch.ones((), device=self.device), 1, generator)
        assert batch.weight is not None and batch.rows is not None
        return (*self._rows(batch.rows), batch.weight, batch.rows)

    def _rows(self, index: Tensor) -> tuple[Tensor, ...]:
        draw = {name: getattr(self.ring, name).flatten(0, 1)[index] for name in FIELDS}
        undones, unmasks = (~draw["terminated"]).float(), (~draw["truncated"]).float()
        return draw["obs"], draw["action"], draw["reward"], undones, unmasks, draw["next_obs"]

    def td_error_update_for_per(self, is_indices: Tensor, td_error: Tensor) -> None:
        """Set the priorities of drawn rows from their errors."""
        self._prioritized().update_priorities(is_indices, td_error)

    def _prioritized(self) -> PrioritizedReplay:
        ring = self.ring
        if not isinstance(ring, PrioritizedReplay):
            raise ConfigError("this replay buffer has no priorities; make it with if_use_per=True")
        return ring

    def save_or_load_history(self, cwd: str | Path, if_save: bool) -> None:
        """Save the rows in ``cwd``, or load them."""
        path = Path(cwd) / "replay_buffer.safetensors"
        if if_save:
            state = self.ring.state_dict()
            save_weights(path, {name: state[name] for name in FIELDS}, {})
        elif path.exists():
            rows, _ = load_weights(path)
            self._add(Rollout(**rows))
            self._added = 0

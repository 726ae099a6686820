"""The documented replay buffer: rollouts without successors in, minibatches with successors out.

Axes: T rollout steps, N sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import replay
from ..errors import ConfigError
from ..types import ActionSpec, EnvSpec, Rollout
from .envs import device_of


class ReplayBuffer:
    """A ring of ``max_size`` rows for each of ``num_seqs`` sequences.

    A row's successor is the next row, so the newest row waits outside until the next ``update`` brings it.
    """

    def __init__(
        self, max_size: int, state_dim: int, action_dim: int, gpu_id: int = -1,
        num_seqs: int = 1, if_use_per: bool = False, if_discrete: bool = False,
    ) -> None:  # fmt: skip
        if if_use_per:
            raise ConfigError("if_use_per=True is not available here; use elegantrl.data.prioritized")
        action = ActionSpec(choices=(action_dim,)) if if_discrete else ActionSpec(dim=action_dim)
        spec = EnvSpec("replay", (state_dim,), action, num_seqs)
        self.device = torch.device(device_of(gpu_id))
        self._ring = replay.ReplayBuffer(max_size * num_seqs, spec, self.device)
        self._newest: tuple[Tensor, ...] | None = None

    @property
    def cur_size(self) -> int:
        """Rows per sequence that can be drawn."""
        return self._ring.filled

    def update(self, items: tuple[Tensor, ...]) -> None:
        """Append ``(states, actions, rewards, undones, unmasks)``, each ``[T, N, ...]``."""
        rows = tuple(x.to(self.device) for x in items)
        if self._newest is not None:
            rows = tuple(torch.cat(pair) for pair in zip(self._newest, rows, strict=True))
        self._newest = tuple(x[-1:] for x in rows)
        states, actions, rewards, undones, unmasks = rows
        shape = self._ring.action.shape[2:]
        self._ring.add(
            Rollout(
                obs=states[:-1],
                action=actions[:-1].reshape(*rewards[:-1].shape, *shape).to(self._ring.action.dtype),
                reward=rewards[:-1],
                terminated=~undones[:-1].bool(),
                truncated=~unmasks[:-1].bool(),
                next_obs=states[1:],
            )
        )

    def sample(self, batch_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """``(states, actions, rewards, undones, unmasks, next_states)`` of rows drawn uniformly.

        Where ``unmask`` is 0 the successor is the first state of the next episode: leave those rows out of a loss.
        """
        if self.cur_size == 0:
            raise ConfigError("the replay buffer is empty; update it with at least two rows before sampling")
        ring = self._ring
        index = torch.randint(len(ring), (batch_size,), device=self.device)
        draw = {name: getattr(ring, name)[: ring.filled].flatten(0, 1)[index] for name in replay.FIELDS}
        undones, unmasks = (~draw["terminated"]).float(), (~draw["truncated"]).float()
        return draw["obs"], draw["action"], draw["reward"], undones, unmasks, draw["next_obs"]

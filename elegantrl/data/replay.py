"""A ring of transitions, stored per lane so that n-step returns follow one environment.

Axes: R rows of the ring, N lanes, B minibatch rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor

from ..errors import ConfigError
from ..types import EnvSpec, Rollout, State, Transition

FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


class ReplayBuffer:
    """The newest ``capacity`` transitions of all lanes together; memory is allocated once, at construction.

    ``next_obs`` is stored beside ``obs``: twice the observation memory, and never a successor from another episode
    or from across the ring's write head.
    """

    extra_bytes: ClassVar[int] = 0
    """What a subclass keeps per transition besides the fields."""

    def __init__(self, capacity: int, spec: EnvSpec, device: torch.device):
        self.num_rows = capacity // spec.num_envs
        if self.num_rows < 1:
            raise ConfigError(
                f"agent.buffer_size={capacity} holds not even one row of env.num_envs={spec.num_envs}; raise it"
            )
        check_memory(capacity, spec, device, self.extra_bytes)
        shape = (self.num_rows, spec.num_envs)
        discrete = spec.action.kind == "discrete"
        self.obs = torch.empty(*shape, spec.obs_dim, device=device)
        self.next_obs = torch.empty_like(self.obs)
        # int64 holds any number of choices.
        self.action = (
            torch.empty(shape, dtype=torch.int64, device=device)
            if discrete
            else torch.empty(*shape, spec.action_dim, device=device)
        )
        self.reward = torch.empty(shape, device=device)
        self.terminated = torch.empty(shape, dtype=torch.bool, device=device)
        self.truncated = torch.empty(shape, dtype=torch.bool, device=device)
        self.head = 0  # the row written next
        self.filled = 0  # rows that hold data

    def __len__(self) -> int:
        return self.filled * self.reward.shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in FIELDS)

    def add(self, rollout: Rollout) -> None:
        """Append T rows for every lane; of a rollout longer than the ring only the newest rows stay."""
        num_new = min(rollout.reward.shape[0], self.num_rows)
        first = min(num_new, self.num_rows - self.head)  # rows that fit before the ring wraps
        for name in FIELDS:
            ring, new = getattr(self, name), getattr(rollout, name)[-num_new:]
            ring[self.head : self.head + first] = new[:first]
            if first < num_new:
                ring[: num_new - first] = new[first:]
        self.head = (self.head + num_new) % self.num_rows
        self.filled = min(self.filled + num_new, self.num_rows)

    def sample(self, batch_size: int, gamma: Tensor, n_step: int, generator: Generator) -> Transition:
        """A uniform minibatch of n-step transitions."""
        index_B = torch.randint(len(self), (batch_size,), device=self.reward.device, generator=generator)
        return self.gather(index_B, gamma, n_step)

    def gather(self, index_B: Tensor, gamma: Tensor, n_step: int) -> Transition:
        """Transitions that start at ``age * N + lane``, age 0 being the oldest row held.

        A return ends early at an episode's end and at the newest row; both bootstrap from the true successor with
        the discount of the steps really taken.
        """
        num_places, num_envs = self.reward.numel(), self.reward.shape[1]

        def pick(ring: Tensor, place_B: Tensor) -> Tensor:
            return ring.flatten(0, 1).index_select(0, place_B)  # half the time of indexing with []

        index_B = index_B + self.oldest_place()
        last_B = start_B = index_B % num_places
        reward_B = pick(self.reward, start_B)
        discount_B = gamma  # one number until episodes end
        for k in range(1, n_step):
            is_newest_B = index_B + k * num_envs >= self.oldest_place() + len(self)
            ended_B = pick(self.terminated, last_B) | pick(self.truncated, last_B) | is_newest_B
            next_B = torch.where(ended_B, last_B, (index_B + k * num_envs) % num_places)
            # Once ended, last_B stays, so every later k sees the same flags and adds nothing.
            reward_B = torch.where(ended_B, reward_B, reward_B + discount_B * pick(self.reward, next_B))
            discount_B = torch.where(ended_B, discount_B, discount_B * gamma)
            last_B = next_B
        return Transition(
            obs=pick(self.obs, start_B),
            action=pick(self.action, start_B),
            reward=reward_B,
            discount=discount_B * ~pick(self.terminated, last_B),
            next_obs=pick(self.next_obs, last_B),
        )

    def oldest_place(self) -> int:
        """Where the oldest row begins, counting single transitions."""
        return (self.head - self.filled) % self.num_rows * self.reward.shape[1]

    def truncate_newest(self, lanes: Tensor) -> None:
        """Mark the newest row of the given lanes [N] as cut, so that no return runs on into what comes next."""
        if self.filled:
            newest = (self.head - 1) % self.num_rows
            self.truncated[newest] |= lanes.to(self.truncated.device) & ~self.terminated[newest]

    def state_dict(self) -> State:
        """The filled rows, oldest first, and nothing that was never written."""
        order = torch.arange(self.head - self.filled, self.head, device=self.reward.device) % self.num_rows
        return {name: getattr(self, name)[order] for name in FIELDS} | {"head": self.head}

    def load_state_dict(self, state: State) -> None:
        self.filled, self.head = state["reward"].shape[0], state["head"]
        order = torch.arange(self.head - self.filled, self.head, device=self.reward.device) % self.num_rows
        for name in FIELDS:
            getattr(self, name)[order] = state[name].to(self.reward.device)


def check_memory(capacity: int, spec: EnvSpec, device: torch.device, extra_bytes: int = 0) -> None:
    """Refuse a buffer that cannot fit before the first step instead of failing hours later."""
    action_bytes = 8 if spec.action.kind == "discrete" else 4 * spec.action_dim
    needed = capacity * (2 * 4 * spec.obs_dim + action_bytes + 4 + 2 + extra_bytes)
    free = available_bytes(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"agent.buffer_size={capacity} needs {needed / 1e9:.1f} GB for {spec.name}, {free / 1e9:.1f} GB are free;"
            f" lower it"
        )


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be had on a device, where the system tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)

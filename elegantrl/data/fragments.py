"""A ring of fragments with the policy's carry at the start of each, for agents that learn from sequences with memory.

Axes: R rows of the ring, L steps of a fragment, S steps of a sequence, N lanes, B drawn sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from .. import tree
from ..errors import ConfigError
from ..tree import Tree
from ..types import EnvSpec, Rollout, State, from_state, to_state
from .replay import ReplayBuffer, pick


class Sequences(NamedTuple):
    """B sequences of S consecutive steps of one lane each; episodes may end within them."""

    obs: Tree  # [S, B, ...]
    action: Tensor  # [S, B, ...]
    reward: Tensor  # [S, B]
    terminated: Tensor  # [S, B]
    truncated: Tensor  # [S, B]
    next_obs: Tree  # [S, B, ...]
    carry: Tree  # [B, ...] what the policy that acted carried into the first step


class FragmentRing(ReplayBuffer):
    """The newest fragments of all lanes. A sequence begins with a fragment and continues ``burn_in`` steps into the
    next ones, so that all steps are learned from equally often although the first ``burn_in`` of a sequence are not."""

    def __init__(self, capacity: int, spec: EnvSpec, device: torch.device, length: int, burn_in: int):
        self.length, self.num_steps = length, length + burn_in
        self.ahead = -(-burn_in // length)
        """Fragments beyond the first one into which a sequence reaches."""
        num_fragments = capacity // (spec.num_envs * length)
        if num_fragments <= self.ahead:
            raise ConfigError(
                f"agent.buffer_size={capacity} holds not even one sequence of {self.num_steps} steps (agent.burn_in and"
                f" agent.horizon) in each of env.num_envs={spec.num_envs}; raise it"
            )
        super().__init__(num_fragments * length * spec.num_envs, spec, device)
        self.carry: Tree = None
        """[R / L, N, ...] before the first step of each fragment; its leaves are known with the first fragment."""

    @property
    def num_starts(self) -> int:
        """The fragments of a lane with which a complete sequence begins: the oldest ones."""
        return max(0, self.filled // self.length - self.ahead)

    def add(self, rollout: Rollout) -> None:
        """Append the fragment of every lane."""
        if self.carry is None:
            self._allocate_carry(rollout.carry)
        for ring, new in zip(tree.leaves(self.carry), tree.leaves(rollout.carry), strict=True):
            ring[self.head // self.length] = new
        super().add(rollout)

    def sample_sequences(self, batch_size: int, generator: Generator) -> Sequences:
        """A uniform minibatch."""
        device, num_envs = self.reward.device, self.reward.shape[1]
        index_B = torch.randint(self.num_starts * num_envs, (batch_size,), device=device, generator=generator)
        age_B, lane_B = index_B // num_envs, index_B % num_envs
        step_S1 = torch.arange(self.num_steps, device=device).unsqueeze(1)
        index_SB = (age_B * self.length + step_S1) * num_envs + lane_B
        steps = self.gather(index_SB.flatten(), torch.ones((), device=device), 1)
        place_SB = (index_SB + self.oldest_place()) % self.terminated.numel()
        terminated, truncated = (pick(flag, place_SB.flatten()) for flag in (self.terminated, self.truncated))
        oldest = (self.head - self.filled) // self.length
        fragment_B = (oldest + age_B) % (self.num_rows // self.length)
        flat = Sequences(steps.obs, steps.action, steps.reward, terminated, truncated, steps.next_obs, ())
        shaped: Sequences = tree.map_leaves(lambda x: x.view(*index_SB.shape, *x.shape[1:]), flat)
        return shaped._replace(carry=tree.rows(self.carry, (fragment_B, lane_B)))

    def state_dict(self) -> State:
        fragments = self.filled_rows()[:: self.length] // self.length  # oldest first
        carry = () if self.carry is None else tree.rows(self.carry, fragments)
        return super().state_dict() | {"carry": to_state(carry)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        carry = from_state(state["carry"])
        if self.filled:
            self._allocate_carry(tree.rows(carry, 0))
        fragments = self.filled_rows()[:: self.length] // self.length
        for ring, saved in zip(tree.leaves(self.carry), tree.leaves(carry), strict=True):
            ring[fragments] = saved.to(ring.device)

    def _allocate_carry(self, carry: Tree) -> None:
        """Memory for the carries of all fragments, like ``carry`` [N, ...] of one."""
        lead, device = self.num_rows // self.length, self.reward.device
        self.carry = tree.map_leaves(lambda x: torch.zeros(lead, *x.shape, dtype=x.dtype, device=device), carry)

"""Names and shapes of everything that crosses a boundary.

Axes: T rollout steps, N environment lanes, B minibatch rows, E ensemble members, O observation, A action, H hidden.
Tensors are time-major: ``[T, N, ...]``. A discrete action is an int64 without an action axis; a continuous one is a
float32 in [-1, 1] with the axis A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

Metrics = dict[str, Tensor]
"""``group/name`` -> scalar tensor on the learner's device; the host reads it only when it logs."""

State = dict[str, Any]
"""What a role needs to continue: nested dicts of tensors and JSON values, nothing else."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What an action is: one of ``dim`` choices, or ``dim`` numbers in [-1, 1]."""

    kind: Literal["discrete", "continuous"]
    dim: int


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What a policy must know of its environment."""

    name: str
    obs_shape: tuple[int, ...]
    action: ActionSpec
    num_envs: int
    max_episode_steps: int | None = None
    target_return: float | None = None
    """The return at which the task counts as solved, if its authors name one."""

    @property
    def obs_dim(self) -> int:
        return math.prod(self.obs_shape)

    @property
    def action_dim(self) -> int:
        return self.action.dim


class Step(NamedTuple):
    """What N environments return for one action each. No tensor of a step is ever written to again."""

    obs: Tensor  # [N, O] what the policy sees next: already reset where an episode ended
    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool: the MDP ended, the successor has no value
    truncated: Tensor  # [N] bool: cut by a time limit, the successor still has a value; never with terminated
    next_obs: Tensor  # [N, O] the true successor of the action, also where an episode ended


class Rollout(NamedTuple):
    """T consecutive steps of N lanes."""

    obs: Tensor  # [T, N, O]
    action: Tensor  # [T, N] int64 or [T, N, A] float32
    reward: Tensor  # [T, N]
    terminated: Tensor  # [T, N]
    truncated: Tensor  # [T, N]
    next_obs: Tensor  # [T, N, O]
    logp: Tensor  # [T, N] log-probability under the policy that acted; zeros for learning from replay


class Transition(NamedTuple):
    """A minibatch for temporal-difference learning; losses need neither n nor done flags."""

    obs: Tensor  # [B, O]
    action: Tensor  # [B] or [B, A]
    reward: Tensor  # [B] discounted sum over the n steps taken
    discount: Tensor  # [B] gamma**n, 0 where the MDP ended
    next_obs: Tensor  # [B, O]
    weight: Tensor | None = None  # [B] importance weights, only of prioritised replay
    rows: Tensor | None = None  # [B] where in the buffer they came from, to update their priorities


class Windows(NamedTuple):
    """L stretches of K steps from the best of recent episodes, for the H-term."""

    obs: Tensor  # [L, K, O]
    action: Tensor  # [L, K] or [L, K, A]
    weight: Tensor  # [L, K] gamma_h^k times the reward scaled to [0, 1]


class Episodes(NamedTuple):
    """The K training episodes that ended within a fragment, on the host."""

    returns: np.ndarray  # [K] float64, undiscounted and unscaled
    lengths: np.ndarray  # [K] int64


class Fault(NamedTuple):
    """Something that went wrong in a lane, which was reset for it."""

    lane: int
    what: str
    where: str = ""  # file:line
    step: int = 0  # within its fragment
    trace: str = ""  # the whole traceback of what was raised


class Fragment(NamedTuple):
    """A rollout with its address: which lanes, which call, which policy."""

    slot_group: int
    seq: int
    version: int
    rollout: Rollout
    episodes: Episodes
    faults: tuple[Fault, ...] = ()
    steps_lost: int = 0
    """Steps that were thrown away before these; if there are any, these do not follow the fragment before."""


class Weights(NamedTuple):
    """All a worker needs to act: one flat tensor and the learner's update counter."""

    version: int
    flat: Tensor  # [number of policy parameters and buffers] float32

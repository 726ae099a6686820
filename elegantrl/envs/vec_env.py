"""The environment contract: N environments behind ``reset`` and ``step``, tensors in and out.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from ..errors import RoleError, SpecError
from ..rng import torch_stream
from ..tree import Tree
from ..types import EnvSpec, State, Step
from .masks import allowed_actions

log = logging.getLogger(__name__)

Exactness = Literal["exact", "replayed", "episode"]
"""How a resume restores an open episode: from its whole state, by a verified replay, or not at all."""


class VecEnv(ABC):
    """N environments that step together and reset by themselves.

    Every tensor is on ``device``. An episode that ends is reset within the same step: ``Step.obs`` is then the first
    observation of the next episode and ``Step.next_obs`` the last one of the old. If lanes can be reset separately, a
    lane that fails does not affect the others: it is reset and ``Step.faults`` reports it. ``reset`` takes the seed; an
    implementation draws from streams of its own and never from a global generator.
    """

    spec: EnvSpec
    device: torch.device
    usual_frames: int = 1
    """Frames that ``make_env`` stacks unless its caller says how many."""

    @abstractmethod
    def reset(self, seed: int) -> Tree:
        """Restart all lanes, deterministically; return the first observations [N, ...]."""

    @abstractmethod
    def step(self, action: Tensor) -> Step:
        """Take one action per lane: N, then the shape of ``spec.action_leaf``, in its type.

        Continuous actions are in [-1, 1]; values outside are clipped, since a Gaussian policy may exceed the range.
        """

    def reset_lanes(self, lanes: Tensor) -> Tree | None:
        """Begin new episodes where ``lanes`` [N] is true; return the current observations [N, ...].

        None if lanes cannot be reset separately.
        """
        return None

    @abstractmethod
    def state_dict(self) -> State:
        """Everything needed to continue; ``load_state_dict`` on a fresh instance must reproduce the next steps."""

    @abstractmethod
    def load_state_dict(self, state: State) -> Tree:
        """Continue from ``state``; return the current observations [N, ...]."""

    @property
    def exactness(self) -> Exactness:
        """How ``load_state_dict`` would restore the open episodes if the state were saved now."""
        return "exact"

    def restarted_lanes(self) -> Tensor:
        """The lanes [N] in which the last ``load_state_dict`` could not restore the open episode."""
        return torch.full((self.spec.num_envs,), self.exactness == "episode", device=self.device)

    def close(self) -> None:  # noqa: B027  an environment without resources has nothing to release
        """Release the resources of the environments."""


def try_one_step(env: VecEnv) -> None:
    """Refuse an environment whose steps do not fit its spaces; other faults count against the budget of a run."""
    obs, spec = env.reset(0), env.spec
    action = spec.action.random((spec.num_envs, *spec.team), torch_stream(0, "try_one_step"))
    try:
        step = env.step(allowed_actions(action.to(env.device), obs, spec.action))
    except SpecError:
        raise
    except Exception:
        log.debug("environment %r fails at its first step", env.spec.name, exc_info=True)
    else:
        for fault in step.faults:
            if fault.is_breach:
                raise SpecError(fault.what.removeprefix("SpecError: "))


def raise_faults(env: VecEnv, step: Step) -> Step:
    """``step`` itself, or the first of its faults as an error, for callers that cannot continue after a fault."""
    for fault in step.faults:
        kind = SpecError if fault.is_breach else RoleError
        raise kind(f"environment {env.spec.name!r} failed in lane {fault.lane}: {fault.what} ({fault.where})")
    return step

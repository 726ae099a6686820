"""Vector environments in the form of the documents' tutorial, behind the ``VecEnv`` contract.

Such an environment has the attributes ``env_num`` (or ``num_envs``), ``state_dim``, ``action_dim`` and ``if_discrete``;
``reset()`` returns states [N, S] and ``step(action)`` returns states, rewards, dones and anything else, as tensors or
arrays. It begins the next episode of a lane itself, so the last state of an episode is never returned.

Axes: N environment lanes, S state, A action.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import SpecError
from ..types import ActionSpec, EnvSpec, Leaf, Step
from .episodic import EpisodicVecEnv
from .streams import OwnStreams

DESCRIPTION = ("state_dim", "action_dim", "if_discrete")


def is_tutorial_env(env: Any) -> bool:
    """Whether ``env`` has lanes of its own and is described by attributes instead of spaces."""
    described = all(hasattr(env, name) for name in (*DESCRIPTION, "reset", "step"))
    return described and not hasattr(env, "observation_space") and num_lanes(env) is not None


def num_lanes(env: Any) -> int | None:
    """The number of lanes that ``env`` declares."""
    lanes = getattr(env, "env_num", getattr(env, "num_envs", None))
    return lanes if isinstance(lanes, int) else None


class TutorialVecEnv(EpisodicVecEnv):
    """An environment of that form. A resume starts new episodes.

    One flag marks both kinds of end: an episode that ends after ``max_step`` steps counts as truncated, any other as
    terminated. At the end of an episode the state before the last action replaces the unknown last state; learning
    uses it only after a truncation, as an estimate one step old.

    The environment may draw from global generators. During its calls they are set to streams of this object, which the
    seed of ``reset`` determines, and afterwards to their earlier states.
    """

    _stream = "tutorial"

    def __init__(self, env: Any, name: str | None = None, device: torch.device | str = "cpu"):
        self.env = env
        self.device = torch.device(device)
        max_step = getattr(env, "max_step", None)
        action = ActionSpec(choices=(env.action_dim,)) if env.if_discrete else ActionSpec(dim=env.action_dim)
        self.spec = EnvSpec(
            name=name or str(getattr(env, "env_name", type(env).__name__)),
            obs=Leaf((int(env.state_dim),)),
            action=action,
            num_envs=num_lanes(env) or 1,
            max_episode_steps=max_step,
            target_return=getattr(env, "target_return", None),
        )
        self._limit = max_step or torch.iinfo(torch.int64).max
        self._action_shape = (self.spec.num_envs, *action.leaf.shape)
        self._streams = OwnStreams(self.device)
        self._elapsed = torch.zeros(self.spec.num_envs, dtype=torch.int64, device=self.device)
        self._seen = torch.empty(0)

    def _start(self, seed: int) -> Tensor:
        self._elapsed = torch.zeros_like(self._elapsed)
        with self._streams.lent(seed):
            states = self.env.reset()
        if isinstance(states, tuple):  # a newer reset returns an info too
            states = states[0]
        self._seen = self._tensor("reset", "states", states, self.spec.obs.shape)
        return self._seen

    def step(self, action: Tensor) -> Step:
        if action.shape != self._action_shape:
            raise SpecError(
                f"environment {self.spec.name!r}: action has shape {tuple(action.shape)}, expected {self._action_shape}"
            )
        if self.spec.action.kind == "continuous":
            action = action.clamp(-1, 1)
        with self._streams.lent():
            result = self.env.step(action)
        if not isinstance(result, tuple | list) or len(result) not in (3, 4):
            raise SpecError(f"environment {self.spec.name!r}: step returned no states, rewards, dones and info")
        self._num_steps += 1
        states = self._tensor("step", "states", result[0], self.spec.obs.shape)
        reward = self._tensor("step", "rewards", result[1], ())
        done = self._tensor("step", "dones", result[2], ()) != 0
        elapsed = self._elapsed + 1
        truncated = done & (elapsed >= self._limit)
        self._elapsed = elapsed.masked_fill(done, 0)
        next_obs = torch.where(done.unsqueeze(1), self._seen, states)
        self._seen = states
        return Step(states, reward, done & ~truncated, truncated, next_obs)

    def _tensor(self, source: str, field: str, value: Any, shape: tuple[int, ...]) -> Tensor:
        """A float32 copy, because such environments change their tensors in place."""
        expected = (self.spec.num_envs, *shape)
        tensor = torch.as_tensor(value)
        if tensor.shape != expected:
            raise SpecError(
                f"environment {self.spec.name!r}: {source} returned {field} of shape {tuple(tensor.shape)}, expected"
                f" {expected}"
            )
        return tensor.to(self.device, torch.float32, copy=True)

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()

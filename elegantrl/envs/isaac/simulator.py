"""What the adapters of all simulators share.

A simulator steps all its lanes at once, keeps its results in buffers that the next step overwrites, draws from global
generators, and begins new episodes by itself. The last observation of an episode is then often lost. The successor of
such a step is the observation before its action, the last one that is known. Learning uses it only after a truncation,
whose value is then gamma * V(s_t) in place of gamma * V(s_t+1), as in RSL-RL. It never is an observation of the next
episode.

Axes: N environment lanes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import tree
from ...errors import SpecError
from ...tree import Tree
from ...types import EnvSpec, Step
from ..episodic import EpisodicVecEnv
from ..space_text import describe_spaces
from ..streams import OwnStreams
from .groups import ObsGroups, TensorActions


class Outcome(NamedTuple):
    """The result of one step; its observations are copies."""

    obs: Tree  # [N, ...] already those of the next episode where one ended
    reward: Tensor  # [N] or [N, G]; may be a buffer
    terminated: Tensor  # [N]
    truncated: Tensor  # [N] may be true with terminated
    last: Tree = None  # [N, ...] the last observation of the old episode, where ``is_known``
    is_known: Tensor | None = None  # [N] None: everywhere


class SimulatorVecEnv(EpisodicVecEnv):
    """A subclass names the attributes of its simulator, starts all lanes and takes one step. A resume starts new
    episodes. Nothing is copied to the host, unless the simulator itself needs the numbers of lanes to reset."""

    _stream = "simulator"

    def __init__(self, env: Any, device: torch.device | str) -> None:
        self.env = env
        self.device = torch.device(device)
        self._streams = OwnStreams(self.device)
        self._seen: Tree = None

    def _describe(
        self,
        name: str,
        num_envs: int,
        action_space: Any,
        max_episode_steps: Any,
        policy_group: str | None = None,
        critic_group: str | None = None,
    ) -> None:
        """Set the codecs and the spec; the lanes are reset once to see their observations."""
        self._action = TensorActions(name, action_space, num_envs, self.device)
        with self._calls(0):
            sample = self._begin(0)
            self._groups = ObsGroups(name, sample, num_envs, self.device, policy_group, critic_group)
        self.spec = EnvSpec(
            name=name,
            obs=self._groups.spec,
            action=self._action.spec,
            num_envs=num_envs,
            max_episode_steps=as_limit(max_episode_steps),
            spaces=describe_spaces(self._groups.space, self._action.space),
        )

    @abstractmethod
    def _begin(self, seed: int) -> Any:
        """Begin new episodes in all lanes; return their observations as the simulator gives them."""

    @abstractmethod
    def _advance(self, action: Tensor) -> Outcome:
        """Take one step with the actions of all lanes."""

    def _decode(self, action: Tensor) -> Any:
        """The action as the simulator takes it."""
        return self._action.decode(action)

    def _read(self, obs: Any, known: Tree = None) -> Tree:
        """Copies of observations as the simulator gives them."""
        return self._groups.read(obs, known)

    def _start(self, seed: int) -> Tree:
        with self._calls(seed):
            self._seen = self._read(self._begin(seed & 0x7FFF_FFFF))
        return self._seen

    def step(self, action: Tensor) -> Step:
        with self._calls():
            outcome = self._advance(self._decode(action))
            reward = outcome.reward.to(self.device, torch.float32, copy=True)
            terminated = outcome.terminated.to(self.device, torch.bool, copy=True)
            truncated = outcome.truncated.to(self.device, torch.bool) & ~terminated
        expected = (self.spec.num_envs, *self.spec.team)
        if reward.shape != expected or terminated.shape != expected[:1]:
            raise SpecError(
                f"environment {self.spec.name!r}: step returned rewards of shape {tuple(reward.shape)} and flags of"
                f" shape {tuple(terminated.shape)}, expected {expected} and {expected[:1]}"
            )
        self._num_steps += 1
        next_obs = self._successors(outcome, terminated | truncated)
        self._seen = outcome.obs
        return Step(outcome.obs, reward, terminated, truncated, next_obs)

    def _successors(self, outcome: Outcome, done: Tensor) -> Tree:
        """The true successors, or the last observations before them where they are not known."""
        if self.device.type == "cpu" and not done.any():  # elsewhere reading it would wait for the device
            return outcome.obs
        last = self._seen
        if outcome.last is not None:
            is_known = is_finite(outcome.last)
            if outcome.is_known is not None:
                is_known &= outcome.is_known
            last = tree.where(is_known, outcome.last, last)
        return tree.where(done, last, outcome.obs)

    @contextmanager
    def _calls(self, seed: int | None = None) -> Iterator[None]:
        """Around calls of the simulator. Its buffers are ordinary tensors, whatever mode its caller is in: a tensor
        that was made in inference mode cannot be written to outside of it."""
        with self._streams.lent(seed), torch.inference_mode(False), torch.no_grad():
            yield

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


def is_finite(obs: Tree) -> Tensor:
    """The lanes [N] whose observations hold neither NaN nor infinity: some simulators mark a lost one by NaN."""
    finite = [x.isfinite().reshape(len(x), -1).all(-1) for x in tree.leaves(obs)]
    return torch.stack(finite).all(0)


def as_limit(length: Any) -> int | None:
    """The time limit of an episode in steps; None if there is none, or one for each lane."""
    if length is None or (isinstance(length, Tensor) and length.numel() != 1):
        return None
    return int(length)


def name_of(env: Any) -> str:
    """The Gymnasium id of an environment, or the name of its class."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None and hasattr(spec, "id") else type(getattr(env, "unwrapped", env)).__name__

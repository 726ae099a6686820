"""Vector environments as the documents teach to write them: ``env_num`` lanes in tensors, described by attributes.

``reset()`` returns states [N, O]; ``step(actions)`` returns ``(states, rewards, dones, info)`` and has already reset
the lanes that are done. Axes: N lanes, O observation.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..envs import VecEnv
from ..envs.vec_env import Exactness
from ..errors import SpecError
from ..rng import derive_seed
from ..types import ActionSpec, EnvSpec, State, Step


def has_lanes(env: Any) -> bool:
    """Whether an environment steps several lanes itself, by the attributes of the documents."""
    return max(getattr(env, "env_num", 1), getattr(env, "num_envs", 1)) > 1


class AttributeVecEnv(VecEnv):
    """Such an environment behind the contract.

    The environment draws from global random streams, so these are set to streams of its own around every call. It
    returns no successors of ended episodes: there the state before the last action takes their place, which counts only
    where ``max_step`` cut the episode.
    """

    def __init__(self, env: Any):
        self.env = env
        num_envs = max(getattr(env, "env_num", 1), getattr(env, "num_envs", 1))
        action = ActionSpec(choices=(env.action_dim,)) if env.if_discrete else ActionSpec(dim=env.action_dim)
        name = str(getattr(env, "env_name", type(env).__name__))
        self.max_step = getattr(env, "max_step", None)
        target = getattr(env, "target_return", None)
        self.spec = EnvSpec(name, (env.state_dim,), action, num_envs, self.max_step, target)
        self.device = torch.device(getattr(env, "device", "cpu"))
        self._streams: tuple[Any, ...] | None = None
        self._seed, self._num_steps = 0, 0

    def reset(self, seed: int) -> Tensor:
        self._seed, self._num_steps = seed, 0
        return self._start(seed)

    def _start(self, seed: int) -> Tensor:
        with self._own_streams(seed):
            states = self.env.reset()
        self._obs = self._tensor("reset()", states, (self.spec.num_envs, self.spec.obs_dim))
        self._elapsed = torch.zeros(self.spec.num_envs, dtype=torch.int64, device=self.device)
        return self._obs

    def step(self, action: Tensor) -> Step:
        lanes = (self.spec.num_envs,)
        with self._own_streams(None):
            states, rewards, dones, _ = self.env.step(action if self.env.if_discrete else action.clamp(-1, 1))
        obs = self._tensor("the states of step()", states, (*lanes, self.spec.obs_dim))
        reward = self._tensor("the rewards of step()", rewards, lanes)
        done = self._tensor("the dones of step()", dones, lanes).bool()
        self._elapsed += 1
        self._num_steps += 1
        truncated = done & (self._elapsed >= self.max_step) if self.max_step else torch.zeros_like(done)
        next_obs = torch.where(done.unsqueeze(1), self._obs, obs)
        self._elapsed = self._elapsed.masked_fill(done, 0)
        self._obs = obs
        return Step(obs, reward, done & ~truncated, truncated, next_obs)

    def _tensor(self, what: str, value: Any, shape: tuple[int, ...]) -> Tensor:
        """A copy, since the environment may write to its own tensors again."""
        tensor = torch.as_tensor(value).to(self.device, torch.float32, copy=True)
        if tensor.shape != shape:
            raise SpecError(
                f"environment {self.spec.name!r}: {what} has shape {tuple(tensor.shape)}, expected {shape} for"
                f" env_num={self.spec.num_envs}"
            )
        return tensor

    @contextlib.contextmanager
    def _own_streams(self, seed: int | None) -> Iterator[None]:
        """The global random streams are this environment's own inside, begun anew by a seed."""
        devices = [self.device] if self.device.type == "cuda" else []
        outer = (random.getstate(), np.random.get_state())
        with torch.random.fork_rng(devices):
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed % 2**32)
                torch.manual_seed(seed)
            elif self._streams is not None:
                self._set(*self._streams)
            try:
                yield
            finally:
                cuda = [torch.cuda.get_rng_state(device) for device in devices]
                self._streams = (random.getstate(), np.random.get_state(), torch.get_rng_state(), *cuda)
                random.setstate(outer[0])
                np.random.set_state(outer[1])

    def _set(self, plain: Any, numpy: Any, cpu: Tensor, *cuda: Tensor) -> None:
        random.setstate(plain)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        for state in cuda:
            torch.cuda.set_rng_state(state, self.device)

    @property
    def exactness(self) -> Exactness:
        return "episode"

    def state_dict(self) -> State:
        return {"seed": self._seed, "num_steps": self._num_steps}

    def load_state_dict(self, state: State) -> Tensor:
        self._seed, self._num_steps = state["seed"], state["num_steps"]
        # Another seed than at the start, or a run that resumes often would see the same first episodes each time.
        return self._start(derive_seed(self._seed, "resume", self._num_steps))


class LaneMaker:
    """Makes as many lanes as are asked for by a class that takes ``env_num``; can be sent to other processes."""

    def __init__(self, factory: Any, takes_device_id: bool):
        self.factory, self.takes_device_id = factory, takes_device_id
        self.__name__ = getattr(factory, "__name__", "environment")

    def __call__(self, num_envs: int = 1, device: torch.device | str = "cpu", **kwargs: Any) -> AttributeVecEnv:
        device = torch.device(device)
        if self.takes_device_id and device.type == "cuda":
            kwargs = {"device_id": device.index or 0} | {k: v for k, v in kwargs.items() if v is not None}
        return AttributeVecEnv(self.factory(env_num=num_envs, **kwargs))

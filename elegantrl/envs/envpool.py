"""EnvPool environments (C++, one call for all lanes) behind the ``VecEnv`` contract. A resume starts new episodes.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor

from ..errors import ConfigError, SpecError
from ..rng import derive_seed
from ..tree import Tree
from ..types import EnvSpec, Obs, Step
from .atari import USUAL_FRAMES
from .episodic import EpisodicVecEnv
from .hints import suggest
from .masks import empty_lanes, empty_mask, mask_size
from .space_text import describe_spaces
from .spaces import ActionCodec, Frame, ObsCodec, to_device

SEEN_KEY, PRIVILEGED_KEY = "state", "privileged_state"
"""What a policy sees and what only its critic may see, in tasks of MuJoCo Playground."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Gymnasium's warnings about the precision of EnvPool's bounds, which a user cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class EnvPoolVecEnv(EpisodicVecEnv):
    """``num_threads`` is 1 unless given, because the cores belong to all worker processes."""

    _stream = "envpool"

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        device: torch.device | str = "cpu",
        num_threads: int = 1,
        masks: bool | None = None,
        training: bool = False,
        **kwargs: Any,
    ):
        """``masks``: observations are ``Obs`` with the actions that may be taken, from their key "action_mask"; None:
        if they have that key. ``training``: Atari games end an episode with each life and clip rewards, unless
        ``episodic_life`` or ``reward_clip`` say otherwise; without it they never do."""
        try:
            import envpool
        except ImportError as error:
            raise ConfigError(
                f"environment 'envpool:{env_id}' needs envpool: pip install 'elegantrl[envpool]'"
            ) from error
        known = envpool.list_all_envs()
        if env_id not in known:
            hint = suggest(env_id, known, "envpool.list_all_envs() lists the known ids")
            raise SpecError(f"unknown EnvPool environment {env_id!r}; {hint}")
        self._make = envpool.make
        self._settings = {"num_envs": num_envs, "num_threads": num_threads, **kwargs}
        self._env_id = env_id
        self._pool: Any = None
        self.device = torch.device(device)
        name = f"envpool:{env_id}"
        pool_spec, obs_space, action_space = self._describe(envpool.make_spec)
        self._is_single_frame = False
        if hasattr(pool_spec.config, "noop_max") and "stack_num" not in kwargs:
            self._settings |= atari_settings(training, kwargs)
            self.usual_frames = USUAL_FRAMES
            pool_spec, obs_space, action_space = self._describe(envpool.make_spec)
            self._is_single_frame = obs_space.shape[0] == 1
            if self._is_single_frame:  # a grey frame has no axis for its colour, as with Gymnasium's wrapper
                obs_space = Box(0, 255, obs_space.shape[1:], np.uint8)
        self._action = ActionCodec(name, action_space, num_envs)
        size = mask_size(name, self._action.spec, masks, obs_space)
        self._obs = ObsCodec(name, obs_space, size)
        self._has_masks = size is not None
        self._is_privileged = isinstance(obs_space, Dict) and {*obs_space.spaces} == {SEEN_KEY, PRIVILEGED_KEY}
        self.spec = EnvSpec(
            name=name,
            obs=self._split(self._obs.spec),
            action=self._action.spec,
            num_envs=num_envs,
            max_episode_steps=pool_spec.config.max_episode_steps,
            target_return=getattr(pool_spec.config, "reward_threshold", None),
            spaces=describe_spaces(obs_space[SEEN_KEY] if self._is_privileged else obs_space, action_space),
        )
        self._tensor = to_device(self.device)

    def _describe(self, make_spec: Any) -> tuple[Any, Any, Any]:
        try:
            with _quiet():
                pool_spec = make_spec(self._env_id, **self._settings)
                return pool_spec, pool_spec.gymnasium_observation_space, pool_spec.gymnasium_action_space
        except TypeError as error:
            raise ConfigError(
                f"environment 'envpool:{self._env_id}' does not take the settings {self._settings}: {error}"
            ) from error

    def _start(self, seed: int) -> Tree:
        # Seeds are fixed when a pool is made, so a reset makes a new one.
        self.close()
        seeds = [derive_seed(seed, lane) & 0x7FFF_FFFE for lane in range(self.spec.num_envs)]
        with _quiet():
            self._pool = self._make(self._env_id, "gymnasium", seed=seeds, **self._settings)
            batch, _ = self._pool.reset()
        return self._encode(self._frame(batch, self.spec.num_envs))

    def _encode(self, frame: Frame) -> Tree:
        return self._split(self._obs.encode(frame, self._tensor))

    def _split(self, obs: Tree) -> Tree:
        """The policy must not see what a robot cannot measure."""
        return Obs(obs[SEEN_KEY], state=obs[PRIVILEGED_KEY]) if self._is_privileged else obs

    def _frame(self, batch: Any, num_envs: int) -> Frame:
        return self._obs.batch(batch[:, 0] if self._is_single_frame else batch, num_envs)

    def step(self, action: Tensor) -> Step:
        batch, reward, terminated, truncated, _ = self._pool.step(self._action.decode(action))
        self._num_steps += 1
        frame = self._frame(batch, self.spec.num_envs)
        next_obs = self._encode(frame)
        obs = next_obs
        done = terminated | truncated
        if done.any():
            # A pool would use the next step for the reset; resetting now leaves no step without an action.
            first, info = self._pool.reset(np.flatnonzero(done).astype(np.int32))
            fresh = self._frame(first, len(info["env_id"]))
            frame = [rows.copy() for rows in frame]
            for rows, begun in zip(frame, fresh, strict=True):
                rows[info["env_id"]] = begun
            obs = self._encode(frame)
        if self._has_masks:
            for lane in empty_lanes(frame[-1], self.spec.action):
                raise empty_mask(self.spec.name, lane, self._num_steps)
        tensor = self._tensor
        reward = tensor(np.array(reward, dtype=np.float32))
        return Step(obs, reward, tensor(terminated), tensor(truncated), next_obs)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def atari_settings(training: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Settings of EnvPool's Atari games that equal those of ``atari.py``; frames are stacked by ``make_env``."""
    in_training = {name: training and kwargs.get(name, True) for name in ("episodic_life", "reward_clip")}
    return {"stack_num": 1, **in_training}

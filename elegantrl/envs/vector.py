"""Gymnasium vector environments behind the ``VecEnv`` contract: an episode that ends is reset within the same step.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from ..errors import CheckpointError, SpecError
from ..imports import import_fast
from ..rng import derive_seed
from ..tree import Tree
from ..types import EnvSpec, Leaf, State, Step
from .episodic import EpisodicVecEnv
from .masks import MASK_KEY, empty_lanes, empty_mask, flat_mask, mask_method, mask_size
from .space_text import describe_spaces
from .spaces import ActionCodec, Array, Frame, ObsCodec, to_device
from .vec_env import VecEnv

CARTPOLE_ENTRY_POINT = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"


class GymVectorVecEnv(EpisodicVecEnv):
    """A ``gymnasium.vector.VectorEnv`` of any autoreset mode. A resume starts new episodes."""

    _stream = "vector"

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        name: str | None = None,
        device: torch.device | str = "cpu",
        masks: bool | None = None,
    ):
        """``masks``: observations are ``Obs`` with the actions that may be taken, from the key "action_mask" of the
        observation, the method ``action_masks()`` of environments in this process, or the key "action_mask" of the
        infos, in this order; None: if the environment gives any."""
        gym_spec = env.spec
        name = name or (gym_spec.id if gym_spec else type(env.unwrapped).__name__)
        self.env = env
        self.device = torch.device(device)
        self._action = ActionCodec(name, env.single_action_space, env.num_envs)
        self._mask_fns = [mask_method(lane) for lane in getattr(env.unwrapped, "envs", [])]
        gives_masks = partial(self._gives_masks, env)
        size = mask_size(name, self._action.spec, masks, env.single_observation_space, gives_masks)
        self._obs = ObsCodec(name, env.single_observation_space, size)
        self._mask_size = size
        self.spec = EnvSpec(
            name=name,
            obs=self._obs.spec,
            action=self._action.spec,
            num_envs=env.num_envs,
            max_episode_steps=gym_spec.max_episode_steps if gym_spec else None,
            target_return=gym_spec.reward_threshold if gym_spec else None,
            spaces=describe_spaces(env.single_observation_space, env.single_action_space),
        )
        self._tensor = to_device(self.device)
        self._same_step = env.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP
        self._mask_honoured = False

    def _gives_masks(self, env: VectorEnv[Any, Any, Any]) -> bool:
        return any(self._mask_fns) or MASK_KEY in env.reset(seed=0)[1]

    def _masks(self, info: dict[str, Any]) -> Array | None:
        """The masks [N, A] of all lanes; a lane without one may take every action."""
        if self._mask_size is None:
            return None
        if any(self._mask_fns):
            found = [None if get_mask is None else get_mask() for get_mask in self._mask_fns]
        else:
            present = info.get(f"_{MASK_KEY}", [MASK_KEY in info] * self.spec.num_envs)
            found = [info[MASK_KEY][lane] if shown else None for lane, shown in enumerate(present)]
        masks = np.ones((self.spec.num_envs, self._mask_size), dtype=np.bool_)
        for lane, mask in enumerate(found):
            if mask is not None:
                masks[lane] = flat_mask(self.spec.name, mask, self._mask_size, "step")
        return masks

    def _start(self, seed: int) -> Tree:
        batch, info = self.env.reset(seed=seed & 0x7FFF_FFFF)
        frame = self._obs.batch(batch, self.spec.num_envs, self._masks(info))
        self._refuse_empty_masks(frame)
        for leaf, rows in zip(self._obs.leaves, frame, strict=False):
            for obs in rows:
                leaf.check_first(obs)
        return self._obs.encode(frame, self._tensor)

    def step(self, action: Tensor) -> Step:
        batch, reward, terminated, truncated, info = self.env.step(self._action.decode(action))
        self._num_steps += 1
        terminated = np.array(terminated, dtype=np.bool_)
        truncated = np.array(truncated, dtype=np.bool_) & ~terminated
        done = terminated | truncated
        frame = self._obs.batch(batch, self.spec.num_envs, self._masks(info))
        successor = frame
        if done.any():
            if self._same_step:
                successor = [rows.copy() for rows in frame]
                masks = info.get("final_info", {}).get(MASK_KEY)
                for lane in np.flatnonzero(done).tolist():
                    self._obs.put(successor, lane, info["final_obs"][lane], None if masks is None else masks[lane])
            else:
                frame = self._reset_lanes(done, frame)
        self._refuse_empty_masks(frame)
        next_obs = self._obs.encode(successor, self._tensor)
        obs = next_obs if frame is successor else self._obs.encode(frame, self._tensor)
        tensor = self._tensor
        reward = tensor(np.array(reward, dtype=np.float32))
        return Step(obs, reward, tensor(terminated), tensor(truncated), next_obs)

    def _refuse_empty_masks(self, frame: Frame) -> None:
        if self._mask_size is not None:
            for lane in empty_lanes(frame[-1], self.spec.action):
                raise empty_mask(self.spec.name, lane, self._num_steps)

    def _reset_lanes(self, done: Array, frame: Frame) -> Frame:
        batch, info = self.env.reset(options={"reset_mask": done.copy()})
        fresh = self._obs.batch(batch, self.spec.num_envs, self._masks(info))
        if self._mask_size is not None:  # infos hold the masks of the lanes that were reset
            fresh[-1][~done] = frame[-1][~done]
        if not (self._mask_honoured or done.all()):
            if not all(np.array_equal(new[~done], old[~done]) for new, old in zip(fresh, frame, strict=True)):
                raise SpecError(
                    f"environment {self.spec.name!r}: reset ignores options['reset_mask'] and restarted lanes whose"
                    f" episodes go on; use autoreset_mode SAME_STEP, or pass the id or class of the single environment"
                )
            self._mask_honoured = True
        return fresh

    def close(self) -> None:
        self.env.close()


class _SameStepCartPole(CartPoleVectorEnv):
    """Gymnasium's NumPy CartPole, which restarts ended lanes on demand instead of spending a step on it."""

    state: Any

    def advance(self, action: Array) -> tuple[Array, Array]:
        """Which lanes [N] ended and which ran out of time."""
        _, _, terminated, truncated, _ = self.step(action)
        self.prev_done[:] = False  # or the next step would reset these lanes
        return terminated, truncated

    def restart(self, done: Array) -> None:
        self.state[:, done] = self.np_random.uniform(self.low, self.high, size=(4, np.count_nonzero(done)))
        self.steps[done] = 0

    def observe(self) -> Array:
        return np.ascontiguousarray(self.state.T, dtype=np.float32)


class VectorEntryEnv(VecEnv):
    """CartPole through Gymnasium's vector entry point: all lanes in one NumPy expression, saved exactly."""

    def __init__(
        self,
        num_envs: int,
        name: str = "CartPole-v1",
        device: torch.device | str = "cpu",
        max_episode_steps: int = 500,
        target_return: float | None = None,
    ):
        self.device = torch.device(device)
        self.env = _SameStepCartPole(num_envs=num_envs, max_episode_steps=max_episode_steps)
        fast = import_fast("vector")
        self._advance = partial(fast.ADVANCE[CartPoleVectorEnv], self.env) if fast else self.env.advance
        self._action = ActionCodec(name, self.env.single_action_space, num_envs)
        self.spec = EnvSpec(
            name=name,
            obs=Leaf((4,)),
            action=self._action.spec,
            num_envs=num_envs,
            max_episode_steps=max_episode_steps,
            target_return=target_return,
            spaces=describe_spaces(self.env.single_observation_space, self.env.single_action_space),
        )
        self._nowhere = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._one = torch.ones(num_envs, device=self.device)  # the reward of every step
        self._tensor = to_device(self.device)

    def reset(self, seed: int) -> Tensor:
        self.env.reset(seed=derive_seed(seed, "vector") & 0x7FFF_FFFF)
        return self._tensor(self.env.observe())

    def step(self, action: Tensor) -> Step:
        env, tensor = self.env, self._tensor
        terminated, truncated = self._advance(self._action.decode(action))
        next_obs = tensor(env.observe())
        done = terminated | truncated
        if not done.any():  # the flags need not be made anew
            return Step(next_obs, self._one, self._nowhere, self._nowhere, next_obs)
        truncated &= ~terminated
        env.restart(done)
        return Step(tensor(env.observe()), self._one, tensor(terminated), tensor(truncated), next_obs)

    def state_dict(self) -> State:
        env = self.env
        if env.state is None:
            raise CheckpointError(f"environment {self.spec.name!r} has no state before its first reset; call reset")
        return {
            "state": torch.from_numpy(env.state.copy()),
            "steps": torch.from_numpy(env.steps.copy()),
            # Text, since the words of the generator have 128 bits.
            "generator": json.dumps(env.np_random.bit_generator.state),
        }

    def load_state_dict(self, state: State) -> Tensor:
        env = self.env
        if state["state"].shape[1] != env.num_envs:
            raise CheckpointError(
                f"environment {self.spec.name!r} has num_envs={env.num_envs}, the saved state has"
                f" {state['state'].shape[1]}"
            )
        env.state = state["state"].numpy().copy()
        env.steps = state["steps"].numpy().copy()
        env.np_random.bit_generator.state = json.loads(state["generator"])
        return self._tensor(env.observe())

    def close(self) -> None:
        self.env.close()

"""Single Gymnasium environments as lanes of one ``VecEnv``, stepped in this process by a plain loop.

Each episode starts from a seed of its own, so a resumed run can replay an open episode from its actions.

Axes: N environment lanes, O observation, A action, T steps.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from .. import tree
from ..errors import CheckpointError, RoleError, SpecError, format_error
from ..rng import derive_seed
from ..tree import Tree
from ..types import EnvSpec, Fault, State, Step, from_state, to_state
from .episode_log import Array, EpisodeLog, digest
from .lane_state import LaneState
from .lanes import seeded_reset, warn_of_restarts
from .masks import MASK_KEY, empty_lanes, empty_mask, gives_masks, mask_method, mask_size
from .results import NUMBERS, as_flag, as_number, fault_of, five_values
from .space_text import describe_spaces
from .spaces import ActionCodec, Frame, ObsCodec, to_device
from .vec_env import Exactness, VecEnv

log = logging.getLogger(__name__)

MAX_LOG_STEPS = 100_000
"""Steps per lane that are kept for replay; a resume restarts an open episode that is older."""

MAX_RESETS = 10
"""Resets of a lane in a row that may fail in the middle of a run."""


class GymVecEnv(VecEnv):
    """N single environments. ``step`` may return five values, or the four of older interfaces with ``done``."""

    _plain_size = 0
    _plain_dtype: Any = None

    def __init__(
        self,
        envs: Sequence[Any],
        name: str | None = None,
        device: torch.device | str = "cpu",
        masks: bool | None = None,
    ):
        """``masks``: observations are ``Obs`` with the actions that may be taken, from the key "action_mask" of an
        observation, the method ``action_masks()`` or the key "action_mask" of an info, in this order; None: if the
        environment gives any."""
        first = envs[0]
        gym_spec = getattr(first, "spec", None)
        name = name or (gym_spec.id if gym_spec else type(getattr(first, "unwrapped", first)).__name__)
        for field in ("observation_space", "action_space", "reset", "step"):
            if not hasattr(first, field):
                raise SpecError(f"environment {name!r} has no {field}; expected the interface of gymnasium.Env")
        action = ActionCodec(name, first.action_space, len(envs))
        size = mask_size(name, action.spec, masks, first.observation_space, lambda: gives_masks(first, name))
        obs = ObsCodec(name, first.observation_space, size)
        self._has_masks = size is not None
        uses_method = self._has_masks and not obs.gives_mask
        self._mask_fns = [mask_method(env) if uses_method else None for env in envs]
        spec = EnvSpec(
            name=name,
            obs=obs.spec,
            action=action.spec,
            num_envs=len(envs),
            max_episode_steps=gym_spec.max_episode_steps if gym_spec else getattr(first, "max_step", None),
            target_return=gym_spec.reward_threshold if gym_spec else None,
            spaces=describe_spaces(first.observation_space, first.action_space),
        )
        # Size and type of an observation that is written as it is; no type where it has parts or a mask.
        self._plain_size, self._plain_dtype = obs.leaves[0].size, obs.leaves[0].raw_dtype if obs.is_plain else None
        self._set_up(envs, spec, obs, action, device)

    def _set_up(self, envs: Sequence[Any], spec: EnvSpec, obs: Any, action: Any, device: torch.device | str) -> None:
        """Prepare the lanes, given the converters of their observations and actions."""
        self.device = torch.device(device)
        self.envs, self.spec, self._obs, self._action = list(envs), spec, obs, action
        self._tensor = to_device(self.device)
        self._name, self._num_envs = name, num_envs = spec.name, spec.num_envs
        self._reward_shape = (num_envs, *spec.team)
        self._step_fns = [env.step for env in self.envs]
        self._reset_fns = [seeded_reset(env) for env in self.envs]
        self._lane_states = [LaneState(env, name) for env in self.envs]
        self._no_lanes = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._restarted = self._no_lanes
        self._diverged = False
        self._begin_run(seed=0)

    def _begin_run(self, seed: int) -> None:
        num_envs = self.spec.num_envs
        self._seed = seed
        self._faults: list[Fault] = []
        self._log = EpisodeLog(MAX_LOG_STEPS)
        self._episode = [0] * num_envs
        self._started = [0] * num_envs  # the number of the first step of each open episode
        self._state_before: list[State | None] = [None] * num_envs  # of each lane, before its open episode
        self._frame: Frame | None = None  # the newest observations as the environments gave them

    def reset(self, seed: int) -> Tree:
        self._begin_run(seed)
        frame = self._obs.empty(self.spec.num_envs)
        for lane in range(self.spec.num_envs):
            self._begin(lane, frame)
        return self._observe(frame)

    def step(self, action: Tensor) -> Step:
        actions = self._action.decode(action)
        frame, reward = self._obs.empty(self._num_envs), np.empty(self._reward_shape, dtype=np.float32)
        rows, name, size, dtype = frame[0], self._name, self._plain_size, self._plain_dtype
        ended: dict[int, bool] = {}  # lane -> whether the MDP ended
        for lane, step_fn in enumerate(self._step_fns):
            try:
                result = step_fn(actions[lane])
                try:  # to unpack costs less than to look at the type and the length first
                    obs, value, terminated, truncated, info = result
                except (TypeError, ValueError):
                    obs, value, terminated, truncated, info = five_values(name, result)
                if obs.__class__ is ndarray and obs.dtype is dtype and obs.size == size:
                    rows[lane] = obs
                else:
                    self._put(frame, lane, obs, info, "step")
                reward[lane] = value if value.__class__ in NUMBERS else self._as_reward(value)
                if terminated is not False or truncated is not False:
                    over, cut = as_flag(name, "terminated", terminated), as_flag(name, "truncated", truncated)
                    if over or cut:
                        ended[lane] = over
            except Exception as error:
                self._faults.append(fault_of(lane, error))
                self._copy_lane(lane, frame)
                reward[lane], ended[lane] = 0.0, False
        if self._has_masks:
            self._refuse_empty_masks(frame, reward, ended)
        self._log.append(actions, reward)
        tensor, no_lanes = self._tensor, self._no_lanes
        self._frame = frame
        next_obs = self._obs.encode(frame, tensor)
        if not ended:  # the common case, which needs no new flags
            return Step(next_obs, tensor(reward), no_lanes, no_lanes, next_obs, self._take_faults())
        terminated, truncated = np.zeros((2, self._num_envs), dtype=np.bool_)
        for lane, over in ended.items():
            (terminated if over else truncated)[lane] = True
        obs = self._begin_next(list(ended))
        flags = tensor(terminated), tensor(truncated)
        return Step(obs, tensor(reward), *flags, next_obs, self._take_faults())

    def _refuse_empty_masks(self, frame: Frame, reward: Array, ended: dict[int, bool]) -> None:
        """A mask that forbids every action is a fault of its lane, unless the episode ends there."""
        masks = self._masks(frame)
        for lane in empty_lanes(masks, self.spec.action, ended):
            self._faults.append(fault_of(lane, self._forbids_all(masks, lane, self._log.end + 1)))
            self._copy_lane(lane, frame)
            reward[lane], ended[lane] = 0.0, False

    def _masks(self, frame: Frame) -> Array:
        return frame[-1]

    def _forbids_all(self, masks: Array, lane: int, step: int) -> SpecError:
        return empty_mask(self._name, lane, step)

    def _as_reward(self, value: Any) -> Any:
        return as_number(self._name, value)

    def _take_faults(self) -> tuple[Fault, ...]:
        """The faults since the last step, among them those of ``reset_lanes``."""
        if not self._faults:
            return ()
        faults, self._faults = tuple(self._faults), []
        return faults

    def reset_lanes(self, lanes: Tensor) -> Tree:
        return self._begin_next(lanes.nonzero().squeeze(1).tolist())

    def _begin_next(self, lanes: list[int]) -> Tree:
        """Begin the next episode of some lanes; return the observations of all."""
        assert self._frame is not None, "reset comes before step"
        frame = [rows.copy() for rows in self._frame]
        for lane in lanes:
            self._started[lane] = self._log.end
            self._begin_with_retries(lane, frame)
        self._log.drop_before(min(self._started))
        return self._observe(frame)

    def _begin_with_retries(self, lane: int, frame: Frame) -> None:
        """Begin the next episode whose reset succeeds."""
        for _ in range(MAX_RESETS):
            self._episode[lane] += 1
            try:
                return self._begin(lane, frame)
            except SpecError as error:
                fault = fault_of(lane, error.__cause__ or error)
                self._faults.append(fault)
        raise RoleError(
            f"environment {self.spec.name!r}: {MAX_RESETS} resets in a row failed, the last with {fault.what}"
            f" ({fault.where})"
        )

    def _begin(self, lane: int, frame: Frame) -> None:
        """Begin the lane's episode and write its first observation into ``frame``."""
        self._state_before[lane] = self._lane_state(lane)
        self._reset(lane, frame)

    def _reset(self, lane: int, frame: Frame) -> None:
        seed = derive_seed(self._seed, "episode", lane, self._episode[lane]) & 0x7FFF_FFFF
        try:
            obs, info = self._reset_fns[lane](seed)
        except Exception as error:
            raise SpecError(f"environment {self.spec.name!r}: reset fails: {format_error(error)}") from error
        self._put(frame, lane, obs, info, "reset")
        if self._has_masks and empty_lanes((masks := self._masks(frame))[lane : lane + 1], self.spec.action):
            raise self._forbids_all(masks, lane, self._log.end)

    def _put(self, frame: Frame, lane: int, obs: Any, info: Any, source: str) -> None:
        """Write an observation into ``frame``, with its mask where masks are asked for."""
        mask_fn = self._mask_fns[lane]
        mask = mask_fn() if mask_fn is not None else (info or {}).get(MASK_KEY)
        self._obs.put(frame, lane, obs, mask, source)

    def _copy_lane(self, lane: int, frame: Frame) -> None:
        """The lane's newest observation once more, in place of one that it failed to give."""
        for rows, newest in zip(frame, self._frame or frame, strict=True):
            rows[lane] = newest[lane]

    def _lane_state(self, lane: int) -> State | None:
        try:
            return self._lane_states[lane].get()
        except SpecError:
            raise
        except Exception as error:
            if self._frame is None:  # before its first reset an environment may have no state yet
                return None
            raise SpecError(
                f"environment {self.spec.name!r}: its state cannot be saved: {format_error(error)}"
            ) from error

    def _observe(self, frame: Frame) -> Tree:
        self._frame = frame
        return self._obs.encode(frame, self._tensor)

    # ---- Saving and replaying

    @property
    def exactness(self) -> Exactness:
        return "episode" if self._diverged or min(self._started) < self._log.first else "replayed"

    def restarted_lanes(self) -> Tensor:
        return self._restarted

    def state_dict(self) -> State:
        if self._frame is None:
            raise CheckpointError(f"environment {self.spec.name!r} has no state before its first reset; call reset")
        lanes = list(enumerate(self._started))
        actions = [self._log.actions_of(lane, start, self._action.dtype) for lane, start in lanes]
        return {
            "seed": self._seed,
            "episode": torch.tensor(self._episode),
            "obs": to_state(self._obs.encode(self._frame, self._tensor)),
            "actions": {str(lane): None if a is None else torch.from_numpy(a) for lane, a in enumerate(actions)},
            "rewards": [self._log.reward_digest(lane, start) for lane, start in lanes],
            "before": {str(lane): state for lane, state in enumerate(self._state_before) if state is not None},
            "diverged": self._diverged,
        }

    def load_state_dict(self, state: State) -> Tree:
        num_envs = self.spec.num_envs
        if len(state["episode"]) != num_envs:
            raise CheckpointError(
                f"environment {self.spec.name!r} has num_envs={num_envs}, the saved state has {len(state['episode'])}"
            )
        self._begin_run(state["seed"])
        self._episode = state["episode"].tolist()
        expected = from_state(state["obs"])
        frame = self._obs.empty(num_envs)
        replayed: list[tuple[Array, Array] | None] = []  # actions and rewards of lanes whose open episode goes on
        num_diverged = 0
        for lane in range(num_envs):
            actions, before = state["actions"][str(lane)], state["before"].get(str(lane))
            if actions is not None:
                rewards = self._replay(lane, before, actions.cpu().numpy(), frame)
                is_same = rewards is not None and digest(rewards) == state["rewards"][lane]
                if rewards is not None and is_same and self._shows(frame, lane, expected):
                    replayed.append((actions.cpu().numpy(), rewards))
                    continue
                num_diverged += 1
            self._begin_from(lane, before, frame)
            replayed.append(None)
        self._diverged = self._diverged or state["diverged"] or num_diverged > 0
        self._restarted = torch.tensor([episode is None for episode in replayed], device=self.device)
        warn_of_restarts(self._name, num_diverged, replayed.count(None) - num_diverged, num_envs, MAX_LOG_STEPS)
        self._log, self._started = EpisodeLog.aligned(MAX_LOG_STEPS, replayed, self._action.dtype)
        return self._observe(frame)

    def _shows(self, frame: Frame, lane: int, expected: Tree) -> bool:
        """Whether the lane's observation in ``frame`` is that of the saved state."""
        row = slice(lane, lane + 1)
        found = self._obs.encode([rows[row] for rows in frame], self._tensor)
        return not bool(tree.rows_differ(found, tree.rows(expected, row)))

    def _begin_from(self, lane: int, before: State | None, frame: Frame) -> None:
        """Begin the lane's open episode anew from the state that outlived the one before it."""
        self._state_before[lane] = before
        if before is not None:
            self._reset(lane, frame)  # an environment may be unable to take a state before its first reset
            try:
                self._lane_states[lane].set(before)
            except Exception as error:
                raise CheckpointError(
                    f"environment {self.spec.name!r}: its saved state cannot be restored: {format_error(error)}"
                ) from error
        self._reset(lane, frame)

    def _replay(self, lane: int, before: State | None, actions: Array, frame: Frame) -> Array | None:
        """Take ``actions`` [T, ...] from the start of the lane's open episode, leave the last observation in ``frame``
        and return the rewards [T]; None if the episode ends or fails, which it did not the first time."""
        name, rewards = self.spec.name, np.empty((len(actions), *self.spec.team), dtype=np.float32)
        self._begin_from(lane, before, frame)
        try:
            for i, action in enumerate(actions):
                obs, reward, terminated, truncated, info = five_values(name, self._step_fns[lane](action))
                self._put(frame, lane, obs, info, "step")
                rewards[i] = self._as_reward(reward)
                if as_flag(name, "terminated", terminated) or as_flag(name, "truncated", truncated):
                    return None
        except Exception:
            log.debug("environment %r fails when it is replayed", name, exc_info=True)
            return None
        return rewards

    def close(self) -> None:
        for env in self.envs:
            if hasattr(env, "close"):
                env.close()

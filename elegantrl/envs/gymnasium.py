"""Single Gymnasium environments as lanes of one ``VecEnv``, stepped in this process by a plain loop.

Each episode starts from a seed of its own, so an open episode can be replayed from its actions after a resume.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

import copy
import inspect
import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError, RoleError, SpecError, in_words, innermost_line
from ..rng import derive_seed
from ..types import EnvSpec, Fault, Leaf, State, Step
from .spaces import ActionCodec, ObsCodec, to_device
from .vec_env import Exactness, VecEnv

log = logging.getLogger(__name__)

MAX_LOG_STEPS = 100_000
"""Vector steps of actions kept for replay; an episode that is older restarts on resume."""

MAX_RESETS = 10
"""Resets of a lane in a row that may fail in the middle of a run."""


class GymVecEnv(VecEnv):
    """N single environments. Both the five-tuple of ``step`` and the older four-tuple with ``done`` are understood."""

    def __init__(self, envs: Sequence[Any], name: str | None = None, device: torch.device | str = "cpu"):
        first = envs[0]
        gym_spec = getattr(first, "spec", None)
        name = name or (gym_spec.id if gym_spec else type(getattr(first, "unwrapped", first)).__name__)
        for field in ("observation_space", "action_space", "reset", "step"):
            if not hasattr(first, field):
                raise SpecError(f"environment {name!r} has no {field}; expected the interface of gymnasium.Env")
        self.device = torch.device(device)
        self.envs = list(envs)
        self._obs = ObsCodec(name, first.observation_space)
        self._action = ActionCodec(name, first.action_space, len(self.envs))
        self.spec = EnvSpec(
            name=name,
            obs=Leaf((self._obs.dim,)),
            action=self._action.spec,
            num_envs=len(self.envs),
            max_episode_steps=gym_spec.max_episode_steps if gym_spec else getattr(first, "max_step", None),
            target_return=gym_spec.reward_threshold if gym_spec else None,
        )
        self._tensor = to_device(self.device)
        self._step_fns = [env.step for env in self.envs]
        self._reset_fns = [_seeded_reset(env) for env in self.envs]
        self._nowhere = torch.zeros(len(self.envs), dtype=torch.bool, device=self.device)
        self._deterministic = True
        self._restart(seed=0)

    def _restart(self, seed: int) -> None:
        self._seed = seed
        self._num_steps = 0
        self._log: deque[Any] = deque(maxlen=MAX_LOG_STEPS)
        self._episode = [0] * self.spec.num_envs
        self._started = [0] * self.spec.num_envs
        self._frame: Any = None  # what each lane saw last, as its environment gave it
        self._faults: list[Fault] = []

    def reset(self, seed: int) -> Tensor:
        self._restart(seed)
        frame = self._obs.empty(self.spec.num_envs)
        for lane in range(self.spec.num_envs):
            frame[lane] = self._begin(lane)
        return self._see(frame)

    def step(self, action: Tensor) -> Step:
        moves = self._action.decode(action)
        self._log.append(moves)
        self._num_steps += 1
        num_envs = self.spec.num_envs
        frame, reward = self._obs.empty(num_envs), np.empty(num_envs, dtype=np.float32)
        ended: dict[int, bool] = {}  # lane -> whether the MDP ended
        for lane, env_step in enumerate(self._step_fns):
            result: Any = None
            try:
                result = env_step(moves[lane])
                if len(result) != 5:
                    result = self._five(result)
                frame[lane], reward[lane], over, cut, _ = result
                if over or cut:
                    ended[lane] = bool(over)
            except Exception as error:
                told = self._misfit(result, error)
                if isinstance(error, SpecError):
                    raise told from error.__cause__
                self._faults.append(_fault(lane, told))
                frame[lane], reward[lane], ended[lane] = self._frame[lane], 0.0, False
        next_obs = self._see(frame)
        tensor = self._tensor
        if not ended:  # as most steps: nothing to begin, and the flags need not be made anew
            return Step(next_obs, tensor(reward), self._nowhere, self._nowhere, next_obs, self._take_faults())
        terminated, truncated = np.zeros((2, num_envs), dtype=np.bool_)
        for lane, over in ended.items():
            (terminated if over else truncated)[lane] = True
        obs, flags = self._begin_next(list(ended)), (tensor(terminated), tensor(truncated))
        return Step(obs, tensor(reward), *flags, next_obs, self._take_faults())

    def _take_faults(self) -> tuple[Fault, ...]:
        """The faults since the last step; those of ``reset_lanes`` are among them."""
        faults = tuple(self._faults)
        self._faults.clear()
        return faults

    def reset_lanes(self, lanes: Tensor) -> Tensor:
        return self._begin_next(lanes.nonzero().squeeze(1).tolist())

    def _begin_next(self, lanes: list[int]) -> Tensor:
        """Begin the next episode of some lanes; what all of them see then."""
        frame = self._frame.copy()
        for lane in lanes:
            self._started[lane] = self._num_steps
            frame[lane] = self._begin_patiently(lane)
        for _ in range(min(self._started) - self._log_start):
            self._log.popleft()
        return self._see(frame)

    def _begin_patiently(self, lane: int) -> Any:
        """The first observation of the next episode that can be begun."""
        for _ in range(MAX_RESETS):
            self._episode[lane] += 1
            try:
                return self._begin(lane)
            except SpecError as error:
                fault = _fault(lane, error.__cause__ or error)
                self._faults.append(fault)
        raise RoleError(
            f"environment {self.spec.name!r}: {MAX_RESETS} resets in a row failed, the last with {fault.what}"
            f" ({fault.where})"
        )

    def _begin(self, lane: int) -> Any:
        seed = derive_seed(self._seed, "episode", lane, self._episode[lane]) & 0x7FFF_FFFF
        try:
            first = self._reset_fns[lane](seed)
        except Exception as error:
            raise SpecError(f"environment {self.spec.name!r}: reset fails: {in_words(error)}") from error
        return self._obs.check(first)

    def _see(self, frame: Any) -> Tensor:
        self._frame = frame
        return self._tensor(self._obs.encode(frame))

    def _five(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(result) != 4:
            raise SpecError(
                f"environment {self.spec.name!r}: step returned {len(result)} values,"
                f" expected 5: obs, reward, terminated, truncated, info"
            )
        obs, reward, done, info = result
        cut = done and info.get("TimeLimit.truncated", False)
        return obs, reward, done and not cut, cut, info

    def _misfit(self, result: Any, error: Exception) -> Exception:
        """The error of a step, and if it was ours because of what ``step`` returned, in words of the interface."""
        if not isinstance(result, tuple) or len(result) != 5 or isinstance(error, SpecError):
            return error
        obs, reward, over, cut, _ = result
        told = SpecError(
            f"environment {self.spec.name!r}: step returned reward {reward!r}, terminated {over!r} and truncated"
            f" {cut!r}, expected a number and two truth values"
        )
        try:
            self._obs.check(obs, "step")
        except SpecError as misfit:
            told = misfit
        return told.with_traceback(error.__traceback__)

    @property
    def exactness(self) -> Exactness:
        return "replayed" if self._deterministic and min(self._started) >= self._log_start else "episode"

    @property
    def _log_start(self) -> int:
        return self._num_steps - len(self._log)

    def state_dict(self) -> State:
        if self._frame is None:
            raise CheckpointError(f"environment {self.spec.name!r} has no state before its first reset; call reset")
        moves = list(self._log)
        return {
            "seed": self._seed,
            "episode": torch.tensor(self._episode),
            "obs": self._tensor(self._obs.encode(self._frame)),
            "actions": {str(lane): self._open_actions(lane, moves) for lane in range(self.spec.num_envs)},
        }

    def _open_actions(self, lane: int, moves: list[Any]) -> Tensor | None:
        """The actions of the lane's open episode [steps, ...], or None if the log does not reach back to its start."""
        first = self._started[lane] - self._log_start
        if first < 0:
            return None
        rows = [move[lane] for move in moves[first:]]
        return torch.from_numpy(np.array(rows, dtype=self._action.dtype))

    def load_state_dict(self, state: State) -> Tensor:
        num_envs = self.spec.num_envs
        if len(state["episode"]) != num_envs:
            raise CheckpointError(
                f"environment {self.spec.name!r} has num_envs={num_envs}, the saved state has {len(state['episode'])}"
            )
        self._restart(state["seed"])
        self._episode = state["episode"].tolist()
        expected = state["obs"].cpu().numpy()
        frame = self._obs.empty(num_envs)
        histories: list[list[Any] | None] = []
        for lane in range(num_envs):
            frame[lane], history = self._replay(lane, state["actions"][str(lane)], expected[lane])
            histories.append(history)
        if None in histories:
            log.warning(
                "environment %r: %d of %d lanes restart their open episodes, which are longer than %d steps or came out"
                " differently when replayed",
                self.spec.name,
                histories.count(None),
                num_envs,
                MAX_LOG_STEPS,
            )
        self._restore_log([history or [] for history in histories])
        return self._see(frame)

    def _replay(self, lane: int, actions: Tensor | None, expected: Any) -> tuple[Any, list[Any] | None]:
        """The lane's observation and the actions that led to it, or None if the episode begins anew."""
        history: list[Any] = [] if actions is None else list(actions.cpu().numpy())
        frame = self._obs.empty(1)
        frame[0] = self._begin(lane)
        try:
            for move in history:
                result = self._step_fns[lane](move)
                frame[0], _, over, cut, _ = result if len(result) == 5 else self._five(result)
                if over or cut:
                    break
            else:
                if actions is not None and np.array_equal(self._obs.encode(frame)[0], expected):
                    return frame[0], history
        except Exception:  # it did not fail the first time, so it is no replay
            log.debug("environment %r fails when replayed", self.spec.name, exc_info=True)
        self._deterministic = self._deterministic and actions is None
        return self._begin(lane), None

    def _restore_log(self, histories: list[list[Any]]) -> None:
        """Align the lanes' open episodes at their ends, as if the steps had just been taken together."""
        self._num_steps = max(map(len, histories))
        self._started = [self._num_steps - len(history) for history in histories]
        filler = next((history[0] for history in histories if history), None)
        padded = [[filler] * start + history for start, history in zip(self._started, histories, strict=True)]
        self._log.extend(zip(*padded, strict=True))

    def close(self) -> None:
        for env in self.envs:
            if hasattr(env, "close"):
                env.close()


def _fault(lane: int, error: BaseException) -> Fault:
    trace = "".join(traceback.format_exception(error))
    return Fault(lane, in_words(error), innermost_line(error), trace=trace, is_breach=isinstance(error, SpecError))


def lanes_of(env: Any, num_envs: int, name: str) -> list[Any]:
    """``env`` and as many independent likenesses of it as it takes to have ``num_envs`` lanes."""
    lanes = [env]
    while len(lanes) < num_envs:
        lanes.append(_likeness(env, name))
    return lanes


def _likeness(env: Any, name: str) -> Any:
    if getattr(env, "spec", None) is not None:
        try:
            return gym.make(env.spec, disable_env_checker=True)
        except Exception:  # a wrapper that is not in the spec: copying may still do
            log.debug("environment %r cannot be made anew from its spec", name, exc_info=True)
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise SpecError(
            f"environment {name!r}: this instance cannot be copied into further lanes ({type(error).__name__});"
            f" pass its class or a function that makes it"
        ) from error


def _seeded_reset(env: Any) -> Callable[[int], Any]:
    """``reset`` as a function from a seed to the first observation, whichever interface ``env`` has."""
    parameters = inspect.signature(env.reset).parameters.values()
    takes_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)

    def reset(seed: int) -> Any:
        if takes_seed:
            result = env.reset(seed=seed)
        else:
            if hasattr(env, "seed"):
                env.seed(seed)
            result = env.reset()
        with_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result[0] if with_info else result

    return reset

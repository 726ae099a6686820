"""An environment with a chosen fault.

elegantrl train ppo elegantrl.testing:FaultEnv --env-kwargs mode=raise at_step=500 only_slots=3
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from ..errors import ConfigError

LEAK_BYTES, FLOOD_LINES = 1 << 20, 10_000


class FaultEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Any Gymnasium environment with one fault.

    raise              ValueError
    nan_obs            an observation of NaNs
    inf_reward         an infinite reward
    bad_shape          an observation with a number too many
    bad_dtype          an observation of text
    bool_done_array    two flags instead of one
    three_values       three values instead of five
    hang               never returns
    slow               takes ``seconds`` longer
    segv               the process dies of SIGSEGV
    sigkill            the process dies of SIGKILL, as when the kernel runs out of memory
    exit0              the process ends with exit code 0
    oom                MemoryError, from an allocation larger than any machine's memory
    leak               keeps a megabyte for ever
    stdout_flood       prints 10,000 lines
    """

    def __init__(
        self,
        env_id: str = "CartPole-v1",
        mode: str = "raise",
        at_step: int | None = None,
        at_reset: int | None = None,
        p: float = 0.0,
        only_slots: int | Sequence[int] | None = None,
        once: str | Path | None = None,
        times: int = 1,
        seconds: float = 0.05,
        slot: int | None = None,
    ):
        """The fault occurs at one step or reset, counted from 1 over the life of the object, and at any step with
        probability ``p``.

        ``only_slots`` lists the environments of a run that have the fault; those of an evaluation then have none. With
        a folder ``once`` it occurs ``times`` times in total, also if processes are restarted.
        """
        if mode not in (known := {*ACTIONS, *SPOILERS}):
            raise ConfigError(f"mode={mode!r} is no fault; use one of {', '.join(sorted(known))}")
        super().__init__(gym.make(env_id, disable_env_checker=True))
        self.mode, self.at_step, self.at_reset, self.p = mode, at_step, at_reset, p
        self.seconds, self.times, self.folder = seconds, times, None if once is None else Path(once)
        slots = [only_slots] if isinstance(only_slots, int) else only_slots
        self.is_sound = slots is not None and slot not in slots
        self.num_steps = self.num_resets = 0
        self.kept: list[bytes] = []
        self.chance = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.num_steps or not self.num_resets:  # an environment may be reset twice before its first step
            self.num_resets += 1
        if seed is not None:
            self.chance = np.random.default_rng(seed)
        fails = self.num_resets == self.at_reset and self.may_fail()
        if fails:
            self.act()
        obs, info = self.env.reset(seed=seed, options=options)
        return (self.spoil(obs, 0.0, False, False, info)[0] if fails else obs), info

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        due = self.num_steps == self.at_step or (self.p > 0 and self.chance.random() < self.p)
        fails = due and self.may_fail()
        if fails:
            self.act()
        result = self.env.step(action)
        return self.spoil(*result) if fails else result

    def may_fail(self) -> bool:
        """Whether this slot has the fault and it may occur again; each occurrence leaves a file."""
        if self.is_sound or self.folder is None:
            return not self.is_sound
        self.folder.mkdir(parents=True, exist_ok=True)
        for i in range(self.times):
            try:
                (self.folder / f"{i:03}").touch(exist_ok=False)
            except FileExistsError:  # by this environment, another lane or another process
                continue
            return True
        return False

    def act(self) -> None:
        """Cause a fault that occurs before the call of the environment itself."""
        if self.mode in ACTIONS:
            ACTIONS[self.mode](self)

    def spoil(self, *result: Any) -> Any:
        """The result of the environment with one value replaced."""
        return SPOILERS[self.mode](*result) if self.mode in SPOILERS else result


def _raise(env: FaultEnv) -> None:
    raise ValueError(f"{env.mode} as asked for")


ACTIONS: dict[str, Callable[[FaultEnv], Any]] = {
    "raise": _raise,
    "hang": lambda env: threading.Event().wait(),
    "slow": lambda env: time.sleep(env.seconds),
    "segv": lambda env: ctypes.string_at(0),
    "sigkill": lambda env: os.kill(os.getpid(), signal.SIGKILL),
    "exit0": lambda env: sys.exit(0),
    "oom": lambda env: bytearray(sys.maxsize),
    "leak": lambda env: env.kept.append(b"x" * LEAK_BYTES),
    "stdout_flood": lambda env: print("flood\n" * FLOOD_LINES, end="", flush=True),
}

SPOILERS: dict[str, Callable[..., Any]] = {
    "nan_obs": lambda obs, *rest: (np.full_like(obs, np.nan), *rest),
    "inf_reward": lambda obs, reward, *rest: (obs, np.inf, *rest),
    "bad_shape": lambda obs, *rest: (np.append(obs, 0.0), *rest),
    "bad_dtype": lambda obs, *rest: (np.full(np.shape(obs), "?"), *rest),
    "three_values": lambda *result: result[:3],
    "bool_done_array": lambda obs, reward, over, cut, info: (obs, reward, np.array([over, cut]), cut, info),
}

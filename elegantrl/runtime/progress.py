"""The progress of a run, and the display that shows it. Counters go into commits; clocks do not."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..roles.evaluator import Score
from ..types import State

RECENT_EPISODES = 20


@dataclass(slots=True)
class Progress:
    """Counters and results of a run: the supervisor's part of a commit."""

    env_steps: int = 0
    seq: int = 0
    episodes: int = 0
    wall_seconds: float = 0.0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    last_eval: int = 0
    """The step of the last scheduled evaluation."""
    last_scored: int = 0
    """The step of the policy whose evaluation was completed last."""
    last_commit: int = 0
    best_mean: float = -math.inf
    best_ci95: float = 0.0
    best_step: int = 0
    final_mean: float = math.nan
    worse_in_a_row: int = 0
    """Evaluations in a row that fell clearly below the best one."""

    @property
    def train_return(self) -> float:
        """Mean return of the latest training episodes, exploration included."""
        recent = self.recent_returns
        return math.fsum(recent) / len(recent) if recent else math.nan

    def state_dict(self) -> State:
        state = {name: getattr(self, name) for name in self.__slots__}
        return state | {"recent_returns": list(self.recent_returns)}

    def load_state_dict(self, state: State) -> None:
        for name in self.__slots__:
            setattr(self, name, state[name])
        self.recent_returns = deque(state["recent_returns"], maxlen=RECENT_EPISODES)


class Display(Protocol):
    """Shows a run to its user."""

    def progress(self, progress: Progress, steps_per_second: float) -> None: ...

    def evaluation(self, progress: Progress, score: Score, is_best: bool) -> None: ...

    def message(self, text: str) -> None: ...


class Speedometer:
    """Environment steps per second of training alone: the clock is paused during evaluations and commits."""

    def __init__(self, step: int):
        self.start_step, self._start = step, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def restart(self, step: int) -> float:
        """Steps per second since the last restart."""
        speed = (step - self.start_step) / max(self.seconds(), 1e-9)
        self.start_step, self._start = step, time.monotonic()
        return speed

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        self._start += time.monotonic() - before


class IdleTime:
    """The fraction of the time that each role has been waiting since the last call."""

    def __init__(self, busy: dict[str, float]):
        self.busy, self.time = busy, time.monotonic()

    def fractions(self, busy: dict[str, float]) -> dict[str, float]:
        passed = max(time.monotonic() - self.time, 1e-9)
        # The busy time of a role that was replaced meanwhile counts from its start.
        fractions = {role: min(1.0, max(0.0, 1.0 - (busy[role] - self.busy[role]) / passed)) for role in busy}
        self.busy, self.time = busy, time.monotonic()
        return fractions


class Silent:
    """Shows nothing."""

    def progress(self, *_: Any) -> None: ...

    def evaluation(self, *_: Any) -> None: ...

    def message(self, text: str) -> None: ...

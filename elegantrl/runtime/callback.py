"""Callbacks: a caller's function that receives the events of a run and may stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..roles.evaluator import Score
from .progress import Display, Progress


@dataclass(frozen=True, slots=True)
class Event:
    """The argument of a callback: the progress of a run after a log line or an evaluation."""

    kind: Literal["log", "evaluation"]
    run_dir: Path
    env_steps: int
    episodes: int
    wall_seconds: float
    train_return: float
    """Mean return of the latest training episodes; NaN before the first."""
    best_return: float
    """Mean return of the best evaluation so far; minus infinity before the first."""
    steps_per_second: float | None = None
    """Speed since the last log line; only of kind ``log``."""
    returns: tuple[float, ...] = ()
    """Returns of the episodes of an evaluation; only of kind ``evaluation``."""
    is_best: bool = False
    """Whether this evaluation is the best so far."""
    win_rate: float | None = None
    """The fraction of these episodes that were won, of tasks that can be won."""


Callback = Callable[[Event], object]
"""Called with each event; returning False stops the run after its current iteration, with a commit."""


class CallbackDisplay:
    """A display that also calls a callback."""

    def __init__(self, display: Display, callback: Callback, run_dir: Path, request_stop: Callable[[str], None]):
        self.display, self.callback, self.run_dir, self.request_stop = display, callback, run_dir, request_stop

    def progress(self, progress: Progress, steps_per_second: float) -> None:
        self.display.progress(progress, steps_per_second)
        self.call(progress, "log", steps_per_second=steps_per_second)

    def evaluation(self, progress: Progress, score: Score, is_best: bool) -> None:
        self.display.evaluation(progress, score, is_best)
        self.call(progress, "evaluation", returns=score.returns, is_best=is_best, win_rate=score.win_rate)

    def message(self, text: str) -> None:
        self.display.message(text)

    def call(
        self,
        progress: Progress,
        kind: Literal["log", "evaluation"],
        steps_per_second: float | None = None,
        returns: tuple[float, ...] = (),
        is_best: bool = False,
        win_rate: float | None = None,
    ) -> None:
        event = Event(
            kind=kind,
            run_dir=self.run_dir,
            env_steps=progress.env_steps,
            episodes=progress.episodes,
            wall_seconds=progress.wall_seconds,
            train_return=progress.train_return,
            best_return=progress.best_mean,
            steps_per_second=steps_per_second,
            returns=returns,
            is_best=is_best,
            win_rate=win_rate,
        )
        if self.callback(event) is False:
            self.request_stop("callback")

"""What a person sees of a run: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..roles.evaluator import Score
from ..runtime import progress as standing

PLAIN_SECONDS = 10.0


class Stdout(Console):
    """Standard output; when its reader goes away, as in ``elegantrl train ... | head``, the work goes on unseen."""

    def __init__(self) -> None:
        super().__init__(file=cast(TextIO, Unread(sys.stdout)), emoji=False, highlight=False)


class Unread:
    """A stream that falls silent once nobody reads it: at the end of a broken pipe or of a terminal that was closed."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError:
            self.fall_silent()
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError:
            self.fall_silent()

    def fall_silent(self) -> None:
        """Not by closing: others print to the same descriptor."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class RunDisplay:
    """Progress bar with steps/s, returns and time left; without a terminal, a line now and then."""

    def __init__(self, max_steps: int, console: Console):
        self.console, self.live = console, console.is_terminal
        # Columns of fixed width: a bar whose length changes with every number is hard to look at.
        self.bar = Progress(
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[info]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,  # the summary takes its place
            expand=True,
            disable=not self.live,
        )
        self.task = self.bar.add_task("training", total=max_steps, info="")
        self.max_steps = max_steps
        self.last_line = time.monotonic()

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def progress(self, progress: standing.Progress, steps_per_second: float) -> None:
        self.bar.start()  # not before: a run that is refused shows one sentence and no bar
        info = f"{steps_per_second:>7,.0f} steps/s  return {number(progress.train_return)}"
        info += f"  best {number(progress.best_mean)}"
        self.bar.update(self.task, completed=progress.env_steps, info=info)
        if not self.live and time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.message(f"step {progress.env_steps:>10,} of {self.max_steps:,}  {info}")

    def evaluation(self, progress: standing.Progress, score: Score, is_best: bool) -> None:
        self.bar.update(self.task, completed=progress.env_steps)
        star = "  [green]best[/green]" if is_best else ""
        episodes = f"{len(score.returns)} episode{'s' if len(score.returns) > 1 else ''}"
        self.console.print(
            f"step {progress.last_eval:>10,}  evaluation {score.mean:>10,.1f} +/- {score.ci95:<7,.1f}"
            f" (std {score.std:,.1f}, {episodes}){star}",
            soft_wrap=not self.live,
        )

    def message(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=not self.live)


def number(value: float) -> str:
    """A return in 8 characters, also where there is none yet."""
    return f"{value:>8,.1f}" if math.isfinite(value) else f"{'-':>8}"

"""What a person sees of a run: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..train import supervisor
from ..train.evaluator import Score

PLAIN_SECONDS = 10.0


class RunDisplay:
    """Progress bar with steps/s, returns and time left; without a terminal, a line now and then."""

    def __init__(self, max_steps: int, console: Console):
        self.console, self.live = console, console.is_terminal
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[info]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
        )
        self.task = self.bar.add_task("training", total=max_steps, info="")
        self.max_steps = max_steps
        self.last_line = time.monotonic()

    def __enter__(self) -> RunDisplay:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def progress(self, progress: supervisor.Progress, steps_per_second: float) -> None:
        info = f"{steps_per_second:,.0f} steps/s"
        if not math.isnan(progress.train_return):
            info += f"  return {progress.train_return:,.1f}"
        if math.isfinite(progress.best_mean):
            info += f"  best {progress.best_mean:,.1f}"
        self.bar.update(self.task, completed=progress.env_steps, info=info)
        if not self.live and time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"step {progress.env_steps:>10,} of {self.max_steps:,}  {info}", highlight=False)

    def evaluation(self, progress: supervisor.Progress, score: Score, is_best: bool) -> None:
        self.bar.update(self.task, completed=progress.env_steps)
        star = "  [green]best[/green]" if is_best else ""
        self.console.print(
            f"step {progress.env_steps:>10,}  evaluation {score.mean:>10,.1f} +/- {score.ci95:,.1f}"
            f"  (std {score.std:,.1f}, {len(score.returns)} episodes){star}",
            highlight=False,
        )

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

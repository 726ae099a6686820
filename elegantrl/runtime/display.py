"""The display of a run: a live line on a terminal, plain lines in a log or a notebook, and a summary."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..config.run import RunConfig
from ..roles.evaluator import Score
from . import progress as standing

PLAIN_SECONDS = 10.0
SIGNALS = {"interrupted": 130, "terminated": 143}
"""Exit codes of runs that a signal ended."""
SUMMARY_ROWS = (
    "stop_reason",
    "env_steps",
    "updates",
    "wall_seconds",
    "steps_per_second",
    "best_return",
    "final_return",
)


class Stdout(Console):
    """Standard output. If its reader ends, as in ``elegantrl train ... | head``, the run continues without output.

    A notebook gets plain lines: rich's widgets need packages that may be missing.
    """

    def __init__(self) -> None:
        # A process without a console, a service for example, has no standard output.
        stream = QuietStream(sys.stdout or open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  used to the end
        super().__init__(file=cast(TextIO, stream), emoji=False, highlight=False, force_jupyter=False)


class QuietStream:
    """A stream that drops its text once it cannot be written: after a broken pipe, when its terminal or the stream
    itself is closed, or when a disk is full."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.discard_from_now_on()
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError):
            self.discard_from_now_on()

    def discard_from_now_on(self) -> None:
        # Not by closing: other code prints to the same descriptor.
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class RunDisplay:
    """Progress bar with steps/s, returns and time left; without a terminal, a line every few seconds.

    The header is printed just before the first other line: a run that is refused shows only one sentence.
    """

    def __init__(self, max_steps: int, console: Console, header: str = ""):
        self.console, self.live = console, console.is_terminal
        # Columns of fixed width: a bar whose length changes with every number is hard to read.
        self.bar = Progress(
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[info]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,  # the summary replaces it
            expand=True,
            disable=not self.live,
        )
        self.task = self.bar.add_task("training", total=max_steps, info="")
        self.max_steps = max_steps
        self.header = header
        self.wins = ""
        """The win rate of the last evaluation, of tasks that can be won."""
        self.last_line = time.monotonic()

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show_header(self) -> None:
        header, self.header = self.header, ""
        if header:
            self.console.print(header, soft_wrap=not self.live)

    def progress(self, progress: standing.Progress, steps_per_second: float) -> None:
        self.show_header()
        self.bar.start()
        info = f"{steps_per_second:>7,.0f} steps/s  return {format_return(progress.train_return)}"
        info += f"  best {format_return(progress.best_mean)}{self.wins}"
        self.bar.update(self.task, completed=progress.env_steps, info=info)
        if not self.live and time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.message(f"step {progress.env_steps:>10,} of {self.max_steps:,}  {info}")

    def evaluation(self, progress: standing.Progress, score: Score, is_best: bool) -> None:
        self.show_header()
        self.bar.update(self.task, completed=progress.env_steps)
        star = "  [green]best[/green]" if is_best else ""
        episodes = f"{len(score.returns)} episode{'s' if len(score.returns) > 1 else ''}"
        self.wins = "" if score.win_rate is None else f"  won {score.win_rate:.0%}"
        self.console.print(
            f"step {progress.last_scored:>10,}  evaluation {score.mean:>10,.1f} +/- {score.ci95:<7,.1f}"
            f" (std {score.std:,.1f}, {episodes}){self.wins}{star}",
            soft_wrap=not self.live,
        )

    def message(self, text: str) -> None:
        self.show_header()
        self.console.print(text, markup=False, soft_wrap=not self.live)


@contextlib.contextmanager
def shown_run(config: RunConfig, notes: str) -> Iterator[RunDisplay]:
    """A display on standard output with the header of this run."""
    with RunDisplay(config.train.max_steps, Stdout(), header_of(config, notes)) as display:
        yield display


def header_of(config: RunConfig, notes: str) -> str:
    """One line: agent, environment, layout, and the source of the settings."""
    lanes = "1 environment" if config.env.num_envs == 1 else f"{config.env.num_envs:,} environments"
    if config.execute.executor == "inline":
        lanes += " in this process"
    else:
        workers = config.execute.num_workers
        lanes += f" in {workers} worker process{'es' if workers > 1 else ''}"
    if config.execute.executor == "ray":
        lanes += f" of Ray{'' if config.execute.address is None else f' at {escape(config.execute.address)}'}"
    if config.execute.num_learners:
        lanes += f", {config.execute.num_learners} learner process{'es' if config.execute.num_learners > 1 else ''}"
    return (
        f"[bold]{escape(config.agent_name)}[/bold] on [bold]{escape(config.env.id)}[/bold], seed {config.train.seed},"
        f" {lanes}; {escape(notes)}"
    )


def show_summary(console: Console, run_dir: Path, summary: dict[str, Any]) -> None:
    """The results of a run and the folder that holds them."""
    table = Table(title=escape(f"{summary['agent']} on {summary['env']}"), title_justify="left", show_header=False)
    for name in SUMMARY_ROWS:
        table.add_row(name.replace("_", " "), format_value(summary[name]))
    if "win_rate" in summary:
        table.add_row("win rate", f"{summary['win_rate']:.0%}")
    for name, mean in summary.get("agent_returns", {}).items():
        table.add_row(escape(f"return of {name}"), format_value(mean))
    console.print(table)
    rows = [
        ("run folder", f"{run_dir}"),
        ("learning curve", f"{run_dir / 'plot_learning_curve.jpg'}"),
        ("score it", f"elegantrl eval {run_dir}"),
    ]
    if summary["stop_reason"] in SIGNALS:
        rows.append(("continue it", f"the same command with --run-dir {run_dir} --resume"))
    for name, text in rows:
        console.print(f"{name:<15} {text}", markup=False, soft_wrap=True)


def format_return(value: float) -> str:
    """A return in 8 characters, also if there is none yet."""
    return f"{value:>8,.1f}" if math.isfinite(value) else f"{'-':>8}"


def format_value(value: Any) -> str:
    """A value of the summary as readable text."""
    if value is None:
        return "none yet"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

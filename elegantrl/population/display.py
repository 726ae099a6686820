"""Shows a population: a line for each generation or every few seconds, and the leaderboard at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..runtime.display import PLAIN_SECONDS
from .events import Event, Failed, Promoted, Retired
from .fold import PopulationState


class Quiet:
    """Shows nothing."""

    def message(self, text: str) -> None: ...

    def tick(self, state: PopulationState, events: Sequence[Event]) -> None: ...


class PopulationDisplay:
    """Plain lines on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last_line = -math.inf

    def message(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def tick(self, state: PopulationState, events: Sequence[Event]) -> None:
        """A line when the champion changes, a member fails, a generation ends, or some seconds have passed."""
        for event in events:
            if isinstance(event, Retired):
                self.message(f"{event.member} is retired: {event.reason}")
            elif isinstance(event, Failed):
                self.message(f"{event.member} failed in period {event.period}: {event.error}")
        champion = state.champion
        is_new = champion is not None and any(
            isinstance(event, Promoted) and event.member == champion.member and event.period == champion.period
            for event in events
        )
        if is_new or state.new_generation or time.monotonic() - self._last_line >= PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self.message(line_of(state))


def line_of(state: PopulationState) -> str:
    """Progress in one line."""
    config, champion = state.config, state.champion
    done = f"{state.num_results:>4} of {config.num_trainings} periods  {state.total_steps:>11,} steps"
    if config.mode == "generational":
        done = f"generation {state.generation:>3} of {config.periods}  {done}"
    if champion is None:
        return f"{done}  no champion yet"
    return f"{done}  champion {champion.member} ({champion.run.agent}) {champion.score:,.1f}"


def place_of(state: PopulationState) -> str:
    """Where a population goes on, as the first sentence of a resume."""
    line = " ".join(line_of(state).replace("no champion yet", "with no champion yet").split())
    return f"resumed after {line}; {len(state.due)} jobs are due"


def show_results(console: Console, url: str, summary: dict[str, Any]) -> None:
    """The leaderboard and the files of the results."""
    title = escape(f"{summary['mode']} population on {summary['env']}")
    table = Table("rank", "score", "agent", "member", "steps", "hyper-parameters", title=title, title_justify="left")
    for row in summary["leaderboard"]:
        hypers = ", ".join(f"{name} {value:.3g}" for name, value in row["hypers"].items())
        cells = row["rank"], f"{row['score']:,.1f}", row["agent"], row["member"], f"{row['env_steps']:,}", hypers
        table.add_row(*(escape(str(cell)) for cell in cells))
    console.print(table)
    rows = [("population", url), ("leaderboard", f"{url}/leaderboard.json"), ("report", f"{url}/report.html")]
    if summary["stop_reason"] == "complete":
        rows += [("champion", f"{url}/champion"), ("score it", f"elegantrl eval {url}/champion")]
    else:
        rows.append(("continue it", f"the same command with --run-dir {url} --resume"))
    for name, text in rows:
        console.print(f"{name:<15} {text}", markup=False, soft_wrap=True)

"""The page of a population: leaderboard, curves, lineage and resources, as folds over its log."""

from __future__ import annotations

import math
import os
import shutil
import statistics
from pathlib import Path

from ..report.page import Chart, Copy, Line, Lineage, Page, Span, Table, thinned
from ..report.style import COLOURS
from .fold import Member, PopulationState

STEPS = "environment steps of an agent, its ancestors included"
MAX_ROWS = 60
"""Members that the lineage and the table of members show: the newest."""


def population_page(state: PopulationState, where: str) -> Page:
    """The page of a population, also while it is running; ``where`` is its folder or address."""
    config = state.config
    agents = sorted({run.agent for member in state.members.values() for run in member.runs.values()})
    colours = {agent: COLOURS[i % len(COLOURS)] for i, agent in enumerate(agents)}
    champion = state.champion
    facts = {
        "champion's return": "-" if champion is None else f"{champion.score:,.1f}",
        "champion": "-" if champion is None else f"{champion.member}, {champion.run.agent}",
        "members": f"{len(state.members):,}",
        "periods completed": f"{state.num_results:,}",
        "environment steps": f"{state.total_steps:,}",
        "steps per second": f"{state.total_steps / state.seconds:,.0f}" if state.seconds else "-",
        "seconds": f"{state.seconds:,.0f}",
        "failed attempts": f"{state.num_failures:,}",
    }
    status = "complete" if state.is_complete else f"{len(state.due)} jobs running or waiting"
    if config.mode == "generational":
        status += f", {state.generation} of {config.periods} generations"
    return Page(
        f"{config.mode.capitalize()} population on {config.env}",
        f"{where}: {status}",
        facts | machine(Path(where)),
        tables=[leaderboard(state), retired(state)],
        charts=[curves(state, colours), learning_rates(state, colours)],
        lineage=lineage(state),
        settings={name: str(value) for name, value in config.to_dict().items()},
    )


def leaderboard(state: PopulationState) -> Table:
    rows = [
        [
            str(place),
            f"{e.score:,.1f}",
            e.member,
            e.run.agent,
            str(e.period + 1),
            f"{e.run.steps:,}",
            shown(e.run.hypers),
        ]
        for place, e in enumerate(state.board, 1)
    ]
    return Table("Leaderboard", ["", "return", "member", "agent", "period", "steps", "hyper-parameters"], rows)


def retired(state: PopulationState) -> Table:
    return Table("Retired members", ["member", "agent", "reason"], [[m.id, m.agent, m.reason] for m in state.retired])


def shown(hypers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in hypers.items())


def curves(state: PopulationState, colours: dict[str, str]) -> Chart:
    """The scores of each member over the steps of its agent, in the colour of its algorithm."""
    lines = []
    for member in newest(state):
        points = thinned([point for point in member.curve if math.isfinite(point.score)])
        agent = member.agent
        lines.append(Line(agent, [p.steps for p in points], [p.score for p in points], colour=colours.get(agent)))
    return Chart("Scores", STEPS, "mean return", lines)


def learning_rates(state: PopulationState, colours: dict[str, str]) -> Chart:
    """Mean and range of the learning rates over the members of an algorithm: where evolution went."""
    found: dict[str, dict[int, list[float]]] = {}
    for member in state.members.values():
        for run in member.runs.values():
            if run.hypers.get("lr", 0.0) > 0.0:
                found.setdefault(run.agent, {}).setdefault(run.steps, []).append(math.log10(run.hypers["lr"]))
    lines = []
    for agent, values in sorted(found.items()):
        steps = sorted(values)
        mean, low, high = ([f(values[step]) for step in steps] for f in (statistics.fmean, min, max))
        lines.append(Line(agent, steps, mean, low, high, colours.get(agent)))
    return Chart("Learning rates", STEPS, "log10; mean and range over members", lines)


def lineage(state: PopulationState) -> Lineage:
    """A row for each member, a bar for each period, and a line for each copy."""
    members = newest(state)
    rows = {member.id: i for i, member in enumerate(members)}
    spans, starts = [], {}
    for member in members:
        for period, run in sorted(member.runs.items()):
            start = started_at(state, member, period)
            starts[member.id, period] = start
            score = next((f"{p.score:,.1f}" for p in member.curve if p.period == period), "no score")
            label = f"{member.id}, period {period + 1}: {run.agent}, {score}; {shown(run.hypers)}"
            spans.append(Span(rows[member.id], start, run.steps, run.agent, label))
    copies = [
        Copy(starts[link.member, link.period], rows[link.parent], rows[link.member])
        for link in state.lineage
        if link.parent in rows and (link.member, link.period) in starts
    ]
    return Lineage([member.id for member in members], spans, copies)


def started_at(state: PopulationState, member: Member, period: int) -> int:
    """The steps of an agent at the beginning of a period: those of the run from which it continued."""
    link = next((x for x in state.lineage if x.member == member.id and x.period == period), None)
    if link is None:
        return member.runs[period - 1].steps if period - 1 in member.runs else 0
    return 0 if link.origin is None else state.steps_of.get(link.origin, 0)


def newest(state: PopulationState) -> list[Member]:
    return list(state.members.values())[-MAX_ROWS:]


def machine(folder: Path) -> dict[str, str]:
    """The load of this machine and the space that is left for the population."""
    found = {f"load of {os.cpu_count()} cores": f"{os.getloadavg()[0]:.1f}"}
    if folder.exists():
        found["free disk"] = f"{shutil.disk_usage(folder).free / 1e9:,.1f} GB"
    return found

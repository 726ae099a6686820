"""Learning curves as pictures: one run in detail, or many runs as one curve per group of equal settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from .draw import SEVERAL_SEEDS, draw_best, draw_curve, draw_seeds, finish_axes, make_canvas, save_figure
from .runs import Run, group_runs, read_run
from .style import COLOURS, LIGHT, STYLES, duration, short_number


def plot_run(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Plot one run to ``out``, by default to its folder under the two documented names; return the path."""
    run = read_run(run_dir)
    notes = [] if run.seed is None else [f"seed {run.seed}"]
    last = max([*run.evaluation.steps[-1:], *run.train_steps[-1:]], default=0)
    notes.append(
        f"{short_number(last)} steps in {duration(run.seconds)}" if run.seconds else f"{short_number(last)} steps"
    )
    figure, axes = make_canvas(run.title, ", ".join(notes))
    if run.train_steps.size:
        axes.plot(run.train_steps, run.train_return, color=LIGHT, lw=0.9, label="training episodes", zorder=1)
    draw_curve(axes, run.evaluation, COLOURS[0], "evaluation, 95 % band")
    draw_best(axes, run.evaluation)
    finish_axes(figure, axes, run.target)
    if out is not None:
        return save_figure(figure, Path(out))
    save_figure(figure, Path(run_dir) / "LearningCurve.jpg")
    return save_figure(figure, Path(run_dir) / "plot_learning_curve.jpg")


def plot_runs(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Plot many runs to ``out``, with one curve for runs that differ only in the seed; return the path."""
    if not run_dirs:
        raise ConfigError("there is no run to plot; name at least one run folder")
    runs = [read_run(run_dir) for run_dir in run_dirs]
    groups = group_runs(runs)
    env = runs[0].env if len({run.env for run in runs}) == 1 else None
    note = SEVERAL_SEEDS if any(len(group.runs) > 1 for group in groups) else "evaluation mean, 95 % band"
    figure, axes = make_canvas(runs[0].title if len(groups) == 1 else env or "Learning curves", note)
    for i, group in enumerate(groups):
        count = f"{len(group.runs)} seeds" if len(group.runs) > 1 else "1 seed"
        style = STYLES[i // len(COLOURS) % len(STYLES)]
        draw_seeds(axes, group.runs, COLOURS[i % len(COLOURS)], f"{group.label} ({count})", style)
    finish_axes(figure, axes, common_target(runs))
    return save_figure(figure, Path(out))


def common_target(runs: Sequence[Run]) -> float | None:
    """The target return of all these runs, if they have the same."""
    targets = {run.target for run in runs}
    return targets.pop() if len(targets) == 1 else None

"""``elegantrl plot RUN...``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..errors import CheckpointError, ConfigError
from ..report.plot import plot_runs
from .output import write_line
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Draw learning curves: one run in detail; several seeds as one with a 95 % band; several agents in colours."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]
    """Run folders."""
    out: Path = Path("learning_curves.png")
    """Picture to write; the suffix decides the format (png, jpg, svg, pdf)."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl plot")
    if flags.out.is_dir():
        raise ConfigError(f"--out {flags.out} is a folder; name a picture in it")
    for run in flags.runs:
        if not (run / "metrics.jsonl").exists():
            raise CheckpointError(f"{run} holds no metrics.jsonl; is it a run folder?")
    plot_runs(flags.runs, flags.out)
    write_line(str(flags.out))
    return 0

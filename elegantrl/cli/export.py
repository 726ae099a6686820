"""``elegantrl export RUN``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..deploy.export import FILES, Format, export
from .output import write_line
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Write the best policy of a run, or several runs as one ensemble, to a file that other programs load.

    Raw observations of the environment go in and its actions come out: normalisation, encoder and action bounds are
    inside. The file is compared with the policy on 1,000 observations before it is written.

    `elegantrl export runs/a`: policy.onnx, for ONNX Runtime; needs the extra elegantrl[export].

    `elegantrl export runs/a --format torch --out a.pt2`: for torch.export.load, which needs no elegantrl.

    `elegantrl export runs/a runs/b --weights 3 1`: two runs as one policy; the first has three times the weight.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]
    """A run folder, or several whose policies are averaged."""
    format: Format = "onnx"
    """Format of the file."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write; by default policy.onnx or policy.pt2 in this folder."""
    weights: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="")] = ()
    """Weight of each run in an ensemble; by default all are equal."""
    allow_import: tyro.conf.FlagCreatePairsOff[bool] = False
    """Trust the folder: import and run the code that it names by import path."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl export")
    made = export(
        flags.runs,
        format=flags.format,
        out=flags.out or FILES[flags.format],
        weights=flags.weights or None,
        allow_import=flags.allow_import,
    )
    agreement = made.agreement
    ties = f", {agreement.ties} ties" if agreement.ties else ""
    write_line(f"{made.path}: {made.num_bytes:,} bytes, {', '.join(made.inputs)} -> {', '.join(made.outputs)}")
    write_line(f"largest difference {agreement.difference:.2g} over {agreement.observations:,} observations{ties}")
    return 0

"""``elegantrl record RUN``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..report.video import record
from .output import write_line
from .parse import parse
from .playing import guard


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Record episodes of the best policy of a run as a video, without exploration.

    `elegantrl record runs/a`: one episode into runs/a/demo.mp4, or demo.gif without the extra elegantrl[video].

    `elegantrl record runs/a --episodes 3 --out a.gif`: three episodes in one file.

    `elegantrl record runs/a --env mine:Env`: a run whose environment is your own code.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
    """A run folder."""
    episodes: int = 1
    """Episodes to play; they begin with the seeds SEED, SEED + 1, ..."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write, .mp4 or .gif; by default demo.mp4 or demo.gif in the run folder, where pages show it."""
    seed: int = 0
    """Seed of the first episode."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV", help_behavior_hint="")] = None
    """Environment to play in, instead of the one the run was trained on; needed if that is `module:attribute`."""
    allow_import: tyro.conf.FlagCreatePairsOff[bool] = False
    """Trust the folder: import and run the code that it names by import path."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object instead of a sentence."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl record")
    video = guard(
        lambda: record(
            flags.run,
            flags.out,
            episodes=flags.episodes,
            seed=flags.seed,
            env=flags.env,
            allow_import=flags.allow_import,
        ),
        "the recording failed",
    )
    if flags.json:
        found = {"file": str(video.path), "returns": list(video.returns), "frames": video.num_frames}
        write_line(json.dumps(found))
    else:
        returns = ", ".join(f"{value:,.1f}" for value in video.returns)
        write_line(f"{video.path}: {video.num_frames} frames drawn, return{'s' * (flags.episodes > 1)} {returns}")
    return 0

"""``elegantrl watch FOLDER...`` and ``elegantrl report FOLDER...``: one page, live in a browser or as a file."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..population.report import read_page, write_report
from ..report.live import PageServer
from .output import write_line
from .parse import parse

Folders = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER...", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """Serve a page about runs or a population that updates itself: curves, leaderboard, lineage, resources."""

    folders: Folders
    """Folder of a run, folders of several runs to compare, or folder or address of a population; also while they are
    running."""
    port: int = 8008
    """Port of the page; 0 selects a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; any other than this machine's own lets others on the network read the page."""


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Write a page about runs or a population: one HTML file that needs no network.

    `elegantrl report runs/a`: one run with its losses, speed, settings, and the video of `elegantrl record`.

    `elegantrl report runs/ppo_* runs/sac_*`: a comparison; runs that differ only in the seed are one curve with a band.
    """

    folders: Folders
    """Folder of a run, folders of several runs to compare, or folder or address of a population."""
    out: Path = Path("report.html")
    """File to write."""


def watch_main(argv: list[str]) -> int:
    flags = parse(WatchFlags, argv, "elegantrl watch")
    read_page(flags.folders)  # refuses a folder that is neither, before a port is opened
    with PageServer(lambda: read_page(flags.folders), flags.host, flags.port) as server:
        write_line(f"{server.url} shows {', '.join(flags.folders)}; stop with Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def report_main(argv: list[str]) -> int:
    flags = parse(ReportFlags, argv, "elegantrl report")
    write_line(str(write_report(flags.folders, flags.out)))
    return 0

"""``elegantrl watch FOLDER`` and ``elegantrl report FOLDER``: one page, live in a browser or as a file."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..errors import ConfigError
from ..population.log import has_population, read_population
from ..population.page import population_page
from ..report.live import PageServer
from ..report.page import Page, render
from ..report.run_page import run_page
from ..store.files import write_atomic
from ..store.storage import open_storage
from .output import write_line
from .parse import parse

Folder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """Serve a page about a run or a population that updates itself: curves, leaderboard, lineage, resources."""

    folder: Folder
    """Folder of a run, or folder or address of a population, also while it is running."""
    port: int = 8008
    """Port of the page; 0 selects a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; any other than this machine's own lets others on the network read the page."""


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Write a page about a run or a population: one HTML file that needs no network."""

    folder: Folder
    """Folder of a run, or folder or address of a population."""
    out: Path = Path("report.html")
    """File to write."""


def watch_main(argv: list[str]) -> int:
    flags = parse(WatchFlags, argv, "elegantrl watch")
    read_page(flags.folder)  # refuses a folder that is neither, before a port is opened
    with PageServer(lambda: read_page(flags.folder), flags.host, flags.port) as server:
        write_line(f"{server.url} shows {flags.folder}; stop with Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def report_main(argv: list[str]) -> int:
    flags = parse(ReportFlags, argv, "elegantrl report")
    out = flags.out
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file in it")
    page = read_page(flags.folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, render(page).encode())
    write_line(str(out))
    return 0


def read_page(folder: str) -> Page:
    """The page of a population or of a run."""
    storage = open_storage(folder)
    try:
        if "://" in folder or has_population(storage):
            return population_page(read_population(storage), folder)
    finally:
        storage.close()
    return run_page(Path(folder))

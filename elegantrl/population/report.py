"""The page of any folders: of one run, of several runs, or of a population."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from ..report.compare_page import compare_page
from ..report.page import Page, render
from ..report.run_page import run_page
from ..store.files import write_atomic
from ..store.storage import open_storage
from .log import has_population, read_population
from .page import population_page


def read_page(folders: Sequence[str]) -> Page:
    """The page of a run or a population, or the comparison of several runs."""
    if not folders:
        raise ConfigError("FOLDER is missing; name a run, several runs, or a population")
    pages = [page for folder in folders if (page := _read_population(folder)) is not None]
    if pages and len(folders) > 1:
        raise ConfigError("a population has a page of its own; name it alone, or only runs")
    if pages:
        return pages[0]
    return run_page(Path(folders[0])) if len(folders) == 1 else compare_page([Path(folder) for folder in folders])


def _read_population(folder: str) -> Page | None:
    storage = open_storage(folder)
    try:
        if "://" in folder or has_population(storage):
            return population_page(read_population(storage), folder)
    finally:
        storage.close()
    return None


def write_report(folders: str | Path | Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write the page of a run, of several runs, or of a population to ``out``: one HTML file that needs no network."""
    path = Path(out)
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; name a file in it")
    page = read_page([str(folders)] if isinstance(folders, str | Path) else [str(folder) for folder in folders])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(page).encode())
    return path

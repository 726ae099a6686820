"""The notebooks run from top to bottom in a kernel of their own, with small budgets (``tests/pages.py``)."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.pages import ROOT

SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
QUICK = {"quickstart"}
FIRST = f"""\
import sys
sys.path[:0] = [{str(ROOT)!r}]
import pytest
from tests import pages
pages.shrink(pytest.MonkeyPatch())
"""


def read(source: Path) -> Any:
    """The notebook of a source."""
    jupytext = pytest.importorskip("jupytext", reason="needs the extra notebooks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jupytext.read(source)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_begins_with_a_title_and_an_install_cell(source: Path) -> None:
    title, install, *rest = read(source).cells
    assert title.cell_type == "markdown" and title.source.startswith("# ")
    assert install.cell_type == "code" and "google.colab" in install.source
    assert rest and all(cell.cell_type in ("markdown", "code") for cell in rest)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_install_cell_asks_for_the_address(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Colab; the repository has no address of its own to put there."""
    cell = read(source).cells[1].source
    commands: list[list[str]] = []
    monkeypatch.setattr("subprocess.check_call", commands.append)
    exec(cell, {})
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    with pytest.raises(ValueError, match="REPOSITORY is empty: write the address"):
        exec(cell, {})
    assert commands == []
    exec(cell.replace('REPOSITORY = ""', 'REPOSITORY = "https://example.org/us"'), {})
    assert len(commands) == 1 and commands[0][-1].endswith(" @ git+https://example.org/us")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "source",
    [pytest.param(s, id=s.stem, marks=[] if s.stem in QUICK else [pytest.mark.slow]) for s in SOURCES],
)
def test_runs(source: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebooks")
    notebook = read(source)
    notebook.cells[1].source = FIRST  # in the place of the install cell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Jupyter
        client = nbclient.NotebookClient(
            notebook,
            timeout=600,
            startup_timeout=300,
            kernel_name="python3",
            resources={"metadata": {"path": str(tmp_path)}},
        )
        client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs and all(output.output_type != "error" for output in outputs)

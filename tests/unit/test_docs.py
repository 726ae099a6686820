"""The Python blocks of the pages run, in order, in one folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
AS_NOTEBOOK = ("hooks.md", "look.md")
"""Pages whose functions are found in the main module, as in a notebook."""


@pytest.mark.parametrize("page", ["populations.md", "hooks.md", "look.md"])
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)
    assert blocks
    main = ModuleType("__main__")
    if page in AS_NOTEBOOK:
        monkeypatch.setitem(sys.modules, "__main__", main)
    for block in blocks:
        exec(compile(block, page, "exec"), vars(main))

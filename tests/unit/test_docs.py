"""The Python blocks of the pages run, in order, in one folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["populations.md", "hooks.md", "look.md"])
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "__main__"})

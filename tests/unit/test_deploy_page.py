"""Every block of code in docs/deploy.md runs, in order, in one folder."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import Served

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_code_blocks_run(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 8
    server: Served | None = None
    try:
        for language, block in blocks:
            if server is not None:
                block = block.replace(":8080", f":{server.port}")
            if language == "python":
                exec(compile(block, PAGE.name, "exec"), {"__name__": "__main__"})
                continue
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["elegantrl", "serve"]:
                    server = Served(*words[2:-1], "0")
                elif words[0] == "elegantrl":
                    assert cli(*words[1:]).code == 0
                elif shutil.which("curl"):
                    subprocess.run(words, check=True, capture_output=True)
    finally:
        if server is not None:
            assert server.stop(signal.SIGINT) == 0 and server.err == ""
    assert {"policy.onnx", "cart.pt2"} <= {path.name for path in tmp_path.iterdir()}

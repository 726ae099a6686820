"""The arithmetic of docs/scale.md, worked out by hand for one layout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.scale_arithmetic import Figures, load, main


def test_one_agent_with_a_thousand_workers() -> None:
    x = load(Figures(), agents=1, workers=1000)
    assert x.steps == 2e6
    assert x.into_learner == 576e6  # 2 M steps of 288 bytes
    assert x.weights == pytest.approx(32 * 2.2e6)  # 1000 workers are on 32 nodes
    assert x.results == 0
    calls = 2e6 / 8192 * 3  # 732 per second
    assert x.shares["supervisor"] == pytest.approx(calls * 137e-6)
    assert x.shares["network of a learner"] == pytest.approx(576e6 / 1.25e9)


def test_a_population() -> None:
    x = load(Figures(), agents=1000, workers=5)
    assert x.commits == pytest.approx(1000 * 20e6 / 60)
    assert x.shares["controller"] == pytest.approx(1000 / 60 / 5000)


def test_the_page_shows_what_the_script_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text().replace("\\\n", "")
    match = re.search(r"scale_arithmetic\.py( --.*)?$", page, re.MULTILINE)
    assert match is not None
    words = (match[1] or "").split()
    main(
        Figures(
            **{name[2:].replace("-", "_"): float(value) for name, value in zip(words[::2], words[1::2], strict=True)}
        )
    )
    assert capsys.readouterr().out in page

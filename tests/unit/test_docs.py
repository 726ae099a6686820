"""The code of the documentation runs; ``tests/pages.py`` says which, and how it is kept short."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elegantrl import registry
from tests import pages

PAGES = pages.page_names()


def is_slow(page: str) -> bool:
    return "<!-- test: slow -->" in (pages.DOCS / page).read_text(encoding="utf-8").splitlines()


def has_code(page: str) -> bool:
    if page in pages.ELSEWHERE:
        return False
    return any(block.language == "python" or pages.commands_of(block) for block in pages.blocks_of(page))


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.slow] if is_slow(p) else []) for p in PAGES if has_code(p)]
)
def test_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.shrink(monkeypatch)
    monkeypatch.setattr(registry, "_AGENTS", dict(registry._AGENTS))  # a page may register one
    monkeypatch.chdir(tmp_path)
    module = pages.main_module()
    monkeypatch.setitem(sys.modules, "__main__", module)
    for name, placeholder in pages.placeholders().items():
        monkeypatch.setitem(sys.modules, name, placeholder)
    pages.run_page(page, module)


def test_the_first_steps_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.shrink(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in pages.blocks_of("../README.md") if "elegantrl export runs/first" in block.text)
    commands = pages.commands_of(block)
    assert len(commands) + 2 < 10  # a clone and the installation come before them
    for words in commands:
        if not pages.not_run(words):
            pages.run_command(words, block)
    assert {"report.html", "policy.onnx"} <= {path.name for path in tmp_path.iterdir()}
    assert any(Path("runs/first").glob("demo.*"))


SKIPPED = [block for page in PAGES for block in pages.blocks_of(page) if block.skipped]


@pytest.mark.parametrize("block", SKIPPED, ids=lambda block: block.name)
def test_block_does_not_run(block: pages.Block) -> None:
    """Lists the blocks that no test runs, each with its reason: ``pytest -rs tests/unit/test_docs.py``."""
    pytest.skip(block.skipped)


@pytest.mark.parametrize("page", [page for page in pages.ELSEWHERE if page in PAGES])
def test_page_that_another_test_runs(page: str) -> None:
    assert (pages.ROOT / pages.ELSEWHERE[page]).is_file()


def test_every_block_is_of_a_known_kind() -> None:
    """A block in a language that is spelt differently would silently not run."""
    known = {"python", "console", "bash", "indented", "", "text", "yaml", "toml", "json"}
    found = {b.language for page in PAGES for b in pages.blocks_of(page) if not b.language.startswith("{")}
    assert found <= known


def test_pages_are_found_and_parsed() -> None:
    """Hidden code, a reason, a prompt and a continued line, as the collector sees them."""
    page = "tutorials/parallel_training.md"
    commands = [words for block in pages.blocks_of(page) for words in pages.commands_of(block)]
    assert page in PAGES and ["elegantrl", "train"] in [words[:2] for words in commands]
    block = pages.Block(
        "p",
        1,
        "console",
        "$ elegantrl train ppo A \\\n    --seed 1  # why\noutput\n$ elegantrl envs ; elegantrl agents\n",
    )
    assert pages.commands_of(block) == [
        ["elegantrl", "train", "ppo", "A", "--seed", "1"],
        ["elegantrl", "envs"],
        ["elegantrl", "agents"],
    ]

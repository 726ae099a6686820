"""The container file, and entrypoints of manifests that our parser accepts; nothing here needs other tools."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from elegantrl.cli.main import find_command
from elegantrl.cli.train import parse_run
from elegantrl.config.resolve import resolve_config

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"


# ---- entrypoints


def entrypoints(command: str) -> list[Any]:
    """The words after ``elegantrl COMMAND`` of every entrypoint in deploy/."""
    ends = rf"elegantrl ({command} [^#]*?)(?=\n\s*\w+:|\n\s*- |\Z)"
    texts = {path: re.findall(ends, path.read_text()) for path in sorted(DEPLOY.rglob("*.yaml"))}
    return [pytest.param(shlex.split(text)[1:], id=path.parent.name) for path, found in texts.items() for text in found]


@pytest.mark.parametrize("words", entrypoints("train"))
def test_train_entrypoints_are_accepted_by_our_parser(words: list[str]) -> None:
    flags, overrides = parse_run(words[0], words[1], words[2:])
    resolve_config(words[0], words[1], overrides)
    assert flags.restartable and str(flags.run_dir).startswith("/storage/")
    assert overrides["execute"]["executor"] == "ray" and overrides["execute"]["address"] == "auto"


class Accepted(Exception):
    pass


@pytest.mark.parametrize("words", entrypoints("evolve"))
def test_evolve_entrypoints_are_accepted_by_our_parser(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(*args: Any) -> None:
        raise Accepted

    monkeypatch.setattr("elegantrl.cli.evolve.continues", lambda flags: False)  # there is no such bucket here
    monkeypatch.setattr("elegantrl.cli.evolve.run_population", accept)
    with pytest.raises(Accepted):
        find_command("evolve")(words)


def test_every_entrypoint_was_found() -> None:
    texts = "".join(path.read_text() for path in DEPLOY.rglob("*.yaml"))
    assert len(entrypoints("train")) + len(entrypoints("evolve")) == texts.count("--executor ray") == 4


# ---- the container file


def test_container_file() -> None:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    stages = [number for number, (word, _) in enumerate(lines) if word == "FROM"]
    assert len(stages) == 2
    last = dict(lines[stages[-1] :])
    assert last["USER"] == "1000:1000" and last["ENTRYPOINT"] == '["tini", "--"]'
    final = " ".join(rest for _, rest in lines[stages[-1] :])
    assert not re.search(r"pip|build-essential|gcc|curl|wget", final)
    for word, rest in lines:
        assert word != "ADD" and ":latest" not in rest
        assert "pip install" not in rest or "-c constraints.txt" in rest
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installed,) = re.findall(r'"\.\[([\w,]+)\]"', text)
    assert {"ray", "cloud"} <= set(installed.split(",")) <= extras.keys()


def test_the_context_of_the_image_holds_what_it_copies() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == kept and all((PROJECT / name).exists() for name in names)

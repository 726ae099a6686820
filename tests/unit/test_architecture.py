"""Who may import whom, what agents must not do, public names, and the frozen list of options."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import pytest

import elegantrl
from elegantrl.config import SECTIONS
from elegantrl.registry import agent_names, find_agent

ROOT = Path(elegantrl.__file__).parent
OPTIONS = Path(__file__).parent / "options.txt"

LAYERS = [
    {"types", "errors", "rng", "settings", "failpoints"},
    {"nets", "envs", "data"},
    {"agents"},
    {"registry", "config", "defaults"},
    {"train", "execute"},
    {"cli", "compat", "__init__", "__main__"},
]
"""From the ground up: a unit imports from its own layer and from those below."""

NEVER = {
    "agents": {"envs", "train", "execute"},
    "nets": {"envs", "data"},
    "envs": {"nets", "data"},
    "data": {"nets", "envs"},
    "execute": {"train", "agents", "nets", "envs", "data", "registry", "config"},
}
"""What is forbidden beyond the order of layers."""


def unit_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    """The units of elegantrl that a file imports, at whatever depth of its code."""
    module = ["elegantrl", *path.relative_to(ROOT).with_suffix("").parts]
    package = module[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        targets: list[list[str]] = []
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            targets = [[*base, alias.name] for alias in node.names]
        found |= {target[1] for target in targets if target[0] == "elegantrl" and len(target) > 1}
    return found - {"__version__"}


FILES = sorted(ROOT.rglob("*.py"))


def layer(unit: str) -> int:
    (index,) = [i for i, units in enumerate(LAYERS) if unit in units]
    return index


def test_every_unit_has_a_layer() -> None:
    known = set().union(*LAYERS)
    assert {unit_of(path) for path in FILES} <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_import_direction(path: Path) -> None:
    unit = unit_of(path)
    for target in imported_units(path):
        assert layer(target) <= layer(unit), f"{unit} imports {target}, which lies above it"
        assert target not in NEVER.get(unit, set()), f"{unit} must not import {target}"


def test_the_import_reader_sees_what_it_should() -> None:
    assert {"settings", "types", "nets", "agents"} <= imported_units(ROOT / "agents" / "ppo.py")
    assert {"train", "config"} <= imported_units(ROOT / "__init__.py")


@pytest.mark.parametrize("path", sorted((ROOT / "agents").glob("*.py")), ids=lambda path: path.name)
def test_agents_leave_devices_and_the_terminal_alone(path: Path) -> None:
    text = re.sub(r"#.*", "", path.read_text())
    for word in (".item(", ".cpu(", ".cuda(", "print(", ".data\n", ".data ", "if_", ".numpy(", ".tolist("):
        lines = [line for line in text.splitlines(keepends=True) if word in line]
        # Setting a generator's state takes a tensor on the host, whatever device it draws on.
        lines = [line for line in lines if "set_state(" not in line]
        assert not lines, f"{path.name}: {lines[0].strip()}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            assert len(node.args) == 2, f"{path.name}:{node.lineno} hides a missing attribute"


def test_public_names_exist() -> None:
    assert len(set(elegantrl.__all__)) == len(elegantrl.__all__)
    for name in elegantrl.__all__:
        assert getattr(elegantrl, name) is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_ascii_and_every_module_imports(path: Path) -> None:
    path.read_text(encoding="ascii")
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    if parts[-1] != "__main__":
        importlib.import_module(".".join(parts).removesuffix(".__init__"))


def option_lines() -> list[str]:
    kinds = {**SECTIONS, **{f"agent {name}": find_agent(name).config for name in agent_names()}}
    return [f"{title}: {f.name}" for title, kind in kinds.items() for f in dataclasses.fields(kind)]


def test_options_are_the_frozen_ones() -> None:
    """A name that users write in files and on command lines does not change by accident; add new ones to the list."""
    assert option_lines() == OPTIONS.read_text().splitlines()

"""Who may import whom, what agents must not do, public names, and the frozen list of options."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import elegantrl
from elegantrl import errors
from elegantrl.config.fields import used_fields
from elegantrl.config.sections import SECTIONS
from elegantrl.population.config import PopulationConfig
from elegantrl.registry import agent_names, find_agent

ROOT = Path(elegantrl.__file__).parent
OPTIONS = Path(__file__).parent / "options.txt"
PROJECT = Path(__file__).parents[2]

LAYERS = [
    {"types", "tree", "imports", "errors", "rng", "config.fields", "failpoints", "devices"},
    {"nets", "envs", "data"},
    {"agents"},
    {"registry"},
    {"config", "execute"},
    {"fast"},
    {"roles"},
    {"store"},
    {"report"},
    {"runtime"},
    {"population"},
    {"deploy", "finance"},
    {"cli", "compat", "testing", "simulation", "__init__", "__main__"},
]
"""From the ground up: a unit imports from its own layer and from those below."""

NEVER = {
    "agents": {"envs"},
    "nets": {"envs", "data"},
    "envs": {"nets", "data"},
    "data": {"nets", "envs"},
    "execute": {"agents", "nets", "envs", "data", "registry", "config", "store"},
    "deploy": {"agents", "data", "execute", "registry", "fast", "roles", "report", "runtime", "population"},
}
"""What is forbidden beyond the order of layers."""


def unit(parts: Sequence[str]) -> str:
    """A room, or a module that lies in another layer than the rest of its room."""
    address = ".".join(parts[:2])
    return address if any(address in units for units in LAYERS) else parts[0]


def unit_of(path: Path) -> str:
    return unit(path.relative_to(ROOT).with_suffix("").parts)


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
        found |= {unit(target[1:]) for target in targets if target[0] == "elegantrl" and len(target) > 1}
    return found - {"__version__"}


FILES = sorted(ROOT.rglob("*.py"))


def layer(unit: str) -> int:
    (index,) = [i for i, units in enumerate(LAYERS) if unit in units]
    return index


def test_no_file_is_too_long_to_read_at_once() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > 350} == {}


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
    assert {"config.fields", "types", "nets", "agents"} <= imported_units(ROOT / "agents" / "ppo.py")
    assert {"runtime", "config"} <= imported_units(ROOT / "__init__.py")


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


FORBIDDEN_IN_AGENTS = {"os", "mmap", "time", "multiprocessing", "threading", "logging", "numpy", "torch.distributed"}


@pytest.mark.parametrize("path", sorted((ROOT / "agents").glob("*.py")), ids=lambda path: path.name)
def test_agents_know_no_process_file_clock_or_array(path: Path) -> None:
    """An agent is mathematics on tensors; accelerators, which need the machine, live in ``fast``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    assert not {name for name in found if name in FORBIDDEN_IN_AGENTS or name.split(".")[0] in FORBIDDEN_IN_AGENTS}


EXCEPTIONS = {name for name, value in [*vars(builtins).items(), *vars(errors).items()]
              if isinstance(value, type) and issubclass(value, BaseException)}  # fmt: skip


def errors_not_raised(source: str) -> list[int]:
    """Lines that build an error and let it go."""
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    return [
        node.lineno
        for node in statements
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).split(".")[-1] in EXCEPTIONS
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_errors_are_raised_and_not_only_built(path: Path) -> None:
    """Guards against: R1, an error that is built and let go."""
    assert errors_not_raised(path.read_text()) == []


def test_the_search_for_errors_that_are_not_raised_finds_them() -> None:
    source = "ValueError('x')\nraise ValueError('x')\nif a:\n    errors.ConfigError('x')\nerror = KeyError('x')"
    assert errors_not_raised(source) == [1, 4]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_changes_how_the_callers_processes_start(path: Path) -> None:
    """Guards against: R9, a start method set for the whole program; a context of one's own is the way."""
    assert "set_start_method" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_decision_depends_on_the_calendar(path: Path) -> None:
    """A clock that is set forward or back ends no run and stretches no time limit: only monotonic clocks are read."""
    assert not re.search(r"\btime\.time\(|\bfrom time import\b|\b(now|utcnow|today)\(", path.read_text())


def test_a_worker_knows_no_agent() -> None:
    """Guards against: R9, workers that build critics and optimisers."""
    assert "agents" not in imported_units(ROOT / "roles" / "worker.py")
    assert "agents" not in imported_units(ROOT / "roles" / "evaluator.py")


# ---- the project around the package


def plain(requirement: str) -> str:
    """The name of a distribution without version and extras."""
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def declared() -> tuple[set[str], set[str]]:
    """What the package asks for, and what its extras add."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    core = {plain(line) for line in project["dependencies"]}
    extras = {plain(line) for lines in project["optional-dependencies"].values() for line in lines}
    return core, extras - core - {"elegantrl"}


def foreign_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"elegantrl", "__future__"}


NOT_INSTALLED = {"mlflow": "mlflow-skinny"}
"""Modules that the development extra does not install, and the distributions that have them under another name."""


def test_declared_dependencies_are_those_that_are_imported() -> None:
    """Guards against: Z3, a requirement by the name of somebody else's distribution, or one that is missing."""
    core, extras = declared()
    owners = packages_distributions()
    used = set()
    for name in set().union(*map(foreign_imports, FILES)):
        # What is not installed is an extra of the same name.
        owner = {plain(o) for o in owners.get(name, [NOT_INSTALLED.get(name, name)])}
        assert owner & (core | extras), f"{name} is imported and not declared"
        used |= owner
    assert core <= used
    assert "th" not in core | extras


def test_the_package_imports_without_its_extras() -> None:
    """Guards against: Z3, a clean install that does not import."""
    _, extras = declared()
    modules = [name for name, owner in packages_distributions().items() if {plain(o) for o in owner} & extras]
    assert "pytest" in modules
    block = f"import sys; sys.modules.update(dict.fromkeys({[*modules, 'Box2D', 'mujoco']!r}))"
    code = f"{block}; import elegantrl, elegantrl.compat, elegantrl.cli.main; elegantrl.make_env('CartPole-v1')"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT.parent)})


HELPERS = {
    "accelerator.py",
    "cases.py",
    "choosing.py",
    "conftest.py",
    "deployed.py",
    "episode_games.py",
    "golden.py",
    "listed.py",
    "markets.py",
    "names.py",
    "pages.py",
    "samples.py",
    "serving.py",
    "team_games.py",
    "team_worlds.py",
    "teams.py",
}


def test_ci_runs_the_whole_suite() -> None:
    """Guards against: Z6, tests that nothing runs and files that the runner does not collect."""
    ci = PROJECT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    commands = ci.read_text().splitlines()
    assert {"make lint", "make types", "make test"} <= set(commands) and "set -euo pipefail" in commands
    assert re.search(r"^test:.*\n\t.*-m pytest .*tests$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    for path in sorted((PROJECT / "tests").rglob("*.py")):
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        assert path.name in HELPERS or path.name.startswith("test_"), path
        assert path.name in HELPERS or any(name.startswith("test_") for name in names), path
        assert not [name for name in names if name.startswith("check_")], path


GUARDS = re.compile(r"Guards against: ([A-Z]+\d+b?(?: and [A-Z]+\d+b?)*),")


def guarded_rows() -> set[tuple[str, str, str]]:
    """(row, file, test) of every test that says what it guards against."""
    found = set()
    for path in (PROJECT / "tests").rglob("test_*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for rows in GUARDS.findall("\n".join(lines[node.lineno - 1 : node.end_lineno])):
                    name = str(path.relative_to(PROJECT / "tests"))
                    found |= {(row, name, node.name) for row in re.findall(r"\w+", rows) if row != "and"}
    return found


def test_every_known_fault_has_its_tests() -> None:
    """The table of faults names the tests that guard against them, and these tests name their rows."""
    listed = set()
    for line in (PROJECT / "tests" / "faults.md").read_text().splitlines():
        if match := re.match(r"\| (\w+\d\w*) \|", line):
            for file, names in re.findall(r"`([^`]+)` ([^`|;]+)", line.split("|")[3]):
                listed |= {(match[1], file, name.strip()) for name in names.split(",")}
    assert len({row for row, _, _ in listed}) > 50
    assert listed == guarded_rows()


def test_every_failure_names_tests_that_exist() -> None:
    """The table of failures promises nothing that is not shown."""
    rows = re.findall(r"^\| \d+\w? \|.*$", (PROJECT / "tests" / "failures.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        shown = re.findall(r"`([^`]+\.py)` ([^`|;]+)", row.split("|")[3])
        assert shown or "not yet" in row, row
        for file, names in shown:
            defined = re.findall(r"^def (test_\w+)", (PROJECT / "tests" / file).read_text(), re.MULTILINE)
            assert set(re.findall(r"test_\w+", names)) <= set(defined), row


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
    kinds = {
        **SECTIONS,
        "population": PopulationConfig,
        **{f"agent {name}": find_agent(name).config for name in agent_names()},
    }
    return [f"{title}: {f.name}" for title, kind in kinds.items() for f in used_fields(kind)]


def test_options_are_the_frozen_ones() -> None:
    """A name that users write in files and on command lines does not change by accident; add new ones to the list."""
    assert option_lines() == OPTIONS.read_text().splitlines()

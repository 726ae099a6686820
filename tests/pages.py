"""The code of the documentation: finds it in the pages, and runs it with small budgets in this process.

A page is Markdown. What runs, in order, in one folder and one namespace of the page:

- blocks marked ``python``;
- commands ``elegantrl ...`` in blocks marked ``console`` (after a ``$``) or ``bash``, and in indented blocks;
- Python in a comment ``<!-- test: run`` ... ``-->``: what a block needs and the page does not show.

``<!-- test: skip, REASON -->`` before a block leaves it out; ``<!-- test: slow -->`` on a line of its own makes the
whole page a slow test. Commands of other programs do not run; ``NOT_RUN`` says why.

``shrink`` makes every run small: few steps, one epoch, short evaluations, no processes. A page may so say
``max_steps=1_000_000`` and still be tested; what large budgets and processes do is the subject of other tests.
"""

from __future__ import annotations

import re
import shlex
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest

from elegantrl.cli.main import main
from elegantrl.config import resolve
from elegantrl.config.run import RunConfig
from elegantrl.population import evolve as evolve_module
from elegantrl.population.config import PopulationConfig
from elegantrl.report import plot
from elegantrl.store.loggers import LOGGERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

NOT_RUN = {
    "elegantrl watch": "serves a page until it is stopped; tests/unit/test_page.py",
    "elegantrl serve": "serves until it is stopped",
    "elegantrl submit": "needs a cluster; tests/fault/test_submit.py",
    "elegantrl bench": "measures for a minute",
    "elegantrl finance": "trains for minutes; tests/unit/test_finance_backtest.py",
    "elegantrl backtest": "needs such a training",
    "curl": "needs a server; tests/unit/test_serve_requests.py",
    "docker": "needs a container engine",
    "export": "sets a variable of the shell",
    "kill": "needs a process",
    "kubectl": "needs a cluster",
    "make": "installs and runs other things",
    "pip": "installs packages",
    ".venv/bin/pip": "installs packages",
    "pytest": "runs tests",
    "python": "runs for minutes; examples and benchmarks have tests of their own",
    "python3": "makes a virtual environment",
    "ray": "starts a cluster",
    "source": "changes the shell",
    "tensorboard": "serves until it is stopped",
}
"""Programs, and commands of ours, that the pages show and the tests do not run."""


ELSEWHERE = {
    "deploy.md": "tests/unit/test_deploy_page.py",
    "helloworld.md": "tests/helloworld/test_helloworld_runs.py",
}
"""Pages whose code another test runs, because it needs more than this module has."""


ONLY_PYTHON = {
    "hooks.md": "its commands name modules of a reader and extras",
    "look.md": "its commands name runs that the page makes later, and extras",
}
"""Pages of which only the Python blocks run."""


class Block(NamedTuple):
    """A piece of code of a page."""

    page: str
    line: int
    language: str
    text: str
    skipped: str = ""  # the reason

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def page_names() -> list[str]:
    """All pages, relative to the folder of the documents."""
    return sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "_build" not in path.parts)


def blocks_of(page: str) -> Iterator[Block]:
    """Fenced and indented blocks and hidden code, in order."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    i, skipped = 0, ""
    while i < len(lines):
        line, start = lines[i], i + 1
        if match := re.match(r"<!-- test: skip, (.+?) -->$", line):
            skipped = match[1]
        elif line == "<!-- test: run":
            i, text = until(lines, start, lambda text: text == "-->")
            yield Block(page, start, "python", text)
        elif match := re.match(r"(`{3,})(.*)$", line):
            fence, language = match[1], match[2].strip()
            i, text = until(lines, start, lambda text, fence=fence: text.rstrip() == fence)
            yield Block(page, start, language, text, skipped)
            skipped = ""
        elif line.startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            i, text = until(lines, i, lambda text: bool(text) and not text.startswith("    "))
            i -= 1
            yield Block(page, start, "indented", text, skipped)
            skipped = ""
        elif line.strip():
            skipped = ""
        i += 1


def until(lines: list[str], start: int, ends: Callable[[str], bool]) -> tuple[int, str]:
    """The number of the first line from ``start`` on that ends a block, and the text before it."""
    stop = next((i for i in range(start, len(lines)) if ends(lines[i])), len(lines))
    return stop, "\n".join(lines[start:stop]) + "\n"


def commands_of(block: Block) -> list[list[str]]:
    """The commands of a block for a shell as lists of words; lines without a prompt in a console are output."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    if block.language == "console":
        lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    elif block.language == "bash":
        lines = joined.splitlines()
    elif block.language == "indented":
        lines = [line.strip() for line in joined.splitlines() if line.strip().startswith("elegantrl ")]
    else:
        return []
    parsed = [shlex.split(part, comments=True) for line in lines for part in re.split(r" (?:;|&&) ", line)]
    return [words for words in parsed if words]


def not_run(words: list[str]) -> str:
    """Why a command does not run; empty if it does."""
    if "--video" in words:
        return "needs an extra; tests/unit/test_video.py"
    return NOT_RUN.get(" ".join(words[:2])) or NOT_RUN.get(words[0]) or ""


def run_page(page: str, module: types.ModuleType) -> None:
    """Run the code of a page in the present folder; ``module`` holds its names and is the main module."""
    for block in blocks_of(page):
        if block.skipped or (page in ONLY_PYTHON and block.language != "python"):
            continue
        if block.language == "python":
            # As many empty lines in front as the page has lines, so that a traceback names the line of the page.
            code = compile("\n" * block.line + block.text, str(DOCS / page), "exec", dont_inherit=True)
            exec(code, module.__dict__)
        for words in commands_of(block):
            if not not_run(words):
                run_command(words, block)


def run_command(words: list[str], block: Block) -> None:
    assert words[0] == "elegantrl", f"{block.name}: {words[0]} is in no table of programs"
    try:
        # Folders such as /storage/run are made below the present one.
        code: Any = main([word.removeprefix("/") for word in words[1:]])
    except SystemExit as stop:
        code = stop.code
    assert code in (0, None), f"{block.name}: {shlex.join(words)} ended with {code}"


def main_module() -> types.ModuleType:
    """A main module without a file, as in a notebook."""
    module = types.ModuleType("__main__")
    module.__dict__["__name__"] = "__main__"
    return module


class Placeholder(gym.Env[Any, Any]):
    """The environment of a reader, which pages name and do not show."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, bool(self.np_random.random() < 0.1), False, {}


class PlaceholderOfNumbers(Placeholder):
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)


def placeholders() -> dict[str, types.ModuleType]:
    """The modules of a reader that pages name."""
    found = {"my_sim": {"Env": Placeholder, "Arm": PlaceholderOfNumbers}, "my_package": {"MyEnv": Placeholder}}
    modules = {name: types.ModuleType(name) for name in found}
    for name, module in modules.items():
        module.__dict__.update(found[name])
    return modules


# ---- small budgets

STEPS = 48
AGENT_LIMITS = {
    "horizon": 4,
    "num_epochs": 1,
    "learning_starts": 16,
    "buffer_size": 4096,
    "batch_size": 32,
    "updates_per_step": 1.0,
}


def small(config: RunConfig) -> RunConfig:
    """The same run with few steps, small batches and short evaluations, in one process on the CPU."""
    names = {f.name for f in fields(config.agent)}
    limits = {name: min(limit, getattr(config.agent, name)) for name, limit in AGENT_LIMITS.items() if name in names}
    if "num_epochs" in names:  # minibatches of a rollout may be large, and cost more if they are many
        limits.pop("batch_size")
    # A larger budget stays larger, so that a page can continue a run.
    max_steps = min(config.train.max_steps, STEPS + min(config.train.max_steps // 1000, STEPS))
    return replace(
        config,
        agent=replace(config.agent, **limits),
        env=replace(config.env, num_groups=config.num_groups),
        train=replace(config.train, max_steps=max_steps, device="cpu", num_threads=1),
        execute=replace(config.execute, executor="inline", address=None, num_learners=0, core_helper="off"),
        eval=replace(config.eval, episodes=min(config.eval.episodes, 2), interval=10**9, max_episode_steps=25),
        checkpoint=replace(config.checkpoint, interval=10**9),
    )


def small_population(config: PopulationConfig) -> PopulationConfig:
    limits = {"members": 2, "periods": 2, "episodes": 2, "pods": 2}
    few = {name: min(limit, getattr(config, name)) for name, limit in limits.items()}
    return replace(config, **few, period_steps=STEPS, period_seconds=None, executor="inline", address=None)


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make all runs of this process small, until ``patch`` is undone."""
    build, completed = resolve.Sections.build, evolve_module.completed
    patch.setattr(resolve.Sections, "build", lambda self: small(build(self)))
    patch.setattr(evolve_module, "completed", lambda config, source: completed(small_population(config), source))
    patch.setattr(plot, "plot_run", lambda *_: None)
    patch.setitem(LOGGERS, "tensorboard", lambda run: Mock())

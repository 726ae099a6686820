"""What the tests share: one torch thread, quick runs without pictures, and a hash of what a commit holds."""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

import elegantrl
from elegantrl import tree
from elegantrl.cli.main import main
from elegantrl.config import resolve as resolve_module
from elegantrl.config.recipes import Recipe
from elegantrl.report import plot as plot_module
from elegantrl.runtime.build import PRELOAD
from elegantrl.runtime.run import RunResult
from elegantrl.store.commits import Store
from elegantrl.store.loggers import LOGGERS
from elegantrl.types import ActionSpec, EnvSpec, Rollout

# N18: background jobs start with SIGINT ignored, jobs under nohup with SIGHUP ignored. So would every process that a
# test starts and sends these signals to.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


# Whatever starts the fork server first decides what it has imported. SAC's helper process names nothing; every child of
# all later tests would then import torch and the library by itself, which takes seconds.
multiprocessing.set_forkserver_preload(["elegantrl.execute.child", *PRELOAD, "elegantrl.execute.server"])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.manual_seed(0)  # weights that a test does not choose are the same in every order of tests
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run_quietly(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunResult]:
    """``elegantrl.train`` without tuned settings, and without pictures and event files, which cost more than a run."""
    monkeypatch.setattr(resolve_module, "find_recipe", lambda *_: Recipe("none"))
    monkeypatch.setattr(plot_module, "plot_run", lambda *_: None)
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: Mock())

    def run(agent: Any, env: Any = None, **settings: Any) -> RunResult:
        return elegantrl.train(agent, env, **settings)

    return run


NOT_REPEATABLE = ("wall_seconds",)


def add_to_hash(digest: Any, value: Any, path: str) -> None:
    """Feed every key, dtype, shape and bit of a state, in sorted order of keys."""
    digest.update(path.encode())
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, dict):
        for key in sorted(value):
            if key not in NOT_REPEATABLE:
                add_to_hash(digest, value[key], f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            add_to_hash(digest, item, f"{path}/{index}")
    else:
        digest.update(repr(value).encode())


def state_hash(state: Any) -> str:
    digest = hashlib.sha256()
    add_to_hash(digest, state, "")
    return digest.hexdigest()


def last_commit(run_dir: Path) -> dict[str, Any]:
    """Every part of the newest commit."""
    commit = Store(run_dir).latest_valid()
    assert commit is not None
    return {part: commit.load(part) for part in commit.parts}


@pytest.fixture
def hash_state() -> Callable[[Any], str]:
    return state_hash


@pytest.fixture
def load_commit() -> Callable[[Path], dict[str, Any]]:
    return last_commit


def spec_of(kind: str, obs_dim: int = 3, action_dim: int = 2, num_envs: int = 1) -> EnvSpec:
    actions = {
        "discrete": ActionSpec(choices=(action_dim,)),
        "multi_discrete": ActionSpec(choices=(action_dim, action_dim + 1)),
        "continuous": ActionSpec(dim=action_dim),
    }
    return EnvSpec("Made", (obs_dim,), actions[kind], num_envs)


@pytest.fixture
def make_spec() -> Callable[..., EnvSpec]:
    return spec_of


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    """Random rollouts whose rows fit together: the successor is the next row's observation unless an episode ended."""

    def make(
        agent: Any, kind: str, steps: int, lanes: int, obs_dim: int = 3, action_dim: int = 2, seed: int = 0
    ) -> Any:
        g = torch.Generator().manual_seed(seed)
        obs = torch.randn(steps + 1, lanes, obs_dim, generator=g)
        terminated = torch.rand(steps, lanes, generator=g) < 0.15
        truncated = (torch.rand(steps, lanes, generator=g) < 0.2) & ~terminated
        ended = (terminated | truncated).unsqueeze(-1)
        next_obs = torch.where(ended, torch.randn(steps, lanes, obs_dim, generator=g), obs[1:])
        with torch.no_grad():
            draws = agent.policy.draw(steps, lanes, g)
            initial = carry = agent.policy.initial_carry(lanes)
            acted = []
            for seen, draw, end in zip(obs[:-1], draws, terminated | truncated, strict=True):
                acted.append(agent.policy.explore(seen, carry, draw))
                carry = tree.where(end, initial, acted[-1].carry)
            action, out, _ = tree.stack(acted)
            kept = agent.policy.kept(out, action)
        reward = torch.randn(steps, lanes, generator=g)
        return Rollout(obs[:-1], action, reward, terminated, truncated, next_obs, kept, initial)

    return make


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray on this machine that all tests of a process share; executors use it as they find it."""
    from elegantrl.execute.ray_cluster import Connection

    connection = Connection()
    yield
    connection.close()


@dataclass
class Outcome:
    """How a call of the command line ended."""

    code: Any
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("elegantrl: ") and "Traceback" not in self.err
        return lines[0].removeprefix("elegantrl: ")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Calls the command line in this process."""

    def call(*argv: Any) -> Outcome:
        try:
            code: Any = main([str(word) for word in argv])
        except SystemExit as stop:
            code = stop.code
        return Outcome(code, *capsys.readouterr())

    return call

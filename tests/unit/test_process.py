"""What a run asks of its process, and gives back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from elegantrl import train
from elegantrl.agents.optim import GradStep
from elegantrl.execute.process import ProcessExecutor
from elegantrl.execute.settle import flush_denormals, settle_and
from elegantrl.runtime.build import PRELOAD


def has_tiny_numbers() -> bool:
    return bool(torch.tensor(1e-30) * 1e-10 > 0)


class Role:
    def has_tiny_numbers(self) -> bool:
        return has_tiny_numbers()

    def close(self) -> None: ...


def settled() -> Role:
    return settle_and(Role, 1)


@pytest.fixture(autouse=True)
def tiny_numbers() -> Iterator[None]:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no such switch")
    yield
    torch.set_flush_denormal(False)


def test_tiny_numbers_are_zero_within_and_as_before_afterwards() -> None:
    with flush_denormals():
        assert not has_tiny_numbers()
        with flush_denormals():
            pass
        assert not has_tiny_numbers()
    assert has_tiny_numbers()


def test_a_run_leaves_the_caller_its_tiny_numbers(tmp_path: Path) -> None:
    train("ppo", "TensorCartPole", run_dir=tmp_path / "run", num_envs=2, horizon=4, max_steps=8)
    assert has_tiny_numbers()


def test_roles_in_processes_have_none() -> None:
    executor = ProcessExecutor(PRELOAD)
    try:
        (role,) = executor.spawn_all([settled])
        assert role.call("has_tiny_numbers").result() is False
    finally:
        executor.close()


def test_averages_of_a_gradient_that_stays_away_end_at_zero() -> None:
    """What is too small to change anything must not slow down Adam for the rest of the run."""
    with flush_denormals():
        step = GradStep([nn.Parameter(torch.ones(1))], torch.tensor(1e-3))
        step.follow(torch.ones(1))
        for _ in range(1000):
            step.follow(torch.zeros(1))
        assert step.mean.item() == 0.0

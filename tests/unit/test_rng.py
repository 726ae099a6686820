"""Random streams: a function of their key alone, unrelated to each other."""

from __future__ import annotations

import subprocess
import sys

import torch

from elegantrl.rng import derive_seed, numpy_stream, torch_stream


def test_a_seed_is_fixed_for_ever() -> None:
    """A changed value would silently change every published result."""
    assert derive_seed(0, "init") == 3912388711783151084
    assert derive_seed(1, "env", 0) == derive_seed(1, "env", "0")


def test_a_seed_does_not_depend_on_the_process() -> None:
    code = "from elegantrl.rng import derive_seed; print(derive_seed(7, 'act', 3))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) == derive_seed(7, "act", 3)


def test_different_keys_give_different_seeds_in_range() -> None:
    keys = [(run, role, slot) for run in range(20) for role in ("act", "env", "eval", "agent") for slot in range(50)]
    seeds = {derive_seed(run, role, slot) for run, role, slot in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(0, "a", "b") != derive_seed(0, "a") != derive_seed(0, "b", "a")


def test_streams_repeat_and_differ() -> None:
    a, b, c = (torch.rand(1000, generator=torch_stream(0, "act", slot)) for slot in (0, 0, 1))
    assert torch.equal(a, b)
    assert abs(float(torch.corrcoef(torch.stack([a, c]))[0, 1])) < 0.1
    assert (numpy_stream(0, "x").random(5) == numpy_stream(0, "x").random(5)).all()
    assert (numpy_stream(0, "x").random(5) != numpy_stream(0, "y").random(5)).all()


def test_streams_leave_the_global_generators_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=torch_stream(0, "act"))
    assert torch.equal(torch.get_rng_state(), before)

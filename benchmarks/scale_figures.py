"""The figures of one machine for scale_arithmetic.py: sizes, and what one worker, one store and one log take.

    python benchmarks/scale_figures.py                       # about a minute
    python benchmarks/scale_figures.py HalfCheetah-v5

PPO with its settings for the environment, one worker with 16 environments for 512 steps, in this process. Rates of the
worker are per processor second, so that other programs do not change them. Calls per second are measured by
ray_scaling.py, results per second by population.py. Results go to results/scale_figures.json.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import environment, write_json

from elegantrl.config.resolve import resolve_config
from elegantrl.execute.inline import InlineExecutor
from elegantrl.runtime.build import open_run
from elegantrl.runtime.progress import Silent
from elegantrl.store.storage import LocalStorage
from elegantrl.tree import leaves

ENVS, HORIZON = 16, 512
REPEATS = 5


def main(env: str) -> None:
    torch.set_num_threads(1)
    overrides = {
        "env": {"num_envs": ENVS, "num_groups": 1},
        "agent": {"horizon": HORIZON, "num_epochs": 1},
        "eval": {"episodes": 1},
    }
    config, _ = resolve_config("ppo", env, overrides)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        executor = InlineExecutor()
        supervisor = open_run(config, env, folder, executor, Silent())
        while supervisor.progress.env_steps == 0:
            supervisor.advance()
        figures = store_figures(supervisor, folder, Path(scratch)) | worker_figures(supervisor)
        supervisor.close()
        executor.close()
    for name, value in figures.items():
        print(f"{name:<28} {value:,.1f}")
    print(write_json("scale_figures.json", {"env": env, "figures": figures, "environment": environment()}))


def worker_figures(supervisor: Any) -> dict[str, float]:
    """Steps per processor second of one worker, and bytes of a step and of the policy."""
    pool, weights = supervisor.pool, supervisor.learners.weights()
    pool.publish(weights)
    seq, rates = 1000, []  # beyond those of the run
    for _ in range(REPEATS):
        began = time.process_time()
        seq = pool.request(HORIZON, seq)
        (fragment,) = pool.take()
        rates.append(ENVS * HORIZON / (time.process_time() - began))
    size = sum(
        leaf.numel() * leaf.element_size() for leaf in leaves(fragment.rollout) if isinstance(leaf, torch.Tensor)
    )
    return {
        "steps_per_second": max(rates[1:]), "step_bytes": size / (ENVS * HORIZON), "fragment_steps": ENVS * HORIZON,
        "weights_bytes": weights.flat.numel() * weights.flat.element_size(),
    }  # fmt: skip


def store_figures(supervisor: Any, folder: Path, scratch: Path) -> dict[str, float]:
    """Bytes of a stored run, and bytes and lines per second that a folder takes durably."""
    for _ in supervisor.commit():
        pass
    supervisor.committer.wait(must_succeed=True)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    blob = scratch / "blob"
    blob.mkdir()
    (blob / "data").write_bytes(bytes(50_000_000))
    storage = LocalStorage(scratch / "store")
    times = {"run": timed(lambda: storage.upload(folder, "runs/m000-0000"))}
    times["blob"] = timed(lambda: storage.upload(blob, "runs/blob"))
    times["line"] = timed(lambda: storage.append("log", bytes(20_000)))
    storage.close()
    return {
        "run_bytes": size, "uploads_per_second": 1 / times["run"], "store_bytes": 50e6 / times["blob"],
        "log_ticks_per_second": 1 / times["line"],
    }  # fmt: skip


def timed(act: Any) -> float:
    """The shortest wall time of some repeats."""
    found = []
    for _ in range(REPEATS):
        began = time.monotonic()
        act()
        found.append(time.monotonic() - began)
    return min(found)


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["HalfCheetah-v5"])

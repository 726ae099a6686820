"""Golden runs: short runs of every agent, option and layout, and digests of every tensor that their last commits hold.

``make golden BASE=rev`` runs them on two checkouts and compares. The digests belong to one machine and one version of
torch, so none are stored: the other checkout is the reference. Tensors are compared as a multiset and not by name,
which lets a refactoring move and rename them; a tensor that the newer checkout adds is reported, one that is missing
or has other numbers is a failure.

    python golden.py run CHECKOUT OUT.json [NAME ...]
    python golden.py compare BASE.json HEAD.json
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "eval": {"interval": 10**9, "episodes": 1, "max_episode_steps": 20},
    "checkpoint": {"interval": 10**9},
    "target_return": float("inf"),
    "seed": 7,
    "executor": "inline",
}
CART, PENDULUM = "CartPole-v1", "Pendulum-v1"
SHORT_REPLAY = {"max_steps": 300, "learning_starts": 100}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo_cart": ("ppo", CART, {"max_steps": 2048}),
    "ppo_cart_entropy_normalized": ("ppo", CART, {
        "max_steps": 2048, "entropy_coef": 0.01, "normalize_obs": True, "normalize_value": True,
        "entropy_schedule": "linear"}),
    "ppo_pendulum": ("ppo", PENDULUM, {"max_steps": 4096}),
    "ppo_pendulum_vtrace": ("ppo", PENDULUM, {"max_steps": 4096, "vtrace": True}),
    "ppo_large_batches": ("ppo", "TensorCartPole", {
        "max_steps": 512 * 32 * 2, "num_envs": 512, "horizon": 32, "batch_size": 4096, "num_epochs": 2}),
    "ppo_wide": ("ppo", CART, {"max_steps": 1024, "hidden": (256, 256)}),
    "ppo_h_term": ("ppo", CART, {"max_steps": 2048, "h_term": True, "h_store": 512}),
    "ppo_target_kl": ("ppo", CART, {"max_steps": 2048, "target_kl": 0.001}),
    "ppo_lr_schedule": ("ppo", CART, {"max_steps": 2048, "lr_schedule": "linear", "schedule_steps": 4096}),
    "a2c_cart": ("a2c", CART, {"max_steps": 1024}),
    "a2c_pendulum": ("a2c", PENDULUM, {"max_steps": 1024}),
    "dqn": ("dqn", CART, {"max_steps": 1400}),
    "dqn_n_step": ("dqn", CART, {"max_steps": 1400, "n_step": 3}),
    "double_dqn": ("double_dqn", CART, {"max_steps": 1400}),
    "dueling_dqn": ("dueling_dqn", CART, {"max_steps": 1400}),
    "d3qn_prioritized": ("d3qn", CART, {"max_steps": 1400, "prioritized": True}),
    "sac": ("sac", PENDULUM, {"max_steps": 400, "learning_starts": 100}),
    "sac_normalized": ("sac", PENDULUM, {**SHORT_REPLAY, "normalize_obs": True}),
    "sac_two_threads": ("sac", PENDULUM, {"max_steps": 400, "learning_starts": 100, "core_helper": "on"}),
    "sac_few_updates": ("sac", PENDULUM, {"max_steps": 400, "learning_starts": 100, "updates_per_step": 0.3}),
    "sac_prioritized": ("sac", PENDULUM, {**SHORT_REPLAY, "prioritized": True}),
    "sac_layer_norm": ("sac", PENDULUM, {**SHORT_REPLAY, "layer_norm": True}),
    "sac_held_warm_up": ("sac", PENDULUM, {**SHORT_REPLAY, "warm_up_hold": 4}),
    "sac_h_term": ("sac", PENDULUM, {**SHORT_REPLAY, "h_term": True, "h_store": 128}),
    "mod_sac": ("mod_sac", PENDULUM, SHORT_REPLAY),
    "redq": ("redq", PENDULUM, {"max_steps": 120, "learning_starts": 100}),
    "td3": ("td3", PENDULUM, SHORT_REPLAY),
    "td3_h_term": ("td3", PENDULUM, {**SHORT_REPLAY, "h_term": True, "h_store": 128}),
    "ddpg_ou": ("ddpg", PENDULUM, {**SHORT_REPLAY, "noise": "ou"}),
    "discrete_sac": ("discrete_sac", CART, {"max_steps": 400, "learning_starts": 100}),
    "ppo_gru": ("ppo", CART, {"max_steps": 2048, "memory": "gru", "memory_size": 16}),
    "a2c_lstm": ("a2c", PENDULUM, {"max_steps": 1024, "memory": "lstm", "memory_size": 16}),
    "recurrent_dqn": ("recurrent_dqn", CART, {"max_steps": 1400, "learning_starts": 200}),
    "ppo_masks": ("ppo", "Doors", {"max_steps": 2048}),
    "dqn_masks": ("dqn", "Doors", {"max_steps": 1400}),
    "ppo_cells": ("ppo", "MiniGrid-Empty-5x5-v0", {"max_steps": 512, "num_envs": 4, "horizon": 64}),
    "dqn_pixels": ("dqn", "MinAtar/Breakout-v1", {"max_steps": 400, "learning_starts": 100, "buffer_size": 1000}),
    "ppo_processes_lag": ("ppo", CART, {
        "max_steps": 2048, "executor": "process", "num_workers": 2, "max_lag": 1}),
    "sac_processes_lag": ("sac", PENDULUM, {
        "max_steps": 400, "learning_starts": 100, "executor": "process", "max_lag": 2}),
    "ppo_two_learners": ("ppo", CART, {
        "max_steps": 1024, "executor": "process", "num_learners": 2, "num_groups": 2, "num_workers": 1}),
}  # fmt: skip


def digests(run_dir: Path) -> list[str]:
    """A line for each tensor of the newest commit: its digest, and its place for who reads a difference."""
    from safetensors import safe_open

    commit = max((run_dir / "commits").glob("c-*"))
    lines = []
    for path in sorted(commit.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                tensor = file.get_tensor(name)
                if not tensor.numel():
                    continue
                digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().reshape(-1).view(tensor.new_empty(0).byte().dtype).numpy().tobytes())
                lines.append(f"{digest.hexdigest()[:16]} {path.stem}/{name} {tuple(tensor.shape)}")
    return lines


def has_core_helper() -> bool:
    try:
        from elegantrl.config.sections import ExecuteConfig
    except ImportError:
        return False
    return hasattr(ExecuteConfig, "core_helper")


def run_one(name: str) -> list[str]:
    import elegantrl

    agent, env, settings = RUNS[name]
    if "core_helper" in settings and not has_core_helper():
        # Checkouts before the setting existed start the helper for a second thread.
        settings = {key: value for key, value in settings.items() if key != "core_helper"} | {"num_threads": 2}
    with tempfile.TemporaryDirectory() as folder:
        elegantrl.train(agent, env, run_dir=Path(folder) / "run", **(COMMON | settings))  # type: ignore[operator]
        return digests(Path(folder) / "run")


def run_all(checkout: Path, out: Path, names: list[str]) -> int:
    """Each run in an interpreter of its own, so that none depends on those before; two at a time."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}

    def one(name: str) -> list[str]:
        command = [sys.executable, str(Path(__file__).resolve()), "one", str(checkout), name]
        done = subprocess.run(command, env=env, cwd=tempfile.gettempdir(), capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return []
        lines: list[str] = json.loads(done.stdout.splitlines()[-1])
        return lines

    names = names or list(RUNS)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(names, pool.map(one, names), strict=True))
    out.write_text(json.dumps(found, indent=1))
    return sum(not lines for lines in found.values())


def compare(base: dict[str, list[str]], head: dict[str, list[str]]) -> int:
    """Print a line per run; how many differ."""
    differing = 0
    names = [name for name in base if name in head]  # a checkout may have been asked for some of them alone
    for name in names:
        there, here = (Counter(line.split()[0] for line in side[name]) for side in (base, head))
        missing, added = there - here, here - there
        differing += bool(missing) or not head[name]
        text = f"{len(base[name])} tensors equal" if not missing else f"{missing.total()} of {len(base[name])} differ"
        print(f"{'DIFFERS' if missing or not head[name] else 'same':8} {name:30} {text}, {added.total()} added")
        for line in [line for line in base[name] if line.split()[0] in missing][:5]:
            print(f"           {line}")
    print(f"{len(names) - differing} of {len(names)} golden runs are equal, {len(base) - len(names)} were not compared")
    return differing


def main(argv: list[str]) -> int:
    match argv:
        case ["run", checkout, out, *names]:
            return run_all(Path(checkout).resolve(), Path(out), names)
        case ["one", checkout, name]:
            import elegantrl

            assert elegantrl.__file__.startswith(checkout), elegantrl.__file__
            print(json.dumps(run_one(name)))
            return 0
        case ["compare", base, head]:
            return min(1, compare(json.loads(Path(base).read_text()), json.loads(Path(head).read_text())))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

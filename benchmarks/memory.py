"""How fast is PPO with memory? Steps per second against RecurrentPPO of sb3-contrib, one thread each.

    python benchmarks/memory.py

Both sides run in this process, alternating, on the same environment, lanes, epochs, minibatches and layers: an LSTM of
64 units and two layers of 64. Seconds are those of the processor, so that other programs on the machine do not count.
sb3-contrib has two kinds of network: by default the value has an LSTM of its own; with ``shared_lstm`` it reads the
policy's, as ours does. Results go to results/memory.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import Measurement, alternate, environment, show, write_json

from elegantrl.runtime.train import train

NUM_ENVS, HORIZON, BATCH, EPOCHS, SIZE = 8, 128, 256, 10, 64
ROLLOUT = NUM_ENVS * HORIZON


def ours(num_rollouts: int) -> float:
    """The whole call of the public entry point counts, with its start and an evaluation of one episode."""
    shape: dict[str, Any] = {"num_envs": NUM_ENVS, "horizon": HORIZON, "batch_size": BATCH, "num_epochs": EPOCHS}
    shape |= {"memory": "lstm", "memory_size": SIZE, "hidden": (SIZE, SIZE), "activation": "tanh"}
    quiet: dict[str, Any] = {"eval": {"interval": 10**12, "episodes": 1}, "checkpoint": {"interval": 10**12}}
    quiet |= {"verbose": False, "target_return": float("inf"), "loggers": []}
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run = train(
            "ppo", "CartPole-v1", run_dir=Path(folder) / "run", max_steps=num_rollouts * ROLLOUT, **shape, **quiet
        )
        return float(run.summary["env_steps"] / (time.process_time() - started))


def reference(num_rollouts: int, shared: bool) -> float:
    """Only ``learn`` counts."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    kind = {"shared_lstm": shared, "enable_critic_lstm": not shared, "lstm_hidden_size": SIZE}
    model = RecurrentPPO("MlpLstmPolicy", make_vec_env("CartPole-v1", NUM_ENVS), n_steps=HORIZON, batch_size=BATCH,
                         n_epochs=EPOCHS, policy_kwargs=kind, device="cpu")  # fmt: skip
    started = time.process_time()
    model.learn(num_rollouts * ROLLOUT)
    return model.num_timesteps / (time.process_time() - started)


def measure(repeats: int) -> list[Measurement]:
    sides = (lambda: ours(16), lambda: reference(2, shared=True), lambda: reference(2, shared=False))
    speed, one_core, two_cores = alternate(*sides, repeats=repeats)
    name = f"PPO with an LSTM, CartPole-v1, {NUM_ENVS} envs x {HORIZON} steps, batch {BATCH}, {EPOCHS} epochs"
    return [
        Measurement(name, "steps/s of processor time", speed, one_core, "sb3-contrib, shared LSTM", ">= 2"),
        Measurement(name, "steps/s of processor time", speed, two_cores, "sb3-contrib, its default of two LSTMs", "-"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    results = show("Memory, one thread", measure(repeats))
    print(write_json("memory.json", {"environment": environment(), "measurements": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

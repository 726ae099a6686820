"""How fast from pixels? Training steps per second on Pong against Stable-Baselines3, one thread each.

    python benchmarks/pixels.py          # both agents, about ten minutes
    python benchmarks/pixels.py dqn      # one of them

Both sides run in this process in turn, on the same game with the usual preprocessing, the Nature network with one
linear layer after it, and equal lanes, epochs, minibatches and updates. The median of the repeats counts, and the
spread is shown. Seconds are those of the processor, which other programs disturb less than those of the clock. Results
go to results/pixels.json.
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

from elegantrl.execute.settle import keep_freed_memory
from elegantrl.runtime.callback import Event
from elegantrl.runtime.train import train

GAME = "PongNoFrameskip-v4"
REPEATS = 3


def our_speed(agent: str, warm_up: int, steps: int, **settings: Any) -> float:
    """Training by the public entry point; log lines after ``warm_up`` steps tell the time."""
    times: list[tuple[int, float]] = []

    def note(event: Event) -> None:
        if event.kind == "log" and event.env_steps >= warm_up:
            times.append((event.env_steps, time.process_time()))

    settings |= {"eval": {"interval": 10**12, "episodes": 1, "max_episode_steps": 1}, "executor": "inline"}
    settings |= {"checkpoint": {"interval": 10**12}, "target_return": float("inf"), "max_steps": warm_up + steps}
    with tempfile.TemporaryDirectory() as folder:
        train(agent, GAME, run_dir=Path(folder) / "run", hidden=(), verbose=False, callback=note, **settings)
    (first_step, first), (last_step, last) = times[0], times[-1]
    return (last_step - first_step) / (last - first)


def sb3_speed(agent: str, num_envs: int, warm_up: int, steps: int, **settings: Any) -> float:
    import ale_py  # registers its games
    import stable_baselines3
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = VecFrameStack(make_atari_env(GAME, num_envs, seed=0), 4)
    model = getattr(stable_baselines3, agent)("CnnPolicy", env, device="cpu", **settings)
    model.learn(warm_up)
    started, before = time.process_time(), model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.process_time() - started)


def ppo() -> Measurement:
    """8 environments, 128 steps, 4 epochs of minibatches of 256."""
    rollout = 8 * 128

    def ours() -> float:
        shape = {"num_envs": 8, "horizon": 128, "batch_size": 256, "num_epochs": 4, "entropy_coef": 0.01}
        return our_speed("ppo", rollout, 2 * rollout, **shape)

    def reference() -> float:
        shape = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "ent_coef": 0.01}
        return sb3_speed("PPO", 8, rollout, 2 * rollout, **shape)

    speeds = alternate(ours, reference, repeats=REPEATS)
    return Measurement("PPO Pong, 8 envs, 4 epochs", "steps/s", *speeds, "Stable-Baselines3", ">= 1.3")


def dqn() -> Measurement:
    """8 environments, a minibatch of 32 for every 4 steps."""
    warm_up, steps = 320, 1280

    def ours() -> float:
        shape = {"num_envs": 8, "horizon": 4, "updates_per_step": 0.25, "batch_size": 32, "buffer_size": 10_000}
        target = {"tau": 1.0, "target_interval": 250, "max_grad_norm": 10.0}
        return our_speed("dqn", warm_up, steps, learning_starts=200, **shape, **target)

    def reference() -> float:
        shape = {"train_freq": 4, "gradient_steps": 8, "batch_size": 32, "buffer_size": 10_000}
        return sb3_speed("DQN", 8, warm_up, steps, learning_starts=200, target_update_interval=1000, **shape)

    speeds = alternate(ours, reference, repeats=REPEATS)
    return Measurement("DQN Pong, 8 envs, an update per 4 steps", "steps/s", *speeds, "Stable-Baselines3", ">= 1.3")


BENCHMARKS = {f.__name__: f for f in (ppo, dqn)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="agents; all if none is named")
    names = parser.parse_args().names or list(BENCHMARKS)
    torch.set_num_threads(1)
    keep_freed_memory()
    results = show("Pixels, one thread", (BENCHMARKS[name]() for name in names))
    print(write_json("pixels.json", {"environment": environment(), "measurements": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

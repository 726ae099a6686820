"""How fast is trading? Lanes of tensors against the single environment, and PPO on them against Stable-Baselines3.

    python benchmarks/finance.py            # ratios
    python benchmarks/finance.py --scale    # minute bars of 100 assets over four years: memory and speed
    python benchmarks/finance.py --learning # seconds until a policy earns a given return in the training years

The single environment is our Gymnasium one in NumPy, which computes the same numbers. Stable-Baselines3 trains on
8, 16 and 64 of it in one process with several batch sizes, and the fastest of these is the reference. Seconds are those
of the processor, so that other programs on the machine do not count; both sides alternate, with one thread. Results go
to results/finance.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, Measurement, alternate, environment, show, write_json

from elegantrl.execute.settle import keep_freed_memory
from elegantrl.finance import StockTradingEnv, StockTradingVecEnv
from elegantrl.finance.features import FEATURES
from elegantrl.runtime.train import train

MARKET: dict[str, Any] = {"period": "1990:2012", "episode_steps": 252, "random_start": True}
LANES = 2048
QUIET: dict[str, Any] = {
    "eval": {"interval": 10**12, "episodes": 1, "max_episode_steps": 1},
    "checkpoint": {"interval": 10**12},
    "verbose": False,
    "target_return": float("inf"),
    "loggers": [],
    "executor": "inline",
}


def lanes_speed(steps: int) -> float:
    env = StockTradingVecEnv(num_envs=LANES, **MARKET)
    env.reset(0)
    actions = torch.rand(16, LANES, env.num_assets) * 2 - 1
    with torch.inference_mode():
        env.step(actions[0])
        started = time.process_time()
        for i in range(steps):
            env.step(actions[i % 16])
        return LANES * steps / (time.process_time() - started)


def single_speed(steps: int) -> float:
    env = StockTradingEnv(**MARKET)
    env.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (64, env.num_assets)).astype(np.float32)
    started = time.process_time()
    for i in range(steps):
        if env.step(actions[i % 64])[3]:
            env.reset()
    return steps / (time.process_time() - started)


def ppo_speed(num_rollouts: int, num_epochs: int) -> float:
    """The whole call of the public entry point counts, with its start and an evaluation."""
    shape = {"num_envs": LANES, "horizon": 16, "batch_size": 8192, "num_epochs": num_epochs, "hidden": (64, 64)}
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run = train("ppo", "StockTrading", run_dir=Path(folder) / "run", env_kwargs=MARKET,
                    max_steps=num_rollouts * LANES * 16, **shape, **QUIET)  # fmt: skip
        return float(run.summary["env_steps"] / (time.process_time() - started))


def sb3_speed(num_envs: int, batch_size: int, num_epochs: int, num_rollouts: int = 1) -> float:
    """A rollout has 2,048 steps, or 64 of each environment if that is more; only ``learn`` counts."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    env, num_steps = make_vec_env(lambda: StockTradingEnv(**MARKET), num_envs), max(2048 // num_envs, 64)
    model = PPO("MlpPolicy", env, n_steps=num_steps, batch_size=batch_size, n_epochs=num_epochs, device="cpu")
    started = time.process_time()
    model.learn(num_rollouts * num_steps * num_envs)
    return model.num_timesteps / (time.process_time() - started)


def fastest(shapes: Sequence[tuple[int, int]], num_epochs: int) -> tuple[int, int]:
    """The number of environments and batch size with which SB3 is fastest; prints what was tried."""
    speeds = {}
    for num_envs, batch_size in shapes:
        speeds[num_envs, batch_size] = sb3_speed(num_envs, batch_size, num_epochs)
        what = f"SB3, {num_epochs} epochs, {num_envs} environments, batch {batch_size}"
        print(f"{what}: {speeds[num_envs, batch_size]:,.0f} steps/s", flush=True)
    return max(speeds, key=lambda shape: speeds[shape])


def measure(repeats: int) -> list[Measurement]:
    keep_freed_memory()  # as in every run: freed memory is used again
    torch.set_num_threads(1)
    lanes, single = alternate(lambda: lanes_speed(200), lambda: single_speed(4000), repeats=repeats)
    found = [Measurement(f"StockTrading, {LANES} lanes", "steps/s", lanes, single, "single environment", ">= 100")]
    larger = [(8, 256), (16, 512), (64, 1024), (64, 4096)]
    compared = [(1, 10, [(8, 64), (16, 64), (64, 64)], ">= 30"), (1, 1, larger, ""), (4, 4, larger, "")]
    for ours, theirs, shapes, bar in compared:
        num_envs, batch_size = fastest(shapes, theirs)
        sides = (partial(ppo_speed, 8 // ours + 2, ours), partial(sb3_speed, num_envs, batch_size, theirs, 2))
        ppo, sb3 = alternate(*sides, repeats=repeats)
        what = f"PPO on {LANES} lanes, learning included, {ours} epoch{'s' * (ours > 1)}"
        reference = f"SB3 PPO, {theirs} epoch{'s' * (theirs > 1)}, {num_envs} environments, batch {batch_size}"
        found.append(Measurement(what, "steps/s", ppo, sb3, reference, bar))
    return found


# ---- learning

GOAL = 15.0
"""The mean return of an episode in the training years, without exploration."""


def ours_to_goal(seed: int) -> tuple[float, int]:
    """Processor seconds and steps with the settings that ship; start and evaluations count."""
    goal = {"eval": {"interval": 16_384, "episodes": 256}, "target_return": GOAL}
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run = train("ppo", "StockTrading", run_dir=Path(folder) / "run", seed=seed, env_kwargs=MARKET,
                    max_steps=10_000_000, **(QUIET | goal))  # fmt: skip
        assert run.summary["stop_reason"] == "target_return", run.summary["stop_reason"]
        return time.process_time() - started, run.summary["env_steps"]


def sb3_to_goal(seed: int) -> tuple[float, int]:
    """Processor seconds and steps with its own settings on 16 environments; only ``learn`` counts."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO("MlpPolicy", make_vec_env(lambda: StockTradingEnv(**MARKET), 16, seed=seed), seed=seed, device="cpu")
    seconds = 0.0
    while True:
        started = time.process_time()
        model.learn(1, reset_num_timesteps=False)  # one rollout, which has 32,768 steps
        seconds += time.process_time() - started
        env, total = StockTradingVecEnv(num_envs=256, **MARKET), torch.zeros(256)
        obs = env.reset(seed)
        with torch.inference_mode():
            for _ in range(MARKET["episode_steps"]):
                step = env.step(torch.as_tensor(model.predict(obs.data.numpy(), deterministic=True)[0]))
                obs, total = step.obs, total + step.reward
        if total.mean() >= GOAL:
            return seconds, model.num_timesteps


def learning(seeds: Sequence[int]) -> dict[str, Any]:
    keep_freed_memory()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"goal": GOAL, "seeds": list(seeds)}
    for name, run in (("ours", ours_to_goal), ("sb3", sb3_to_goal)):
        seconds, steps = zip(*map(run, seeds), strict=True)
        found[name] = {"seconds": [round(value, 1) for value in seconds], "steps": steps}
        print(name, found[name], flush=True)
    return found


# ---- scale


def scale(rows: int = 400_000, assets: int = 100) -> dict[str, Any]:
    """Memory of training on minute bars: that of the same run on a small table is taken off."""
    with tempfile.TemporaryDirectory() as folder:
        base = in_process(minute_bars(Path(folder) / "small", 1000, assets))
        table = minute_bars(Path(folder) / "large", rows, assets)
        found = in_process(table)
        raw = (Path(table) / "values.npy").stat().st_size
    used = found["peak_bytes"] - base["peak_bytes"]
    return {"rows": rows, "assets": assets, "fields": 1 + len(FEATURES), "raw_bytes": raw, "extra_bytes": used,
            "extra_over_raw": used / raw, "steps_per_second": found["steps_per_second"]}  # fmt: skip


def minute_bars(folder: Path, rows: int, assets: int) -> str:
    """Random walks with random features, written in parts: the whole table is never in memory here."""
    folder.mkdir()
    stream, fields = np.random.default_rng(0), ("close", *FEATURES)
    shape = (rows, len(fields), assets)
    values = np.lib.format.open_memmap(folder / "values.npy", mode="w+", dtype=np.float32, shape=shape)
    price = np.full(assets, 100.0)
    for begin in range(0, rows, 10_000):
        part = values[begin : begin + 10_000]
        part[:] = stream.standard_normal(part.shape, dtype=np.float32)
        walk = price * np.exp(0.001 * stream.standard_normal((len(part), assets))).cumprod(0)
        part[:, 0], price = walk, walk[-1]
    values.flush()
    dates = np.datetime64("2018-01-01T09:30:00", "s") + 60 * np.arange(rows)
    np.save(folder / "dates.npy", dates.astype(np.int64))
    about = {"assets": [f"S{i}" for i in range(assets)], "fields": fields, "parts": ["dates", "values"]}
    (folder / "table.json").write_text(json.dumps(about))
    return str(folder)


def in_process(table: str) -> dict[str, float]:
    """Steps per second and the highest memory of one training, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=train_on, args=(table, theirs))
    process.start()
    theirs.close()
    found: dict[str, float] = ours.recv()
    process.join()
    return found


def train_on(table: str, answer: Any) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run = train("ppo", "StockTrading", run_dir=Path(folder) / "run", num_envs=256, horizon=32, batch_size=2048,
                    num_epochs=2, env_kwargs={"data": table, "episode_steps": 390, "random_start": True},
                    max_steps=256 * 32 * 12, **QUIET)  # fmt: skip
        seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer.send({"steps_per_second": run.summary["env_steps"] / seconds, "peak_bytes": peak})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", action="store_true", help="measure minute bars instead of ratios")
    parser.add_argument("--learning", action="store_true", help="measure seconds to a return instead of ratios")
    args = parser.parse_args()
    path = RESULTS / "finance.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if args.scale:
        before |= {"scale": scale()}
        print(json.dumps(before["scale"], indent=1))
    elif args.learning:
        before |= {"learning": learning(range(3))}
    else:
        before |= {"measurements": show("trading", measure(args.repeats))}
    write_json(path.name, before | {"environment": environment()})


if __name__ == "__main__":
    main()

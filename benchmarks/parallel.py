"""What do processes buy? Workers, pipeline and transport on this machine, learning included.

    python benchmarks/parallel.py                # everything, about 15 minutes
    python benchmarks/parallel.py sleepers       # one measurement

Both sides of a ratio alternate within one run; the median of the repeats counts and the spread is shown. A side is the
median of the steps per second that a run logs twice a second, without its first third. Results go to
results/parallel.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Measurement, alternate, environment, show, write_json
from sleepers import Costly

from elegantrl.agents.sac import AgentSAC, SACConfig
from elegantrl.config.resolve import resolve_config
from elegantrl.execute.base import Future
from elegantrl.execute.process import ProcessExecutor
from elegantrl.runtime.layout import pick_layout
from elegantrl.runtime.train import train
from elegantrl.store.runlog import read_metrics
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Rollout, Transition, Weights

NEVER = 10**12


def speed(agent: str, env: Any, seconds: float, **settings: Any) -> float:
    """Environment steps per second of training proper, without the beginning."""
    settings |= {"eval": {"interval": NEVER, "episodes": 1, "max_episode_steps": 1}, "checkpoint": {"interval": NEVER}}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        never = {"max_steps": NEVER, "target_return": float("inf")}
        train(agent, env, run_dir=run_dir, max_seconds=seconds, verbose=False, **never, **settings)
        rows = [row for row in read_metrics(run_dir) if row["kind"] == "train"]
    return statistics.median(float(row["time/steps_per_second"] or 0.0) for row in rows[len(rows) // 3 :])


# ---- workers


def sleepers() -> list[Measurement]:
    """PPO on an environment that sleeps 5 ms per step: workers against one worker, one environment each."""
    shape = {"horizon": 32, "num_epochs": 4, "batch_size": 256, "hidden": (64, 64)}

    def with_workers(workers: int, lag: int) -> float:
        layout = {"executor": "process", "num_workers": workers, "num_envs": workers, "max_lag": lag}
        return speed("ppo", partial(Costly, 0.005), 6.0, **layout, **shape)

    counts = [(1, 0), (8, 0), (8, 1), (32, 0), (32, 1)]
    one, *others = alternate(*(partial(with_workers, *count) for count in counts), repeats=3)
    bars = {8: ">= 7", 32: ">= 24"}
    return [
        Measurement(f"{workers} workers, lag {lag}", "steps/s", ours, one, "one worker", bars[workers] if lag else "-")
        for (workers, lag), ours in zip(counts[1:], others, strict=True)
    ]


# ---- pipeline


SAC_SHAPE: dict[str, Any] = {
    "num_envs": 1, "horizon": 1, "batch_size": 256, "hidden": (256, 256), "learning_starts": 256, "buffer_size": 10**5,
}  # fmt: skip


def pipeline() -> list[Measurement]:
    """SAC, one update per step, where a step costs as much as an update: the pipeline picked for it against one
    process."""
    return [pipeline_around(False, "asleep", ">= 1.8"), pipeline_around(True, "busy", "-")]


def pipeline_around(is_busy: bool, name: str, bar: str) -> Measurement:
    """What an update costs is measured anew for each repeat, since the speed of a machine changes."""
    update_seconds = 0.0

    def measure_update() -> float:
        nonlocal update_seconds
        update_seconds = 1.0 / speed("sac", partial(Costly, 0.0), 8.0, **SAC_SHAPE)
        return update_seconds

    def with_layout(**layout: Any) -> float:
        return speed("sac", partial(Costly, update_seconds, is_busy), 10.0, **SAC_SHAPE, **layout)

    config = resolve_config("sac", "Costly", {"env": {"num_envs": 1}})[0]
    layout = pick_layout(config, partial(Costly, measure_update(), is_busy))
    _, ours, reference = alternate(measure_update, partial(with_layout, **layout.execute), with_layout, repeats=5)
    cores = 2 if layout.execute["core_helper"] == "on" else 1
    how = f"lag {layout.execute['max_lag']}, learner on {cores} core{'s' * (cores > 1)}"
    what = f"SAC pipeline ({how}), a step as long as an update, {name}"
    return Measurement(what, "steps/s", ours, reference, "one process", bar)


def halfcheetah() -> list[Measurement]:
    """SAC on HalfCheetah-v5, where learning is what takes the time: the layout that is picked."""
    config = resolve_config("sac", "HalfCheetah-v5")[0]
    layout = pick_layout(config, "HalfCheetah-v5")
    one = partial(speed, "sac", "HalfCheetah-v5", 20.0, **SAC_SHAPE, executor="inline")
    cores = 2 if layout.execute["core_helper"] == "on" else 1
    layouts = {
        f"as picked ({layout.execute['executor']}, {cores} cores)": partial(one, **layout.execute),
        "worker in a process, lag 1": partial(one, executor="process", max_lag=1),
    }
    reference, *others = alternate(one, *layouts.values(), repeats=5)
    bars = [">= 1.4", "-"]
    return [
        Measurement(f"SAC HalfCheetah-v5, {name}", "steps/s", ours, reference, "one thread", bar)
        for name, ours, bar in zip(layouts, others, bars, strict=True)
    ]


def hopper() -> list[Measurement]:
    """PPO on Hopper-v5, 64x64, 10 epochs: equal minibatches with the best vectorisation, and each side's best shape."""

    def sb3(num_envs: int, horizon: int, batch_size: int) -> float:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

        torch.set_num_threads(1)
        policy = {"activation_fn": torch.nn.ReLU}
        model = PPO("MlpPolicy", make_vec_env("Hopper-v5", num_envs), n_steps=horizon, batch_size=batch_size,
                    n_epochs=10, policy_kwargs=policy, device="cpu")  # fmt: skip
        model.learn(num_envs * horizon)
        started, before = time.perf_counter(), model.num_timesteps
        model.learn(max(20_000, 2 * num_envs * horizon), reset_num_timesteps=False)
        return (model.num_timesteps - before) / (time.perf_counter() - started)

    def ours(num_envs: int, horizon: int, batch_size: int, env: str = "Hopper-v5", **layout: Any) -> float:
        shape = {"num_envs": num_envs, "horizon": horizon, "batch_size": batch_size, "hidden": (64, 64)}
        return speed("ppo", env, 8.0, num_epochs=10, activation="relu", normalize_obs=False, **shape, **layout)

    layouts: list[dict[str, Any]] = [
        {},
        {"executor": "process", "num_workers": 2},
        {"executor": "process", "num_workers": 1, "max_lag": 1},
        {"executor": "process", "num_workers": 2, "max_lag": 1},
        {"env": "envpool:Hopper-v5"},
        {"env": "envpool:Hopper-v5", "executor": "process", "num_workers": 1, "max_lag": 1},
    ]

    def compare(shape: tuple[int, int, int], shapes: list[tuple[int, int, int]], bar: str) -> Measurement:
        """Our fastest layout for a shape against the fastest of their shapes."""
        best = max(shapes, key=lambda s: sb3(*s))
        fastest = max(layouts, key=lambda layout: ours(*shape, **layout))
        words = " ".join(f"{name}={value}" for name, value in fastest.items()) or "in one process"
        name = "PPO Hopper-v5, 10 epochs, {} envs x {}, batch {}, ".format(*shape) + words
        values = alternate(partial(ours, *shape, **fastest), partial(sb3, *best), repeats=3)
        return Measurement(name, "steps/s", *values, "Stable-Baselines3, {} envs x {}, batch {}".format(*best), bar)

    return [
        compare((8, 256, 64), [(8, 256, 64), (16, 128, 64), (32, 64, 64)], ">= 4"),
        compare((64, 128, 8192), [(32, 64, 512), (64, 128, 2048), (64, 128, 8192)], "-"),
    ]


# ---- transport


class Sender:
    """Sends a fragment of 2048 transitions as a worker does, and says when it has what it was sent."""

    def __init__(self) -> None:
        numbers, flags = partial(torch.randn, 256, 8), partial(torch.zeros, 256, 8, dtype=torch.bool)
        rollout = Rollout(numbers(17), numbers(6), numbers(), flags(), flags(), numbers(17), numbers())
        self.fragment = Fragment(0, 0, 0, rollout, Episodes(np.zeros(2), np.zeros(2, dtype=np.int64)))

    def sample(self) -> list[Fragment]:
        return [self.fragment]

    def take(self, weights: Weights) -> float:
        """When the last number of the weights was there; the clock is the same for all processes."""
        weights.flat[-1].item()
        return time.monotonic()

    def close(self) -> None: ...


def transport() -> list[Measurement]:
    """The learner's time for a fragment of 2048 HalfCheetah transitions, and how long weights take to 8 workers.

    The fragment is a whole one, with seven tensors and the episodes that ended. Its time is that of taking an answer
    which is there, after two idle milliseconds, when caches are cold; the tensors lie in shared memory and nothing is
    copied. After an update of SAC with 256x256 caches are full of other things: there the first of 8 fragments that are
    there is timed, and all 8. Weights have arrived when the last worker has read their last number, counted from before
    they are written.
    """
    executor = ProcessExecutor(["sleepers"])
    try:
        handles = executor.spawn_all([Sender] * 8)
        limits = {"fragment": [], "copy": [], "first": [], "mean": [], "weights": []}  # type: dict[str, list[float]]
        for _ in range(200):
            call = handles[0].call("sample")
            wait_unheard(call)
            started = time.perf_counter()
            (fragment,) = call.result()
            limits["fragment"].append((time.perf_counter() - started) * 1e6)
            started = time.perf_counter()
            for x in fragment.rollout:
                x.clone()
            limits["copy"].append((time.perf_counter() - started) * 1e6)
            del fragment, x, call
        learn = learner()
        for _ in range(200):
            calls = [handle.call("sample") for handle in handles]
            learn()
            for call in calls:
                wait_unheard(call)
            learn()
            started = time.perf_counter()
            fragments = [calls[0].result()]
            between = time.perf_counter()
            fragments += [call.result() for call in calls[1:]]
            limits["first"].append((between - started) * 1e6)
            limits["mean"].append((time.perf_counter() - started) * 1e6 / len(fragments))
            del fragments, calls, call
        flat = torch.randn(17 * 256 + 256 + 256 * 256 + 256 + 256 * 12 + 12)
        for version in range(200):
            started = time.monotonic()
            ref = executor.put(Weights(version, flat))
            calls = [handle.call("take", ref) for handle in handles]
            limits["weights"].append((max(call.result() for call in calls) - started) * 1e6)
    finally:
        executor.close()
    bars = {"fragment": 100.0, "weights": 1000.0}
    return [
        Measurement("a single fragment of 2048 transitions, learner's time", "us", limits["fragment"],
                    [bars["fragment"]] * 200, "bar", "<= 1"),
        Measurement("weights of a 256x256 policy to 8 workers", "us", limits["weights"],
                    [bars["weights"]] * 200, "bar", "<= 1"),
        Measurement("each of 8 fragments after learning, on average", "us", limits["mean"],
                    [bars["fragment"]] * 200, "bar", "<= 1"),
        Measurement("the first of these", "us", limits["first"], [bars["fragment"]] * 200, "bar", "-"),
        Measurement("a copy of that fragment", "us", limits["copy"], limits["fragment"], "taking it", "-"),
    ]  # fmt: skip


def learner() -> Callable[[], Any]:
    """An update of SAC with 256x256 on rows like HalfCheetah's."""
    agent = AgentSAC(EnvSpec("rows", (17,), ActionSpec(dim=6), 1), SACConfig(), torch.device("cpu"), seed=0)
    obs, action, number = torch.randn(256, 17), torch.rand(256, 6) * 2 - 1, torch.randn(256)
    return partial(agent.update, Transition(obs, action, number, torch.full((256,), 0.99), obs))


def wait_unheard(call: Future) -> None:
    """Until the answer lies in the pipe, without reading it."""
    assert hasattr(call, "handle")
    while not call.handle.channel.conn.poll(1.0):
        pass
    time.sleep(0.002)  # the child goes back to sleep


BENCHMARKS = {f.__name__: f for f in (sleepers, pipeline, halfcheetah, hopper, transport)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="measurements; all if none is named")
    names = parser.parse_args().names or list(BENCHMARKS)
    torch.set_num_threads(1)
    before = environment()
    results = show("Processes", (m for name in names for m in BENCHMARKS[name]()))
    path = write_json(f"parallel{'_' + names[0] if len(names) == 1 else ''}.json", {**before, "results": results})
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

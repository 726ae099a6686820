"""How fast on a GPU? Environment steps, training steps and updates per second, and how long the GPU waits for the host.

    python benchmarks/gpu.py                        # on the first GPU, about ten minutes
    python benchmarks/gpu.py --device cuda:1 --seconds 10
    python benchmarks/gpu.py --device cpu --out /tmp/gpu.json   # small sizes: shows that the program runs, no more

Three kinds of figures, each for several numbers of lanes:

- `env`: steps per second of tensor environments alone, with random actions.
- `ppo`: training steps per second: a rollout of 32 steps in every lane, then 4 epochs of 4 minibatches.
- `sac`: updates per second with a batch of 256 and networks of 256x256, one update per 16 steps.

Training is what a run does between two log lines: the group actor samples, the learner updates, new weights go back. It
is measured with default gradients (autograd on a GPU) and with `--gradients compiled` (torch.compile).

`idle` is the share of time in which no kernel of the GPU runs, because it waits for the host: 1 minus the time of all
kernels, by torch's profiler, over the time without a profiler. `waits` counts the host's waits for the GPU per
iteration, as torch's own check reports them (torch.cuda.set_sync_debug_mode); docs/devices.md lists the places. Every
measurement begins after two iterations of warm-up and ends when the GPU has finished. Results go to results/gpu.json.

Without a GPU the program says so and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, environment
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from elegantrl.envs import make_env
from elegantrl.registry import find_agent
from elegantrl.rng import torch_stream
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner

WARM_UP = 2
PROFILED = 3
"""Iterations under the profiler, and under the check for waits."""


@dataclass(frozen=True)
class Sizes:
    """What is measured, for how long."""

    lanes: tuple[int, ...]
    sac_lanes: int
    hidden: tuple[int, ...]
    sac_hidden: tuple[int, ...]
    horizon: int
    seconds: float


ON_GPU = Sizes((1024, 4096, 16384, 65536), 256, (64, 64), (256, 256), 32, 5.0)
ON_CPU = Sizes((16, 64), 16, (8, 8), (8, 8), 4, 0.1)


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    what: str
    env: str
    lanes: int
    gradients: str
    unit: str
    value: float
    seconds_per_iteration: float
    idle: float
    waits: float | None
    """Per iteration; None where torch has no check for them."""


# ---- measuring


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_iteration(iterate: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The mean time of an iteration over at least so many seconds, without those that warm up."""
    for _ in range(WARM_UP):
        iterate()
    wait_for(device)
    started, count, taken = time.perf_counter(), 0, 0.0
    while count == 0 or taken < seconds:
        iterate()
        count += 1
        if count % 8 == 0 or device.type == "cpu":  # looking at the clock more often would make the GPU wait
            wait_for(device)
        taken = time.perf_counter() - started
    wait_for(device)
    return (time.perf_counter() - started) / count


def kernel_seconds(iterate: Callable[[], object], device: torch.device) -> float:
    """The time of all kernels of an iteration; on a CPU that of all of torch's operations."""
    on_gpu = device.type == "cuda"
    activity, kind = (ProfilerActivity.CUDA, DeviceType.CUDA) if on_gpu else (ProfilerActivity.CPU, DeviceType.CPU)
    with profile(activities=[activity]) as profiled:
        for _ in range(PROFILED):
            iterate()
        wait_for(device)
    rows = [row for row in profiled.key_averages() if row.device_type == kind and not row.is_user_annotation]
    total = sum(row.self_device_time_total if on_gpu else row.self_cpu_time_total for row in rows)
    return float(total) / 1e6 / PROFILED


def waits_per_iteration(iterate: Callable[[], object], device: torch.device) -> float | None:
    """How often the host waits for the GPU in an iteration."""
    if device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(PROFILED):
                iterate()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught) / PROFILED


def measure(
    what: str, env: str, lanes: int, gradients: str, unit: str, count: int, iterate: Callable[[], object],
    device: torch.device, seconds: float,
) -> Figure:  # fmt: skip
    """``iterate`` does ``count`` of what ``unit`` counts."""
    taken = seconds_per_iteration(iterate, device, seconds)
    idle = min(1.0, max(0.0, 1 - kernel_seconds(iterate, device) / taken))
    waits = waits_per_iteration(iterate, device)
    return Figure(what, env, lanes, gradients, unit, count / taken, taken, idle, waits)


# ---- what is measured


def env_steps(name: str, lanes: int, sizes: Sizes, device: torch.device) -> Figure:
    env = make_env(name, lanes, device=device)
    env.reset(0)
    action = env.spec.action.random((lanes,), torch_stream(0, "benchmark", device=device))

    def iterate() -> None:
        with torch.inference_mode():
            for _ in range(sizes.horizon):
                env.step(action)

    count = lanes * sizes.horizon
    return measure("env", name, lanes, "-", "steps/s", count, iterate, device, sizes.seconds)


def loop_of(agent: str, name: str, lanes: int, gradients: str, device: torch.device, **settings: Any) -> Any:
    """An iteration of training as a function, and its learner."""
    entry = find_agent(agent)
    env = make_env(name, lanes, device=device)
    config = entry.config(**settings)
    learner = Learner(agent, config, env.spec, device, 0, gradients=gradients)
    actor = GroupActor(env, learner.policy_spec(), 0)

    def iterate() -> None:
        learner.update([actor.sample(learner.weights(), config.horizon, learner.version)])

    return iterate, learner


def ppo_steps(name: str, lanes: int, gradients: str, sizes: Sizes, device: torch.device) -> Figure:
    rows = lanes * sizes.horizon
    shape = {"horizon": sizes.horizon, "batch_size": rows // 4, "num_epochs": 4, "hidden": sizes.hidden}
    iterate, learner = loop_of("ppo", name, lanes, gradients, device, **shape)
    figure = measure("ppo", name, lanes, gradients, "steps/s", rows, iterate, device, sizes.seconds)
    return named(figure, learner)


def sac_updates(name: str, gradients: str, sizes: Sizes, device: torch.device) -> Figure:
    lanes = sizes.sac_lanes
    shape = {"horizon": 1, "updates_per_step": 1 / 16, "hidden": sizes.sac_hidden, "learning_starts": lanes}
    iterate, learner = loop_of("sac", name, lanes, gradients, device, **shape, batch_size=256, buffer_size=1 << 18)
    figure = measure("sac", name, lanes, gradients, "updates/s", lanes // 16, iterate, device, sizes.seconds)
    return named(figure, learner)


def named(figure: Figure, learner: Learner) -> Figure:
    """The figure with what the learner says of its gradients: torch.compile may have failed."""
    return Figure(**(asdict(figure) | {"gradients": learner.gradients()}))


def figures(sizes: Sizes, gradients: Sequence[str], device: torch.device) -> list[Figure]:
    console, found = Console(width=120), list[Figure]()

    def add(figure: Figure) -> None:
        found.append(figure)
        console.print("  ".join(row_of(figure)), highlight=False)

    for name in ("TensorCartPole", "Chasing"):
        for lanes in sizes.lanes:
            add(env_steps(name, lanes, sizes, device))
    for way in gradients:
        for name in ("TensorCartPole", "Chasing"):
            for lanes in sizes.lanes:
                add(ppo_steps(name, lanes, way, sizes, device))
        add(sac_updates("TensorPendulum", way, sizes, device))
    return found


# ---- output


def row_of(f: Figure) -> list[str]:
    waits = "-" if f.waits is None else f"{f.waits:.1f}"
    return [f.what, f.env, f"{f.lanes:,}", f.gradients, f"{f.value:,.0f} {f.unit}", f"{f.idle:.0%}", waits]


def show(found: Sequence[Figure], title: str) -> None:
    table = Table("what", "environment", "lanes", "gradients", "speed", "idle", "waits", title=title)
    for figure in found:
        table.add_row(*row_of(figure))
    Console(width=120).print(table)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, small sizes"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu for small sizes")
    parser.add_argument("--gradients", nargs="+", choices=("auto", "compiled"), default=["auto", "compiled"])
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--out", type=Path, help="the file of results; results/gpu.json for a GPU")
    arguments = parser.parse_args(argv)
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"gpu.py: torch {torch.__version__} finds no GPU here; run it where there is one, or with --device cpu",
              file=sys.stderr)  # fmt: skip
        return 2
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    if arguments.seconds is not None:
        sizes = Sizes(**(asdict(sizes) | {"seconds": arguments.seconds}))
    found = figures(sizes, arguments.gradients, device)
    show(found, f"elegantrl on {name_of(device)}, torch {torch.__version__}")
    out = arguments.out or (RESULTS / "gpu.json" if device.type == "cuda" else None)
    if out is not None:
        about = {"device": name_of(device), "cuda": torch.version.cuda, "sizes": asdict(sizes)}
        out.write_text(json.dumps({**environment(), **about, "figures": [asdict(f) for f in found]}, indent=1) + "\n")
        print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How fast is PPO on thousands of CartPoles, learning included? Ours as tensors against PufferLib's in C.

    python benchmarks/pufferlib_cartpole.py --peers-python peers/bin/python            # everything, about 20 minutes
    python benchmarks/pufferlib_cartpole.py search best --peers-python ...             # the bar alone
    python benchmarks/pufferlib_cartpole.py best --threads 2 --peers-python ...        # by the clock, two threads each

PufferLib 3.0.0 comes as source. Its setup.py downloads Box2D and raylib for browsers, which CartPole does not need;
raylib for Linux lies in the archive. Four lines of setup.py are changed, nothing else, so that environment, network,
advantage kernel and training loop are its own:

    python -m venv peers && peers/bin/pip install -c constraints.txt torch "numpy<2" "gym<=0.23" "gymnasium<=0.29.1" \\
        "pettingzoo<=1.24.1" "shimmy[gym-v21]" "setuptools<81" wheel ninja psutil pynvml rich rich_argparse imageio \\
        pyro-ppl heavyball==2.2.1 neptune wandb
    # fetch the archive pufferlib-3.0.0.tar.gz of that release, unpack it, then in its folder
    sed -i -e "s/^    download_raylib('raylib-5.5_webassembly', '.zip')/    pass/" \\
        -e "s/^    download_box2d(.*)/    pass/" \\
        -e "s/glob.glob('pufferlib.*binding.c', recursive=True)/['pufferlib\\/ocean\\/cartpole\\/binding.c']/" setup.py
    PATH=.../peers/bin:/usr/bin:/bin pip install --no-build-isolation --no-deps .     # a PATH without nvcc

Both sides run in processes of their own, in turn, on one thread; the first two iterations are not counted. One thread's
speed is steps per second of the processor, so that what others run on the machine does not count; with more threads it
is the clock that counts. One epoch over the data on both sides, as PufferLib's configuration for CartPole says, no
evaluations, no checkpoints, nothing compiled by torch. What differs:

- Theirs has one hidden layer of 128 units (GELU, 1,027 parameters), and as shipped with an LSTM of 128
  units behind it (133,000 parameters). The LSTM is switched off except in `shipped`: the bar is held to the faster one.
  Ours has a network for the policy and one for the value, each with a hidden layer of 128 (ReLU, 1,667 parameters;
  SiLU costs about what GELU does) or two of 64 (ReLU, 9,155 parameters).
- Theirs computes values while acting; weighs segments by their advantage and draws each minibatch by these weights,
  with advantages computed anew for each; clips the value loss; steps with Muon or Adam, whichever is faster. Ours
  computes values and advantages after a rollout, shuffles its rows and steps with Adam. Both have an entropy bonus.
- Their episodes end after 200 steps, ours after 500 as in Gymnasium. Ours keeps the true successor of every step.
- Our runs tell malloc to keep freed memory. PufferLib does not but gains by it, so it is told by environment variables
  (except in `shipped`), and its statistics of episodes are read every 64 steps instead of at every step.

`search` looks for what serves each side best among the same shapes: environments, steps per rollout, minibatch; it goes
on where it was stopped. Results go to results/pufferlib.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from common import RESULTS, Measurement, alternate, environment, show, write_json

NAME = "pufferlib.json"
SHAPES = [(8192, 32, 65536), (4096, 64, 32768), (4096, 16, 16384), (4096, 16, 8192), (2048, 32, 8192),
          (1024, 64, 16384)]  # fmt: skip
"""Environments, steps per rollout, rows of a minibatch."""
SHIPPED = (4096, 64, 32768)
LAYER: dict[str, Any] = {"hidden": [128], "activation": "relu"}
NETWORKS: dict[str, dict[str, Any]] = {
    "128 relu": LAYER, "128 silu": LAYER | {"activation": "silu"}, "64x64 relu": LAYER | {"hidden": [64, 64]},
}  # fmt: skip
OPTIMIZERS: dict[str, dict[str, Any]] = {"muon": {}, "adam": {"optimizer": "adam", "learning_rate": 0.003}}
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}


class Bench:
    """Runs either side in a process of its own and keeps what it said."""

    def __init__(self, peers_python: Path, threads: int, seconds: float, repeats: int):
        self.python = {"ours": sys.executable, "pufferlib": str(peers_python)}
        self.threads, self.seconds, self.repeats = threads, seconds, repeats
        self.runs: list[dict[str, Any]] = []

    def speed(self, side: str, settings: dict[str, Any], extra: dict[str, str] | None = None) -> float:
        script = str(Path(__file__).with_name("pufferlib_run.py"))
        command = [self.python[side], "-W", "ignore", script, side, json.dumps(settings)]
        command += ["--seconds", str(self.seconds), "--threads", str(self.threads)]
        env = os.environ | {"OMP_NUM_THREADS": str(self.threads)} | (extra or {})
        said = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
        result = json.loads(said.splitlines()[-1])
        self.runs.append({"side": side, "settings": settings, **result})
        return result["steps"] / result["cpu_seconds" if self.threads == 1 else "seconds"]

    def ours(self, shape: tuple[int, int, int], network: str) -> float:
        return self.speed("ours", named(shape) | NETWORKS[network] | {"lr": 0.005, "entropy_coef": 0.001})

    def theirs(self, shape: tuple[int, int, int], optimizer: str) -> float:
        faster = {"lstm": False, "backend": "PufferEnv", "report_interval": 64}
        return self.speed("pufferlib", named(shape) | faster | OPTIMIZERS[optimizer], KEEP_MEMORY)

    def shipped(self) -> float:
        return self.speed("pufferlib", named(SHIPPED))


def named(shape: tuple[int, int, int]) -> dict[str, Any]:
    return dict(zip(("num_envs", "horizon", "batch_size"), shape, strict=True))


def told(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} envs x {shape[1]}, batch {shape[2]}"


# ---- measurements


def search(bench: Bench, found: dict[str, Any]) -> None:
    """Try what was not tried yet: one run for each candidate, kept at once."""
    for shape in SHAPES:
        key = f"ours | {told(shape)} | 128 relu"
        if key not in found:
            keep(found, key, bench.ours(shape, "128 relu"), shape, "128 relu")
        for optimizer in OPTIMIZERS:
            key = f"pufferlib | {told(shape)} | {optimizer}"
            if key not in found:
                keep(found, key, bench.theirs(shape, optimizer), shape, optimizer)


def keep(found: dict[str, Any], key: str, speed: float, shape: tuple[int, int, int], how: str) -> None:
    found[key] = {"steps_per_second": speed, "shape": shape, "how": how}
    print(f"{key}: {speed:,.0f} steps/s", flush=True)
    write_json(NAME, load() | {"search": found})


def fastest(found: dict[str, Any], side: str) -> tuple[tuple[int, int, int], str]:
    """The shape that serves a side best, and the optimiser or network it was found with."""
    candidates = [value for key, value in found.items() if key.startswith(side)]
    winner = max(candidates, key=lambda value: value["steps_per_second"])
    return tuple(winner["shape"]), winner["how"]


def best(bench: Bench, found: dict[str, Any]) -> list[Measurement]:
    """Each side with the shape that serves it best."""
    return against(bench, fastest(found, "ours")[0], *fastest(found, "pufferlib"), ">= 1")


def equal(bench: Bench, found: dict[str, Any]) -> list[Measurement]:
    """Both with the shape that PufferLib ships for CartPole."""
    return against(bench, SHIPPED, SHIPPED, fastest(found, "pufferlib")[1], "-")


def against(
    bench: Bench, ours: tuple[int, int, int], theirs: tuple[int, int, int], optimizer: str, bar: str
) -> list[Measurement]:
    sides = [partial(bench.ours, ours, network) for network in NETWORKS]
    reference, *speeds = alternate(partial(bench.theirs, theirs, optimizer), *sides, repeats=bench.repeats)
    name = f"PufferLib, 128 gelu, {optimizer}, {told(theirs)}"
    return [
        Measurement(f"{network}, {told(ours)}", "steps/s", speed, reference, name, bar)
        for network, speed in zip(NETWORKS, speeds, strict=True)
    ]


def shipped(bench: Bench, found: dict[str, Any]) -> list[Measurement]:
    """PufferLib exactly as it ships for CartPole, LSTM and all, on our side the same shape."""
    sides = partial(bench.ours, SHIPPED, "64x64 relu"), bench.shipped
    ours, reference = alternate(*sides, repeats=bench.repeats)
    name = f"PufferLib as shipped, LSTM, {told(SHIPPED)}"
    return [Measurement(f"64x64 relu, {told(SHIPPED)}", "steps/s", ours, reference, name, "-")]


BENCHMARKS = {f.__name__: f for f in (best, equal, shipped)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=["search", *BENCHMARKS, []], help="all if none is named")
    parser.add_argument("--peers-python", type=Path, required=True, help="the interpreter that has PufferLib")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the processor, per run")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    for name in args.names or ["search", *BENCHMARKS]:
        bench = Bench(args.peers_python, args.threads, args.seconds, args.repeats)
        before, found = environment(), load().get("search", {})
        if name == "search":
            search(bench, found)
            continue
        title = f"PPO on CartPole, {name}, {args.threads} thread{'s' * (args.threads > 1)}"
        measured = show(title, BENCHMARKS[name](bench, found))
        key = name if args.threads == 1 else f"{name}, {args.threads} threads"
        print(write_json(NAME, load() | {key: {**before, "measurements": measured, "runs": bench.runs}}))
    return 0


def load() -> dict[str, Any]:
    path = RESULTS / NAME
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main())

"""One run of pufferlib_cartpole.py: train one side in this process for a while, print how fast it was as JSON.

    python benchmarks/pufferlib_run.py ours '{"num_envs": 4096, "horizon": 32, "batch_size": 16384}'
    peers/bin/python benchmarks/pufferlib_run.py pufferlib '{"num_envs": 4096, "horizon": 32, "batch_size": 16384}'

Needs elegantrl for `ours` and PufferLib for `pufferlib`. The first iterations are not counted. An iteration is all that
a side does between the beginnings of two rollouts: acting, learning, and what it logs on its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

WARM_UP = 2
"""Iterations that are not counted."""
LEAST = 2
"""Iterations that are counted at least."""
FOREVER = 10**12


class Over(Exception):
    """Enough iterations are timed."""


class Clock:
    """Counts steps, seconds and seconds of the processor from one beginning of an iteration to another."""

    def __init__(self, seconds: float):
        self.limit = seconds
        self.marks: list[tuple[int, float, float]] = []

    def see(self, steps: int) -> None:
        """An iteration begins, by now that many environment steps."""
        self.marks.append((steps, time.perf_counter(), time.process_time()))
        if len(self.marks) > WARM_UP + LEAST and self.marks[-1][2] - self.marks[WARM_UP][2] > self.limit:
            raise Over

    def report(self) -> dict[str, Any]:
        (steps, seconds, cpu_seconds), last = self.marks[WARM_UP], self.marks[-1]
        return {"steps": last[0] - steps, "seconds": last[1] - seconds, "cpu_seconds": last[2] - cpu_seconds,
                "iterations": len(self.marks) - 1 - WARM_UP}  # fmt: skip


def train_ours(settings: dict[str, Any], threads: int, clock: Clock) -> dict[str, Any]:
    """PPO on TensorCartPole by the public entry point: no evaluations, no commits on the way."""
    import elegantrl
    from elegantrl.runtime import build
    from elegantrl.runtime.supervisor import Supervisor
    from elegantrl.runtime.training import Steps
    from elegantrl.types import Fragment

    found: dict[str, Any] = {}

    class Watched(Supervisor):
        def collect(self) -> Steps[list[Fragment]]:
            clock.see(self.progress.env_steps)
            fragments = yield from super().collect()
            lengths = [length for fragment in fragments for length in fragment.episodes.lengths.tolist()]
            found["episode_length"] = sum(lengths) / len(lengths) if lengths else None
            return fragments

    build.Supervisor = Watched  # type: ignore[misc]
    never = {"eval": {"interval": FOREVER}, "checkpoint": {"interval": FOREVER}, "max_steps": FOREVER}
    settings = {"num_epochs": 1, "num_threads": threads, "target_return": math.inf, **settings}
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Over):
        elegantrl.train("ppo", "TensorCartPole", run_dir=f"{folder}/run", verbose=False, **never, **settings)
    return found


def train_pufferlib(settings: dict[str, Any], threads: int, clock: Clock) -> dict[str, Any]:
    """The loop of `pufferlib.pufferl.train` on `puffer_cartpole`, with its own configuration but for ``settings``."""
    import torch

    torch.set_num_threads(threads)
    arguments, sys.argv = sys.argv, sys.argv[:1]  # it reads the command line for its configuration
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it leaves a link and its checkpoints where it runs
        try:
            from pufferlib import pufferl

            args = pufferl.load_config("puffer_cartpole")
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # its dashboard
                return _loop(pufferl, args, dict(settings), clock)
        finally:
            os.chdir(before)
            sys.argv = arguments


def _loop(pufferl: Any, args: Any, settings: dict[str, Any], clock: Clock) -> dict[str, Any]:
    if not settings.pop("lstm", True):
        args["rnn_name"], args["train"]["use_rnn"] = None, False
    args["vec"] |= {"backend": settings.pop("backend", "Serial"), "num_envs": 1}
    args["env"] |= {"num_envs": settings.pop("num_envs"), "report_interval": settings.pop("report_interval", 1)}
    shape = {"bptt_horizon": settings.pop("horizon"), "minibatch_size": settings.pop("batch_size")}
    shape["max_minibatch_size"] = shape["minibatch_size"]  # no gradient of several pieces
    never = {"total_timesteps": FOREVER, "checkpoint_interval": FOREVER}
    args["train"] |= {"device": "cpu", "update_epochs": 1, **shape, **never, **settings}
    envs = pufferl.load_env("puffer_cartpole", args)
    policy = pufferl.load_policy(args, envs)
    trainer = pufferl.PuffeRL({**args["train"], "env": "puffer_cartpole"}, envs, policy)
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in policy.parameters())}
    with contextlib.suppress(Over):
        while True:
            clock.see(trainer.global_step)
            trainer.evaluate()
            logs = trainer.train()
            found["episode_length"] = (logs or found).get("environment/episode_length", found.get("episode_length"))
    found["episode_length"] = None if found["episode_length"] is None else float(found["episode_length"])
    trainer.utilization.stop()
    return found


SIDES = {"ours": (train_ours, ("elegantrl", "torch")), "pufferlib": (train_pufferlib, ("pufferlib", "torch"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("settings", type=json.loads, help="JSON: num_envs, horizon, batch_size and what else differs")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long to train, in seconds of the processor")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    clock = Clock(args.seconds)
    train, packages = SIDES[args.side]
    found = train(args.settings, args.threads, clock)
    print(json.dumps(clock.report() | found | {"versions": {name: version(name) for name in packages}}))
    sys.stdout.flush()
    os._exit(0)  # PufferLib's watching thread may sleep on


if __name__ == "__main__":
    main()

"""Where a run takes place if the caller leaves it open: the layout that suits the machine and the environment."""

from __future__ import annotations

import operator
import os
import pickle
import platform
import re
import resource
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from ..agents.off_policy import ReplayConfig
from ..agents.on_policy import OnPolicyConfig
from ..agents.sac import SACConfig
from ..config.run import RunConfig
from ..config.sections import ExecuteConfig
from ..envs import GymVecEnv, make_env
from ..envs.vec_env import VecEnv
from ..errors import ConfigError, ElegantRLError
from ..imports import import_fast

COSTLY_SECONDS = 1e-3
"""From here on a step of an environment is worth a process: to send it costs a tenth of that."""
COSTLY_FRAGMENT_SECONDS = 20e-3
"""From here on a fragment is worth a process that settings have a group of environments for."""
PROBE_STEPS, PROBE_SECONDS = 50, 0.3
PROBE_LANES = 2
"""One lane may get another environment class than several; two get the class that the run uses."""
MAX_WORKERS = 64
REPLAY_LAG = 2
"""Updates that workers may be behind: with one, a process that is late for once holds up the other."""
WIDE_PRODUCT = 256**3
"""Multiplications in a layer for a batch, from where on a second core is worth its memory."""

LAYOUT = ("executor", "num_workers", "num_learners", "core_helper", "max_lag", "sync_frac")
"""Settings of the section ``execute`` that say where a run takes place."""
INLINE = {"executor": "inline", "core_helper": "off"}


class Layout(NamedTuple):
    """Settings of the section ``execute``, and the reason for them."""

    execute: dict[str, Any]
    why: str


class Cost(NamedTuple):
    """What one step of one lane takes."""

    seconds: float
    waits: bool
    """Whether most of that time is spent waiting for something outside, so that more steps than cores fit into it."""


def with_layout(config: RunConfig, source: Any, found: ExecuteConfig | None = None) -> tuple[RunConfig, str]:
    """``config`` with the layout that it leaves open, and the reason for it; ``found`` is that of a run to resume."""
    default, execute = ExecuteConfig(), config.execute
    if execute.core_helper == "on" and not can_use_helper(config):
        raise ConfigError(
            "execute.core_helper=on is for plain SAC with one learner on an x86-64 CPU and train.gradients=auto;"
            " leave it out"
        )
    said = {name: getattr(execute, name) for name in LAYOUT if getattr(execute, name) != getattr(default, name)}
    if found is not None:
        had = {name: getattr(found, name) for name in LAYOUT}
        layout = Layout(had | said, "" if "executor" in said else "in the layout it had")
    elif said.keys() - {"core_helper"}:
        # Workers, learners and lag are about processes.
        layout = Layout({"executor": "process", "core_helper": "off"} | said, "")
    else:
        picked = pick_layout(config, source)
        layout = Layout(picked.execute | said, picked.why)
    return replace(config, execute=replace(execute, **layout.execute)), layout.why


def pick_layout(config: RunConfig, source: Any, num_cores: int | None = None) -> Layout:
    """The fastest layout that is safe: only where a step is costly do environments leave this process.

    Where a step is cheap and learning is not, another core may help the learner.

    What is picked decides the numbers of a run like any other setting, so it is written into its config.
    """
    cores = num_cores or len(os.sched_getaffinity(0))
    if is_instance(source):
        return Layout(INLINE, "the environment is an instance, which stays in this process")
    env = make_env(source, min(PROBE_LANES, config.env.num_envs // config.num_groups), **config.env.kwargs)
    try:
        if not isinstance(env, GymVecEnv):
            return Layout(INLINE, "it steps all its environments at once")
        cost = step_cost(env)
    finally:
        env.close()
    took = f"a step takes {format_duration(cost.seconds)}"
    if not main_module_is_guarded():
        return Layout(INLINE, f'{took}; processes need `if __name__ == "__main__":` in the script')
    layout = layout_of_cheap(config, cost, took, cores) if cost.seconds < COSTLY_SECONDS else None
    layout = layout or layout_of_costly(config, cost, took, cores)
    if layout.execute["executor"] == "process" and not travels(source):
        return Layout(INLINE, f"{took}, but other processes cannot import the environment")
    return layout


def layout_of_cheap(config: RunConfig, cost: Cost, took: str, cores: int) -> Layout:
    """Steps stay in this process, unless settings have groups whose fragments are worth processes."""
    fragment = cost.seconds * config.env.num_envs * config.agent.horizon
    workers = largest_divisor(config.num_groups, cores)
    # Groups decide the numbers of a run, workers do not: so it does no harm that this hangs on a measured time.
    if workers > 1 and isinstance(config.agent, OnPolicyConfig) and fragment >= COSTLY_FRAGMENT_SECONDS:
        why = f"{took}, so its {config.num_groups} groups of environments are divided among the cores"
        return Layout({"executor": "process", "num_workers": workers, "core_helper": "off"}, why)
    if cores > 1 and helper_pays(config):
        return Layout(INLINE | {"core_helper": "on"}, f"{took}, so another core may help the agent to learn")
    return Layout(INLINE, took)


def layout_of_costly(config: RunConfig, cost: Cost, took: str, cores: int) -> Layout:
    """Steps go to as many processes as have something to do at the same time."""
    workers = largest_divisor(config.env.num_envs, MAX_WORKERS if cost.waits else cores)
    learns_from_replay = isinstance(config.agent, ReplayConfig)
    if workers == 1 and (not learns_from_replay or (cores == 1 and not cost.waits)):
        return Layout(INLINE, f"{took}, but there is nothing to do at the same time")
    layout = {"executor": "process", "num_workers": workers, "core_helper": "off"}
    if not learns_from_replay:
        return Layout(layout, took)
    # Old data is what replay learns from anyway.
    layout["max_lag"], why = REPLAY_LAG, f"{took}, so the next are taken while the agent learns"
    idle_cores = cores - 1 - (0 if cost.waits else workers)
    if idle_cores > 0 and helper_pays(config):
        return Layout(layout | {"core_helper": "on"}, f"{why}, which another core may help")
    return Layout(layout, why)


def is_instance(source: Any) -> bool:
    """Whether the caller made the environment and will close it."""
    return not isinstance(source, str | type) and hasattr(source, "step")


def can_use_helper(config: RunConfig) -> bool:
    """Whether the learner can use a process on a second core."""
    agent = config.agent
    # Learner and helper announce finished work by plain writes to memory, whose order only these processors keep.
    keeps_order = platform.machine() in ("x86_64", "AMD64")
    fast = import_fast("sac")
    plain = fast is not None and type(agent) is SACConfig and fast.suits(agent) and config.train.device == "cpu"
    return plain and config.num_learners == 1 and keeps_order and config.train.gradients == "auto"


def uses_helper(config: RunConfig) -> bool:
    """Whether the learner of this run has such a process."""
    return config.execute.core_helper == "on" and can_use_helper(config)


def helper_pays(config: RunConfig) -> bool:
    """Whether the largest layer of a network takes enough multiplications for one batch."""
    if not can_use_helper(config):
        return False
    agent = cast(SACConfig, config.agent)
    return agent.batch_size * max(map(operator.mul, agent.hidden, agent.hidden[1:]), default=0) >= WIDE_PRODUCT


def travels(source: Any) -> bool:
    """Whether other processes can make this environment: its class or function must be importable there."""
    while isinstance(source, partial):
        source = source.func
    if isinstance(source, str):
        return True
    main = sys.modules.get("__main__")
    if getattr(source, "__module__", None) == "__main__" and not hasattr(main, "__file__"):
        return False  # a notebook or an interactive session
    try:
        pickle.dumps(source)
    except Exception:  # whatever a foreign object raises when it is pickled
        return False
    return True


def main_module_is_guarded() -> bool:
    """Whether a child process may import the program: a script that trains outside of ``if __name__ == "__main__":``
    would train again in each child."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:  # a notebook or an interactive session, which children do not import
        return True
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^if\s+__name__\s*==", text, re.MULTILINE) is not None or path.endswith("__main__.py")


def step_cost(env: VecEnv) -> Cost:
    """What a step of a lane with a random action costs on average; episodes that end on the way count too."""
    generator = torch.Generator().manual_seed(0)
    spec = env.spec
    with torch.inference_mode():
        env.reset(0)
        start, start_processor, start_naps, steps = time.perf_counter(), time.process_time(), naps(), 0
        while steps < PROBE_STEPS and time.perf_counter() - start < PROBE_SECONDS:
            try:
                if env.step(spec.action.random((spec.num_envs, *spec.team), generator)).faults:
                    break
            except ElegantRLError:
                raise
            except Exception:  # a fault of the environment: the run deals with it, and says so
                break
            steps += spec.num_envs
    seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    # On a busy machine a process that computes loses time too, but does not go to sleep by itself.
    waits = processor < seconds / 2 and naps() - start_naps >= steps / 2
    return Cost((seconds if waits else processor) / max(steps, 1), waits)


def naps() -> int:
    """How often this process has given up its core of its own accord."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def largest_divisor(number: int, limit: int) -> int:
    """The largest number of equal parts up to ``limit``."""
    return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def format_duration(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"

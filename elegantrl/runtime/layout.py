"""Selects a layout (processes, workers, lag) for the machine and the environment if the caller sets none."""

from __future__ import annotations

import operator
import os
import pickle
import platform
import resource
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from ..agents.off_policy import ReplayConfig
from ..agents.on_policy import OnPolicyConfig
from ..agents.sac import SACConfig
from ..config.run import RunConfig
from ..config.sections import ExecuteConfig
from ..envs import GymVecEnv, make_env
from ..envs.masks import allowed_actions
from ..envs.vec_env import VecEnv
from ..errors import ConfigError, ElegantRLError
from ..execute.limit import time_limit
from ..imports import import_fast, is_only_here
from .main_module import main_module_is_guarded
from .timeouts import Timeouts

COSTLY_SECONDS = 1e-3
"""Environment steps that take longer run in processes: sending a step takes a tenth of this."""
COSTLY_FRAGMENT_SECONDS = 20e-3
"""Fragments that take longer run in processes if the settings have several groups of environments."""
PROBE_STEPS, PROBE_SECONDS = 50, 0.3
PROBE_LANES = 2
"""One lane may get another environment class than several; two get the class that the run uses."""
MAX_WORKERS = 64
REPLAY_LAG = 2
"""Updates by which workers may lag: with one, a single delay of a process makes the other wait."""
WIDE_PRODUCT = 256**3
"""Multiplications in a layer for a batch from which a second core is faster."""

LAYOUT = ("executor", "num_workers", "num_learners", "core_helper", "max_lag", "sync_frac")
"""Settings of the section ``execute`` that make up the layout."""
INLINE = {"executor": "inline", "core_helper": "off"}


class Layout(NamedTuple):
    """Settings of the section ``execute``, and the reason for them."""

    execute: dict[str, Any]
    why: str


class Cost(NamedTuple):
    """The cost of one step of one lane."""

    seconds: float
    waits: bool
    """Whether a step mostly waits for something outside the process, so that more workers than cores are useful."""


def with_layout(config: RunConfig, source: Any, found: ExecuteConfig | None = None) -> tuple[RunConfig, str]:
    """``config`` with a selected layout, and the reason for it; ``found`` is the layout of a run to resume."""
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
        # Workers, learners and lag need processes.
        layout = Layout({"executor": "process", "core_helper": "off"} | said, "")
    else:
        picked = pick_layout(config, source)
        layout = Layout(picked.execute | said, picked.why)
    return replace(config, execute=replace(execute, **layout.execute)), layout.why


def pick_layout(config: RunConfig, source: Any, num_cores: int | None = None) -> Layout:
    """The fastest safe layout: environments run in other processes only if a step is costly.

    If steps are cheap and learning is not, a second core may help the learner.

    The layout determines the numbers of a run like any other setting, so it is written into its config.
    """
    cores = num_cores or len(os.sched_getaffinity(0))
    if is_instance(source):
        return Layout(INLINE, "the environment is an instance, which stays in this process")
    lanes = min(PROBE_LANES, config.env.num_envs // config.num_groups)
    arguments = config.env.arguments | {"frame_stack": 1}  # without the wrapper around its class
    limit = Timeouts(config.execute.role_timeout).of_build()
    with time_limit(limit, f"the environment {config.env.id!r}, built to measure the time of its steps,"):
        cost = cost_of(source, lanes, arguments)
    if cost is None:
        return Layout(INLINE, "it steps all its environments at once")
    took = f"a step takes {format_duration(cost.seconds)}"
    if not main_module_is_guarded():
        return Layout(INLINE, f'{took}; processes need `if __name__ == "__main__":` in the script')
    layout = layout_of_cheap(config, cost, took, cores) if cost.seconds < COSTLY_SECONDS else None
    layout = layout or layout_of_costly(config, cost, took, cores)
    if layout.execute["executor"] == "process" and not can_be_sent(source):
        return Layout(INLINE, f"{took}, but other processes cannot import the environment")
    if layout.execute["executor"] == "process" and any(map(is_only_here, config.agent.net().imports())):
        return Layout(INLINE, f"{took}, but other processes cannot import the network")
    return layout


def cost_of(source: Any, num_lanes: int, arguments: dict[str, Any]) -> Cost | None:
    """The cost of a step; None if the environment steps all its lanes at once."""
    env = make_env(source, num_lanes, **arguments)
    try:
        return step_cost(env) if isinstance(env, GymVecEnv) else None
    finally:
        env.close()


def layout_of_cheap(config: RunConfig, cost: Cost, took: str, cores: int) -> Layout:
    """Steps stay in this process, unless the settings have several groups whose fragments are costly."""
    fragment = cost.seconds * config.env.num_envs * config.agent.horizon
    workers = largest_divisor(config.num_groups, cores)
    # Groups determine the numbers of a run, workers do not: so the number of workers may depend on a measured time.
    if workers > 1 and isinstance(config.agent, OnPolicyConfig) and fragment >= COSTLY_FRAGMENT_SECONDS:
        why = f"{took}, so its {config.num_groups} groups of environments are divided among the cores"
        return Layout({"executor": "process", "num_workers": workers, "core_helper": "off"}, why)
    if cores > 1 and helper_pays(config):
        return Layout(INLINE | {"core_helper": "on"}, f"{took}, so another core may help the agent to learn")
    return Layout(INLINE, took)


def layout_of_costly(config: RunConfig, cost: Cost, took: str, cores: int) -> Layout:
    """Steps run in as many processes as can work at the same time."""
    workers = largest_divisor(config.env.num_envs, MAX_WORKERS if cost.waits else cores)
    learns_from_replay = isinstance(config.agent, ReplayConfig)
    if workers == 1 and (not learns_from_replay or (cores == 1 and not cost.waits)):
        return Layout(INLINE, f"{took}, but there is nothing to do at the same time")
    layout = {"executor": "process", "num_workers": workers, "core_helper": "off"}
    if not learns_from_replay:
        return Layout(layout, took)
    # Replay learns from old data, so a lag does no harm.
    layout["max_lag"], why = REPLAY_LAG, f"{took}, so the next are taken while the agent learns"
    idle_cores = cores - 1 - (0 if cost.waits else workers)
    if idle_cores > 0 and helper_pays(config):
        return Layout(layout | {"core_helper": "on"}, f"{why}, which another core may help")
    return Layout(layout, why)


def is_instance(source: Any) -> bool:
    """Whether ``source`` is an environment that the caller made and will close."""
    return not isinstance(source, str | type) and hasattr(source, "step")


def can_use_helper(config: RunConfig) -> bool:
    """Whether the learner can use a process on a second core."""
    agent = config.agent
    # Learner and helper signal finished work by plain writes to memory, which only these processors keep in order.
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


def can_be_sent(source: Any) -> bool:
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
    except Exception:  # pickling a foreign object may raise any error
        return False
    return True


def step_cost(env: VecEnv) -> Cost:
    """The mean cost of a lane's step with a random action, including resets at episode ends."""
    generator = torch.Generator().manual_seed(0)
    spec = env.spec
    with torch.inference_mode():
        obs = env.reset(0)
        start, start_processor, switches, steps = time.perf_counter(), time.process_time(), voluntary_switches(), 0
        while steps < PROBE_STEPS and time.perf_counter() - start < PROBE_SECONDS:
            try:
                action = spec.action.random((spec.num_envs, *spec.team), generator)
                step = env.step(allowed_actions(action, obs, spec.action))
                if step.faults:
                    break
                obs = step.obs
            except ElegantRLError:
                raise
            except Exception:  # a fault of the environment: the run handles and reports it
                break
            steps += spec.num_envs
    seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    # On a busy machine a computing process loses time too, but without voluntary context switches.
    waits = processor < seconds / 2 and voluntary_switches() - switches >= steps / 2
    return Cost((seconds if waits else processor) / max(steps, 1), waits)


def voluntary_switches() -> int:
    """The number of voluntary context switches of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def largest_divisor(number: int, limit: int) -> int:
    """The largest number of equal parts up to ``limit``."""
    return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def format_duration(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"

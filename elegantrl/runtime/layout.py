"""Which layout a machine and an environment ask for, when nobody says."""

from __future__ import annotations

import operator
import os
import platform
import resource
import time
from typing import Any, NamedTuple, cast

import torch

from ..agents.off_policy import ReplayConfig
from ..agents.on_policy import OnPolicyConfig
from ..agents.sac import SACConfig
from ..config.run import RunConfig
from ..envs import GymVecEnv, make_env
from ..envs.vec_env import VecEnv
from ..errors import ElegantRLError
from ..fast.sac import suits

COSTLY_SECONDS = 1e-3
"""From here on a step of an environment is worth a process: handing it over costs a tenth of that."""
COSTLY_FRAGMENT_SECONDS = 20e-3
"""From here on a fragment is worth a process that settings have a group of environments for."""
PROBE_STEPS, PROBE_SECONDS = 50, 0.3
MAX_WORKERS = 64
REPLAY_LAG = 2
"""Updates that workers may be behind: with one, whoever is late for once holds up the other."""
WIDE_PRODUCT = 256**3
"""Multiplications in a layer for a batch, from where on a second core is worth its memory."""


class Layout(NamedTuple):
    """Settings of the section ``execute``, the reason for them in words, and the cores of the learner."""

    execute: dict[str, Any]
    why: str
    num_threads: int = 1


class Cost(NamedTuple):
    """What one step takes."""

    seconds: float
    waits: bool
    """Whether most of that time is spent waiting for something outside, so that more steps than cores fit into it."""


def pick_layout(config: RunConfig, source: Any, num_cores: int | None = None) -> Layout:
    """The fastest layout that is safe: only where a step is costly do environments leave this process.

    Where a step is cheap and learning is not, another core may help the learner.

    What is picked decides the numbers of a run like any other setting, so it is written into its config.
    """
    cores = num_cores or len(os.sched_getaffinity(0))
    env = make_env(source, 1, **config.env.kwargs)
    try:
        if not isinstance(env, GymVecEnv):
            return Layout({"executor": "inline"}, "it steps all its environments at once")
        cost = step_cost(env)
    finally:
        env.close()
    took = f"a step takes {in_words(cost.seconds)}"
    if cost.seconds < COSTLY_SECONDS:
        fragment = cost.seconds * config.env.num_envs * config.agent.horizon
        workers = share(config.num_groups, cores)
        # Groups decide the numbers of a run, workers do not: so it does no harm that this hangs on a measured time.
        if workers > 1 and isinstance(config.agent, OnPolicyConfig) and fragment >= COSTLY_FRAGMENT_SECONDS:
            why = f"{took}, so its {config.num_groups} groups of environments share the cores"
            return Layout({"executor": "process", "num_workers": workers}, why)
        if cores > 1 and is_worth_help(config):
            return Layout({"executor": "inline"}, f"{took}, so another core may help the agent to learn", 2)
        return Layout({"executor": "inline"}, took)
    workers = share(config.env.num_envs, MAX_WORKERS if cost.waits else cores)
    learns_from_replay = isinstance(config.agent, ReplayConfig)
    if workers == 1 and (not learns_from_replay or (cores == 1 and not cost.waits)):
        return Layout({"executor": "inline"}, f"{took}, but there is nothing to do at the same time")
    layout = {"executor": "process", "num_workers": workers}
    if learns_from_replay:  # old data is what it learns from anyway
        why = f"{took}, so the next are taken while the agent learns"
        idle_cores = cores - 1 - (0 if cost.waits else workers)
        if idle_cores > 0 and is_worth_help(config):
            return Layout(layout | {"max_lag": REPLAY_LAG}, f"{why}, which another core may help", 2)
        return Layout(layout | {"max_lag": REPLAY_LAG}, why)
    return Layout(layout, took)


def can_be_helped(config: RunConfig) -> bool:
    """Whether the learner can use a process on a second core."""
    agent = config.agent
    # The two tell each other of finished work by plain writes to memory, whose order only these processors keep.
    keeps_order = platform.machine() in ("x86_64", "AMD64")
    plain = type(agent) is SACConfig and suits(agent) and config.train.device == "cpu"
    return plain and config.num_learners == 1 and keeps_order


def is_helped(config: RunConfig) -> bool:
    """Whether the learner has such a helper, for which its other threads make room."""
    return config.train.num_threads > 1 and can_be_helped(config)


def is_worth_help(config: RunConfig) -> bool:
    """Whether that pays: the largest layer of a network takes many multiplications for one batch."""
    if not can_be_helped(config):
        return False
    agent = cast(SACConfig, config.agent)
    return agent.batch_size * max(map(operator.mul, agent.hidden, agent.hidden[1:]), default=0) >= WIDE_PRODUCT


def step_cost(env: VecEnv) -> Cost:
    """What a step with a random action costs on average; episodes that end on the way count too."""
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
            steps += 1
    seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    # On a busy machine whoever computes loses time too, but does not go to sleep by itself.
    waits = processor < seconds / 2 and naps() - start_naps >= steps / 2
    return Cost((seconds if waits else processor) / max(steps, 1), waits)


def naps() -> int:
    """How often this process has given up its core of its own accord."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def share(num_envs: int, limit: int) -> int:
    """The largest number of equal groups up to ``limit``."""
    return max(n for n in range(1, min(num_envs, limit) + 1) if num_envs % n == 0)


def in_words(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"

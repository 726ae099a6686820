"""Opens a run: builds its roles on an executor and its files in a folder."""

from __future__ import annotations

import contextlib
import copy
import platform
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from .. import __version__
from ..config.fields import check_actions
from ..config.run import RunConfig
from ..devices import device_of_rank, pick_device
from ..envs import env_settings, make_env
from ..envs.isaac import is_simulator
from ..envs.lanes import copy_of
from ..envs.tutorial import is_tutorial_env, num_lanes
from ..envs.vec_env import VecEnv, try_one_step
from ..errors import BudgetSpent, CheckpointError, ConfigError
from ..execute.base import Executor, Needs
from ..execute.inline import InlineExecutor
from ..execute.settle import settle_and
from ..nets.policies import PolicySpec
from ..registry import AgentEntry, find_agent
from ..roles.evaluator import Evaluator
from ..roles.learner import Learner
from ..roles.worker import Worker
from ..store.best import BestFile
from ..store.changes import FROM_THEN_ON, record_change
from ..store.commits import Store
from ..store.files import write_atomic
from ..store.loggers import find_logger
from ..store.manifest import Commit
from ..store.runlog import RunLog
from ..store.side_files import SideFiles
from ..types import EnvSpec, State
from .changes import all_changes
from .evaluation import EvaluatorClient
from .folder import check_same_config, find_commit
from .layout import is_instance, uses_helper
from .learners import Learners
from .progress import Display, Progress
from .reporting import explain_error
from .restarts import Restarts
from .supervisor import Supervisor
from .timeouts import Timeouts
from .warm_start import load_networks
from .workers import WorkerPool

PRELOAD = ("elegantrl.roles.worker", "elegantrl.roles.learner", "elegantrl.roles.evaluator", "elegantrl.envs")
"""Modules that every process of a run imports; an executor may import them once for all."""
LEARNER_GPUS = 0.6
"""More than half of a GPU: two learners never get the same one."""


def open_run(
    config: RunConfig,
    source: Any,
    folder: Path,
    executor: Executor,
    display: Display,
    resume: bool = False,
    entry: AgentEntry | None = None,
    eval_source: Any = None,
    allow: Collection[str] = (),
) -> Supervisor:
    """A run that is ready to be driven; a run that is refused writes nothing.

    Workers and the evaluator run on ``executor``, which many runs may share; learners run there too if the config
    selects processes, and in this process otherwise. ``source`` is the environment: an id, a class, a function or an
    instance; ``eval_source`` likewise, for evaluations in another one. ``entry`` is an agent that is not registered.
    ``allow`` names settings of the agent that a resumed run may change. Settings of the process (threads, memory
    allocator, signals) are not changed. The caller must call the supervisor's ``close`` at the end.
    """
    if resume:
        check_same_config(folder, config, allow)
    # A learner with a process of its own may have a GPU that this machine does not have.
    is_elsewhere = executor.assigns_devices and config.execute.num_learners > 0
    device = pick_device(config.train.device, is_elsewhere)
    with contextlib.ExitStack() as closing:
        # Everything that may be refused is built before the first byte is written.
        progress, restarts = Progress(), Restarts(config.execute.max_restarts, display.message)
        explain = partial(explain_error, config.env.id, progress)
        build = worker_builder(config, source, device, executor.isolates)
        needs = needs_of_actor(config, device)
        pool = WorkerPool(executor, build, config.num_groups, config.execute, restarts, explain, needs)
        closing.callback(pool.close)
        networks = load_networks(config, folder, resume)
        for name in config.train.loggers:
            find_logger(name)  # refuses an unknown name before anything is written
        learners = build_learners(config, entry or find_agent(config.agent_name), networks, pool, executor, device)
        display.message(f"gradients: {learners.gradients()}")
        if text := learners.encoder():
            display.message(f"encoder: {text}")
        closing.callback(learners.close)
        pool.start(learners.policy_spec, config.train.seed)
        make = evaluator_builder(config, source, eval_source, device, learners.policy_spec, executor.isolates)
        evaluator = EvaluatorClient(executor, make, restarts, pool.timeouts, explain, needs)
        closing.callback(evaluator.close)
        config = with_target(config, pool.env_spec)
        store = Store(folder, config.checkpoint.keep)
        store.lock()
        closing.callback(store.close)
        commit = find_commit(store, config) if resume else None
        side_files = SideFiles(display.message)
        log = RunLog(
            folder,
            resume_step=commit.step if commit else 0,
            loggers=config.train.loggers,
            config=config.to_dict(),
            side=side_files,
        )
        closing.callback(log.close)
        info = {"config_hash": config.hash(), "agent": config.identity()["agent"], "versions": versions()}
        keep_best = BestFile(folder, learners.policy_spec, pool.env_spec, side_files).save
        supervisor = Supervisor(
            config, learners, pool, evaluator, store, log, display, info, keep_best=keep_best, progress=progress
        )
        supervisor.side_files = side_files
        closing.callback(supervisor.committer.close)
        if commit is not None:
            restore(supervisor, commit, display)
            record_changes(supervisor, commit, log)
        elif resume:
            display.message(f"{folder} was interrupted before its first commit; the run begins anew")
        write_atomic(folder / "config.yaml", config.to_yaml().encode())
        announce(supervisor, display)
        supervisor.close = closing.pop_all().close
    return supervisor


def restore(supervisor: Supervisor, commit: Commit, display: Display) -> None:
    """Continue from ``commit``; report which commits were skipped and how exact the continuation is."""
    for reason in supervisor.store.skipped:
        display.message(f"skipped damaged commit {reason}")
    try:
        parts = {part: commit.load(part) for part in commit.parts}
        supervisor.restarts.retry("learner", lambda: supervisor.restore(parts), supervisor.learners.restart)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError | BudgetSpent):
            raise
        text = " ".join(str(error).split())
        raise CheckpointError(f"{commit.id} does not fit this agent and environment: {text}") from error
    display.message(f"resumed {commit.id} at step {commit.step:,}")
    saved, here = commit.manifest["info"].get("versions", {}), versions()
    for name in here:
        if saved.get(name) != here[name]:
            display.message(
                f"the resume is statistically, not bit, exact: {name} was {saved.get(name)}, is {here[name]}"
            )


def record_changes(supervisor: Supervisor, commit: Commit, log: RunLog) -> None:
    """Report settings that are not those of ``commit``, and record them in the metrics and in all further commits."""
    changes = all_changes(commit, supervisor.config)
    if changes:
        supervisor.commit_info["changes"] = [change._asdict() for change in changes]
    for change in changes:
        if change.step == commit.step:
            record_change(log, change)
            supervisor.display.message(f"{change}; {FROM_THEN_ON}")


def announce(supervisor: Supervisor, display: Display) -> None:
    """Report the agents of a team, why a resumed run has nothing to do, and the last step of a run that cannot end at
    its limit."""
    config, progress = supervisor.config, supervisor.progress
    if names := supervisor.pool.env_spec.agent_names:
        display.message(f"team of {len(names)} agents: {listed(names)}")
    limit = config.train.max_steps
    reason = supervisor.stop_reason()
    if reason == "max_steps":
        display.message(
            f"nothing to do: {progress.env_steps:,} of max_steps={limit:,} steps are done; raise --max-steps to go on"
        )
    elif reason == "target_return":
        display.message(
            f"nothing to do: the policy of step {progress.best_step:,} reached the target return"
            f" {config.train.target_return:g} with {progress.best_mean:,.1f}; raise --target-return to go on, or set it"
            f" to inf"
        )
    elif reason is not None:
        display.message(f"nothing to do: the run ended by {reason}; raise --patience to go on")
    each = config.agent.horizon * config.env.num_envs
    end = -(-limit // each) * each
    if reason is None and end != limit and config.execute.sync_frac == 1.0:
        display.message(f"max_steps={limit:,} is rounded up to {end:,}: an iteration takes {each:,} steps")


def listed(names: tuple[str, ...], at_most: int = 8) -> str:
    """The first names, and how many there are beside them."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


# ---- roles


def worker_builder(
    config: RunConfig, source: Any, device: torch.device, isolates: bool
) -> Callable[[range], Callable[[], Worker]]:
    """A function that makes the builder of a worker for some groups; evaluation has environments of its own."""
    if is_instance(source) and config.num_groups > 1:
        raise ConfigError(
            f"an instance of {type(source).__name__} cannot be shared out among {config.num_groups} groups;"
            f" pass a class or a function that makes it"
        )
    lanes = config.env.num_envs // config.num_groups
    make = partial(make_group, source, lanes, device, config.env.arguments)
    role = partial(Worker, make, owns_envs=not is_instance(source), on_nonfinite=config.execute.on_nonfinite)
    return lambda groups: prepared(config, partial(role, groups), isolates)


def prepared(config: RunConfig, build: Callable[[], Any], isolates: bool) -> Callable[[], Any]:
    """``build``, which first applies the process settings if the role has a process of its own."""
    return partial(settle_and, build, config.train.num_threads) if isolates else build


def build_learners(
    config: RunConfig,
    entry: AgentEntry,
    networks: State | None,
    pool: WorkerPool,
    executor: Executor,
    device: torch.device,
) -> Learners:
    """One learner in this process, or the configured number of learners in processes."""
    check_actions(config.agent, pool.env_spec.action.kind)
    ranks = config.num_learners
    if config.execute.num_learners == 0:
        executor = InlineExecutor()

    def build(rank: int) -> Callable[[], Learner]:
        make = partial(
            Learner,
            entry,
            config.agent,
            pool.env_spec,
            device if executor.assigns_devices else device_of_rank(device, rank),
            config.train.seed,
            rank=rank,
            num_learners=ranks,
            gradients=config.train.gradients,
            core_helper=uses_helper(config),
            networks=networks,
        )
        return prepared(config, make, executor.isolates)

    timeouts = Timeouts(config.execute.role_timeout, executor.isolates)
    needs = Needs(cpus=config.train.num_threads, gpus=LEARNER_GPUS if device.type == "cuda" else 0.0)
    return pool.restarts.retry("learner", lambda: Learners(executor, build, ranks, config.num_groups, timeouts, needs))


def needs_of_actor(config: RunConfig, device: torch.device) -> Needs:
    """What a worker or the evaluator needs; on GPUs all of them together take what a learner leaves of one."""
    share = (1.0 - LEARNER_GPUS) / (config.execute.num_workers + 1)
    return Needs(cpus=config.train.num_threads, gpus=share if device.type == "cuda" else 0.0)


def make_group(source: Any, lanes: int, device: torch.device, arguments: dict[str, Any], group: int) -> VecEnv:
    """The environments of one group; slots are numbered across all groups."""
    return make_env(source, lanes, device=device, first_slot=group * lanes, **arguments)


def evaluator_builder(
    config: RunConfig,
    source: Any,
    eval_source: Any,
    device: torch.device,
    policy_spec: PolicySpec,
    isolates: bool,
) -> Callable[[], Evaluator]:
    kwargs = config.eval.env_kwargs
    if eval_source is None:
        source, kwargs = _copy_of_instance(source) if is_instance(source) else source, config.env.kwargs | kwargs
    else:
        source = eval_source
    lanes = 1 if own_lanes(source) is not None else config.eval.episodes
    make = partial(make_env, source, lanes, device=device, **env_settings(policy_spec.obs), **kwargs)
    build = partial(build_evaluator, make, policy_spec, config.eval.max_episode_steps)
    return prepared(config, build, isolates)


def build_evaluator(make: Callable[[], VecEnv], policy_spec: PolicySpec, max_episode_steps: int) -> Evaluator:
    """An evaluator with a lane per episode. Its environments take one step here to check that they fit their spaces;
    a score does not depend on earlier steps."""
    env = make()
    try_one_step(env)
    return Evaluator(env, policy_spec, max_episode_steps)


def own_lanes(source: Any) -> int | None:
    """The number of lanes of an instance that has lanes of its own."""
    if isinstance(source, VecEnv):
        return source.spec.num_envs
    if isinstance(source, gymnasium.vector.VectorEnv) or is_tutorial_env(source) or is_simulator(source):
        return num_lanes(source)
    return None


def with_target(config: RunConfig, spec: EnvSpec) -> RunConfig:
    """``config`` with the environment's own threshold as the target return if none is set."""
    if config.train.target_return is not None or spec.target_return is None:
        return config
    return replace(config, train=replace(config.train, target_return=spec.target_return))


def versions() -> dict[str, str]:
    return {
        "elegantrl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def _copy_of_instance(env: Any) -> Any:
    """A second environment like this one, for evaluation."""
    try:
        is_vector = isinstance(env, gymnasium.vector.VectorEnv)
        return copy_of(env, type(env).__name__) if is_vector else copy.deepcopy(env)
    except Exception as error:
        raise ConfigError(
            f"evaluation needs environments of its own and {type(env).__name__} cannot be copied ({error});"
            f" pass a class or a function that makes it"
        ) from None

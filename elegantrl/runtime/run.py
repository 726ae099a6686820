"""A run from start to end: build the roles, train, leave a complete run folder."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from .. import __version__
from ..config.run import RunConfig
from ..devices import pick_device
from ..envs import make_env
from ..envs.vec_env import VecEnv, try_one_step
from ..errors import BudgetSpent, CheckpointError, ConfigError, RoleDied, RoleTimedOut
from ..execute.base import Executor
from ..execute.inline import InlineExecutor
from ..execute.process import ProcessExecutor
from ..execute.settle import keep_freed_memory, one_numpy_thread, settle_and, tiny_numbers_are_zero
from ..nets.policies import PolicySpec
from ..registry import AgentEntry, find_agent
from ..roles.evaluator import Evaluator
from ..roles.learner import Learner
from ..roles.worker import Worker
from ..store.best import BestFile
from ..store.commits import Store
from ..store.files import write_atomic
from ..store.manifest import Commit
from ..store.runlog import RunLog
from ..store.side_files import SideFiles
from ..store.trained import TrainedPolicy
from ..types import EnvSpec, State
from .callback import Callback, CallbackDisplay
from .folder import check_same_config, claim_folder, find_commit
from .layout import is_instance, uses_helper, with_layout
from .learners import Learners
from .progress import Display
from .signals import resize_on_signals, stop_on_signals
from .supervisor import Supervisor
from .warm_start import load_networks
from .workers import Crew, call_seconds

PRELOAD = ("elegantrl.roles.worker", "elegantrl.roles.learner", "elegantrl.roles.evaluator", "elegantrl.envs")
"""What every process of a run imports; the fork server does it once for all."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run left behind."""

    run_dir: Path
    summary: dict[str, Any]

    @property
    def best_return(self) -> float:
        """Mean return of the best evaluation; NaN if the run stopped before the first."""
        best = self.summary["best_return"]
        return math.nan if best is None else float(best)

    def load_policy(self) -> TrainedPolicy:
        """The best policy; this process made the folder, so what it names may run here."""
        return TrainedPolicy.load(self.run_dir, allow_import=True)


# ---- the run itself


def run_training(
    config: RunConfig,
    source: Any,
    run_dir: str | Path | None,
    resume: bool,
    display: Display,
    entry: AgentEntry | None = None,
    eval_source: Any = None,
    callback: Callback | None = None,
) -> RunResult:
    """Open or create the run folder, train, and leave it complete; what is refused leaves nothing behind."""
    entry = entry or find_agent(config.agent_name)
    if config.execute.executor == "auto":
        config, _ = with_layout(config, source)
    device = pick_device(config.train.device)
    torch.set_num_threads(config.train.num_threads)
    keep_freed_memory()
    with contextlib.ExitStack() as cleanup:
        folder = cleanup.enter_context(claim_folder(config, run_dir, resume))
        if resume:
            check_same_config(folder, config)
        cleanup.enter_context(one_numpy_thread())
        cleanup.enter_context(tiny_numbers_are_zero())
        # Everything that may be refused is built before the first byte is written.
        crew = gather_crew(config, source, device, display, cleanup)
        spec = crew.env_spec
        networks = load_networks(config, folder, resume)
        learners = hire_learners(config, entry, networks, crew, device, cleanup)
        policy_spec = learners.policy_spec
        crew.start(policy_spec, config.train.seed, evaluator_builder(config, source, eval_source, device, policy_spec))
        config = with_target(config, spec)
        store = Store(folder, config.checkpoint.keep)
        store.lock()
        cleanup.callback(store.close)
        commit = find_commit(store, config) if resume else None
        side = SideFiles(display.message)
        log = RunLog(folder, resume_step=commit.step if commit else 0, config=config.to_dict(), side=side)
        cleanup.callback(log.close)
        info = commit_info(config, crew.exactness())

        keep_best = BestFile(folder, policy_spec, spec, side).save
        if callback is not None:
            display = CallbackDisplay(display, callback, folder, lambda reason: supervisor.request_stop(reason))
        supervisor = Supervisor(config, learners, crew, store, log, display, info, keep_best)
        if commit is not None:
            restore(supervisor, commit, store, display)
        elif resume:
            display.message(f"{folder} was interrupted before its first commit; the run begins anew")
        write_atomic(folder / "config.yaml", config.to_yaml().encode())
        with resize_on_signals(supervisor.request_workers):  # to the end: left alone these signals suspend a process
            with stop_on_signals(supervisor.request_stop):
                reason = supervisor.run()
            return finish(config, folder, supervisor, reason, side)


def restore(supervisor: Supervisor, commit: Commit, store: Store, display: Display) -> None:
    """Continue from ``commit``; say what was skipped on the way to it and how exact the continuation is."""
    for reason in store.skipped:
        display.message(f"skipped damaged commit {reason}")
    try:
        parts = {part: commit.load(part) for part in commit.parts}
        supervisor.insist(lambda: supervisor.restore(parts))
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


# ---- who works


def gather_crew(
    config: RunConfig, source: Any, device: torch.device, display: Display, cleanup: contextlib.ExitStack
) -> Crew:
    """The hosts of all groups of environments, sharing nothing with evaluation."""
    if is_instance(source) and config.num_groups > 1:
        raise ConfigError(
            f"an instance of {type(source).__name__} cannot be shared out among {config.num_groups} groups;"
            f" pass a class or a function that makes it"
        )
    executor = open_executor(config, config.execute.executor == "process", cleanup)
    lanes = config.env.num_envs // config.num_groups
    make = partial(make_group, source, lanes, device, config.env.kwargs)
    role = partial(Worker, make, owns_envs=not is_instance(source), on_nonfinite=config.execute.on_nonfinite)

    def build(groups: range) -> Callable[[], Worker]:
        return partial(settle_and, partial(role, groups), config.train.num_threads)

    return Crew(executor, build, config.num_groups, config.execute, display.message)


def hire_learners(
    config: RunConfig,
    entry: AgentEntry,
    networks: State | None,
    crew: Crew,
    device: torch.device,
    cleanup: contextlib.ExitStack,
) -> Learners:
    """One in this process, or as many in processes as the config says."""
    ranks, in_processes = config.num_learners, config.execute.num_learners > 0
    executor = open_executor(config, in_processes, cleanup)

    def build(rank: int) -> Callable[[], Learner]:
        make = partial(
            Learner,
            entry,
            config.agent,
            crew.env_spec,
            device,
            config.train.seed,
            rank=rank,
            num_learners=ranks,
            gradients=config.train.gradients,
            core_helper=uses_helper(config),
            networks=networks,
        )
        return partial(settle_and, make, config.train.num_threads)

    while True:
        try:
            return Learners(executor, build, ranks, config.num_groups, call_seconds(config.execute))
        except (RoleDied, RoleTimedOut) as death:
            crew.forgive("learner", death)


def open_executor(config: RunConfig, in_processes: bool, cleanup: contextlib.ExitStack) -> Executor:
    """Where roles live; a host may be so many answers ahead of its learner."""
    executor = ProcessExecutor(PRELOAD, config.execute.max_lag + 4) if in_processes else InlineExecutor()
    cleanup.callback(executor.close)
    return executor


def make_group(source: Any, lanes: int, device: torch.device, kwargs: dict[str, Any], group: int) -> VecEnv:
    """The environments of one group; slots are numbered across all groups."""
    return make_env(source, lanes, device=device, first_slot=group * lanes, **kwargs)


def evaluator_builder(
    config: RunConfig, source: Any, eval_source: Any, device: torch.device, policy_spec: PolicySpec
) -> Callable[[], Evaluator]:
    kwargs = config.eval.env_kwargs
    if eval_source is None:
        source, kwargs = _copy_of_instance(source) if is_instance(source) else source, config.env.kwargs | kwargs
    else:
        source = eval_source
    lanes = 1 if own_lanes(source) is not None else config.eval.episodes
    make = partial(make_env, source, lanes, device=device, **kwargs)
    build = partial(build_evaluator, make, policy_spec, config.eval.max_episode_steps)
    return partial(settle_and, build, config.train.num_threads)


def build_evaluator(make: Callable[[], VecEnv], policy_spec: PolicySpec, max_episode_steps: int) -> Evaluator:
    """A lane per evaluation episode, in environments that fit their spaces: they are tried here, since nothing of a
    score depends on what they did before."""
    env = make()
    try_one_step(env)
    return Evaluator(env, policy_spec, max_episode_steps)


def own_lanes(source: Any) -> int | None:
    """The number of lanes of an instance that comes with them."""
    if isinstance(source, VecEnv):
        return source.spec.num_envs
    return source.num_envs if isinstance(source, gymnasium.vector.VectorEnv) else None


def with_target(config: RunConfig, spec: EnvSpec) -> RunConfig:
    """Where nobody names a target return, the environment's own threshold is the target."""
    if config.train.target_return is not None or spec.target_return is None:
        return config
    return replace(config, train=replace(config.train, target_return=spec.target_return))


def commit_info(config: RunConfig, exactness: str) -> dict[str, Any]:
    return {"config_hash": config.hash(), "exactness": exactness, "versions": versions()}


def versions() -> dict[str, str]:
    return {
        "elegantrl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def finish(config: RunConfig, folder: Path, supervisor: Supervisor, reason: str, side: SideFiles) -> RunResult:
    """Write the best policy under its documented names, the summary and the picture."""
    state = supervisor.state
    supervisor.keep_best(supervisor.best_flat, state.best_step, state.best_mean)
    summary = {
        "agent": config.agent_name,
        "env": config.env.id,
        "seed": config.train.seed,
        "num_envs": config.env.num_envs,
        "num_groups": config.num_groups,
        "executor": config.execute.executor,
        "num_workers": config.execute.num_workers,
        "env_steps": state.env_steps,
        "updates": supervisor.num_updates,
        "episodes": state.episodes,
        **asdict(supervisor.crew.losses),
        "wall_seconds": round(state.wall_seconds, 3),
        "steps_per_second": round(state.env_steps / max(state.wall_seconds, 1e-9), 1),
        "best_return": _json_number(state.best_mean),
        "best_step": state.best_step,
        "final_return": _json_number(state.final_mean),
        "target_return": _json_number(config.train.target_return),
        "stop_reason": reason,
        "config_hash": config.hash(),
        "versions": versions(),
    }
    text = json.dumps(summary, indent=2) + "\n"
    side.attempt("summary.json", lambda: write_atomic(folder / "summary.json", text.encode()))
    from ..report.plot import plot_run  # matplotlib is slow to import and only needed here

    side.attempt("the learning curve", lambda: plot_run(folder))
    return RunResult(folder, summary)


def _json_number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _copy_of_instance(env: Any) -> Any:
    """A second environment like this one, for evaluation."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ConfigError(
            f"evaluation needs environments of its own and {type(env).__name__} cannot be copied ({error});"
            f" pass a class or a function that makes it"
        ) from None

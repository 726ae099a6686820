"""A run from start to end, driven by this process, whose settings it changes while it trains."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..config.run import RunConfig
from ..execute.base import make_executor
from ..execute.settle import flush_denormals, keep_freed_memory, one_numpy_thread
from ..registry import AgentEntry
from ..roles.evaluator import Score
from ..store.files import write_atomic
from ..store.trained import TrainedPolicy
from .build import PRELOAD, open_run, own_lanes, versions
from .callback import Callback, Hooks
from .folder import claim_folder
from .layout import with_layout
from .progress import Display
from .signals import resize_on_signals, stop_on_signals
from .supervisor import Supervisor

__all__ = ["RunResult", "finish", "own_lanes", "run_training"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of a run, and the folder that holds them."""

    run_dir: Path
    summary: dict[str, Any]

    @property
    def best_return(self) -> float:
        """Mean return of the best policy on seeds that were not used for its selection; NaN if it was never evaluated.

        After a signal there is no time for this evaluation: then it is the mean by which the policy was selected.
        """
        best = self.summary["best_return"]
        return math.nan if best is None else float(best)

    def load_policy(self) -> TrainedPolicy:
        """The best policy; this process made the folder, so import paths in it are trusted."""
        return TrainedPolicy.load(self.run_dir, allow_import=True)


def run_training(
    config: RunConfig,
    source: Any,
    run_dir: str | Path | None,
    resume: bool,
    display: Display,
    entry: AgentEntry | None = None,
    eval_source: Any = None,
    callbacks: Sequence[Callback] = (),
    allow: Collection[str] = (),
) -> RunResult:
    """Open or create the run folder, train, and write the results.

    ``allow`` names settings of the agent that a resumed run may change.
    """
    if config.execute.executor == "auto":
        config, _ = with_layout(config, source)
    with process_settings(config), contextlib.ExitStack() as closing:
        folder = closing.enter_context(claim_folder(config, run_dir, resume))
        executor = make_executor(config.execute.executor, PRELOAD, config.execute.address)
        closing.callback(executor.close)
        supervisor = open_run(config, source, folder, executor, display, resume, entry, eval_source, allow)
        closing.callback(supervisor.close)
        with resize_on_signals(supervisor.request_workers):  # to the end: without a handler they suspend a process
            return train_with(supervisor, callbacks)


def train_with(supervisor: Supervisor, callbacks: Sequence[Callback]) -> RunResult:
    """Train a run that is open, and call its callbacks; their error is raised when all results are written."""
    progress, folder = supervisor.progress, supervisor.store.run_dir
    hooks = supervisor.hooks = Hooks(callbacks, supervisor.config, folder, progress, supervisor.request_stop)
    try:
        with stop_on_signals(supervisor.request_stop):
            hooks.start()
            reason = supervisor.run()
        result = finish(supervisor, reason)
    except BaseException:
        hooks.end("failed")
        raise
    hooks.end(reason, result.best_return)
    hooks.raise_failure()
    return result


@contextlib.contextmanager
def process_settings(config: RunConfig) -> Iterator[None]:
    """Threads, memory allocator and denormal numbers of this process, set for training."""
    torch.set_num_threads(config.train.num_threads)
    keep_freed_memory()
    with one_numpy_thread(), flush_denormals():
        yield


def finish(supervisor: Supervisor, reason: str) -> RunResult:
    """Write the best policy under its documented names, the summary and the plot."""
    config, folder, state, best = supervisor.config, supervisor.store.run_dir, supervisor.progress, supervisor.best
    assert best is not None
    mean = best.mean if best.score is None else best.score.mean
    supervisor.keep_best(best.flat, best.step, mean)
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
        **asdict(supervisor.counts),
        "wall_seconds": round(state.wall_seconds, 3),
        "steps_per_second": round(state.env_steps / max(state.wall_seconds, 1e-9), 1),
        "best_return": _json_number(mean),
        "selected_return": _json_number(best.mean),
        "best_step": best.step,
        "final_return": _json_number(state.final_mean),
        "target_return": _json_number(config.train.target_return),
        **_team_results(best.score),
        "stop_reason": reason,
        **{name: supervisor.commit_info[name] for name in ("changes",) if name in supervisor.commit_info},
        "config_hash": config.hash(),
        "versions": versions(),
    }
    text = json.dumps(summary, indent=2) + "\n"
    supervisor.side_files.attempt("summary.json", lambda: write_atomic(folder / "summary.json", text.encode()))
    from ..report import plot  # matplotlib is slow to import and only needed here

    supervisor.side_files.attempt("the learning curve", lambda: plot.plot_run(folder))
    return RunResult(folder, summary)


def _team_results(score: Score | None) -> dict[str, Any]:
    """The win rate and the mean return of each agent, of tasks that have them."""
    if score is None:
        return {}
    wins = {} if score.win_rate is None else {"win_rate": score.win_rate}
    return wins | ({"agent_returns": score.agent_means} if score.agent_returns else {})


def _json_number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

"""The log lines and messages of a run."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch

from ..errors import ElegantRLError, RoleError, format_error
from ..execute.base import where_raised
from ..store.runlog import RunLog
from ..types import Fragment, Metrics
from .budget import RestartBudget
from .evaluation import Evaluation
from .progress import Display, Progress
from .restarts import FaultCounts

Row = dict[str, float | int | str]


class Reporter:
    """Writes the log of a run and updates its display."""

    def __init__(self, env_id: str, log: RunLog, display: Display, counts: FaultCounts):
        self.env_id, self.log, self.display, self.counts = env_id, log, display, counts
        self._traced: set[str] = set()
        """Places of errors whose tracebacks were shown."""

    def training(self, progress: Progress, steps_per_second: float, values: Row) -> None:
        row: Row = {"kind": "train", "train/return": progress.train_return, "train/episodes": progress.episodes}
        row |= {"time/steps_per_second": steps_per_second, "wall_seconds": progress.wall_seconds}
        if self.counts != FaultCounts():
            row |= {f"faults/{name}": value for name, value in asdict(self.counts).items()}
        self.log.log({**row, **values}, progress.env_steps)
        self.display.progress(progress, steps_per_second)

    def evaluation(self, evaluation: Evaluation, is_best: bool, progress: Progress, metrics: dict[str, float]) -> None:
        score, step = evaluation.score, evaluation.env_steps
        row: Row = {"kind": "eval", "eval/mean": score.mean, "eval/std": score.std, "eval/ci95": score.ci95}
        row |= {"wall_seconds": progress.wall_seconds, "eval/episodes": len(score.returns)}
        if score.win_rate is not None:
            row["eval/win_rate"] = score.win_rate
        row |= {f"eval/agents/{name}": mean for name, mean in score.agent_means.items()}
        self.log.log(row, step)
        actor = metrics.get("loss/actor", metrics.get("loss/policy", math.nan))
        critic = metrics.get("loss/critic", metrics.get("loss/value", math.nan))
        self.log.record_evaluation(step, score.mean, score.std, progress.train_return, actor, critic)
        progress.last_scored = step
        self.display.evaluation(progress, score, is_best)

    def env_faults(self, fragment: Fragment, worker: int, num_lanes: int, budget: RestartBudget) -> None:
        """Count and report the faults of environments; raises ``BudgetSpent`` if there were too many."""
        for fault in fragment.faults:
            slot = fragment.slot_group * num_lanes + fault.lane
            step = fragment.seq * len(fragment.rollout.reward) + fault.step + 1
            text = f"worker {worker} slot {slot}: {fault.what} at step {step}"
            text += f" ({fault.where})" if fault.where else ", fragment rejected"  # only an exception has a place
            if fault.where not in self._traced and fault.trace:
                self._traced.add(fault.where)
                self.display.message(fault.trace.rstrip())
            spent = budget.spend(f"{text} in {self.env_id}")
            self.counts.env_errors += 1
            self.display.message(f"{text}; slot reset ({spent} within 10 minutes)")


def explain_error(env_id: str, progress: Progress, error: Exception, role: str) -> Exception:
    """An error of the library unchanged; any other error becomes one sentence that names its origin."""
    if isinstance(error, ElegantRLError):
        return error
    where = where_raised(error)
    failure = RoleError(
        f"{role} failed at step {progress.env_steps} in {env_id}: {format_error(error)}{f' ({where})' if where else ''}"
    )
    failure.__cause__ = error
    return failure


def host_floats(metrics: Metrics) -> dict[str, float]:
    """All metrics in one transfer from the device."""
    if not metrics:
        return {}
    return dict(zip(metrics, torch.stack([m.detach().float() for m in metrics.values()]).tolist(), strict=True))

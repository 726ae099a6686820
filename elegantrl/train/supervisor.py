"""Deciding: the loop of one run, its stops, evaluations and commits. Knows neither losses nor networks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..config import RunConfig
from ..errors import ElegantRLError, NonFinite, RoleError, StorageError
from ..execute.base import Future, Handle, where_raised
from ..rng import derive_seed
from ..types import Fragment, Metrics, State, Weights
from .budget import RestartBudget
from .crew import Crew, Losses
from .evaluator import Score
from .metrics import RunLog
from .store import Store

RECENT_EPISODES = 20
LOG_SECONDS = 0.5

Row = dict[str, float | int | str]


@dataclass(slots=True)
class Progress:
    """Where a run stands; what a commit keeps of the supervisor."""

    env_steps: int = 0
    seq: int = 0
    episodes: int = 0
    wall_seconds: float = 0.0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    last_eval: int = 0
    last_commit: int = 0
    best_mean: float = -math.inf
    best_ci95: float = 0.0
    best_step: int = 0
    final_mean: float = math.nan
    worse_in_a_row: int = 0
    """Evaluations in a row that fell clearly below the best one."""

    @property
    def train_return(self) -> float:
        """Mean return of the latest training episodes, exploration included."""
        recent = self.recent_returns
        return math.fsum(recent) / len(recent) if recent else math.nan

    def state_dict(self) -> State:
        state = {name: getattr(self, name) for name in self.__slots__}
        return state | {"recent_returns": list(self.recent_returns)}

    @classmethod
    def from_state(cls, state: State) -> Progress:
        return cls(**state | {"recent_returns": deque(state["recent_returns"], maxlen=RECENT_EPISODES)})


class Display(Protocol):
    """Whoever shows a run to a person."""

    def progress(self, progress: Progress, steps_per_second: float) -> None: ...

    def evaluation(self, progress: Progress, score: Score, is_best: bool) -> None: ...

    def message(self, text: str) -> None: ...


class Speedometer:
    """Environment steps per second of training proper: evaluations and commits stop the clock."""

    def __init__(self, step: int):
        self.start_step, self._start = step, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def restart(self, step: int) -> float:
        """Steps per second since the last restart."""
        speed = (step - self.start_step) / max(self.seconds(), 1e-9)
        self.start_step, self._start = step, time.monotonic()
        return speed

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        self._start += time.monotonic() - before


class Supervisor:
    """Runs one agent until a reason to stop comes up."""

    def __init__(
        self,
        config: RunConfig,
        learner: Handle,
        crew: Crew,
        store: Store,
        log: RunLog,
        display: Display,
        commit_info: dict[str, Any],
        keep_best: Callable[[Tensor, Progress], None] = lambda flat, progress: None,
    ):
        self.keep_best = keep_best
        self.config, self.learner, self.crew = config, learner, crew
        self.store, self.log, self.display, self.commit_info = store, log, display, commit_info
        self.state = Progress()
        self.weights: Weights = self.fetch_weights()
        self.best_flat: Tensor = self.weights.flat
        self.metrics: Metrics = {}
        self.stop_request: str | None = None
        self._seconds_before = 0.0
        self._failed_commits = 0
        # Without pauses: an environment is reset before anybody hears of it.
        self.env_budget = RestartBudget(config.execute.max_restarts, sleep=lambda _: None, of="environment faults")

    def request_stop(self, reason: str) -> None:
        """Stop at the next iteration boundary; safe to call from a signal handler."""
        self.stop_request = reason

    # ---- the loop

    def run(self) -> str:
        """Train until there is a reason to stop; return it."""
        started = time.monotonic()
        speed = Speedometer(self.state.env_steps)
        while (reason := self.stop_reason()) is None:
            self.learn(self.collect())
            self.state.wall_seconds = self._seconds_before + time.monotonic() - started
            if speed.seconds() >= LOG_SECONDS:
                self.log_training(speed.restart(self.state.env_steps))
            if self.evaluation_is_due():
                with speed.paused():
                    if self.evaluate():
                        self.request_stop("target_return")
            due = self.state.env_steps - self.state.last_commit >= self.config.checkpoint.interval
            if due and self.stop_reason() is None:  # the last commit comes after the last evaluation
                with speed.paused():
                    self.commit()
        if self.state.env_steps > speed.start_step:
            self.log_training(speed.restart(self.state.env_steps))
        if self.state.last_eval < self.state.env_steps and reason not in ("interrupted", "terminated"):
            self.evaluate()
        if self.state.best_mean == -math.inf:
            # Stopped before the first evaluation: the newest policy is the best known.
            self.best_flat = self.weights.flat
        self.state.wall_seconds = self._seconds_before + time.monotonic() - started
        self.commit(must_succeed=True)
        return reason

    def stop_reason(self) -> str | None:
        train, state = self.config.train, self.state
        if self.stop_request is not None:
            return self.stop_request
        if state.env_steps >= train.max_steps:
            return "max_steps"
        if train.max_seconds is not None and state.wall_seconds >= train.max_seconds:
            return "max_seconds"
        if train.patience is not None and state.worse_in_a_row >= train.patience:
            return "overfitting"
        return None

    def collect(self) -> list[Fragment]:
        """One fragment from every group of environments, with the newest weights."""
        fragments = self.crew.sample(self.config.agent.horizon, self.state.seq, self.outcome)
        self.state.seq += 1
        for fragment in fragments:
            self.note_faults(fragment)
        self.end_lost_episodes()
        for fragment in fragments:
            self.state.env_steps += fragment.rollout.reward.numel()
            self.state.episodes += len(fragment.episodes.returns)
            self.state.recent_returns.extend(fragment.episodes.returns[-RECENT_EPISODES:].tolist())
        return fragments

    def note_faults(self, fragment: Fragment) -> None:
        """Forgive what went wrong in environments, as long as the budget lasts; count it and say it."""
        losses, group = self.crew.losses, fragment.slot_group
        if fragment.steps_lost:
            losses.steps_lost += fragment.steps_lost
            self.crew.cut.add(group)
        for fault in fragment.faults:
            slot = group * self.crew.lanes + fault.lane
            step = fragment.seq * len(fragment.rollout.reward) + fault.step + 1
            text = f"worker {self.crew.worker_of(group)} slot {slot}: {fault.what} at step {step}"
            text += f" ({fault.where})" if fault.where else ", fragment rejected"  # only what was raised has a place
            spent = self.env_budget.spend(f"{text} in {self.config.env.id}")
            losses.env_errors += 1
            self.display.message(f"{text}; slot reset ({spent} within 10 minutes)")

    def end_lost_episodes(self) -> None:
        """Before new data come in: what was seen last of an episode that is lost has no successor."""
        cut = self.crew.take_cut()
        if cut is not None:
            self.ask("end_open_episodes", cut)

    def learn(self, fragments: list[Fragment]) -> None:
        metrics: Metrics = self.ask("update", fragments)
        if metrics:
            self.metrics = metrics
        self.weights = self.fetch_weights()

    def fetch_weights(self) -> Weights:
        """The newest weights of the learner, from now on also those of everybody else."""
        weights: Weights = self.ask("weights")
        self.crew.publish(weights)
        return weights

    # ---- judging

    def evaluation_is_due(self) -> bool:
        state, train, interval = self.state, self.config.train, self.config.eval.interval
        waited = state.env_steps - state.last_eval
        if waited >= interval:
            return True
        # Training episodes that reach the target hint that the run may be over: look, but not at every iteration.
        if train.target_return is None or len(state.recent_returns) < RECENT_EPISODES:
            return False
        return state.train_return >= train.target_return and waited >= interval / 10

    def evaluate(self) -> bool:
        """Score the policy, keep it if it is the best; whether it reaches the target return for certain.

        The best of many looks is partly luck, so a promising score is confirmed on fresh seeds before it counts, and
        one that would end the run on as many again.
        """
        target = math.inf if self.config.train.target_return is None else self.config.train.target_return
        score = self.score(0)
        if score.mean > self.state.best_mean or score.lower >= target:
            score += self.score(1)
        if score.lower >= target:
            score += self.score(2) + self.score(3)
        reached = score.lower >= target
        # A policy that reaches the target for certain goes before one with a higher but less certain mean.
        self.keep_score(score, reached or score.mean > self.state.best_mean)
        return reached

    def score(self, attempt: int) -> Score:
        seed = derive_seed(self.config.train.seed, "eval", self.state.env_steps, attempt)
        return self.crew.score(seed, self.outcome)

    def keep_score(self, score: Score, is_best: bool) -> None:
        state = self.state
        if is_best:
            state.best_mean, state.best_ci95, state.best_step = score.mean, score.ci95, state.env_steps
            self.best_flat = self.weights.flat
            self.keep_best(self.best_flat, state)
        clearly_worse = score.mean + score.ci95 < state.best_mean - state.best_ci95
        state.worse_in_a_row = state.worse_in_a_row + 1 if clearly_worse else 0
        state.last_eval, state.final_mean = state.env_steps, score.mean
        row: Row = {"kind": "eval", "eval/mean": score.mean, "eval/std": score.std, "eval/ci95": score.ci95}
        self.log.log(row | {"wall_seconds": state.wall_seconds, "eval/episodes": len(score.returns)}, state.env_steps)
        losses = host_floats(self.metrics)
        self.log.record_evaluation(
            state.env_steps,
            score.mean,
            score.std,
            state.train_return,
            losses.get("loss/actor", losses.get("loss/policy", math.nan)),
            losses.get("loss/critic", losses.get("loss/value", math.nan)),
        )
        self.display.evaluation(state, score, is_best)

    # ---- remembering

    def log_training(self, steps_per_second: float) -> None:
        values = host_floats(self.metrics)
        for name, value in values.items():
            if not math.isfinite(value):
                raise NonFinite(
                    f"{name} is {value} at step {self.state.env_steps}; lower agent.lr or agent.reward_scale and start"
                    f" anew, or resume the last commit"
                )
        row: Row = {"kind": "train", "train/return": self.state.train_return, "train/episodes": self.state.episodes}
        row |= {"time/steps_per_second": steps_per_second, "wall_seconds": self.state.wall_seconds}
        if self.crew.losses != Losses():
            row |= {f"faults/{name}": value for name, value in asdict(self.crew.losses).items()}
        self.log.log(row | values, self.state.env_steps)
        self.display.progress(self.state, steps_per_second)

    def commit(self, must_succeed: bool = False) -> None:
        """Write everything needed to continue bit for bit. A full disk costs a warning, three in a row the run."""
        if not bool(self.weights.flat.isfinite().all()):
            raise NonFinite(f"the policy has non-finite weights at step {self.state.env_steps}; nothing was committed")
        self.state.last_commit = self.state.env_steps
        workers = self.crew.state_dict(self.outcome)
        self.end_lost_episodes()
        parts = {
            "learner": self.ask("state_dict"),
            "supervisor": self.state.state_dict() | {"best_flat": self.best_flat},
            **workers,
        }
        try:
            self.store.commit(self.state.env_steps, parts, self.commit_info)
            self._failed_commits = 0
        except StorageError as error:
            self._failed_commits += 1
            if must_succeed or self._failed_commits >= 3:
                raise
            self.display.message(f"{error}; training goes on with the commit before")

    def restore(self, parts: dict[str, State]) -> None:
        """Continue where a commit was written."""
        supervisor = dict(parts["supervisor"])
        self.best_flat = supervisor.pop("best_flat")
        self.state = Progress.from_state(supervisor)
        self._seconds_before = self.state.wall_seconds
        self.ask("load_state_dict", parts["learner"])
        self.ask("end_open_episodes", self.crew.load_state_dict(parts, self.outcome))
        self.weights = self.fetch_weights()

    # ---- talking to roles

    def ask(self, method: str, *args: Any) -> Any:
        """What the learner answers."""
        return self.outcome(self.learner.call(method, *args), method)

    def outcome(self, future: Future, who: str) -> Any:
        """The value of a call; a foreign exception becomes one sentence that says where it came from."""
        try:
            return future.result()
        except ElegantRLError:
            raise
        except Exception as error:
            where, text = where_raised(error), " ".join(str(error).split())
            raise RoleError(
                f"{who} failed at step {self.state.env_steps} in {self.config.env.id}:"
                f" {type(error).__name__}: {text}{f' ({where})' if where else ''}"
            ) from error


def host_floats(metrics: Metrics) -> dict[str, float]:
    """All metrics in one transfer from the device."""
    if not metrics:
        return {}
    return dict(zip(metrics, torch.stack([m.detach().float() for m in metrics.values()]).tolist(), strict=True))

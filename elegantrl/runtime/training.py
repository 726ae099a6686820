"""The training loop of one run: its stops, evaluations and commits; independent of losses and networks.

The loop is a generator that yields the futures it waits for, so that one thread can drive many runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..config.run import RunConfig
from ..errors import Diverged
from ..execute.base import Future
from ..roles.evaluator import Score
from ..store.commits import Store
from ..store.runlog import RunLog
from ..types import Fragment, Metrics, Weights
from .callback import Hooks
from .committer import Committer
from .evaluation import Evaluation, Evaluations, EvaluatorClient
from .learners import Learners
from .progress import RECENT_EPISODES, Display, IdleTime, Progress, Speedometer
from .reporting import Reporter, Row, explain_error, host_floats
from .workers import WorkerPool

LOG_SECONDS = 0.5
URGENT = ("interrupted", "terminated", "callback_error")
"""Reasons to stop that leave no time for evaluations."""

T = TypeVar("T")
Steps = Generator[list[Future], None, T]
"""Work that yields the futures it waits for, or an empty list to let other runs continue."""


class Best(NamedTuple):
    """The policy that a run returns."""

    flat: Tensor
    step: int
    mean: float
    """The mean return by which it was selected, which is biased upwards."""
    score: Score | None = None
    """Returns on seeds that were not used for the selection; None if a signal left no time for it."""


class TrainingLoop:
    """Trains one agent until there is a reason to stop; a subclass drives it."""

    def __init__(
        self,
        config: RunConfig,
        learners: Learners,
        pool: WorkerPool,
        evaluator: EvaluatorClient,
        store: Store,
        log: RunLog,
        display: Display,
        commit_info: dict[str, Any],
        keep_best: Callable[[Tensor, int, float], None] = lambda flat, step, mean: None,
        progress: Progress | None = None,
    ):
        self.keep_best = keep_best
        self.config, self.learners, self.pool, self.evaluator = config, learners, pool, evaluator
        self.store, self.display, self.commit_info = store, display, commit_info
        self.restarts, self.counts = pool.restarts, pool.counts
        self.reporter = Reporter(config.env.id, log, display, self.counts)
        self.progress = progress or Progress()
        self.evaluations = Evaluations(config, evaluator, self.progress, pool.ref_of, display.message)
        self.hooks = Hooks([], config, store.run_dir, self.progress, lambda reason: None)
        """The callbacks of the run."""
        self.committer = Committer(store, self.counts, display.message, self.note_commit)
        self.weights: Weights | None = None
        self.best: Best | None = None
        """The policy to return; known at the end."""
        self.metrics: Metrics = {}
        self.policy_age = 0
        """Number of versions between the policy that made the newest data and the newest policy."""
        self.stop_request: str | None = None
        self.more_workers = 0
        """Requested change of the number of workers."""
        self.num_updates = 0
        """Number of parameter updates; known at the end."""
        self._started: float | None = None
        self._seconds_before = 0.0
        """How long the run had been trained before it was resumed."""
        self._sitting_seconds = 0.0
        """How long the run has been trained since then, at the end of the last iteration."""
        self._reached = 0
        """The largest step so far; a run that lost its learner goes back to an earlier one."""

    # ---- the loop

    def loop(self) -> Steps[str]:
        if self.weights is None:
            self.publish(self.call_learners("weights", self.learners.weights))
        if self.learners.executor.isolates and not self.store.ids():
            yield from self.commit()  # a learner that dies before the next commit starts from this one
        self._speed = Speedometer(self.progress.env_steps)
        self._idle = IdleTime(self.busy_seconds())
        while (reason := self.stop_reason()) is None:
            yield from self.iterate()
        yield from self.finish(reason)
        return reason

    def iterate(self) -> Steps[None]:
        """One update, and the evaluation, log line and commit that are due after it."""
        if self.more_workers:
            self.resize()
        yield from self.learn((yield from self.collect()))
        self._sitting_seconds = self.seconds_of_sitting()
        self.progress.wall_seconds = self._seconds_before + self._sitting_seconds
        self.committer.poll()
        if self._speed.seconds() >= LOG_SECONDS:
            self.log_training()
            self.pool.renew_workers()
        with self._speed.paused():  # an evaluation in this process takes time from training
            yield from self.evaluate()
        due = self.progress.env_steps - self.progress.last_commit >= self.config.checkpoint.interval
        if due and self.stop_reason() is None:  # a stop commits by itself
            with self._speed.paused():
                yield from self.commit()
        yield []

    def seconds_of_sitting(self) -> float:
        """How long this run has been trained since it was started or resumed."""
        return 0.0 if self._started is None else time.monotonic() - self._started

    def stop_reason(self) -> str | None:
        train, progress = self.config.train, self.progress
        if self.stop_request is not None:
            return self.stop_request
        if self.evaluations.reached_target():
            return "target_return"
        if progress.env_steps >= train.max_steps:
            return "max_steps"
        if train.max_seconds is not None and self._sitting_seconds >= train.max_seconds:
            return "max_seconds"
        if train.patience is not None and progress.worse_in_a_row >= train.patience:
            return "overfitting"
        return None

    # ---- learning

    def collect(self) -> Steps[list[Fragment]]:
        """Fragments for one update; workers continue with the next while the learner learns from these."""
        progress, fragments = self.progress, list[Fragment]()
        while not fragments:  # all fragments may have been too old
            progress.seq = self.pool.request(self.config.agent.horizon, progress.seq)
            while waits := self.pool.waits_for():
                yield waits
            fragments = self.pool.take()
        for fragment in fragments:
            self.note_faults(fragment)
        self.end_lost_episodes(fragments)
        for fragment in fragments:
            progress.env_steps += fragment.rollout.num_steps
            progress.episodes += len(fragment.episodes.returns)
            progress.recent_returns.extend(fragment.episodes.returns[-RECENT_EPISODES:].tolist())
        self._reached = max(self._reached, progress.env_steps)
        assert self.weights is not None
        self.policy_age = self.weights.version - min(fragment.version for fragment in fragments)
        self.hooks.step(fragments)
        return fragments

    def note_faults(self, fragment: Fragment) -> None:
        """Count and report the faults of environments; raises if the budget is spent."""
        if fragment.steps_lost:
            self.counts.steps_lost += fragment.steps_lost
            self.pool.broken.mark(fragment.slot_group, fragment.seq)
        if fragment.faults:
            worker = self.pool.worker_of(fragment.slot_group)
            self.reporter.env_faults(fragment, worker, self.pool.num_lanes, self.evaluations.env_budget)

    def resize(self) -> None:
        """Apply the requested number of workers: at least one, at most one per group, and only in processes."""
        more, self.more_workers = self.more_workers, 0
        now = len(self.pool.workers)
        wanted = min(max(1, now + more), self.pool.num_groups)
        if wanted != now and self.pool.executor.isolates:
            self.pool.resize(wanted)
        self.display.message(f"{len(self.pool.workers)} of at most {self.pool.num_groups} workers")

    def end_lost_episodes(self, fragments: Sequence[Fragment] = ()) -> None:
        """Truncate lost episodes before new data arrive: their newest transition has no successor."""
        broken = self.pool.take_broken(fragments)
        if broken is not None:
            self.learners.end_open_episodes(broken)

    def learn(self, fragments: list[Fragment]) -> Steps[None]:
        calls = self.learners.start_update(fragments)
        while waits := self.learners.waits_for(calls):
            yield waits
        metrics, weights = self.call_learners("update", lambda: self.learners.finish_update(calls))
        self.restarts.has_recovered("learner")
        self.publish(weights)
        if metrics:
            self.metrics = metrics
            self.hooks.update(metrics)

    def call_learners(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            failure = explain_error(self.config.env.id, self.progress, error, what)
            raise failure from failure.__cause__

    def publish(self, weights: Weights) -> None:
        """Use these weights in all further requests."""
        self.weights = weights
        self.pool.publish(weights)
        if self.evaluations.best_flat is None:
            self.evaluations.best_flat = weights.flat

    # ---- evaluating

    def evaluate(self) -> Steps[None]:
        """Begin an evaluation if one is due; training waits for the previous one."""
        if self.evaluations.is_due():
            yield from self.finish_evaluation()
            if self.stop_reason() in ("target_return", "overfitting"):  # the result of that evaluation
                return
            assert self.weights is not None
            self.progress.last_eval = self.progress.env_steps
            self.evaluations.begin(self.weights)
        if (evaluation := self.evaluations.poll()) is not None:
            self.conclude(evaluation)

    def finish_evaluation(self) -> Steps[None]:
        """Wait for the evaluation in progress."""
        if self.evaluations.current is not None:
            self.conclude((yield from self.complete_evaluation()))

    def complete_evaluation(self) -> Steps[Evaluation]:
        while (evaluation := self.evaluations.poll()) is None:
            yield self.evaluator.waits_for()
        return evaluation

    def conclude(self, evaluation: Evaluation) -> None:
        is_best = self.evaluations.conclude(evaluation)
        progress, flat = self.progress, evaluation.weights.flat
        if is_best:
            self.keep_best(flat, progress.best_step, progress.best_mean)
        self.report(evaluation, is_best)

    def report(self, evaluation: Evaluation, is_best: bool) -> None:
        self.reporter.evaluation(evaluation, is_best, self.progress, host_floats(self.metrics))
        self.hooks.evaluation(evaluation.env_steps, evaluation.score, is_best)

    def finish(self, reason: str) -> Steps[None]:
        """Commit, and find the policy to return.

        The newest policy is evaluated after the commit: the commit does not hold this evaluation, so a run that is
        continued ends with the same policy as a run that never stopped.
        """
        if self.progress.env_steps > self._speed.start_step:
            self.log_training()
        if reason not in URGENT:
            yield from self.finish_evaluation()
        assert self.weights is not None
        if self.progress.best_mean == -math.inf:
            # Stopped before the first evaluation: the newest policy is the best known.
            self.evaluations.best_flat = self.weights.flat
        self.progress.wall_seconds = self._seconds_before + self.seconds_of_sitting()
        self.num_updates = self.learners.num_updates()
        yield from self.commit()
        assert self.evaluations.best_flat is not None
        self.best = Best(self.evaluations.best_flat, self.progress.best_step, self.progress.best_mean)
        if reason not in URGENT:
            # After a stop by an evaluation the newest step depends on the speed of the evaluator: it is not evaluated.
            if self.progress.last_eval < self.progress.env_steps and reason in ("max_steps", "max_seconds", "callback"):
                yield from self.evaluate_newest()
            yield from self.score_best()
        self.committer.wait(must_succeed=True)  # from here on the learners may die

    def evaluate_newest(self) -> Steps[None]:
        """Evaluate the newest policy, and return it if it is the best."""
        assert self.weights is not None and self.best is not None
        self.evaluations.begin(self.weights)
        evaluation = yield from self.complete_evaluation()
        score = evaluation.score
        is_best = score.mean > self.best.mean
        if is_best:
            self.best = Best(evaluation.weights.flat, evaluation.env_steps, score.mean)
        self.progress.final_mean = score.mean
        self.report(evaluation, is_best)

    def score_best(self) -> Steps[None]:
        """Score the policy to return on seeds that were not used for its selection: the maximum of many scores is
        biased upwards."""
        assert self.best is not None
        self.evaluations.begin_fresh(self.best.flat, self.best.step)
        evaluation = yield from self.complete_evaluation()
        self.best = self.best._replace(score=evaluation.score)

    # ---- logs

    def log_training(self) -> None:
        """Log the progress since the last time; raises ``Diverged`` if the learner holds a NaN or an infinity."""
        progress, values = self.progress, host_floats(self.metrics)
        for name, value in values.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} at step {progress.env_steps}")
        if not self.learners.is_finite():
            raise Diverged(f"a parameter or an average of Adam is not finite at step {progress.env_steps}")
        row: Row = {"pipeline/policy_age": self.policy_age, "pipeline/queue_depth": self.pool.num_ready()}
        row |= {f"waiting/{role}": idle for role, idle in self._idle.fractions(self.busy_seconds()).items()}
        memory = {"workers": self.pool.memory_bytes(), "evaluator": self.evaluator.handle.memory_bytes()}
        memory["learner"] = self.learners.memory_bytes()
        row |= {f"memory_mb/{role}": held / 1e6 for role, held in memory.items() if held}
        speed = self._speed.restart(progress.env_steps)
        self.reporter.training(progress, speed, {**row, **values})
        self.hooks.log(speed)

    def busy_seconds(self) -> dict[str, float]:
        """How long each role has worked since it was spawned, workers on average."""
        evaluator = self.evaluator.handle.busy_seconds
        return {"workers": self.pool.busy_seconds(), "evaluator": evaluator, "learner": self.learners.busy_seconds()}

    # ---- commits

    def commit(self) -> Steps[None]:
        """Write everything needed to continue bit for bit; training continues during the write."""
        progress = self.progress
        progress.last_commit = progress.env_steps
        calls = self.pool.request_states()
        for call in calls:
            while not call.done():
                yield [call]
        workers = self.pool.state_dict(calls)
        self.end_lost_episodes()
        calls = self.learners.request_states()
        while waits := self.learners.waits_for(calls):
            yield waits
        parts = {
            "supervisor": progress.state_dict() | self.evaluations.state_dict(),
            **self.call_learners("state_dict", lambda: self.learners.state_dict(calls)),
            **workers,
        }
        info = self.commit_info | {"exactness": self.pool.exactness()}
        self.committer.submit(progress.env_steps, parts, info)

    def note_commit(self, commit_id: str) -> None:
        self.hooks.commit(self.store.commit_folder(commit_id))

"""Deciding: the loop of one run, its stops, evaluations and commits. Knows neither losses nor networks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..config.run import RunConfig
from ..errors import (
    BudgetSpent,
    CheckpointError,
    ElegantRLError,
    NonFinite,
    RoleDied,
    RoleError,
    RoleTimedOut,
    SpecError,
    StorageError,
    format_error,
)
from ..execute.base import Future, where_raised
from ..rng import derive_seed
from ..store.commits import Store
from ..store.runlog import RunLog
from ..types import Fragment, Metrics, State, Weights
from .budget import RestartBudget
from .learners import Learners
from .progress import RECENT_EPISODES, Display, Evaluation, Progress, Shares, Speedometer
from .workers import Crew, Losses

LOG_SECONDS = 0.5

Row = dict[str, float | int | str]
T = TypeVar("T")


class LearnerLost(Exception):
    """A learner died or hangs."""


class Supervisor:
    """Runs one agent until a reason to stop comes up."""

    def __init__(
        self,
        config: RunConfig,
        learners: Learners,
        crew: Crew,
        store: Store,
        log: RunLog,
        display: Display,
        commit_info: dict[str, Any],
        keep_best: Callable[[Tensor, int, float], None] = lambda flat, step, mean: None,
    ):
        self.keep_best = keep_best
        self.config, self.learners, self.crew = config, learners, crew
        self.store, self.log, self.display, self.commit_info = store, log, display, commit_info
        self.state = Progress()
        self.insist(lambda: self.spread(self.ask("weights")))
        self.best_flat: Tensor = self.weights.flat
        self.evaluation: Evaluation | None = None
        self.metrics: Metrics = {}
        self.age = 0
        """Versions by which the policy had moved on from the one that made the newest data."""
        self.stop_request: str | None = None
        self.more_workers = 0
        """How many workers more, or less, somebody has asked for."""
        self.num_updates = 0
        """How many updates of parameters there were; known at the end."""
        self._seconds_before = 0.0
        self._failed_commits = 0
        self._traced: set[str] = set()
        """Places of errors whose tracebacks were shown."""
        # Without pauses: an environment is reset before anybody hears of it.
        self.env_budget = RestartBudget(config.execute.max_restarts, sleep=lambda _: None, of="environment faults")

    def request_stop(self, reason: str) -> None:
        """Stop at the next iteration boundary; safe to call from a signal handler."""
        self.stop_request = reason

    def request_workers(self, more: int) -> None:
        """Ask for more workers, or fewer, from the next iteration on; safe to call from a signal handler."""
        self.more_workers += more

    # ---- the loop

    def run(self) -> str:
        """Train until there is a reason to stop; return it. A lost learner costs what came after the last commit."""
        self._started = time.monotonic()
        reached: int | None = None
        while True:
            try:
                if reached is not None:
                    self.go_back(reached)
                    reached = None
                elif self.learners.executor.isolates and self.state.env_steps == 0:
                    self.commit()  # what a learner that dies early begins again from
                return self.train()
            except LearnerLost as death:
                reached = max(reached or 0, self.state.env_steps)
                self.crew.forgive("learner", death)

    def train(self) -> str:
        speed = Speedometer(self.state.env_steps)
        shares = Shares(self.busy_seconds())
        while (reason := self.stop_reason()) is None:
            if self.more_workers:
                self.resize()
            self.learn(self.collect())
            self.state.wall_seconds = self.seconds()
            if speed.seconds() >= LOG_SECONDS:
                self.log_training(speed.restart(self.state.env_steps), shares.waited(self.busy_seconds()))
                self.crew.replace_grown(self.outcome)
            with speed.paused():  # elsewhere it goes on beside training, here it takes its time
                if self.evaluation is None and self.evaluation_is_due():
                    self.begin_evaluation()
                self.hear_evaluation(wait=False)
            due = self.state.env_steps - self.state.last_commit >= self.config.checkpoint.interval
            if due and self.stop_reason() is None:  # the last commit comes after the last evaluation
                with speed.paused():
                    self.commit()
        if self.state.env_steps > speed.start_step:
            self.log_training(speed.restart(self.state.env_steps), shares.waited(self.busy_seconds()))
        if reason not in ("interrupted", "terminated"):
            self.hear_evaluation(wait=True)
            if self.state.last_eval < self.state.env_steps and reason != "target_return":
                self.begin_evaluation()
                self.hear_evaluation(wait=True)
        if self.state.best_mean == -math.inf:
            # Stopped before the first evaluation: the newest policy is the best known.
            self.best_flat = self.weights.flat
        self.state.wall_seconds = self.seconds()
        self.num_updates = self.ask("num_updates")
        self.commit(must_succeed=True)  # from here on the learners may die
        return reason

    def seconds(self) -> float:
        """How long this run has been trained, before and after interruptions."""
        return self._seconds_before + time.monotonic() - self._started

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
        """Fragments for one update; workers go on with the next while the learner learns from these."""
        fragments, self.state.seq = self.crew.sample(self.config.agent.horizon, self.state.seq, self.outcome)
        for fragment in fragments:
            self.note_faults(fragment)
        self.end_lost_episodes(fragments)
        for fragment in fragments:
            self.state.env_steps += fragment.rollout.num_steps
            self.state.episodes += len(fragment.episodes.returns)
            self.state.recent_returns.extend(fragment.episodes.returns[-RECENT_EPISODES:].tolist())
        self.age = self.weights.version - min(fragment.version for fragment in fragments)
        return fragments

    def note_faults(self, fragment: Fragment) -> None:
        """Forgive what went wrong in environments, as long as the budget lasts; count it and say it."""
        losses, group = self.crew.losses, fragment.slot_group
        if fragment.steps_lost:
            losses.steps_lost += fragment.steps_lost
            self.crew.cut_off(group, fragment.seq)
        for fault in fragment.faults:
            slot = group * self.crew.lanes + fault.lane
            step = fragment.seq * len(fragment.rollout.reward) + fault.step + 1
            text = f"worker {self.crew.worker_of(group)} slot {slot}: {fault.what} at step {step}"
            text += f" ({fault.where})" if fault.where else ", fragment rejected"  # only what was raised has a place
            if fault.where not in self._traced and fault.trace:
                self._traced.add(fault.where)
                self.display.message(fault.trace.rstrip())
            spent = self.env_budget.spend(f"{text} in {self.config.env.id}")
            losses.env_errors += 1
            self.display.message(f"{text}; slot reset ({spent} within 10 minutes)")

    def resize(self) -> None:
        """Go on with as many workers as were asked for: at least one, at most one per group, and only in processes."""
        more, self.more_workers = self.more_workers, 0
        now = len(self.crew.hosts)
        wanted = min(max(1, now + more), self.crew.num_groups)
        if wanted != now and self.crew.executor.isolates:
            self.crew.resize(wanted, self.outcome)
        self.display.message(f"{len(self.crew.hosts)} of at most {self.crew.num_groups} workers")

    def end_lost_episodes(self, fragments: Sequence[Fragment] = ()) -> None:
        """Before new data come in: what was seen last of an episode that is lost has no successor."""
        cut = self.crew.take_cuts(fragments)
        if cut is not None:
            self.ask("end_open_episodes", cut)

    def learn(self, fragments: list[Fragment]) -> None:
        metrics, weights = self.ask("update", fragments)
        self.crew.budget.has_recovered("learner")
        if metrics:
            self.metrics = metrics
        self.spread(weights)

    def spread(self, weights: Weights) -> None:
        """From now on the weights of everybody."""
        self.weights = weights
        self.crew.publish(weights)

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

    def begin_evaluation(self) -> None:
        """Have the newest policy judged."""
        self.state.last_eval = self.state.env_steps
        self.evaluation = Evaluation(self.state.env_steps, self.weights)
        self.look_at(self.evaluation)

    def look_at(self, evaluation: Evaluation) -> None:
        attempt = evaluation.looks + evaluation.failures
        seed = derive_seed(self.config.train.seed, "eval", evaluation.env_steps, attempt)
        self.crew.ask_for_score(evaluation.weights, seed)

    def hear_evaluation(self, wait: bool) -> None:
        """Take in what the evaluator has to say by now, or all it will say."""
        while (evaluation := self.evaluation) is not None:
            try:
                score = self.crew.score(self.outcome, wait)
            except BudgetSpent:
                raise
            except (RoleError, SpecError) as error:
                self.judge_anew(evaluation, error)
                continue
            if score is None:
                return
            evaluation.returns += score.returns
            evaluation.looks += 1
            if self.wants_another_look(evaluation):
                self.look_at(evaluation)
            else:
                self.evaluation = None
                self.conclude(evaluation)

    def judge_anew(self, evaluation: Evaluation, error: ElegantRLError) -> None:
        """Forgive an environment of the evaluator, as long as the budget lasts, and look again with other seeds."""
        try:
            spent = self.env_budget.spend(str(error))
        except BudgetSpent as end:
            raise end from error.__cause__
        self.crew.losses.env_errors += 1
        evaluation.failures += 1
        self.display.message(f"{error}; judged again with other seeds ({spent} within 10 minutes)")
        self.look_at(evaluation)

    def wants_another_look(self, evaluation: Evaluation) -> bool:
        """The best of many looks is partly luck: a promising score is confirmed on fresh seeds before it counts, and
        one that would end the run on as many again."""
        score, target = evaluation.score, self.target()
        if evaluation.looks == 1:
            return score.mean > self.state.best_mean or score.lower >= target
        return evaluation.looks == 3 or (evaluation.looks == 2 and score.lower >= target)

    def target(self) -> float:
        target = self.config.train.target_return
        return math.inf if target is None else target

    def conclude(self, evaluation: Evaluation) -> None:
        """Keep the policy if it is the best; stop if it reaches the target return for certain."""
        state, score, step = self.state, evaluation.score, evaluation.env_steps
        reached = score.lower >= self.target()
        # A policy that reaches the target for certain goes before one with a higher but less certain mean.
        is_best = reached or score.mean > state.best_mean
        if is_best:
            state.best_mean, state.best_ci95, state.best_step = score.mean, score.ci95, step
            self.best_flat = evaluation.weights.flat
            self.keep_best(self.best_flat, state.best_step, state.best_mean)
        clearly_worse = score.mean + score.ci95 < state.best_mean - state.best_ci95
        state.worse_in_a_row = state.worse_in_a_row + 1 if clearly_worse else 0
        state.final_mean = score.mean
        row: Row = {"kind": "eval", "eval/mean": score.mean, "eval/std": score.std, "eval/ci95": score.ci95}
        self.log.log(row | {"wall_seconds": state.wall_seconds, "eval/episodes": len(score.returns)}, step)
        losses = host_floats(self.metrics)
        self.log.record_evaluation(
            step,
            score.mean,
            score.std,
            state.train_return,
            losses.get("loss/actor", losses.get("loss/policy", math.nan)),
            losses.get("loss/critic", losses.get("loss/value", math.nan)),
        )
        self.display.evaluation(state, score, is_best)
        if reached:
            self.request_stop("target_return")

    # ---- remembering

    def log_training(self, steps_per_second: float, waited: dict[str, float]) -> None:
        values = host_floats(self.metrics)
        for name, value in values.items():
            if not math.isfinite(value):
                raise NonFinite(
                    f"{name} is {value} at step {self.state.env_steps}; lower agent.lr or agent.reward_scale and start"
                    f" anew, or resume the last commit"
                )
        row: Row = {"kind": "train", "train/return": self.state.train_return, "train/episodes": self.state.episodes}
        row |= {"time/steps_per_second": steps_per_second, "wall_seconds": self.state.wall_seconds}
        row |= {"pipeline/policy_age": self.age, "pipeline/queue_depth": self.crew.num_ready()}
        row |= {f"waiting/{role}": share for role, share in waited.items()}
        memory = self.crew.memory_bytes() | {"learner": self.learners.memory_bytes()}
        row |= {f"memory_mb/{role}": held / 1e6 for role, held in memory.items() if held}
        if self.crew.losses != Losses():
            row |= {f"faults/{name}": value for name, value in asdict(self.crew.losses).items()}
        self.log.log(row | values, self.state.env_steps)
        self.display.progress(self.state, steps_per_second)

    def busy_seconds(self) -> dict[str, float]:
        """How long each role has worked since it came to life, workers on average."""
        return self.crew.busy_seconds() | {"learner": self.learners.busy_seconds()}

    def commit(self, must_succeed: bool = False) -> None:
        """Write everything needed to continue bit for bit. A full disk costs a warning, three in a row the run."""
        if not bool(self.weights.flat.isfinite().all()):
            raise NonFinite(f"the policy has non-finite weights at step {self.state.env_steps}; nothing was committed")
        self.state.last_commit = self.state.env_steps
        workers = self.crew.state_dict(self.outcome)
        self.end_lost_episodes()
        evaluation = self.evaluation.state_dict() if self.evaluation is not None else {}
        parts = {
            "supervisor": self.state.state_dict() | {"best_flat": self.best_flat, "evaluation": evaluation},
            **self.ask("state_dict"),
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
        if self.stop_request == "target_return":  # by an evaluation that the commit does not know
            self.stop_request = None
        self.best_flat = supervisor.pop("best_flat")
        evaluation = supervisor.pop("evaluation", {})
        self.state = Progress.from_state(supervisor)
        self._seconds_before = self.state.wall_seconds
        self.ask("load_state_dict", parts)
        self.crew.load_state_dict(parts, self.outcome)
        self.end_lost_episodes()
        self.spread(self.ask("weights"))
        self.evaluation = None
        if evaluation:
            self.evaluation = Evaluation.from_state(evaluation)
            self.look_at(self.evaluation)
        self.log.rewind(self.state.env_steps, self.evaluation.env_steps if self.evaluation else None)

    def go_back(self, reached: int) -> None:
        """New learners in place of lost ones: the run continues from its last commit, everybody with them."""
        seconds = self.seconds()
        self.ask("restart")
        commit = self.store.latest_valid()
        if commit is not None:
            self.restore({part: commit.load(part) for part in commit.parts})
        elif reached > 0:  # before the first step a new learner is as good as the old one
            raise CheckpointError(f"{self.store.run_dir} holds no commit from which a new learner could start")
        self._seconds_before, self._started = seconds, time.monotonic()
        lost = reached - self.state.env_steps
        self.crew.losses.steps_lost += lost
        self.display.message(f"a new learner goes on at step {self.state.env_steps:,}; {lost:,} steps are done again")

    # ---- talking to roles

    def insist(self, act: Callable[[], T]) -> T:
        """Do what needs no more than fresh learners; if they are lost on the way, again with others."""
        is_lost = False
        while True:
            try:
                if is_lost:
                    self.ask("restart")
                return act()
            except LearnerLost as death:
                is_lost = True
                self.crew.forgive("learner", death)

    def ask(self, method: str, *args: Any) -> Any:
        """What the learners answer."""
        try:
            return getattr(self.learners, method)(*args)
        except (RoleDied, RoleTimedOut) as death:
            raise LearnerLost(str(death)) from death
        except Exception as error:
            raise self.explain(error, method) from error

    def outcome(self, future: Future, who: str) -> Any:
        """The value of a call by somebody."""
        try:
            return future.result()
        except Exception as error:
            raise self.explain(error, who) from error

    def explain(self, error: Exception, who: str) -> Exception:
        """A foreign exception becomes one sentence that says where it came from."""
        if isinstance(error, ElegantRLError):
            return error
        where = where_raised(error)
        return RoleError(
            f"{who} failed at step {self.state.env_steps} in {self.config.env.id}:"
            f" {format_error(error)}{f' ({where})' if where else ''}"
        )


def host_floats(metrics: Metrics) -> dict[str, float]:
    """All metrics in one transfer from the device."""
    if not metrics:
        return {}
    return dict(zip(metrics, torch.stack([m.detach().float() for m in metrics.values()]).tolist(), strict=True))

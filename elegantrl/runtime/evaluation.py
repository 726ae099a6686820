"""Evaluation rules: when a policy is evaluated, how a promising score is confirmed, and which policy is the best.

One policy is evaluated at a time, on seeds that follow from its step. While the evaluator runs in a process of its own,
training continues, but not beyond the step at which the next evaluation is due: so the choice of policies that are
evaluated and kept does not depend on the speed of a process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..config.run import RunConfig
from ..errors import BudgetSpent, RoleError, SpecError
from ..execute.base import ONE_CPU, Executor, Future, Handle, Needs, Ref
from ..rng import derive_seed
from ..roles.evaluator import Score
from ..types import State, Weights
from .budget import RestartBudget
from .progress import RECENT_EPISODES, Progress
from .restarts import Restarts
from .timeouts import Timeouts

EARLY_SHARE = 0.1
"""If training episodes reach the target, an evaluation may come early, after this fraction of the interval."""
NO_SCORE = Score(())


@dataclass(slots=True)
class Evaluation:
    """A policy that is being evaluated, and its score so far."""

    env_steps: int
    weights: Weights
    score: Score = NO_SCORE
    rounds: int = 0
    failures: int = 0
    """Rounds without a score because an environment failed."""
    is_fresh: bool = False
    """Whether this only scores a policy that was selected before, in one round on seeds of its own."""

    def state_dict(self) -> State:
        score = self.score
        return {
            "env_steps": self.env_steps,
            "version": self.weights.version,
            "flat": self.weights.flat,
            "returns": list(score.returns),
            "agent_returns": [list(returns) for returns in score.agent_returns],
            "won": list(score.won),
            "agent_names": list(score.agent_names),
            "rounds": self.rounds,
            "failures": self.failures,
        }

    @classmethod
    def from_state(cls, state: State) -> Evaluation:
        weights = Weights(state["version"], state["flat"])
        agent_returns, won, names = (state.get(name, ()) for name in ("agent_returns", "won", "agent_names"))
        score = Score(tuple(state["returns"]), tuple(map(tuple, agent_returns)), tuple(won), tuple(names))
        return cls(state["env_steps"], weights, score, state["rounds"], state["failures"])


@dataclass(slots=True)
class PendingScore:
    """A score that was requested."""

    weights: Ref
    seed: int
    call: Future


class EvaluatorClient:
    """The evaluator of a run, in this process or another; one that dies or hangs is replaced."""

    def __init__(
        self,
        executor: Executor,
        build: Callable[[], Any],
        restarts: Restarts,
        timeouts: Timeouts,
        explain: Callable[[Exception, str], Exception] = lambda error, role: error,
        needs: Needs = ONE_CPU,
    ):
        self.executor, self.build, self.restarts, self.needs = executor, build, restarts, needs
        self.timeouts, self.explain = timeouts, explain
        self.pending: PendingScore | None = None
        self.handle = self.spawn()

    def spawn(self) -> Handle:
        limit = self.timeouts.of_build()
        (handle,) = self.restarts.retry("evaluator", lambda: self.executor.spawn_all([self.build], limit, self.needs))
        return handle

    def request_score(self, weights: Ref, seed: int) -> None:
        """Request the score of a policy; ``score`` returns it."""
        if self.handle.can_move():
            self.executor.kill(self.handle)
            self.handle = self.spawn()
            self.restarts.notify("evaluator moved to processors of its own")
        self.pending = PendingScore(weights, seed, self.call(weights, seed))

    def call(self, weights: Ref, seed: int) -> Future:
        return self.handle.call("score", weights, seed, timeout=self.timeouts.of("score"))

    def waits_for(self) -> list[Future]:
        return [self.pending.call] if self.pending is not None and not self.pending.call.done() else []

    def score(self) -> Score | None:
        """The requested score; None if there is none yet.

        A score is a function of weights and seed alone, so a new evaluator gives the same.
        """
        return self.restarts.retry("evaluator", self.take_score, self.replace)

    def take_score(self) -> Score | None:
        assert self.pending is not None
        call = self.pending.call
        if not call.done():
            return None
        try:
            score: Score = call.take()
        except Exception as error:
            failure = self.explain(error, "score")
            raise failure from failure.__cause__
        self.timeouts.note("score", call)
        self.pending = None
        self.restarts.has_recovered("evaluator")
        return score

    def replace(self) -> None:
        self.executor.kill(self.handle)
        self.handle = self.spawn()
        assert self.pending is not None
        self.pending.call = self.call(self.pending.weights, self.pending.seed)

    def close(self) -> None:
        self.executor.kill(self.handle)


class Evaluations:
    """The schedule, the policy that is being evaluated, and the best policy so far.

    ``ref_of`` turns weights into an argument of calls.
    """

    def __init__(
        self,
        config: RunConfig,
        evaluator: EvaluatorClient,
        progress: Progress,
        ref_of: Callable[[Weights], Ref],
        notify: Callable[[str], None] = lambda text: None,
    ):
        self.config, self.evaluator, self.progress, self.ref_of = config, evaluator, progress, ref_of
        self.notify = notify
        self.current: Evaluation | None = None
        self.best_flat: Tensor | None = None
        # Without pauses: an environment is reset before its failure is reported here.
        self.env_budget = RestartBudget(config.execute.max_restarts, sleep=lambda _: None, of="environment faults")

    @property
    def target(self) -> float:
        target = self.config.train.target_return
        return math.inf if target is None else target

    def reached_target(self) -> bool:
        """Whether the best policy reaches the target return with 95 % confidence."""
        return self.progress.best_mean - self.progress.best_ci95 >= self.target

    def is_due(self) -> bool:
        progress, interval = self.progress, self.config.eval.interval
        passed = progress.env_steps - progress.last_eval
        if passed >= interval:
            return True
        # Training episodes that reach the target suggest that the run may end.
        if self.target == math.inf or len(progress.recent_returns) < RECENT_EPISODES:
            return False
        return progress.train_return >= self.target and passed >= EARLY_SHARE * interval

    def begin(self, weights: Weights) -> None:
        """Start the evaluation of the newest policy."""
        self.current = Evaluation(self.progress.env_steps, weights)
        self.request_round(self.current)

    def begin_fresh(self, flat: Tensor, env_steps: int) -> None:
        """Start another score of a policy that was selected."""
        self.current = Evaluation(env_steps, Weights(-1, flat), is_fresh=True)
        self.request_round(self.current)

    def request_round(self, evaluation: Evaluation) -> None:
        stream = "fresh" if evaluation.is_fresh else "eval"
        attempt = evaluation.rounds + evaluation.failures
        seed = derive_seed(self.config.train.seed, stream, evaluation.env_steps, attempt)
        self.evaluator.request_score(self.ref_of(evaluation.weights), seed)

    def poll(self) -> Evaluation | None:
        """Receive the scores that have arrived; returns the evaluation if it is complete."""
        while (evaluation := self.current) is not None:
            try:
                score = self.evaluator.score()
            except BudgetSpent:
                raise
            except (RoleError, SpecError) as error:
                self.count_failure(evaluation, error)
                continue
            if score is None:
                return None
            evaluation.score += score
            evaluation.rounds += 1
            if not self.needs_another_round(evaluation):
                self.current = None
                return evaluation
            self.request_round(evaluation)
        return None

    def count_failure(self, evaluation: Evaluation, error: Exception) -> None:
        """Count a failed environment and evaluate again with other seeds; raises if the budget is spent."""
        try:
            spent = self.env_budget.spend(str(error))
        except BudgetSpent as end:
            raise end from error.__cause__
        self.evaluator.restarts.counts.env_errors += 1
        evaluation.failures += 1
        self.notify(f"{error}; evaluated again with other seeds ({spent} within 10 minutes)")
        self.request_round(evaluation)

    def needs_another_round(self, evaluation: Evaluation) -> bool:
        """Whether to continue: the maximum of many scores is biased, so a promising score is confirmed on fresh seeds
        before it counts, and a score that would end the run on twice as many."""
        if evaluation.is_fresh:
            return False
        score = evaluation.score
        if evaluation.rounds == 1:
            return score.mean > self.progress.best_mean or score.lower >= self.target
        return evaluation.rounds == 3 or (evaluation.rounds == 2 and score.lower >= self.target)

    def conclude(self, evaluation: Evaluation) -> bool:
        """Keep the policy if it is the best; returns whether it is."""
        progress, score = self.progress, evaluation.score
        # A policy that reaches the target with confidence replaces one with a higher but less certain mean.
        is_best = score.lower >= self.target or score.mean > progress.best_mean
        if is_best:
            progress.best_mean, progress.best_ci95 = score.mean, score.ci95
            progress.best_step = evaluation.env_steps
            self.best_flat = evaluation.weights.flat
        clearly_worse = score.mean + score.ci95 < progress.best_mean - progress.best_ci95
        progress.worse_in_a_row = progress.worse_in_a_row + 1 if clearly_worse else 0
        progress.final_mean = score.mean
        return is_best

    def state_dict(self) -> State:
        current = self.current.state_dict() if self.current is not None else {}
        assert self.best_flat is not None
        return {"best_flat": self.best_flat, "evaluation": current}

    def load_state_dict(self, state: State) -> None:
        """Continue from ``state``; an evaluation that was not complete requests its next round again."""
        self.best_flat = state["best_flat"]
        self.current = self.evaluator.pending = None
        if state["evaluation"]:
            self.current = Evaluation.from_state(state["evaluation"])
            self.request_round(self.current)

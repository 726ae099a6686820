"""Drives the training loop of one run, and restores its last commit when a learner is lost or diverges.

``advance`` continues until the run must wait, ``waits_for`` returns the futures it waits for: one thread can drive many
runs that share an executor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import CheckpointError, Diverged
from ..execute.base import Future
from ..store.side_files import SideFiles
from ..types import State
from .training import Steps, TrainingLoop


class Supervisor(TrainingLoop):
    """Runs one agent until there is a reason to stop."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.close: Callable[[], None] = lambda: None
        """Ends the roles and closes the files."""
        self.side_files = SideFiles()
        self._loop: Steps[str] | None = None
        self._waits: list[Future] = []
        self._has_rolled_back = False

    def request_stop(self, reason: str) -> None:
        """Stop at the next iteration boundary; safe to call from a signal handler."""
        self.stop_request = reason

    def request_workers(self, more: int) -> None:
        """Request more workers, or fewer, from the next iteration on; safe to call from a signal handler."""
        self.more_workers += more

    # ---- driving

    def run(self) -> str:
        """Train until there is a reason to stop; return it."""
        while (reason := self.advance()) is None:
            if waits := self.waits_for():
                self.pool.executor.wait(waits)
        return reason

    def advance(self) -> str | None:
        """Continue without waiting, up to one iteration; returns the reason to stop when the run is complete.

        It waits only for the replacement of a process that died.
        """
        if self._started is None:
            self._started = time.monotonic()
        try:
            return self.restarts.retry("learner", self.resume_loop, self.go_back)
        except Diverged as error:
            self.roll_back(error)
            return None

    def waits_for(self) -> list[Future]:
        """The futures of which one must end before ``advance`` can continue; empty if it need not wait."""
        return [] if any(future.done() for future in self._waits) else self._waits

    def resume_loop(self) -> str | None:
        if self._loop is None:
            self._loop = self.loop()
        try:
            self._waits = []
            self._waits = next(self._loop)
        except StopIteration as end:
            reason: str = end.value
            return reason
        return None

    # ---- going back

    def restore(self, parts: dict[str, State]) -> None:
        """Continue from the parts of a commit."""
        self.progress.load_state_dict(parts["supervisor"])
        if self._started is None:
            self._seconds_before = self.progress.wall_seconds
        self.learners.load_state_dict(parts)
        self.pool.load_state_dict(parts)
        self.end_lost_episodes()
        self.publish(self.learners.weights())
        self.evaluations.load_state_dict(parts["supervisor"])
        current = self.evaluations.current
        rewind_to = None if current is None else current.env_steps
        self.reporter.log.rewind(self.progress.env_steps, rewind_to)

    def inherit(self, learner: State) -> None:
        """Begin with the learner's state of another run of the same agent, and with episodes of this run's own.

        Steps are counted on from those of the other run. Hyper-parameters and random streams are those of this run.
        """
        self.learners.outcomes(self.learners.call_all("inherit", *[(learner,) for _ in self.learners.groups]))
        self.learners.end_open_episodes([np.ones(self.pool.num_lanes, dtype=bool)] * self.pool.num_groups)
        progress = self.progress
        progress.env_steps = progress.last_eval = progress.last_commit = self._reached = learner["env_steps"]
        self.publish(self.learners.weights())

    def go_back(self) -> None:
        """Continue from the last commit with new learners."""
        self._loop = None
        self.committer.wait()
        self.learners.restart()
        commit = self.store.latest_valid()
        if commit is not None:
            self.restore({part: commit.load(part) for part in commit.parts})
        elif self._reached > 0:  # before the first step a new learner equals the old one
            raise CheckpointError(f"{self.store.run_dir} holds no commit from which a new learner could start")
        else:
            self.weights = None
        lost, self._reached = self._reached - self.progress.env_steps, self.progress.env_steps
        self.counts.steps_lost += lost
        self.display.message(
            f"a new learner goes on at step {self.progress.env_steps:,}; {lost:,} steps are done again"
        )

    def roll_back(self, error: Diverged) -> None:
        """Go back to the last commit, once, and continue with other episodes: with the same it would diverge again."""
        advice = "lower agent.lr or agent.reward_scale and start anew"
        if self._has_rolled_back:
            raise Diverged(f"{error}, for the second time; {advice}, or resume the last commit") from error
        self._has_rolled_back = True
        with contextlib.suppress(Diverged):  # of the same learner
            self.committer.wait()
        if self.store.latest_valid() is None:
            raise Diverged(f"{error}, before the first commit; {advice}") from error
        self.display.message(f"{error}; the run goes back to its last commit and on with other episodes")
        self.restarts.retry("learner", self.go_back)
        self.pool.begin_new_episodes()

"""The role that trains members: one call is one period of one member, as a run of its own.

A period starts from the stored runs of its parents, with new episodes and new random streams, and ends as a stored run.
Its result depends on the task alone: a period that was killed is done again with the same result, and one that is
already stored is not done again.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..agents.fusion import fuse
from ..devices import pick_device
from ..errors import CheckpointError, Diverged
from ..execute.inline import InlineExecutor
from ..failpoints import failpoint
from ..roles.evaluator import Score
from ..runtime.build import evaluator_builder, open_run
from ..runtime.progress import Silent
from ..runtime.supervisor import Supervisor
from ..store.commits import Store
from ..store.storage import Storage, open_storage
from ..store.trained import TrainedPolicy
from ..types import State, Weights
from .config import PopulationConfig
from .space import base_config, run_config

RESULT = "period.json"
"""The result of a period, in its run folder."""


class Task(NamedTuple):
    """A period to train: where it starts, for how long, and with which settings."""

    key: str
    """Where the run is stored."""
    agent: str
    hypers: dict[str, float]
    parents: tuple[str, ...]
    """The runs it starts from, fused if there are several; none: from scratch."""
    seed: int
    eval_seed: int | None
    """Seed of the evaluation at the end; None: no evaluation."""
    steps: int
    """Train until the agent has seen so many steps in total, its ancestors' included; 0: do not train."""
    seconds: float | None
    """Train for so long; None: no limit."""


class Outcome(NamedTuple):
    """What a period gave."""

    key: str | None
    """Where its run is stored; None: it diverged, and nothing is stored."""
    steps: int
    score: float | None
    ci95: float = 0.0


class Trainer:
    """Trains and evaluates members in the process that it is built in."""

    def __init__(self, config: PopulationConfig, source: Any, url: str) -> None:
        self.config, self.source = config, source
        self.storage: Storage = open_storage(url)

    def train(self, task: Task) -> Outcome:
        """Train one period, evaluate its newest policy, and store the run."""
        if task.key in self.storage.list("runs"):
            return Outcome(**json.loads(self.storage.read(f"{task.key}/{RESULT}")))
        with tempfile.TemporaryDirectory(prefix="elegantrl-") as scratch:
            folder = Path(scratch) / "run"
            try:
                outcome = self._run(task, folder, Path(scratch))
            except Diverged:
                return Outcome(None, 0, None)
            (folder / RESULT).write_text(json.dumps(outcome._asdict()))
            failpoint("population.before_upload")
            self.storage.upload(folder, task.key)
            failpoint("population.after_upload")
        return outcome

    def _run(self, task: Task, folder: Path, scratch: Path) -> Outcome:
        base = base_config(self.config, task.agent)
        config = run_config(base, task.hypers, task.seed, max(1, task.steps))
        parent = self._parent_state(task.parents, scratch)  # before anything is built that must be closed
        executor = InlineExecutor()
        supervisor = open_run(config, self.source, folder, executor, Silent(), eval_source=config.eval.env_id)
        try:
            if parent is not None:
                supervisor.inherit(parent)
            drive(supervisor, task.steps, task.seconds)
            for _ in supervisor.commit():
                pass
            supervisor.committer.wait(must_succeed=True)
            steps, weights = supervisor.progress.env_steps, supervisor.learners.weights()
            score = None if task.eval_seed is None else score_weights(supervisor, weights, task.eval_seed)
            supervisor.keep_best(weights.flat, steps, math.nan if score is None else score.mean)
        finally:
            supervisor.close()
            executor.close()
        return Outcome(task.key, steps, None) if score is None else Outcome(task.key, steps, score.mean, score.ci95)

    def _parent_state(self, parents: Sequence[str], scratch: Path) -> State | None:
        """The learner's state in the newest commits of stored runs, fused if there are several."""
        states = []
        for number, key in enumerate(parents):
            folder = scratch / f"parent{number}"
            self.storage.download(key, folder)
            commit = Store(folder).latest_valid()
            if commit is None:
                raise CheckpointError(f"{key} of {self.storage.url} holds no commit")
            states.append(commit.load("learner"))
            shutil.rmtree(folder)
        if not states:
            return None
        return {**states[0], "agent": fuse([state["agent"] for state in states])} if len(states) > 1 else states[0]

    def evaluate(self, key: str, seed: int) -> Outcome:
        """Score the policy of a stored run again."""
        with tempfile.TemporaryDirectory(prefix="elegantrl-") as scratch:
            folder = Path(scratch) / "run"
            self.storage.download(key, folder)
            trained = TrainedPolicy.load(folder, allow_import=True)
            config, source = trained.config, trained.config.eval.env_id
            device = pick_device(config.train.device)
            evaluator = evaluator_builder(config, self.source, source, device, trained.spec, False)()
            try:
                score = evaluator.score(Weights(0, trained.policy.to_flat()), seed)
            finally:
                evaluator.close()
        return Outcome(key, 0, score.mean, score.ci95)

    def close(self) -> None:
        self.storage.close()


def drive(supervisor: Supervisor, max_steps: int, seconds: float | None) -> None:
    """Train up to so many steps in total, or for so many seconds."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    try:
        while supervisor.progress.env_steps < max_steps and time.monotonic() < end:
            supervisor.advance()
    except Exception as error:
        if not supervisor.learners.is_finite():  # actions of a policy that diverged make environments fail
            raise Diverged(f"a parameter is not finite: {error}") from error
        raise


def score_weights(supervisor: Supervisor, weights: Weights, seed: int) -> Score:
    """The score of a policy on these seeds."""
    supervisor.evaluator.request_score(supervisor.pool.ref_of(weights), seed)
    score = supervisor.evaluator.score()
    assert score is not None, "roles in this process answer at once"
    return score

"""The loop of a run: reasons to stop, evaluations, commits, errors; and what a run leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import elegantrl
from elegantrl import failpoints
from elegantrl.agents.ppo import PPOConfig
from elegantrl.config.run import CheckpointConfig, EnvConfig, EvalConfig, RunConfig, TrainConfig
from elegantrl.envs import CartPoleVecEnv
from elegantrl.errors import BudgetSpent, CheckpointError, ConfigError, Diverged, RoleError, StorageError
from elegantrl.execute.inline import InlineExecutor
from elegantrl.nets.policies import PolicySpec
from elegantrl.registry import find_agent
from elegantrl.rng import derive_seed
from elegantrl.roles.evaluator import Score
from elegantrl.runtime import training as training_module
from elegantrl.runtime.evaluation import EvaluatorClient
from elegantrl.runtime.learners import Learners
from elegantrl.runtime.progress import Progress, Silent
from elegantrl.runtime.reporting import explain_error
from elegantrl.runtime.requests import WorkerRecord
from elegantrl.runtime.restarts import Restarts
from elegantrl.runtime.supervisor import Supervisor
from elegantrl.runtime.timeouts import Timeouts
from elegantrl.runtime.workers import WorkerPool
from elegantrl.store.commits import Store
from elegantrl.store.runlog import RunLog, read_metrics
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Metrics, Rollout, State, Weights
from tests.names import SINGLE_AGENTS

Run = Callable[..., elegantrl.RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]


class FakeWorker:
    """Two lanes that give reward 1; one episode ends per fragment."""

    def __init__(self) -> None:
        self.episode_return = 1.0

    def env_spec(self) -> EnvSpec:
        return EnvSpec("Fake", (1,), ActionSpec(choices=(2,)), 2)

    def start(self, *_: Any) -> None: ...

    def sample(self, weights: Weights, horizon: int, seq: int) -> list[Fragment]:
        shape = (horizon, 2)
        obs, none = torch.zeros(*shape, 1), torch.zeros(shape, dtype=torch.bool)
        reward = torch.ones(shape)
        rollout = Rollout(obs, torch.zeros(shape, dtype=torch.int64), reward, none, none, obs, torch.zeros(shape))
        episodes = Episodes(torch.tensor([self.episode_return], dtype=torch.float64), torch.tensor([horizon]))
        return [Fragment(0, seq, weights.version, rollout, episodes)]

    def state_dict(self) -> dict[str, State]:
        return {"group0": {}}

    def exactness(self) -> str:
        return "exact"

    def load_state_dict(self, parts: dict[str, State]) -> list[Any]:
        return [np.zeros(2, dtype=bool)]

    def close(self) -> None: ...


class FakeLearner:
    """Its weights are the number of updates."""

    def __init__(self) -> None:
        self.updates = 0
        self.loss = 0.5
        self.on_update: Callable[[], None] = lambda: None

    def update(self, fragments: list[Fragment]) -> Metrics:
        self.updates += 1
        self.on_update()
        return {"loss/policy": torch.tensor(self.loss)}

    def learn(self, fragments: list[Fragment]) -> tuple[Metrics, Weights]:
        return self.update(fragments), self.weights()

    def policy_spec(self) -> PolicySpec:
        return PolicySpec("fake", None, ActionSpec(dim=1))

    def num_updates(self) -> int:
        return self.updates

    def is_finite(self) -> bool:
        return True

    def weights(self) -> Weights:
        return Weights(self.updates, torch.tensor([float(self.updates)]))

    def state_dict(self) -> State:
        return {"updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        self.updates = state["updates"]

    def end_open_episodes(self, restarted: list[Any]) -> None: ...

    def close(self) -> None: ...


class FakeEvaluator:
    """Hands out the given scores, one per policy, the last one for ever; a list gives one score per look at it."""

    def __init__(self, scores: list[Any]):
        self.scores = scores
        self.calls: list[tuple[float, int]] = []

    def score(self, weights: Weights, seed: int) -> Score:
        self.calls.append((float(weights.flat), seed))
        policies = list(dict.fromkeys(weights for weights, _ in self.calls))
        score = self.scores[min(len(policies), len(self.scores)) - 1]
        if isinstance(score, list):
            looks = sum(weights == policies[-1] for weights, _ in self.calls)
            score = score[min(looks, len(score)) - 1]
        return Score(score)

    def close(self) -> None: ...


@dataclass
class Stage:
    """A supervisor over fake roles. An iteration takes 10 steps in each of 2 lanes."""

    folder: Path
    config: RunConfig
    scores: list[tuple[float, ...]]
    worker: FakeWorker = field(default_factory=FakeWorker)
    learner: FakeLearner = field(default_factory=FakeLearner)

    def __post_init__(self) -> None:
        executor = InlineExecutor()
        self.evaluator = FakeEvaluator(self.scores)
        progress, restarts = Progress(), Restarts(10, lambda text: None)
        explain = partial(explain_error, "Fake", progress)
        pool = WorkerPool(executor, lambda groups: lambda: self.worker, restarts=restarts, explain=explain)
        pool.start(PolicySpec("fake", None, ActionSpec(dim=1)), 0)
        timeouts = Timeouts(isolates=False)
        evaluator = EvaluatorClient(executor, lambda: self.evaluator, restarts, timeouts, explain)
        learners = Learners(executor, lambda rank: lambda: self.learner)
        self.store = Store(self.folder)
        self.store.lock()
        self.log = RunLog(self.folder, resume_step=0, loggers=())
        self.supervisor = Supervisor(
            self.config, learners, pool, evaluator, self.store, self.log, Silent(), {}, progress=progress
        )

    def close(self) -> None:
        self.log.close()
        self.store.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(
        scores: list[tuple[float, ...]] | None = None, interval: int = 20, commit_every: int = 10**6, **train: Any
    ) -> Stage:
        config = RunConfig(
            agent_name="ppo",
            agent=PPOConfig(horizon=10),
            env=EnvConfig(id="Fake", num_envs=2),
            train=TrainConfig(**{"max_steps": 10_000, **train}),
            eval=EvalConfig(interval=interval),
            checkpoint=CheckpointConfig(interval=commit_every),
        )
        stages.append(Stage(tmp_path / f"run{len(stages)}", config, scores or [(0.0, 1.0)]))
        return stages[-1]

    yield make
    for one in stages:
        one.close()


MakeStage = Callable[..., Stage]


def test_stops_at_max_steps_counted_over_lanes(stage: MakeStage) -> None:
    # Guards against: R7, a step counter that forgets lanes or workers.
    one = stage(max_steps=90)
    assert one.supervisor.run() == "max_steps"
    # 20 steps per iteration: the first boundary at or after 90.
    assert one.supervisor.progress.env_steps == 100 and one.learner.updates == 5
    assert one.supervisor.progress.seq == 5 and one.supervisor.progress.episodes == 5


def test_stops_after_max_seconds(stage: MakeStage) -> None:
    one = stage(max_seconds=1e-9)
    assert one.supervisor.run() == "max_seconds"
    assert one.learner.updates == 1


def test_stops_at_the_target_return_after_a_second_look(stage: MakeStage) -> None:
    # Guards against: R13, a target return, or a lasting decline, that does not stop the run.
    one = stage([(1.0, 1.0), (6.0, 11.0), (9.0, 9.0)], target_return=8.0)
    assert one.supervisor.run() == "target_return"
    # Every new best is confirmed. The second has a mean above the target but is too uncertain; the third is looked at
    # twice as often again before it ends the run, always with fresh seeds.
    # In the end the best is scored once more, on seeds that had no part in its selection.
    assert [weights for weights, _ in one.evaluator.calls] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    assert len({seed for _, seed in one.evaluator.calls}) == 9
    assert one.supervisor.progress.best_step == 60


def test_a_lucky_draw_does_not_stop_the_run(stage: MakeStage) -> None:
    one = stage([[(9.0, 9.0), (0.0, 0.0)], (1.0, 1.0)], target_return=8.0, max_steps=60)
    assert one.supervisor.run() == "max_steps"
    assert one.supervisor.progress.best_mean == 4.5  # all four episodes count
    late = stage([[(9.0, 9.0), (9.0, 9.0), (0.0, 0.0), (9.0, 9.0)], (1.0, 1.0)], target_return=8.0, max_steps=60)
    assert late.supervisor.run() == "max_steps"
    assert late.supervisor.progress.best_mean == 6.75


def test_a_lucky_draw_does_not_become_the_best(stage: MakeStage) -> None:
    one = stage([(5.0, 5.0), [(9.0, 9.0), (0.0, 0.0)], (1.0, 1.0)], max_steps=60)
    one.supervisor.run()
    assert (one.supervisor.progress.best_mean, one.supervisor.best.flat.item()) == (5.0, 1.0)


def test_target_just_missed_and_just_met(stage: MakeStage) -> None:
    assert stage([(8.0, 8.0)], target_return=8.0).supervisor.run() == "target_return"
    assert stage([(7.999, 7.999)], target_return=8.0, max_steps=100).supervisor.run() == "max_steps"


def test_stops_when_evaluations_stay_clearly_below_the_best(stage: MakeStage) -> None:
    # Guards against: R13, a target return, or a lasting decline, that does not stop the run.
    one = stage([(5.0, 5.0), (9.0, 9.0), (1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (9.0, 9.0)], patience=3)
    assert one.supervisor.run() == "overfitting"
    assert one.learner.updates == 5
    assert (one.supervisor.progress.best_mean, one.supervisor.progress.best_step) == (9.0, 40)


def test_patience_starts_anew_when_the_score_recovers(stage: MakeStage) -> None:
    drop, back, unsure = (1.0, 1.0), (9.0, 9.0), (0.0, 10.0)  # the last one is not *clearly* below
    one = stage([back, drop, back, drop, unsure, drop, drop], patience=2)
    assert one.supervisor.run() == "overfitting"
    assert one.learner.updates == 7


def test_an_evaluator_that_shares_processors_moves_before_its_next_score(stage: MakeStage) -> None:
    one = stage(max_steps=40)
    client = one.supervisor.evaluator
    first, said = client.handle, []
    client.restarts.notify = said.append
    first.can_move = lambda: True  # type: ignore[method-assign]
    one.supervisor.run()
    assert client.handle is not first and said == ["evaluator moved to processors of its own"]
    assert client.restarts.counts.restarts == 0


def test_stop_request_commits_without_a_last_evaluation(stage: MakeStage, load_commit: LoadCommit) -> None:
    one = stage(interval=10**6)

    def on_update() -> None:
        if one.learner.updates == 3:
            one.supervisor.request_stop("interrupted")

    one.learner.on_update = on_update
    assert one.supervisor.run() == "interrupted"
    assert one.learner.updates == 3 and one.evaluator.calls == []
    assert load_commit(one.folder)["learner"] == {"updates": 3}


def test_best_weights_are_those_that_were_scored(stage: MakeStage) -> None:
    # Guards against: R3, an evaluator that scores one policy and saves another.
    one = stage([(1.0, 1.0), (7.0, 7.0), (3.0, 3.0)], max_steps=100)
    one.supervisor.run()
    assert one.supervisor.best.flat.item() == 2.0
    state = one.supervisor.progress
    assert (state.best_mean, state.best_step, state.final_mean) == (7.0, 40, 3.0)


def test_evaluations_follow_the_interval_and_the_end(stage: MakeStage) -> None:
    one = stage(interval=50, max_steps=140)
    one.supervisor.run()
    # Boundaries 20, 40, 60, ...: at 60, 120, at the end because 140 was not evaluated yet, and then the best again.
    assert [weights for weights, _ in one.evaluator.calls] == [3.0, 3.0, 6.0, 7.0, 3.0]
    seeds = [derive_seed(0, "eval", step, look) for step, look in ((60, 0), (60, 1), (120, 0), (140, 0))]
    assert [seed for _, seed in one.evaluator.calls] == [*seeds, derive_seed(0, "fresh", 60, 0)]


def test_the_reported_return_had_no_part_in_the_selection(stage: MakeStage) -> None:
    """C1: the best of many scores is partly luck, so the policy is scored once more on seeds of its own."""
    one = stage([[(9.0, 9.0), (7.0, 7.0), (5.0, 5.0)]], interval=50, max_steps=60)
    one.supervisor.run()
    best = one.supervisor.best
    assert best is not None and best.score is not None
    assert (best.flat.item(), best.mean, best.score.mean) == (3.0, 8.0, 5.0)


@pytest.mark.parametrize("stop_at", [60, 80, 100, 140, 160])
def test_evaluating_at_a_stop_is_no_part_of_a_run(stage: MakeStage, load_commit: LoadCommit, stop_at: int) -> None:
    """C12: N + N steps hand over the same policy as 2N, whatever the stop in the middle thought of its newest one."""
    scores = [(float(10 * (i % 4 == 2) + i % 7),) * 2 for i in range(20)]

    def begin(max_steps: int) -> Stage:
        one = stage(interval=70, max_steps=max_steps)
        one.evaluator.score = lambda weights, seed: Score(scores[int(weights.flat)])  # type: ignore[method-assign]
        return one

    whole, half, rest = begin(280), begin(stop_at), begin(280)
    whole.supervisor.run()
    half.supervisor.run()
    rest.supervisor.restore(load_commit(half.folder))
    rest.supervisor.run()
    assert rest.supervisor.best == whole.supervisor.best
    same = {"wall_seconds": 0.0, "final_mean": 0.0}
    assert rest.supervisor.progress.state_dict() | same == whole.supervisor.progress.state_dict() | same


def test_training_episodes_at_the_target_bring_an_evaluation_forward(stage: MakeStage) -> None:
    one = stage([(50.0, 50.0)], interval=4000, target_return=40.0)
    one.worker.episode_return = 50.0
    assert one.supervisor.run() == "target_return"
    # 20 training episodes take 20 iterations, and at least a tenth of the interval must have passed.
    assert one.supervisor.progress.env_steps == 400


def test_resume_continues_counters(stage: MakeStage, load_commit: LoadCommit) -> None:
    one = stage([(1.0, 1.0), (7.0, 7.0), (3.0, 3.0)], max_steps=60)
    one.supervisor.run()
    other = stage([(4.0, 4.0)], max_steps=100)
    other.supervisor.restore(load_commit(one.folder))
    assert other.supervisor.run() == "max_steps"
    assert other.learner.updates == 5 and other.supervisor.progress.seq == 5
    assert other.supervisor.best.flat.item() == 2.0 and other.supervisor.progress.best_mean == 7.0


def test_progress_round_trip() -> None:
    progress = Progress(env_steps=5, best_mean=-math.inf)
    progress.recent_returns.extend(float(i) for i in range(30))
    again = Progress()
    again.load_state_dict(progress.state_dict())
    assert again.state_dict() | {"final_mean": 0} == progress.state_dict() | {"final_mean": 0}
    again.recent_returns.append(99.0)
    assert len(again.recent_returns) == 20 and again.recent_returns[0] == 11.0
    assert math.isnan(Progress().train_return)


def test_commits_follow_their_interval(stage: MakeStage) -> None:
    one = stage(interval=10**6, commit_every=50, max_steps=140)
    steps: list[int] = []
    original = one.store.commit

    def record(step: int, *args: Any) -> str:
        steps.append(step)
        return original(step, *args)

    one.store.commit = record  # type: ignore[method-assign]
    one.supervisor.run()
    assert steps == [60, 120, 140]


def test_the_last_commit_holds_scheduled_evaluations_only(stage: MakeStage, load_commit: LoadCommit) -> None:
    one = stage([(7.0, 7.0)], interval=10**6, commit_every=60, max_steps=60)
    one.supervisor.run()
    assert one.supervisor.best is not None and one.supervisor.best.mean == 7.0
    assert load_commit(one.folder)["supervisor"]["best_mean"] == -math.inf
    other = stage([(7.0, 7.0)], interval=60, commit_every=60, max_steps=60)
    other.supervisor.run()
    assert load_commit(other.folder)["supervisor"]["best_mean"] == 7.0


def test_a_stop_before_the_first_evaluation_keeps_the_newest_policy(stage: MakeStage) -> None:
    # Guards against: R11, evaluations in which short episodes weigh more, or that break without a finished episode,
    # with one, or before the first evaluation.
    one = stage(interval=10**6)
    one.learner.on_update = lambda: one.supervisor.request_stop("interrupted")
    one.supervisor.run()
    assert one.supervisor.best.flat.item() == 1.0


def test_an_error_of_a_role_says_where_it_came_from(stage: MakeStage) -> None:
    # Guards against: R1, an error of a role that is swallowed, or built and not raised.
    one = stage()

    def fail() -> None:
        raise KeyError("lost")

    one.learner.on_update = fail
    with pytest.raises(RoleError, match=r"update failed at step 20 in Fake: KeyError: 'lost' \(.*test_supervisor.py:"):
        one.supervisor.run()


@pytest.mark.parametrize(
    ("role", "method", "who"),
    [
        ("worker", "sample", "worker 0 failed at step 0"),
        ("learner", "update", "update failed at step 20"),
        ("learner", "weights", "weights failed at step 0"),
        ("worker", "state_dict", "worker 0 failed at step 20"),
    ],
)
def test_an_error_of_any_role_ends_the_run(stage: MakeStage, role: str, method: str, who: str) -> None:
    """Guards against: R1, an error that is caught, or built and not raised, while the run waits or goes on."""
    one = stage(commit_every=20, max_steps=60)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("lost")

    setattr(getattr(one, role), method, fail)
    with pytest.raises(RoleError, match=f"^{who} in Fake: ZeroDivisionError: lost") as caught:
        one.supervisor.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)  # with its own traceback
    assert one.supervisor.progress.env_steps <= 20


def test_an_evaluation_that_fails_is_done_again_with_other_seeds(stage: MakeStage) -> None:
    one, sound = stage(max_steps=20), stage(max_steps=20)
    score, seeds = one.evaluator.score, []

    def fail(weights: Weights, seed: int) -> Score:
        seeds.append(seed)
        if len(seeds) < 3:
            raise ZeroDivisionError("lost")
        return score(weights, seed)

    one.evaluator.score = fail
    assert one.supervisor.run() == sound.supervisor.run() == "max_steps"
    assert len(set(seeds)) == len(seeds) == 2 + len(sound.evaluator.calls)
    assert one.supervisor.counts.env_errors == 2
    assert one.supervisor.progress.best_mean == sound.supervisor.progress.best_mean


def test_evaluations_that_fail_again_and_again_end_the_run(stage: MakeStage) -> None:
    one = stage(max_steps=60)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("lost")

    one.evaluator.score = fail
    with pytest.raises(BudgetSpent, match=r"^score failed at step 20 in Fake: ZeroDivisionError: lost") as caught:
        one.supervisor.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert one.supervisor.progress.env_steps == 20


def test_steps_of_all_workers_count(stage: MakeStage) -> None:
    """Guards against: R7, a counter of rollout steps that forgets lanes and workers."""
    one = stage(max_steps=90)
    pool = one.supervisor.pool
    pool.workers += [WorkerRecord(FakeWorker, range(i, i + 1), pool.executor.spawn(FakeWorker)) for i in (1, 2)]
    assert one.supervisor.run() == "max_steps"
    # Three workers with two lanes of ten steps each: 60 at a time.
    assert one.supervisor.progress.env_steps == 120 and one.learner.updates == 2
    assert one.supervisor.progress.episodes == 6


def test_a_loss_that_is_not_finite_stops_the_run_with_the_last_good_commit(
    stage: MakeStage, load_commit: LoadCommit
) -> None:
    one = stage(commit_every=20, max_steps=60)

    def on_update() -> None:
        one.learner.loss = math.nan if one.learner.updates == 3 else 0.5

    one.learner.on_update = on_update
    with pytest.raises(Diverged, match="loss/policy is nan at step 60, for the second time"):
        one.supervisor.run()
    assert load_commit(one.folder)["learner"]["updates"] <= 3


def test_a_run_that_diverges_once_goes_on_from_the_last_commit(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, R3: what one update left behind is noticed, and the last good commit is where the run goes on."""
    one = stage(commit_every=20, max_steps=80)
    seeds: list[int] = []
    one.worker.start = lambda spec, seed: seeds.append(seed)  # type: ignore[method-assign]
    said: list[str] = []
    one.supervisor.display.message = said.append  # type: ignore[method-assign]

    one.learner.is_finite = lambda: bool(seeds) or one.learner.updates != 3  # type: ignore[method-assign]
    monkeypatch.setattr(training_module, "LOG_SECONDS", 0.0)
    assert one.supervisor.run() == "max_steps"
    assert one.learner.updates == 4 and len(seeds) == 1  # with random streams that the run had not used
    assert any("goes back to its last commit and on with other episodes" in text for text in said)
    assert one.supervisor.counts.episodes_lost == 2 and one.supervisor.counts.steps_lost == 20


def test_weights_that_are_not_finite_are_never_committed(stage: MakeStage) -> None:
    one = stage(commit_every=20)
    one.learner.state_dict = lambda: {"w": torch.tensor([0.0, math.inf])}  # type: ignore[method-assign]
    with pytest.raises(
        Diverged, match=r"learner\.w has a NaN or an infinity at step 20; nothing was committed, before"
    ):
        one.supervisor.run()
    assert Store(one.folder).ids() == []


def test_a_full_disk_costs_a_warning_and_the_third_in_a_row_the_run(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stage(interval=10**6, commit_every=20, max_steps=200)
    said: list[str] = []
    one.supervisor.committer.notify = said.append

    def room_again() -> None:
        one.supervisor.committer.close()  # each commit is written before the next update
        if one.learner.updates == 4:
            monkeypatch.delitem(failpoints.ARMED, "commit.begin")
        elif one.learner.updates in (2, 5):
            monkeypatch.setitem(failpoints.ARMED, "commit.begin", "enospc")

    one.learner.on_update = room_again
    with pytest.raises(StorageError, match="commit c-000000000140 failed"):
        one.supervisor.run()
    # Two in a row are forgiven, a commit that succeeds starts the count anew, and what was committed stays.
    assert [text.split()[1] for text in said] == [f"c-{step:012}" for step in (40, 60, 100, 120)]
    assert all("training goes on with the commit before" in text for text in said)
    commit = Store(one.folder).latest_valid()
    assert commit is not None and commit.step == 80


# ---- whole runs

SMALL: dict[str, Any] = {"hidden": [8], "eval": {"interval": 10**6, "episodes": 2}}
REPLAY: dict[str, Any] = {"buffer_size": 500, "learning_starts": 20, "batch_size": 8}


@pytest.mark.parametrize("agent", SINGLE_AGENTS)
def test_every_agent_runs_in_one_process(run_quietly: Run, tmp_path: Path, agent: str) -> None:
    # Guards against: R0, a single-process mode that runs for some agents only.
    # Guards against: R2b, checkpoints that only unpickling can read.
    entry = find_agent(agent)
    env = "TensorPendulum" if "discrete" not in entry.agent.actions else "TensorCartPole"
    extra = {} if entry.agent.memory == "rollout" else REPLAY
    if entry.agent.memory == "fragments":
        extra = {**extra, "horizon": 8, "burn_in": 4, "updates_per_step": 0.25}
    result = run_quietly(agent, env, run_dir=tmp_path / "r", num_envs=2, max_steps=64, **SMALL, **extra)
    assert result.summary["stop_reason"] == "max_steps"
    assert result.summary["env_steps"] == 64 or agent in ("ppo",)
    assert result.summary["updates"] > 0
    for name in ("config.yaml", "summary.json", "metrics.jsonl", "best.safetensors", "actor.pth", "recorder.npy"):
        assert (tmp_path / "r" / name).is_file(), name
    weights = torch.load(tmp_path / "r" / "actor.pth", weights_only=True)
    assert all(value.isfinite().all() for value in weights.values())


@pytest.mark.parametrize(("agent", "env"), [("ppo", "TensorCartPole"), ("sac", "TensorPendulum")])
def test_saved_best_policy_reproduces_its_score(run_quietly: Run, tmp_path: Path, agent: str, env: str) -> None:
    # Guards against: R3, an evaluator that scores one policy and saves another.
    extra = {**REPLAY, "normalize_obs": True} if agent == "sac" else {"horizon": 25, "lr": 0.01}
    result = run_quietly(
        agent, env, run_dir=tmp_path / "r", num_envs=4, max_steps=600, seed=3, hidden=[8],
        eval={"interval": 100, "episodes": 5}, **extra,
    )  # fmt: skip
    rows = [row for row in read_metrics(tmp_path / "r") if row["kind"] == "eval"]
    assert len(rows) > 3 and len({row["eval/mean"] for row in rows}) > 1
    best = next(row for row in rows if row["env_steps"] == result.summary["best_step"])
    selected = result.summary["selected_return"]
    assert selected == best["eval/mean"] and best["eval/episodes"] == 10  # confirmed on as many again
    policy = TrainedPolicy.load(tmp_path / "r")
    seeds = [derive_seed(3, "eval", result.summary["best_step"], look) for look in (0, 1)]
    again = policy.evaluate(episodes=5, seed=seeds[0]) + policy.evaluate(episodes=5, seed=seeds[1])
    assert again.mean == selected
    assert policy.evaluate(episodes=5, seed=seeds[0] + 1).mean != selected
    fresh = derive_seed(3, "fresh", result.summary["best_step"], 0)
    assert policy.evaluate(episodes=5, seed=fresh).mean == result.best_return


def test_logged_training_return_is_a_reward(run_quietly: Run, tmp_path: Path) -> None:
    """CartPole gives 1 per step: returns are whole numbers of at least 8, never log-probabilities."""
    # Guards against: R8, a logged training return that is a log-probability.
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "r", num_envs=4, max_steps=400, horizon=50, **SMALL)
    rows = [row for row in read_metrics(tmp_path / "r") if row["kind"] == "train"]
    last = rows[-1]
    assert 8 <= float(last["train/return"] or 0) <= 100
    episodes = int(last["train/episodes"] or 0)
    assert 400 / 100 < episodes < 400 / 8
    assert last["env_steps"] == 400


def test_a_run_without_a_finished_episode(run_quietly: Run, tmp_path: Path) -> None:
    # Guards against: R11, evaluations in which short episodes weigh more, or that break without a finished episode,
    # with one, or before the first evaluation.
    result = run_quietly("a2c", "TensorPendulum", run_dir=tmp_path / "r", max_steps=16, **SMALL)
    assert result.summary["episodes"] == 0 and math.isfinite(result.best_return)
    train = [row for row in read_metrics(tmp_path / "r") if row["kind"] == "train"]
    assert train[-1]["train/return"] is None


def interrupted_run(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> elegantrl.RunResult:
    original = Supervisor.iterate

    def iterate(self: Supervisor) -> Any:
        yield from original(self)
        self.request_stop("interrupted")

    monkeypatch.setattr(Supervisor, "iterate", iterate)
    result = run("ppo", "TensorCartPole", run_dir=folder, horizon=16, max_steps=10**6, **SMALL)
    monkeypatch.setattr(Supervisor, "iterate", original)
    return result


def test_an_interrupted_run_is_complete_and_resumes(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = interrupted_run(run_quietly, tmp_path / "r", monkeypatch)
    assert result.summary["stop_reason"] == "interrupted" and result.summary["best_return"] is None
    again = run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "r", resume=True, horizon=16, max_steps=48, **SMALL)
    assert again.summary["env_steps"] == 48 and math.isfinite(again.best_return)


def test_best_return_of_a_run_without_evaluation_is_nan(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert math.isnan(interrupted_run(run_quietly, tmp_path / "r", monkeypatch).best_return)


def test_stops_at_the_target_return_in_a_real_run(run_quietly: Run, tmp_path: Path) -> None:
    # Guards against: R13, a target return, or a lasting decline, that does not stop the run.
    result = run_quietly(
        "ppo", "TensorCartPole", run_dir=tmp_path / "r", num_envs=2, horizon=16, hidden=[8], max_steps=10**6,
        target_return=5.0, eval={"interval": 32, "episodes": 4},
    )  # fmt: skip
    assert result.summary["stop_reason"] == "target_return"
    assert result.summary["env_steps"] == 32


@pytest.mark.parametrize(("agent", "env"), [("ppo", "Pendulum-v1"), ("dqn", "TensorCartPole")])
def test_a_run_with_more_than_64_lanes(
    run_quietly: Run, load_commit: LoadCommit, tmp_path: Path, agent: str, env: str
) -> None:
    """Guards against: R15, vector environments that end at 64 lanes."""
    extra: dict[str, Any] = {"horizon": 2} | ({**REPLAY, "batch_size": 8} if agent == "dqn" else {})
    result = run_quietly(agent, env, run_dir=tmp_path / "r", num_envs=100, max_steps=400, **SMALL, **extra)
    assert result.summary["env_steps"] == 400 and result.summary["updates"] > 0
    assert load_commit(tmp_path / "r")["group0"]["obs"].unique(dim=0).shape[0] == 100


def test_a_run_sets_its_thread_budget(run_quietly: Run, tmp_path: Path) -> None:
    """Guards against: R9, a number of threads that is not set where the work is done."""
    for threads in (2, 1):
        arguments: dict[str, Any] = {"run_dir": tmp_path / str(threads), "horizon": 8, "max_steps": 8, **SMALL}
        run_quietly("ppo", "TensorCartPole", num_threads=threads, **arguments)
        assert torch.get_num_threads() == threads


def test_the_environments_own_threshold_is_the_target(run_quietly: Run, tmp_path: Path) -> None:
    result = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "r", num_envs=2, horizon=8, max_steps=16, **SMALL)
    assert result.summary["target_return"] == 475.0


def test_a_folder_with_a_run_is_not_overwritten(run_quietly: Run, tmp_path: Path) -> None:
    # Guards against: K3, a folder that is deleted unasked.
    arguments: dict[str, Any] = {"run_dir": tmp_path / "r", "horizon": 16, "max_steps": 16, **SMALL}
    run_quietly("ppo", "TensorCartPole", **arguments)
    before = (tmp_path / "r" / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        run_quietly("ppo", "TensorCartPole", **arguments)
    with pytest.raises(ConfigError, match=r"belongs to another config: agent.lr is 0.0003 there and 0.5 here"):
        run_quietly("ppo", "TensorCartPole", resume=True, lr=0.5, **arguments)
    assert (tmp_path / "r" / "summary.json").read_bytes() == before


class Listener(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        if not text.startswith("gradients:"):  # every run says which way it uses
            self.said.append(text)


def test_a_resume_with_nothing_to_do_says_why(run_quietly: Run, tmp_path: Path) -> None:
    """N8: the steps are done, or the target is met; and how to go on."""
    arguments: dict[str, Any] = {"run_dir": tmp_path / "r", "horizon": 16, "num_envs": 2, "hidden": [8]}
    arguments |= {"eval": {"interval": 32, "episodes": 4}}
    run_quietly("ppo", "TensorCartPole", max_steps=32, target_return=math.inf, **arguments)
    listener = Listener()
    run_quietly("ppo", "TensorCartPole", resume=True, max_steps=32, display=listener, **arguments)
    assert "nothing to do: 32 of max_steps=32 steps are done; raise --max-steps to go on" in listener.said
    listener = Listener()
    more: dict[str, Any] = {"max_steps": 10**6, "target_return": 5.0, "resume": True, "display": listener}
    again = run_quietly("ppo", "TensorCartPole", **arguments, **more)
    assert again.summary["stop_reason"] == "target_return" and again.summary["env_steps"] == 32
    assert any(
        text.startswith("nothing to do: the policy of step 32 reached the target return 5") for text in listener.said
    )
    # The time that earlier sittings took does not count.
    more |= {"target_return": math.inf, "max_seconds": 1e-9}
    assert run_quietly("ppo", "TensorCartPole", **arguments, **more).summary["env_steps"] == 64


def test_a_limit_that_is_no_whole_number_of_iterations_is_said(run_quietly: Run, tmp_path: Path) -> None:
    """N15: a shorter last iteration would not resume exactly."""
    listener = Listener()
    run = run_quietly("ppo", "TensorCartPole", run_dir=tmp_path, horizon=16, num_envs=2, max_steps=40,
                      display=listener, **SMALL)  # fmt: skip
    assert listener.said == ["max_steps=40 is rounded up to 64: an iteration takes 32 steps"]
    assert run.summary["env_steps"] == 64


class Leaving(gym.Env[Any, Any]):
    """Ends the program that steps it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        raise SystemExit(0)


def test_an_environment_that_exits_ends_the_run_with_an_error(run_quietly: Run, tmp_path: Path) -> None:
    """R16: an exit code of 0 and no summary would look like success."""
    with pytest.raises(RoleError, match=r"a role called sys.exit\(0\) at .*test_supervisor.py:\d+"):
        run_quietly("ppo", Leaving, run_dir=tmp_path, horizon=16, max_steps=16, executor="inline", **SMALL)


def test_nothing_to_resume(run_quietly: Run, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no run to resume"):
        run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "none", resume=True)
    with pytest.raises(ConfigError, match="name it with --run-dir"):
        run_quietly("ppo", "TensorCartPole", resume=True)


def small_config(env_kwargs: dict[str, Any]) -> RunConfig:
    return RunConfig(
        agent_name="ppo",
        agent=PPOConfig(horizon=16, hidden=(8,)),
        env=EnvConfig(id="TensorCartPole", kwargs=env_kwargs),
        train=TrainConfig(max_steps=16),
        eval=EvalConfig(interval=10**6, episodes=2),
    )


def test_the_callers_dicts_are_not_changed_and_reach_the_environment(run_quietly: Run, tmp_path: Path) -> None:
    # Guards against: K2, a caller's dict that is changed.
    env_kwargs = {"max_episode_steps": 4}
    result = run_quietly(small_config(env_kwargs), run_dir=tmp_path / "r")
    assert env_kwargs == {"max_episode_steps": 4}
    assert result.summary["episodes"] == 4
    assert TrainedPolicy.load(tmp_path / "r").evaluate(3).returns == (4.0, 4.0, 4.0)
    sections = {"interval": 10**6, "episodes": 2}
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "s", horizon=16, max_steps=16, hidden=[8], eval=sections)
    assert sections == {"interval": 10**6, "episodes": 2}


def test_a_trained_policy_acts_on_one_observation_and_on_a_batch(run_quietly: Run, tmp_path: Path) -> None:
    result = run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "r", horizon=16, max_steps=16, **SMALL)
    policy = result.load_policy()
    batch = np.random.default_rng(0).normal(size=(5, 4))
    actions = policy.act(batch)
    assert actions.shape == (5,) and set(actions.tolist()) <= {0, 1}
    assert policy.act(batch[2]) == actions[2] and policy.act(batch[2]).shape == ()


def test_a_gymnasium_instance_can_be_given(run_quietly: Run, tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    result = run_quietly("ppo", env, run_dir=tmp_path / "r", num_envs=2, horizon=8, max_steps=16, **SMALL)
    assert result.summary["env"] == "CartPole-v1" and result.summary["env_steps"] == 16


def test_an_instance_with_lanes_can_be_given(run_quietly: Run, tmp_path: Path) -> None:
    result = run_quietly("ppo", CartPoleVecEnv(4), run_dir=tmp_path / "r", horizon=8, max_steps=32, **SMALL)
    assert result.summary["num_envs"] == 4


def test_environment_arguments_that_cannot_be_written_are_refused_first(run_quietly: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.kwargs"):
        run_quietly(small_config({"max_episode_steps": np.int64(4)}), run_dir=tmp_path / "r")

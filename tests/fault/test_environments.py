"""Environments that raise, lie, crawl or chatter in the middle of a run: what is lost, and that the run goes on.

Those that end or block their process are in ``test_workers.py``.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from elegantrl import failpoints, testing, tree
from elegantrl.envs import CartPoleVecEnv, VecEnv, make_env
from elegantrl.envs.vec_env import raise_faults
from elegantrl.errors import ConfigError, NonFinite, RoleError
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import PolicySpec
from elegantrl.report import plot as plot_module
from elegantrl.roles.group import GroupActor
from elegantrl.runtime import timeouts
from elegantrl.runtime.progress import Silent
from elegantrl.runtime.requests import pack_fragment, unpack_fragment
from elegantrl.runtime.run import RunResult
from elegantrl.store.commits import Store
from elegantrl.store.loggers import LOGGERS
from elegantrl.testing import FaultEnv
from elegantrl.types import ActionSpec, Fragment, Leaf, Weights

Run = Callable[..., RunResult]
Cli = Callable[..., Any]
LoadCommit = Callable[[Path], dict[str, Any]]

SPEC = PolicySpec("categorical", Leaf((4,)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,)))
WEIGHTS = Weights(0, SPEC.build().to_flat())


def worker_in(env: VecEnv, **settings: Any) -> GroupActor:
    return GroupActor(env, SPEC, seed=5, **settings)


def faulty(lanes: int = 3, **settings: Any) -> VecEnv:
    """Lanes of CartPole of which number 1 alone has the fault."""
    return make_env(FaultEnv, lanes, first_slot=0, **{"only_slots": 1, **settings})


def same_lanes(one: Fragment, other: Fragment, lanes: list[int], steps: slice = slice(None)) -> bool:
    pairs = zip(tree.leaves(one.rollout), tree.leaves(other.rollout), strict=True)
    return all(torch.equal(a[steps, lanes], b[steps, lanes]) for a, b in pairs)


def is_finite(value: Any) -> bool:
    """Whether every number in a state is finite."""
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    return all(map(is_finite, value.values())) if isinstance(value, dict) else True


# ---- an environment that raises, or answers something else than it should

RAISED = {
    "raise": r"ValueError: raise as asked for",
    "bad_shape": r"SpecError: .*: step returned an observation of shape \(5,\), expected \(4,\) .*",
    "bad_dtype": r"SpecError: .*: step returned an observation of dtype <U1, expected numbers",
    "bool_done_array": r"SpecError: .*: step returned terminated array\(.*\), expected True or False",
    "three_values": r"SpecError: .*: step returned 3 values, expected 5: .*",  # R9
    "oom": r"MemoryError",
}


@pytest.mark.parametrize("mode", RAISED)
def test_a_lane_that_fails_is_reset_and_the_others_notice_nothing(tmp_path: Path, mode: str) -> None:
    sound = worker_in(faulty(only_slots=9)).sample(WEIGHTS, 30, 0)
    worker = worker_in(faulty(mode=mode, at_step=7, once=tmp_path / "once"))
    fragment = worker.sample(WEIGHTS, 30, 0)
    assert same_lanes(fragment, sound, [0, 2]) and same_lanes(fragment, sound, [1], slice(6))
    (fault,) = fragment.faults
    assert (fault.lane, fault.step, fragment.steps_lost) == (1, 6, 0)
    assert re.fullmatch(RAISED[mode], fault.what) and re.search(r"\.py:\d+$", fault.where)
    # Its episode ends there: cut, without a reward, and with the last observation as successor.
    rollout = fragment.rollout
    assert (rollout.reward[6, 1], rollout.terminated[6, 1], rollout.truncated[6, 1]) == (0, False, True)
    assert torch.equal(rollout.next_obs[6, 1], rollout.obs[6, 1])
    assert rollout.obs[7, 1].abs().max() <= 0.05 < rollout.obs[6, 1].abs().max()  # CartPole begins near zero
    assert 7 in fragment.episodes.lengths
    # What follows can be replayed after a resume like any other episode.
    other = worker_in(faulty(only_slots=9))
    assert not other.load_state_dict(worker.state_dict()).any()
    assert same_lanes(worker.sample(WEIGHTS, 20, 1), other.sample(WEIGHTS, 20, 1), [0, 1, 2])


def test_a_reset_that_fails_is_tried_with_the_next_seed() -> None:
    sound = worker_in(faulty(only_slots=9)).sample(WEIGHTS, 60, 0)
    fragment = worker_in(faulty(mode="nan_obs", at_reset=2)).sample(WEIGHTS, 60, 0)
    (fault,) = fragment.faults
    end = int((sound.rollout.terminated | sound.rollout.truncated)[:, 1].nonzero()[0])
    assert (fault.lane, fault.step) == (1, end) and "reset returned an observation with NaN" in fault.what
    assert same_lanes(fragment, sound, [0, 2]) and same_lanes(fragment, sound, [1], slice(end + 1))
    assert is_finite(fragment.rollout._asdict())


class NeverAgain(FaultEnv):
    """Can be reset once."""

    def reset(self, **settings: Any) -> Any:
        self.at_reset = max(2, self.num_resets + 1)
        return super().reset(**settings)


def test_resets_that_go_on_failing_end_the_run() -> None:
    worker = worker_in(make_env(NeverAgain))
    with pytest.raises(
        RoleError, match=r"10 resets in a row failed, the last with ValueError: .* \(.*fault_env\.py:\d+"
    ):
        worker.sample(WEIGHTS, 200, 0)


def test_a_caller_that_cannot_go_on_gets_the_fault_as_an_error() -> None:
    env = faulty(mode="raise", at_step=1)
    env.reset(0)
    with pytest.raises(RoleError, match=r"'FaultEnv' failed in lane 1: ValueError: raise as asked for \(.*\.py:"):
        raise_faults(env, env.step(torch.zeros(3, dtype=torch.int64)))


def foreign(**settings: Any) -> VecEnv:
    return make_env(gym.vector.SyncVectorEnv([partial(FaultEnv, **settings)] * 2), 2)


def test_lanes_that_cannot_be_treated_alone_end_the_run() -> None:
    with pytest.raises(ValueError, match="as asked for"):
        worker_in(foreign(mode="raise", at_step=3)).sample(WEIGHTS, 5, 0)
    with pytest.raises(NonFinite, match=r"non-finite observation in lane 0 \(step 2 of fragment 0\)"):
        worker_in(foreign(mode="nan_obs", at_step=3)).sample(WEIGHTS, 5, 0)


# ---- observations and rewards that are no numbers


class Spiky(CartPoleVecEnv):
    """A tensor environment whose third lane is lost in its ninth step."""

    num_steps = 0

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.num_steps += 1
        state, reward, over = super().dynamics(state, action)
        if self.num_steps == 9:
            state = state.index_fill(0, torch.tensor([2]), torch.nan)
        return state, reward, over


@pytest.mark.parametrize(
    ("make", "lane", "step", "what"),
    [
        (lambda: faulty(mode="nan_obs", at_step=29), 1, 8, "observation"),
        (lambda: faulty(mode="inf_reward", at_step=29), 1, 8, "reward"),
        (lambda: Spiky(3), 2, 8, "observation"),
    ],
    ids=["nan_obs", "inf_reward", "tensor"],
)
def test_a_fragment_with_a_nan_is_taken_again(make: Callable[[], VecEnv], lane: int, step: int, what: str) -> None:
    worker = worker_in(make())
    before = [worker.sample(WEIGHTS, 20, 0)] if lane == 1 else []
    fragment = worker.sample(WEIGHTS, 20, 1)
    assert [(f.lane, f.step, f.what) for f in fragment.faults] == [(lane, step, f"non-finite {what}")]
    assert fragment.steps_lost == 20 * 3 and is_finite(fragment.rollout._asdict())
    # The lane begins anew, the others go on after what was lost.
    assert fragment.rollout.obs[0, lane].abs().max() <= 0.05
    assert worker.open_length.max() <= 60 and worker.open_length[lane] <= 20
    after = worker.sample(WEIGHTS, 20, 2)
    assert after.faults == () and after.steps_lost == 0
    episodes = [f.episodes for f in (*before, fragment, after)]
    assert all((e.returns == e.lengths).all() for e in episodes)  # CartPole pays 1 for every step


def test_a_commit_remembers_the_faults_of_fragments_in_flight() -> None:
    fragment = worker_in(faulty(mode="nan_obs", at_step=3)).sample(WEIGHTS, 5, 4)
    again = unpack_fragment(pack_fragment(fragment))
    assert (again.faults, again.steps_lost) == (fragment.faults, 15) and len(again.faults) == 1


def test_a_nan_that_comes_again_and_again_ends_the_run() -> None:
    with pytest.raises(NonFinite, match=r"FaultEnv gave a non-finite observation in lane 1 \(step 0 of fragment 4\)"):
        worker_in(faulty(mode="nan_obs", p=1.0)).sample(WEIGHTS, 5, 4)


def test_on_nonfinite_stop() -> None:
    with pytest.raises(NonFinite, match=r"in lane 1 \(step 2 of fragment 4\); fix the environment and resume"):
        worker_in(faulty(mode="inf_reward", at_step=3), on_nonfinite="stop").sample(WEIGHTS, 5, 4)


# ---- environments that are merely a nuisance


@pytest.mark.parametrize("mode", ["slow", "leak", "stdout_flood"])
def test_a_nuisance_changes_no_number(mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    sound = worker_in(faulty(only_slots=9)).sample(WEIGHTS, 30, 0)
    worker = worker_in(faulty(mode=mode, p=0.2, seconds=0.001))
    fragment = worker.sample(WEIGHTS, 30, 0)
    assert same_lanes(fragment, sound, [0, 1, 2]) and fragment.faults == ()
    out = capfd.readouterr().out
    assert out.count("flood\n") % 10_000 == 0 and bool(out) == (mode == "stdout_flood")
    envs: Any = worker.env
    assert bool(envs.envs[1].kept) == (mode == "leak")


# ---- whole runs


class Listener(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        if not text.startswith("gradients:"):  # every run says which way it uses
            self.said.append(text)


ON_POLICY: dict[str, Any] = {"hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 1, "normalize_obs": True}
REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 800, "learning_starts": 30, "batch_size": 8, "horizon": 5}
REPLAY |= {"updates_per_step": 0.2, "n_step": 3, "normalize_obs": True}
LAYOUT: dict[str, Any] = {"num_workers": 2, "num_groups": 2, "num_envs": 4, "seed": 3}
LAYOUT["eval"] = {"interval": 10**6, "episodes": 2, "max_episode_steps": 40}
PLACE = r"\(.*fault_env\.py:\d+\)"


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_run_goes_on_after_an_error(run_quietly: Run, load_commit: LoadCommit, tmp_path: Path, executor: str) -> None:
    listener = Listener()
    env = partial(FaultEnv, env_id="Pendulum-v1", mode="raise", at_step=33, only_slots=3)
    settings = {**REPLAY, **LAYOUT, "executor": executor, "max_steps": 400}
    run = run_quietly("sac", env, run_dir=tmp_path / "run", display=listener, **settings)
    trace, line = listener.said
    assert re.match(r"Traceback .*fault_env\.py.*\nValueError: raise as asked for$", trace, re.S)
    said = (
        rf"worker 1 slot 3: ValueError: raise as asked for at step 33 {PLACE}; slot reset \(1 of 10 within 10 minutes\)"
    )
    assert re.fullmatch(said, line)
    losses = [run.summary[name] for name in ("env_errors", "restarts", "steps_lost", "episodes_lost")]
    assert losses == [1, 0, 0, 0] and run.summary["env_steps"] == 400
    replay = load_commit(tmp_path / "run")["learner"]["memory"]
    assert replay["truncated"].nonzero().tolist() == [[32, 3]]  # Pendulum ends nothing before step 200
    assert replay["reward"][32, 3] == 0 and torch.equal(replay["next_obs"][32, 3], replay["obs"][32, 3])


def failing_for_judges(mode: str, folder: Path, slot: int | None = None) -> FaultEnv:
    """Fails once, and only in an evaluation, whose environments have no slot."""
    return FaultEnv("Pendulum-v1", mode, at_step=33 if slot is None else None, once=folder)


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("raise", rf"environment .* failed in lane 0: ValueError: raise as asked for {PLACE}"),
        ("inf_reward", ".* gave a non-finite reward during evaluation; fix the environment"),
        (
            "three_values",
            "environment .* failed in lane 0: SpecError: .*: step returned 3 values, expected 5: .*",
        ),  # R9
    ],
)
def test_an_evaluation_that_fails_is_done_again(
    run_quietly: Run, tmp_path: Path, executor: str, mode: str, what: str
) -> None:
    listener = Listener()
    env = partial(failing_for_judges, mode, tmp_path / "once")
    settings = {**REPLAY, **LAYOUT, "executor": executor, "max_steps": 400}
    run = run_quietly("sac", env, run_dir=tmp_path / "run", display=listener, **settings)
    (line,) = listener.said
    assert re.fullmatch(rf"{what}; evaluated again with other seeds \(1 of 10 within 10 minutes\)", line)
    assert (run.summary["env_errors"], run.summary["env_steps"]) == (1, 400)
    assert math.isfinite(run.summary["best_return"])


@pytest.mark.parametrize(("executor", "max_lag"), [("inline", 0), ("process", 0), ("process", 2)])
def test_no_nan_is_learned_from(
    run_quietly: Run, load_commit: LoadCommit, tmp_path: Path, executor: str, max_lag: int
) -> None:
    listener = Listener()
    env = partial(FaultEnv, env_id="Pendulum-v1", mode="nan_obs", at_step=33, only_slots=3)
    settings = {**REPLAY, **LAYOUT, "executor": executor, "max_lag": max_lag, "max_steps": 400}
    run = run_quietly("sac", env, run_dir=tmp_path / "run", display=listener, **settings)
    assert listener.said == [
        "worker 1 slot 3: non-finite observation at step 33, fragment rejected; slot reset (1 of 10 within 10 minutes)"
    ]
    assert (run.summary["env_errors"], run.summary["steps_lost"], run.summary["env_steps"]) == (1, 10, 400)
    parts = load_commit(tmp_path / "run")
    assert is_finite(parts)
    # Neither lane of that group leads across what was thrown away, and rows fit together everywhere else.
    replay = parts["learner"]["memory"]
    assert replay["truncated"].nonzero().tolist() == [[29, 2], [29, 3]]
    jumps = (replay["obs"][1:] != replay["next_obs"][:-1]).any(-1)
    assert jumps.nonzero().tolist() == [[29, 2], [29, 3]]


def mixed(folder: Path, slot: int | None = None) -> FaultEnv:
    """Slot 0 raises, slot 1 ends its process."""
    mode, at_step = ("sigkill", 33) if slot == 1 else ("raise", 15)
    return FaultEnv(mode=mode, at_step=at_step, once=folder / mode, only_slots=(0, 1), slot=slot)


def test_worker_restarts_and_environment_faults_have_budgets_of_their_own(run_quietly: Run, tmp_path: Path) -> None:
    layout = {**LAYOUT, "num_workers": 1, "num_groups": 1, "executor": "process", "max_restarts": 1, "max_steps": 240}
    run = run_quietly("ppo", partial(mixed, tmp_path / "once"), run_dir=tmp_path / "run", **ON_POLICY, **layout)
    assert (run.summary["restarts"], run.summary["env_errors"], run.summary["env_steps"]) == (1, 1, 240)


# ---- on the command line

NAME = "elegantrl.testing:FaultEnv"
SMALL: tuple[Any, ...] = ("--num-envs", 4, "--agent.horizon", 20, "--agent.hidden", 8, "--agent.num-epochs", 1)
SMALL += ("--eval.interval", 10**6, "--eval.episodes", 1, "--eval.max-episode-steps", 9, "--max-steps", 240)


@pytest.fixture
def train(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(plot_module, "plot_run", lambda *_: None)
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: Mock())
    monkeypatch.chdir(tmp_path)
    return lambda *more: cli("train", "ppo", NAME, "--run-dir", "run", *SMALL, *more)


def test_a_fault_by_the_command_line(train: Callable[..., Any]) -> None:
    outcome = train("--env-kwargs", "mode=raise", "at_step=30", "only_slots=3")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(rf"^worker 0 slot 3: ValueError: raise as asked for at step 30 {PLACE}; slot", outcome.out, re.M)


def test_an_environment_that_always_raises_ends_the_run(train: Callable[..., Any]) -> None:
    outcome = train("--env-kwargs", "mode=raise", "p=1.0", "--max-restarts", 3, "--executor", "inline")
    assert outcome.code == 3
    budget = "the budget of 3 environment faults within 10 minutes is spent: fix the cause and resume the last commit"
    assert re.match(rf"worker 0 slot 3: ValueError: .* at step 1 {PLACE} in {NAME}; {budget}", outcome.sentence)
    assert outcome.out.count("Traceback") == 1  # all were raised at the same place


def test_the_last_commit_outlives_an_environment(train: Callable[..., Any]) -> None:
    outcome = train("--env-kwargs", "mode=nan_obs", "at_step=50", "--on-nonfinite", "stop", "--checkpoint.interval", 80)
    assert outcome.code == 3 and f"{NAME} gave a non-finite observation in lane 0 (step 9 of" in outcome.sentence
    commit = Store("run").latest_valid()
    assert commit is not None and commit.step == 160
    assert is_finite({part: commit.load(part) for part in commit.parts})


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("raise", "reset fails: ValueError: raise as asked for"),
        ("bad_shape", "reset returned an observation of shape (5,), expected (4,)"),
        ("bad_dtype", "reset returned an observation of dtype <U1, expected numbers"),
        ("nan_obs", "reset returned an observation with NaN or infinity"),
        ("none", "mode='none' is no fault; use one of bad_dtype, bad_shape"),
    ],
)
def test_what_fails_at_once_is_refused(train: Callable[..., Any], mode: str, says: str) -> None:
    outcome = train("--env-kwargs", f"mode={mode}", "at_reset=1")
    assert outcome.code == 2 and says in outcome.sentence
    assert os.listdir() == []


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("mode", ["bad_shape", "bad_dtype", "bool_done_array"])
def test_a_step_that_does_not_fit_is_refused_before_training(
    train: Callable[..., Any], mode: str, executor: str
) -> None:
    outcome = train("--env-kwargs", f"mode={mode}", "at_step=1", "--executor", executor)
    assert outcome.code == 2 and re.match(RAISED[mode].removeprefix("SpecError: "), outcome.sentence)
    assert os.listdir() == []


class NeverBuilt(gym.Env[Any, Any]):
    def __init__(self) -> None:
        threading.Event().wait()


@pytest.mark.parametrize(
    ("source", "kwargs", "executor", "says"),
    [
        ("NeverBuilt", (), "auto", "the environment '{}', built to measure the time of its steps, took longer than"),
        ("NeverBuilt", (), "inline", "a constructor took longer than"),
        ("NeverBuilt", (), "process", "a constructor does not return: no answer to (build)"),
        (
            "FaultEnv",
            ("mode=hang", "at_reset=1", "env_id=Pendulum-v1"),  # whose constructor need not look for masks
            "inline",
            "the first reset of an environment took longer than",
        ),
        ("FaultEnv", ("mode=hang", "at_step=2"), "auto", "the environment '{}', built to measure"),
    ],
)
def test_an_environment_that_hangs_before_training_is_given_up(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
    kwargs: tuple[str, ...],
    executor: str,
    says: str,
) -> None:
    """R14: in ten minutes, and with a sentence; here sooner."""
    monkeypatch.setattr(timeouts, "FIRST_SECONDS", 1.5)
    monkeypatch.chdir(tmp_path)
    name = f"{__name__}:{source}"
    outcome = cli("train", "ppo", name, "--run-dir", "run", *SMALL, "--executor", executor, "--env-kwargs", *kwargs)
    assert outcome.code == 3 and outcome.sentence.startswith(says.format(name))
    assert "1.5 s" in outcome.sentence and "--role-timeout" in outcome.sentence
    assert os.listdir() == []


# ---- the test kit itself


def test_slots_are_numbered_across_groups_and_an_evaluation_has_none() -> None:
    for group in (0, 1):
        env: Any = make_env(FaultEnv, 2, first_slot=2 * group, only_slots=(1, 2))
        assert [lane.is_sound for lane in env.envs] == [group == 0, group == 1]
    alone: Any = make_env(FaultEnv, 2, only_slots=(0, 1))
    assert all(lane.is_sound for lane in alone.envs)


def test_a_chance_is_drawn_anew_in_every_episode_and_is_the_same_each_time() -> None:
    def faults() -> list[int]:
        env = FaultEnv(mode="inf_reward", p=0.3)
        found = []
        for seed in (1, 2):
            env.reset(seed=seed)
            found += [t for t in range(8) if env.step(t % 2)[1] > 1]
        return found

    assert faults() == faults() and 0 < len(faults()) < 16


def test_failpoint_is_part_of_the_kit() -> None:
    assert testing.failpoint is failpoints.failpoint
    with pytest.raises(ConfigError, match="is no fault"):
        FaultEnv(mode="SIGKILL")

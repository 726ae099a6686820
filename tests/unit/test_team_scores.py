"""Scores of teams by hand: the return is the sum over agents, wins are read where an episode ends."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from elegantrl.cli.lists import needs_of
from elegantrl.envs import VecEnv
from elegantrl.execute.packing import pack, unpack
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import PolicySpec
from elegantrl.registry import find_agent
from elegantrl.roles.evaluator import Evaluator, Score
from elegantrl.runtime.display import RunDisplay, show_summary
from elegantrl.runtime.evaluation import Evaluation
from elegantrl.runtime.progress import Progress, Silent
from elegantrl.runtime.reporting import Reporter
from elegantrl.runtime.restarts import FaultCounts
from elegantrl.runtime.run import _team_results
from elegantrl.store.runlog import RunLog, read_metrics
from elegantrl.types import ActionSpec, EnvSpec, Leaf, State, Step, Weights

CPU = torch.device("cpu")
SPEC = PolicySpec("q", Leaf((2, 1)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,), num_agents=2))
SCORE = Score((3.0, 5.0), ((1.0, 2.0), (1.5, 3.5)), (True, False), ("left", "right"))


class Duo(VecEnv):
    """Lane n has episodes of n + 1 steps with rewards 1 and 10. Only first episodes of odd lanes are won; ``won`` is
    true at every other step, which must not count."""

    def __init__(self, num_envs: int, wins: bool = True):
        self.device, self.wins = CPU, wins
        names = ("left", "right")
        self.spec = EnvSpec("Duo", Leaf((2, 1)), ActionSpec(choices=(2,)), num_envs, num_agents=2, agent_names=names)
        self.length = torch.arange(1, num_envs + 1)

    def reset(self, seed: int) -> Tensor:
        self.age, self.episode = torch.zeros_like(self.length), torch.zeros_like(self.length)
        return torch.zeros(self.spec.num_envs, 2, 1)

    def step(self, action: Tensor) -> Step:
        self.age += 1
        reward = torch.tensor([1.0, 10.0]) * torch.where(self.episode == 0, 1.0, 1000.0).unsqueeze(1)
        ended = self.age >= self.length
        won = ~ended | ((self.length % 2 == 0) & (self.episode == 0)) | (self.episode > 0)
        self.episode += ended
        self.age.masked_fill_(ended, 0)
        obs = torch.zeros(self.spec.num_envs, 2, 1)
        return Step(obs, reward, ended, torch.zeros_like(ended), obs, won=won if self.wins else None)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> Tensor:
        return self.reset(0)


def test_returns_of_the_team_and_of_its_agents() -> None:
    score = Evaluator(Duo(4), SPEC).score(Weights(0, SPEC.build().to_flat()), 0)
    assert score.returns == (11.0, 22.0, 33.0, 44.0)
    assert score.agent_returns == ((1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (4.0, 40.0))
    assert score.agent_means == {"left": 2.5, "right": 25.0} and score.mean == sum(score.agent_means.values())
    assert score.won == (False, True, False, True) and score.win_rate == 0.5


def test_an_episode_that_does_not_end_is_not_won() -> None:
    score = Evaluator(Duo(4), SPEC, max_episode_steps=3).score(Weights(0, SPEC.build().to_flat()), 0)
    assert score.won == (False, True, False, False) and score.returns == (11.0, 22.0, 33.0, 33.0)


def test_a_task_that_cannot_be_won_has_no_win_rate() -> None:
    score = Evaluator(Duo(2, wins=False), SPEC).score(Weights(0, SPEC.build().to_flat()), 0)
    assert score.won == () and score.win_rate is None


def test_old_calls_have_neither_agents_nor_wins() -> None:
    score = Score((1.0, 2.0))
    assert (score.agent_returns, score.agent_means, score.won, score.win_rate) == ((), {}, (), None)


def test_rounds_of_an_evaluation_are_joined() -> None:
    both = Score(()) + SCORE + Score((7.0,), ((3.0, 4.0),), (True,), ("left", "right"))
    assert both.returns == (3.0, 5.0, 7.0) and both.won == (True, False, True)
    assert both.agent_means == {"left": 5.5 / 3, "right": 9.5 / 3}
    assert both.win_rate == pytest.approx(2 / 3)


def test_scores_travel_between_processes() -> None:
    form, body, cargo = pack(SCORE)
    block = bytearray(max(cargo.size, 1))
    cargo.load_into(memoryview(block))
    assert unpack(form, body, block) == SCORE


def test_an_unfinished_evaluation_survives_a_commit() -> None:
    evaluation = Evaluation(7, Weights(1, torch.ones(2)), SCORE, rounds=1)
    assert Evaluation.from_state(evaluation.state_dict()).score == SCORE
    before = {
        key: x for key, x in evaluation.state_dict().items() if key not in ("agent_returns", "won", "agent_names")
    }
    assert Evaluation.from_state(before).score == Score(SCORE.returns)  # a commit of an earlier version


def test_the_log_has_wins_and_agents(tmp_path: Path) -> None:
    reporter = Reporter("Duo", RunLog(tmp_path, resume_step=0, loggers=()), Silent(), FaultCounts())
    reporter.evaluation(Evaluation(7, Weights(1, torch.ones(2)), SCORE), True, Progress(), {})
    (row,) = read_metrics(tmp_path)
    assert (row["eval/mean"], row["eval/win_rate"]) == (4.0, 0.5)
    assert (row["eval/agents/left"], row["eval/agents/right"]) == (1.25, 2.75)


def test_the_display_and_the_summary_show_them(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    with RunDisplay(100, console) as display:
        display.evaluation(Progress(last_scored=7), SCORE, True)
    results = _team_results(SCORE)
    assert results == {"win_rate": 0.5, "agent_returns": {"left": 1.25, "right": 2.75}}
    assert _team_results(Score((1.0,))) == _team_results(None) == {}
    summary = dict.fromkeys(("agent", "env", "env_steps", "updates", "wall_seconds", "steps_per_second"), 1)
    summary |= {"stop_reason": "max_steps", "best_return": 4.0, "final_return": 4.0, **results}
    show_summary(console, tmp_path, summary)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "won 50%" in text and "win rate" in text and "return of right" in text


def test_agents_say_what_they_need(cli: Callable[..., Any]) -> None:
    needs = {name: needs_of(find_agent(name)) for name in ("ppo", "qmix", "mappo", "sac")}
    assert needs["ppo"] == "one agent; discrete, multi_discrete, continuous; memory"
    assert needs["qmix"].startswith("team; discrete") and needs["mappo"].startswith("team; discrete, multi_discrete")
    assert needs["sac"] == "one agent; continuous"
    assert "needs" in cli("agents").out


def test_a_run_names_its_team(
    run_quietly: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"hidden": [8], "horizon": 8, "max_steps": 16, "num_envs": 2, "eval": {"episodes": 2}}
    result = run_quietly("mappo", "TensorSkirmish", run_dir=tmp_path / "run", **settings)
    out = capsys.readouterr().out
    assert "team of 3 agents: " in out and "won " in out
    assert 0 <= result.summary["win_rate"] <= 1 and len(result.summary["agent_returns"]) == 3
    score = result.load_policy().evaluate(episodes=3, seed=5)
    assert score == result.load_policy().evaluate(episodes=3, seed=5) and len(score.won) == 3

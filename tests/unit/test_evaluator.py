"""Evaluation: one episode per lane, a function of weights and seed alone; scores by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.envs import TensorEnv, VecEnv, make_env
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import PolicySpec
from elegantrl.roles.evaluator import STUDENT_95, Evaluator, Score
from elegantrl.types import ActionSpec, EnvSpec, Leaf, State, Step, Weights

CPU = torch.device("cpu")


class Countdown(VecEnv):
    """Lane n has episodes of n + 1 steps with reward 1 in the first episode and 1000 in all later ones."""

    def __init__(self, num_envs: int, cut: bool = False):
        self.device, self.cut = CPU, cut
        self.spec = EnvSpec("Countdown", (1,), ActionSpec(choices=(2,)), num_envs)
        self.length = torch.arange(1, num_envs + 1)

    def reset(self, seed: int) -> Tensor:
        self.age, self.episode = torch.zeros_like(self.length), torch.zeros_like(self.length)
        return torch.zeros(self.spec.num_envs, 1)

    def step(self, action: Tensor) -> Step:
        self.age += 1
        reward = torch.where(self.episode == 0, 1.0, 1000.0)
        ended = self.age >= self.length
        self.episode += ended
        self.age.masked_fill_(ended, 0)
        obs, none = torch.zeros(self.spec.num_envs, 1), torch.zeros_like(ended)
        return Step(obs, reward, none if self.cut else ended, ended if self.cut else none, obs)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> Tensor:
        return self.reset(0)


SPEC = PolicySpec("q", Leaf((1,)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,)))


@pytest.mark.parametrize("cut", [False, True])
def test_one_episode_per_lane_with_equal_weight(cut: bool) -> None:
    """A lane with short episodes must not count more often than one with a long episode."""
    # Guards against: R11, evaluations in which short episodes weigh more, or that break without a finished episode,
    # with one, or before the first evaluation.
    evaluator = Evaluator(Countdown(5, cut), SPEC)
    score = evaluator.score(Weights(0, SPEC.build().to_flat()), 0)
    assert score.returns == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert score.mean == 3.0


def test_an_endless_episode_is_counted_as_far_as_it_went() -> None:
    # Guards against: R11, evaluations in which short episodes weigh more, or that break without a finished episode,
    # with one, or before the first evaluation.
    score = Evaluator(Countdown(5), SPEC, max_episode_steps=3).score(Weights(0, SPEC.build().to_flat()), 0)
    assert score.returns == (1.0, 2.0, 3.0, 3.0, 3.0)


def test_a_single_episode() -> None:
    # Guards against: R11, evaluations in which short episodes weigh more, or that break without a finished episode,
    # with one, or before the first evaluation.
    score = Evaluator(Countdown(1), SPEC).score(Weights(0, SPEC.build().to_flat()), 0)
    assert (score.returns, score.mean, score.std, score.ci95) == ((1.0,), 1.0, 0.0, 0.0)


@pytest.mark.parametrize(("env_id", "kind"), [("TensorCartPole", "q"), ("CartPole-v1", "categorical")])
def test_a_score_is_a_function_of_weights_and_seed(env_id: str, kind: str) -> None:
    spec = PolicySpec(kind, Leaf((4,)), ActionSpec(choices=(2,)), NetSpec(hidden=(8,)))
    one, other = Weights(0, spec.build().to_flat()), Weights(1, spec.build().to_flat())
    evaluator = Evaluator(make_env(env_id, 6), spec)
    first = evaluator.score(one, 11)
    evaluator.score(other, 5)
    assert evaluator.score(one, 11) == first  # whatever was judged in between
    assert Evaluator(make_env(env_id, 6), spec).score(one, 11) == first
    assert evaluator.score(one, 12) != first
    assert len(first.returns) == 6 and len(set(first.returns)) > 1


def test_exploration_is_off() -> None:
    spec = PolicySpec("q", Leaf((4,)), ActionSpec(choices=(2,)), NetSpec(hidden=(8,)))
    policy = spec.build()
    scores = []
    for epsilon in (0.0, 1.0):
        policy.epsilon.fill_(epsilon)
        scores.append(Evaluator(make_env("TensorCartPole", 4), spec).score(Weights(0, policy.to_flat()), 1))
    assert scores[0] == scores[1]


def test_returns_are_undiscounted_sums_in_float64() -> None:
    class Long(TensorEnv):
        name, obs_dim, action, max_episode_steps = "Long", 1, ActionSpec(choices=(2,)), 3000

        def initial(self, num_rows: int) -> Tensor:
            return torch.zeros(num_rows, 1)

        def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return state, torch.full_like(state[:, 0], 0.1), torch.zeros_like(state[:, 0], dtype=torch.bool)

    score = Evaluator(Long(1), SPEC).score(Weights(0, SPEC.build().to_flat()), 0)
    assert score.mean == pytest.approx(3000 * float(torch.tensor(0.1)), rel=1e-12)


def test_confidence_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, sample standard deviation 1, t = 4.30 with 2 degrees of freedom: 4.30 / sqrt(3).
    score = Score((1.0, 2.0, 3.0))
    assert score.mean == 2.0
    assert score.std == pytest.approx(math.sqrt(2 / 3))
    assert score.ci95 == pytest.approx(4.30 / math.sqrt(3))
    # 0 and 10: sample standard deviation 10 / sqrt(2), t = 12.71 with one degree: 12.71 * 10 / 2.
    assert Score((0.0, 10.0)).ci95 == pytest.approx(63.55)
    assert Score((7.0,) * 4).ci95 == 0.0


def test_the_deviation_of_many_episodes_takes_as_many_sums_as_that_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a sum over all episodes for each of them: 0.6 s for 5,000."""
    calls = []

    def counted(values: Any) -> float:
        calls.append(1)
        return math.fsum(values)

    monkeypatch.setattr("elegantrl.roles.evaluator.math", SimpleNamespace(fsum=counted, sqrt=math.sqrt))
    assert Score(tuple(map(float, range(1000)))).std == pytest.approx(288.675, abs=1e-3)
    assert len(calls) == 2


def test_quantiles_are_those_of_students_distribution() -> None:
    """The probability between -q and q, by quadrature of the density."""
    for freedom, quantile in enumerate(STUDENT_95, 1):
        x = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * quantile
        log_norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        density = (log_norm - (freedom + 1) / 2 * (1 + x.square() / freedom).log()).exp()
        assert float(2 * density.mean() * quantile) == pytest.approx(0.95, abs=1e-3), freedom


def test_interval_of_many_episodes_uses_two_standard_errors() -> None:
    returns = tuple(float(i % 2) for i in range(100))
    assert Score(returns).ci95 == pytest.approx(2.0 * 0.5 / math.sqrt(99))

"""Returns and advantages, worked out by hand and against sums that are written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elegantrl.agents.returns import discounted_sum, gae, vtrace


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1)


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(1)


# One lane, five steps: step 1 is cut by a time limit, step 3 ends the MDP, step 4 is open at the end of the rollout.
REWARD = column(1, 2, 3, 4, 5)
VALUE = column(10, 20, 30, 40, 50)
NEXT_VALUE = column(20, 100, 40, 999, 60)  # 100: value of the final observation; 999 must never be used
TERMINATED = flags(0, 0, 0, 1, 0)
TRUNCATED = flags(0, 1, 0, 0, 0)


def test_gae_with_one_truncation_and_one_termination() -> None:
    # Guards against: P3, a time limit treated as death, or valued without gamma or at the wrong state.
    # gamma = 0.5, lambda = 0.5, so the trace decays by 0.25.
    # delta_4 = 5 + 0.5 * 60 - 50            = -15     A_4 = -15
    # delta_3 = 4 + 0 - 40                   = -36     A_3 = -36            (the MDP ended: no value, no trace)
    # delta_2 = 3 + 0.5 * 40 - 30            = -7      A_2 = -7 + 0.25 * -36 = -16
    # delta_1 = 2 + 0.5 * 100 - 20           = 32      A_1 = 32             (cut: value of the final obs, no trace)
    # delta_0 = 1 + 0.5 * 20 - 10            = 1       A_0 = 1 + 0.25 * 32 = 9
    advantage = gae(REWARD, VALUE, NEXT_VALUE, TERMINATED, TRUNCATED, 0.5, 0.5)
    torch.testing.assert_close(advantage, column(9, 32, -16, -36, -15))


def test_vtrace_by_hand() -> None:
    # Guards against: P4, an advantage path without a value at the end of the rollout, a V-trace that is none, a flag
    # with two names.
    # gamma = 0.5, lambda = 1. Ratios 2, 0.5, 4 at steps 0, 1, 2; all clipped at 1 from above: rho = c = 1, 0.5, 1.
    # Step 1 is cut. value = 10, 20, 30, next_value = 20, 100, 40.
    # delta_2 = 1   * (3 + 0.5 * 40  - 30) = -7    correction_2 = -7
    # delta_1 = 0.5 * (2 + 0.5 * 100 - 20) = 16    correction_1 = 16          (cut: no trace)
    # delta_0 = 1   * (1 + 0.5 * 20  - 10) = 1     correction_0 = 1 + 0.5 * 1 * 16 = 9
    # targets: 19, 36, 23
    # advantage_2 = 1   * (3 + 0.5 * 40  - 30) = -7        (last row: the plain value)
    # advantage_1 = 0.5 * (2 + 0.5 * 100 - 20) = 16        (cut: the plain value of the final observation)
    # advantage_0 = 1   * (1 + 0.5 * 36  - 10) = 9         (the target of step 1, not its value)
    log_ratio = column(2, 0.5, 4).log()
    target, advantage = vtrace(
        REWARD[:3], VALUE[:3], NEXT_VALUE[:3], TERMINATED[:3], TRUNCATED[:3], log_ratio, 0.5, 1.0
    )
    torch.testing.assert_close(target, column(19, 36, 23))
    torch.testing.assert_close(advantage, column(9, 16, -7))


def test_vtrace_uses_both_clips_and_lambda() -> None:
    # Guards against: P4, an advantage path without a value at the end of the rollout, a V-trace that is none, a flag
    # with two names.
    # Ratios 3 and 3 with rho clipped at 2 and c at 1.5; gamma = 0.5, lambda = 0.5; the second step ends the MDP.
    # delta_1 = 2 * (2 - 20) = -36;  delta_0 = 2 * (1 + 0.5 * 20 - 10) = 2
    # correction_0 = 2 + 0.5 * (0.5 * 1.5) * -36 = -11.5
    # advantage_0 = 2 * (1 + 0.5 * (20 + 0.5 * -36) - 10) = -16
    target, advantage = vtrace(
        column(1, 2), column(10, 20), column(20, 999), flags(0, 1), flags(0, 0), column(3, 3).log(), 0.5, 0.5, 2.0, 1.5
    )
    torch.testing.assert_close(target, column(-1.5, -16))
    torch.testing.assert_close(advantage, column(-16, -36))


def test_vtrace_bears_a_ratio_that_overflows() -> None:
    far = torch.full((3, 1), 1000.0)
    target, advantage = vtrace(REWARD[:3], VALUE[:3], NEXT_VALUE[:3], TERMINATED[:3], TRUNCATED[:3], far, 0.5)
    assert target.isfinite().all() and advantage.isfinite().all()


def test_discounted_sum_by_hand() -> None:
    # x_2 = 3;  x_1 = 2 + 0.5 * 3 = 3.5;  x_0 = 1 + 2 * 3.5 = 8
    result = discounted_sum(column(1, 2, 3), column(2, 0.5, 9))
    torch.testing.assert_close(result, column(8, 3.5, 3))


def test_discounted_sum_keeps_lanes_apart() -> None:
    term = torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    decay = torch.tensor([[0.5, 0.0], [0.5, 0.0]])
    torch.testing.assert_close(discounted_sum(term, decay), torch.tensor([[2.0, 10.0], [2.0, 20.0]]))


class Case:
    """A rollout with mixed flags, in float64."""

    def __init__(self, steps: int, lanes: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.steps, self.lanes = steps, lanes
        self.reward, self.value, self.next_value = torch.randn(3, steps, lanes, generator=g, dtype=torch.float64)
        self.terminated = torch.rand(steps, lanes, generator=g) < 0.2
        self.truncated = (torch.rand(steps, lanes, generator=g) < 0.2) & ~self.terminated
        ended = self.terminated | self.truncated
        # Within an episode the successor of a step is the state of the next one.
        self.next_value[:-1] = torch.where(ended[:-1], self.next_value[:-1], self.value[1:])

    def bootstrap(self, t: int, n: int) -> float:
        return 0.0 if self.terminated[t, n] else float(self.next_value[t, n])

    def ended(self, t: int, n: int) -> bool:
        return bool(self.terminated[t, n] | self.truncated[t, n])


cases = st.builds(Case, st.integers(1, 9), st.integers(1, 3), st.integers(0, 10_000))
discounts = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@settings(max_examples=40, deadline=None)
@given(case=cases, gamma=discounts, lam=discounts)
def test_gae_equals_the_sum_of_its_definition(case: Case, gamma: float, lam: float) -> None:
    # Guards against: P3, a time limit treated as death, or valued without gamma or at the wrong state.
    expected = torch.zeros_like(case.reward)
    for n in range(case.lanes):
        for t in range(case.steps):
            for k in range(t, case.steps):
                delta = float(case.reward[k, n]) + gamma * case.bootstrap(k, n) - float(case.value[k, n])
                expected[t, n] += (gamma * lam) ** (k - t) * delta
                if case.ended(k, n):
                    break
    result = gae(case.reward, case.value, case.next_value, case.terminated, case.truncated, gamma, lam)
    torch.testing.assert_close(result, expected)


@settings(max_examples=40, deadline=None)
@given(case=cases, gamma=discounts)
def test_gae_with_lambda_1_is_the_return_minus_the_value(case: Case, gamma: float) -> None:
    expected = torch.zeros_like(case.reward)
    for n in range(case.lanes):
        for t in range(case.steps):
            factor = 1.0
            for k in range(t, case.steps):
                expected[t, n] += factor * float(case.reward[k, n])
                factor *= gamma
                if case.ended(k, n) or k == case.steps - 1:
                    expected[t, n] += factor * case.bootstrap(k, n)
                    break
    advantage = gae(case.reward, case.value, case.next_value, case.terminated, case.truncated, gamma, 1.0)
    torch.testing.assert_close(advantage + case.value, expected)


@settings(max_examples=40, deadline=None)
@given(case=cases, gamma=discounts, lam=discounts)
def test_vtrace_on_policy_is_gae(case: Case, gamma: float, lam: float) -> None:
    # C8: the advantages did not depend on lambda.
    args = (case.reward, case.value, case.next_value, case.terminated, case.truncated)
    expected = gae(*args, gamma, lam)
    target, advantage = vtrace(*args, torch.zeros_like(case.reward), gamma, lam)
    torch.testing.assert_close(target, expected + case.value)
    torch.testing.assert_close(advantage, expected)


@settings(max_examples=30, deadline=None)
@given(case=cases, gamma=discounts)
def test_vtrace_equals_the_sum_of_its_definition(case: Case, gamma: float) -> None:
    log_ratio = torch.randn(case.reward.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ratio = log_ratio.exp().clamp(max=1.0)
    expected = case.value.clone()
    for n in range(case.lanes):
        for t in range(case.steps):
            factor = 1.0
            for k in range(t, case.steps):
                delta = float(case.reward[k, n]) + gamma * case.bootstrap(k, n) - float(case.value[k, n])
                expected[t, n] += factor * float(ratio[k, n]) * delta
                factor *= gamma * float(ratio[k, n])
                if case.ended(k, n):
                    break
    target, _ = vtrace(case.reward, case.value, case.next_value, case.terminated, case.truncated, log_ratio, gamma)
    torch.testing.assert_close(target, expected)


@pytest.mark.parametrize("which", ["terminated", "truncated"])
def test_nothing_leaks_across_an_episodes_end(which: str) -> None:
    """What happens after an end changes nothing before it."""
    ended = flags(0, 1, 0)
    none = torch.zeros_like(ended)
    pair = (ended, none) if which == "terminated" else (none, ended)
    first = gae(column(1, 2, 3), column(1, 1, 1), column(1, 1, 1), *pair, 0.9, 0.9)
    other = gae(column(1, 2, -300), column(1, 1, 77), column(1, 1, 55), *pair, 0.9, 0.9)
    torch.testing.assert_close(first[:2], other[:2], rtol=0, atol=0)
    assert first[2] != other[2]


def test_vtrace_advantage_without_weight_is_what_the_ratio_is_multiplied_to() -> None:
    generator = torch.Generator().manual_seed(3)
    reward, value, next_value, log_ratio = (torch.randn(4, 2, generator=generator) for _ in range(4))
    flags = torch.zeros(4, 2, dtype=torch.bool)
    args = (reward, value, next_value, flags, flags, log_ratio, 0.9, 0.8)
    target, weighed = vtrace(*args)
    same_target, plain = vtrace(*args, weigh_advantage=False)
    assert torch.equal(target, same_target)
    torch.testing.assert_close(weighed, log_ratio.exp().clamp(max=1) * plain)


@pytest.mark.parametrize("shape", [(1, 3), (40, 1), (7, 5), (6, 2, 3)])
def test_the_recursion_is_the_same_without_its_accelerator(monkeypatch: pytest.MonkeyPatch, shape: tuple[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    term, decay = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    before = term.clone()
    fast = discounted_sum(term, decay)
    monkeypatch.setattr("elegantrl.agents.returns.import_fast", lambda _: None)
    assert torch.equal(fast, discounted_sum(term, decay)) and torch.equal(term, before)

"""Action distributions against torch.distributions, frequencies and quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from elegantrl.nets.distributions import Categorical, DiagGaussian, squash


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(dist: Categorical | DiagGaussian, generator: torch.Generator) -> torch.Tensor:
    if isinstance(dist, Categorical):
        return dist.sample(dist.noise(dist.log_probs.shape, generator))
    return dist.sample(dist.noise(dist.log_std, (1, *dist.mean.shape), generator)[0])


def test_categorical_frequencies_pass_a_chi_square_test() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    count = 20_000
    logits = probs.log() + 3.0  # which need not be normalised
    draws = drawn(Categorical.from_logits(logits.expand(count, -1)), stream(7))
    observed = torch.bincount(draws, minlength=5).double()
    expected = count * probs.double()
    chi_square = ((observed - expected).square() / expected).sum()
    assert chi_square < 18.47  # the 99.9 % quantile with 4 degrees of freedom


def test_two_choices_have_their_frequencies() -> None:
    count, second = 20_000, 0.3
    logits = torch.tensor([1 - second, second]).log() + 3.0
    dist = Categorical.from_logits(logits.expand(count, -1))
    noise = dist.noise((count, 2), stream(7))
    assert noise.shape == (count, 1)  # one number is enough
    draws = dist.sample(noise)
    assert draws.dtype == torch.int64
    assert abs(float(draws.double().mean()) - second) < 3.3 * (second * (1 - second) / count) ** 0.5


def test_categorical_rows_are_drawn_independently() -> None:
    draws = drawn(Categorical.from_logits(torch.zeros(5000, 2)), stream()).float()
    assert abs(float((draws[1:] * draws[:-1]).mean()) - 0.25) < 0.03


def test_categorical_entropy_log_prob_and_mode() -> None:
    logits = torch.randn(6, 4, generator=stream(1)) * 3
    ours, theirs = Categorical.from_logits(logits), TorchCategorical(logits=logits)
    action = torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_categorical_with_a_time_axis() -> None:
    logits = torch.randn(5, 3, 4, generator=stream(1))
    dist = Categorical.from_logits(logits)
    action = drawn(dist, stream())
    assert action.shape == (5, 3) and action.dtype == torch.int64
    torch.testing.assert_close(dist.log_prob(action), TorchCategorical(logits=logits).log_prob(action))


def test_categorical_stays_finite_when_one_choice_is_certain() -> None:
    logits = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    dist = Categorical.from_logits(logits)
    assert dist.entropy().isfinite().all() and drawn(dist, stream()).item() == 0
    (grad,) = torch.autograd.grad(dist.entropy().sum() + dist.log_prob(torch.tensor([2])).sum(), logits)
    assert grad.isfinite().all()


def test_diag_gaussian_equals_torch() -> None:
    mean, log_std = torch.randn(7, 3, generator=stream(2)), torch.tensor([-1.0, 0.0, 0.7])
    ours = DiagGaussian(mean, log_std)
    theirs = Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)
    action = drawn(ours, stream(3))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.entropy().shape == (7,)  # one per row although the scale has no rows
    assert torch.equal(ours.mode(), mean)


def test_diag_gaussian_sample_moments() -> None:
    mean, log_std = torch.tensor([2.0, -1.0]), torch.tensor([0.5, -0.5])
    sample = drawn(DiagGaussian(mean.expand(50_000, 2), log_std), stream(4))
    torch.testing.assert_close(sample.mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(sample.std(0), log_std.exp(), atol=0.02, rtol=0)
    assert abs(float(torch.corrcoef(sample.T)[0, 1])) < 0.02


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.8, 0.3), (-1.5, 0.7)])
def test_squashed_density_integrates_to_one(mean: float, std: float) -> None:
    """The log-density as a function of the action, summed over a fine grid of (-1, 1)."""
    # Guards against: SAC1, a log-probability of the mean, or of the action before squashing.
    # Midpoints in the action; each comes from exactly one noise value.
    count = 200_000
    action = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 - 1
    noise = (action.atanh() - mean) / std
    mean_B1 = torch.full((count, 1), mean, dtype=torch.float64)
    result, logp = squash(mean_B1, torch.full_like(mean_B1, math.log(std)), noise.unsqueeze(1))
    torch.testing.assert_close(result.squeeze(1), action)
    assert abs(float(logp.exp().sum()) * 2 / count - 1) < 1e-4


def test_squashed_density_equals_torch() -> None:
    mean, log_std = torch.randn(2, 50, 3, generator=stream(5), dtype=torch.float64) * 0.5
    noise = torch.randn(50, 3, generator=stream(6), dtype=torch.float64)
    action, logp = squash(mean, log_std, noise)
    theirs = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=0)])
    torch.testing.assert_close(logp, theirs.log_prob(action))
    torch.testing.assert_close(action, (mean + log_std.exp() * noise).tanh())


def test_squashed_log_density_is_that_of_the_sample_and_not_of_the_mean() -> None:
    # Guards against: SAC1, a log-probability of the mean, or of the action before squashing.
    # 1-d, mean 0, std 1: log N(1) - log(1 - tanh(1)^2) against log N(0).
    at_noise, at_mean = (squash(torch.zeros(1, 1), torch.zeros(1, 1), torch.full((1, 1), x))[1].item() for x in (1, 0))
    half_log_2pi = 0.5 * math.log(2 * math.pi)
    assert at_noise == pytest.approx(-0.5 - half_log_2pi - math.log(1 - math.tanh(1) ** 2), abs=1e-6)
    assert at_mean == pytest.approx(-half_log_2pi, abs=1e-6)


@pytest.mark.parametrize("raw", [20.0, -20.0])
def test_squashed_log_density_is_right_where_tanh_is_flat(raw: float) -> None:
    mean = torch.full((1, 1), raw, requires_grad=True)
    action, logp = squash(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    # log(1 - tanh(20)^2) = log(4) - 40 up to terms of the order exp(-40).
    assert logp.item() == pytest.approx(-0.5 * math.log(2 * math.pi) + 40 - math.log(4), rel=1e-6)
    assert action.abs().item() <= 1
    (grad,) = torch.autograd.grad(logp.sum(), mean)
    assert grad.item() == pytest.approx(2 * math.copysign(1, raw), rel=1e-5)


def test_draws_come_from_the_given_stream_alone() -> None:
    dist = DiagGaussian(torch.zeros(4, 2), torch.zeros(2))
    choice = Categorical.from_logits(torch.zeros(40, 5))
    before = torch.get_rng_state()
    assert torch.equal(drawn(dist, stream(1)), drawn(dist, stream(1)))
    assert torch.equal(drawn(choice, stream(1)), drawn(choice, stream(1)))
    assert not torch.equal(drawn(choice, stream(1)), drawn(choice, stream(2)))
    assert torch.equal(torch.get_rng_state(), before)

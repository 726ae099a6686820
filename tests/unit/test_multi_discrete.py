"""Several choices at once: distributions, policies, and agents that learn them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical as TorchCategorical

from elegantrl.agents.dqn import AgentDQN, DQNConfig
from elegantrl.errors import SpecError
from elegantrl.nets.distributions import FORBIDDEN, MultiCategorical, by_choice
from elegantrl.nets.policies import JointQPolicy, MultiCategoricalPolicy, PolicySpec
from elegantrl.registry import build_agent, find_agent
from elegantrl.runtime.run import RunResult
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, Transition

CPU = torch.device("cpu")
CHOICES = (2, 3, 2)
MASKED = Obs(Leaf((3,)), Leaf((7,), "bool"))  # type: ignore[arg-type]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def joint_q(obs: Any = MASKED, choices: tuple[int, ...] = CHOICES, **kwargs: Any) -> JointQPolicy:
    policy = PolicySpec("joint_q", obs, ActionSpec(choices=choices), kwargs=kwargs).build()
    assert isinstance(policy, JointQPolicy)
    return policy


def multi(obs: Any = MASKED) -> MultiCategoricalPolicy:
    policy = PolicySpec("multi_categorical", obs, ActionSpec(choices=CHOICES)).build()
    assert isinstance(policy, MultiCategoricalPolicy)
    return policy


def random_masks(choices: tuple[int, ...], rows: int, g: torch.Generator) -> torch.Tensor:
    """Masks with at least one option of every choice."""
    parts = []
    for size in choices:
        part = torch.rand(rows, size, generator=g) < 0.5
        part[torch.arange(rows), torch.randint(size, (rows,), generator=g)] = True
        parts.append(part)
    return torch.cat(parts, -1)


def is_allowed(action: torch.Tensor, mask: torch.Tensor, choices: tuple[int, ...]) -> bool:
    parts = zip(action.unbind(-1), torch.split(mask, list(choices), -1), strict=True)
    return all(bool(part.gather(-1, option.unsqueeze(-1)).all()) for option, part in parts)


# ---- distributions


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), choices=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_log_probs_and_entropies_are_sums_over_choices(seed: int, choices: list[int]) -> None:
    g = stream(seed)
    logits = torch.randn(6, sum(choices), generator=g) * 3
    ours = MultiCategorical.from_logits(by_choice(logits, choices, FORBIDDEN))
    theirs = [TorchCategorical(logits=part) for part in torch.split(logits, choices, -1)]
    action = ours.sample(ours.noise(ours.log_probs.shape, g))
    assert action.shape == (6, len(choices)) and (action < torch.tensor(choices)).all()
    expected = sum(dist.log_prob(option) for dist, option in zip(theirs, action.unbind(-1), strict=True))
    torch.testing.assert_close(ours.log_prob(action), expected)
    torch.testing.assert_close(ours.entropy(), sum(dist.entropy() for dist in theirs))
    assert torch.equal(ours.mode(), torch.stack([dist.probs.argmax(-1) for dist in theirs], -1))


def test_each_choice_has_its_frequencies() -> None:
    count, probs = 20_000, [torch.tensor([0.3, 0.7]), torch.tensor([0.5, 0.3, 0.2])]
    logits = torch.cat(probs).log().expand(count, 5)
    dist = MultiCategorical.from_logits(by_choice(logits, (2, 3), FORBIDDEN))
    action = dist.sample(dist.noise(dist.log_probs.shape, stream()))
    for option, expected in zip(action.unbind(-1), probs, strict=True):
        share = torch.bincount(option, minlength=len(expected)) / count
        torch.testing.assert_close(share, expected, atol=0.012, rtol=0)
    together = ((action[:, 0] == 1) & (action[:, 1] == 0)).float().mean()
    assert float(together) == pytest.approx(0.7 * 0.5, abs=0.012)  # they are independent


def test_flags_need_one_random_number_each() -> None:
    assert MultiCategorical.noise((4, 6, 2), stream()).shape == (4, 6, 1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_masks_cover_the_options_of_all_choices(seed: int) -> None:
    g, policy = stream(seed), multi()
    mask = random_masks(CHOICES, 30, g)
    obs = Obs(torch.randn(30, 3, generator=g), mask)
    (draw,) = policy.draw(1, 30, g)
    acted = policy.explore(obs, (), draw)
    assert is_allowed(acted.action, mask, CHOICES) and is_allowed(policy.act(obs, ())[0], mask, CHOICES)
    vote = policy.vote(obs)
    assert vote.shape == (30, 7) and not vote[~mask].any()
    for part in torch.split(vote, list(CHOICES), -1):
        torch.testing.assert_close(part.sum(-1), torch.ones(30))
    kept = policy.kept(acted.out.unsqueeze(0), acted.action.unsqueeze(0))[0]
    torch.testing.assert_close(kept, policy.dist(obs).log_prob(acted.action))


def test_a_choice_without_an_allowed_option_is_free() -> None:
    policy = multi()
    obs = torch.zeros(1, 3)
    none, some = Obs(obs, torch.zeros(1, 7, dtype=torch.bool)), torch.tensor([[1, 0, 0, 0, 0, 1, 1]]).bool()
    free = policy.dist(Obs(obs, torch.ones(1, 7, dtype=torch.bool)))
    torch.testing.assert_close(policy.dist(none).log_probs, free.log_probs)
    torch.testing.assert_close(policy.dist(Obs(obs, some)).log_probs[:, 1:], free.log_probs[:, 1:])
    assert not policy.dist(none).log_probs.exp()[0, 0, 2]  # a choice of two has no third option


# ---- action values of combinations


@pytest.mark.parametrize("choices", [(2, 3, 2), (4, 5), (2,) * 10, (1, 7)])
def test_combinations_are_numbered_and_back(choices: tuple[int, ...]) -> None:
    policy = joint_q(Leaf((3,)), choices, dueling=True)
    number = torch.arange(math.prod(choices))
    options = policy.options(number)
    expected = torch.cartesian_prod(*(torch.arange(size) for size in choices))
    assert torch.equal(options, expected) and torch.equal(policy.index(options), number)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), epsilon=st.sampled_from([0.0, 1.0]), dueling=st.booleans())
def test_a_combination_is_allowed_if_each_of_its_options_is(seed: int, epsilon: float, dueling: bool) -> None:
    g, policy = stream(seed), joint_q(dueling=dueling)
    policy.epsilon.fill_(epsilon)
    mask = random_masks(CHOICES, 30, g)
    allowed = policy.allowed(mask)
    assert allowed is not None and allowed.shape == (30, 12)
    for number, options in enumerate(policy.options(torch.arange(12))):
        columns = options + torch.tensor([0, 2, 5])
        assert torch.equal(allowed[:, number], mask[:, columns].all(-1))
    obs = Obs(torch.randn(30, 3, generator=g), mask)
    (draw,) = policy.draw(1, 30, g)
    assert is_allowed(policy.explore(obs, (), draw).action, mask, CHOICES)
    best, _ = policy.act(obs, ())
    assert is_allowed(best, mask, CHOICES)
    value = policy.q(obs).masked_fill(~allowed, -torch.inf)
    assert torch.equal(policy.index(best), value.argmax(-1))
    vote = torch.split(policy.vote(obs), list(CHOICES), -1)
    assert torch.equal(torch.stack([part.argmax(-1) for part in vote], -1), best)


def test_too_many_combinations_are_refused() -> None:
    spec = EnvSpec("Made", (3,), ActionSpec(choices=(2,) * 11), 1)
    with pytest.raises(SpecError, match=r"have 2048 combinations, .* at most 1024; use PPO or A2C"):
        AgentDQN(spec, DQNConfig(), CPU, 0)
    with pytest.raises(SpecError, match="AgentDiscreteSAC needs discrete actions, but Made has multi_discrete ones"):
        build_agent(find_agent("discrete_sac"), spec, find_agent("discrete_sac").config(), CPU, 0)


def test_the_loss_takes_the_value_of_the_combination() -> None:
    spec = EnvSpec("Made", (3,), ActionSpec(choices=(2, 3)), 1)
    agent = AgentDQN(spec, DQNConfig(hidden=()), CPU, 0)
    with torch.no_grad():
        agent.policy.net[0].weight.zero_()
        agent.policy.net[0].bias.copy_(torch.arange(6.0))
    obs, zero = torch.zeros(2, 3), torch.zeros(2)
    _, metrics = agent.loss(Transition(obs, torch.tensor([[1, 2], [1, 1]]), zero, zero, obs))
    assert metrics["critic/q"].item() == (5 + 4) / 2


# ---- agents


class Switches(gym.Env[Any, Any]):
    """Four switches; each that is on earns a reward."""

    observation_space: gym.Space[Any] = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.MultiBinary(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (4,) and action.dtype == np.int8
        self.time += 1
        return np.zeros(1, np.float32), float(action.sum()), self.time == 5, False, {}


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "d3qn"])
def test_flags_are_learned(run_quietly: Callable[..., RunResult], tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"lr": 0.02, "horizon": 16, "hidden": (8,), "gamma": 0.5}
    if find_agent(name).agent.memory == "replay":
        settings |= {"horizon": 4, "learning_starts": 200, "explore_steps": 1000, "updates_per_step": 0.2, "tau": 0.1}
        settings |= {"buffer_size": 5000, "batch_size": 32}
    run_quietly(name, Switches, num_envs=8, max_steps=3000, run_dir=tmp_path, eval={"episodes": 1}, **settings)
    policy = TrainedPolicy.load(tmp_path)
    assert policy.act(np.zeros(1, np.float32)).tolist() == [1, 1, 1, 1]
    assert TrainedPolicy.ensemble([tmp_path, tmp_path]).act(np.zeros((2, 1), np.float32)).tolist() == [[1] * 4] * 2

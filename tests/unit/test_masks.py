"""Masks: what is forbidden has probability 0, is never done, and counts in no loss and no target."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from choosing import MaskedLever, MaskedLevers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical as TorchCategorical

from elegantrl.agents.a2c import A2CConfig, AgentA2C
from elegantrl.agents.discrete_sac import AgentDiscreteSAC, DiscreteSACConfig
from elegantrl.agents.dqn import AgentDQN, DQNConfig
from elegantrl.agents.on_policy import Batch
from elegantrl.data import trajectories
from elegantrl.data.replay import ReplayBuffer
from elegantrl.nets.distributions import FORBIDDEN, MAX_NOISE, Categorical, masked
from elegantrl.nets.policies import CategoricalPolicy, EnsemblePolicy, PolicySpec, QPolicy
from elegantrl.registry import find_agent
from elegantrl.roles.evaluator import Evaluator
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, Rollout, Transition

CPU = torch.device("cpu")
ONE_OF_THREE = EnvSpec("Made", Obs(Leaf((2,)), Leaf((3,), "bool")), ActionSpec(choices=(3,)), 1)  # type: ignore[arg-type]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shown(*masks: list[int]) -> Obs:
    """Observations of zeros with these masks."""
    return Obs(torch.zeros(len(masks), 2), torch.tensor(masks, dtype=torch.bool))


def constant(net: Any, outputs: list[float]) -> None:
    """Make a single layer return the same outputs for all observations."""
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.copy_(torch.tensor(outputs))


# ---- probabilities


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), num_options=st.integers(1, 7), scale=st.sampled_from([0.0, 1.0, 100.0]))
def test_what_is_allowed_has_all_the_probability(seed: int, num_options: int, scale: float) -> None:
    g = stream(seed)
    logits = (torch.randn(40, num_options, generator=g) * scale).requires_grad_()
    mask = torch.rand(40, num_options, generator=g) < 0.5
    mask[torch.arange(40), torch.randint(num_options, (40,), generator=g)] = True
    dist = Categorical.from_logits(masked(logits, mask))
    probs = dist.log_probs.exp()
    assert not probs[~mask].any()  # exactly 0
    torch.testing.assert_close((probs * mask).sum(-1), torch.ones(40))
    for row, allowed in enumerate(mask):  # the distribution over the allowed options alone
        alone = TorchCategorical(logits=logits[row, allowed])
        torch.testing.assert_close(probs[row, allowed], alone.probs, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(dist.entropy()[row], alone.entropy(), atol=1e-5, rtol=1e-4)
    chosen = dist.sample(dist.noise((40, num_options), g))
    assert mask.gather(1, chosen.unsqueeze(1)).all() and mask.gather(1, dist.mode().unsqueeze(1)).all()
    (gradient,) = torch.autograd.grad(dist.entropy().sum() + dist.log_prob(chosen).sum(), logits)
    assert gradient.isfinite().all() and not gradient[~mask].any()


@pytest.mark.parametrize("num_options", [2, 3])
@pytest.mark.parametrize("only", [0, 1])
def test_no_noise_lets_a_forbidden_option_win(monkeypatch: pytest.MonkeyPatch, num_options: int, only: int) -> None:
    """torch.rand can return exactly 0, whose logarithm is infinite."""
    mask = torch.arange(num_options) == only
    dist = Categorical.from_logits(masked(torch.zeros(5, num_options), mask))
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: torch.zeros_like(rand(*args, **kwargs)))
    noise = Categorical.noise((5, num_options), stream())
    assert noise.abs().eq(MAX_NOISE).all()
    assert dist.sample(noise).tolist() == [only] * 5


def test_the_bound_of_the_noise_changes_no_other_number() -> None:
    drawn = Categorical.noise((1000, 3), stream(1))
    assert torch.equal(drawn, torch.rand(1000, 3, generator=stream(1)).log().neg().log())
    tiny, nearly_one = 2.0**-24, 1 - 2.0**-24  # the extremes of torch.rand that are not 0
    assert abs(math.log(-math.log(nearly_one))) < 20 and abs(math.log(tiny / (1 - tiny))) < 20 < MAX_NOISE


def test_a_mask_that_forbids_all_is_read_as_one_that_allows_all() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    mask = torch.tensor([[False, False, False], [False, True, True]])
    assert masked(scores, mask).tolist() == [[3.0, 1.0, 2.0], [FORBIDDEN, 1.0, 2.0]]
    assert masked(scores, None) is scores


# ---- losses and targets by hand


def test_the_loss_and_the_entropy_are_those_of_the_allowed_options() -> None:
    torch.manual_seed(0)
    config = A2CConfig(hidden=(), entropy_coef=0.5, value_coef=0.0)
    agent = AgentA2C(ONE_OF_THREE, config, CPU, 0)
    constant(agent.policy.net, [0.0, math.log(3.0), 5.0])
    ones = torch.ones(2)
    # Without the third option the probabilities are 1/4 and 3/4; in the second row only the second is allowed.
    batch = Batch(shown([1, 1, 0], [0, 1, 0]), torch.tensor([0, 1]), ones, 2 * ones, 0 * ones)
    loss, metrics = agent.loss(batch)
    entropy = (0.25 * math.log(4) + 0.75 * math.log(4 / 3) + 0.0) / 2
    assert metrics["policy/entropy"].item() == pytest.approx(entropy)
    assert loss.item() == pytest.approx((2 * math.log(4) + 0.0) / 2 - 0.5 * entropy, rel=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("double", "expected"), [(False, [7.0, 2.0, 10.0]), (True, [2.0, 2.0, 10.0])])
def test_the_target_is_the_best_allowed_value(double: bool, dueling: bool, expected: list[float]) -> None:
    agent = AgentDQN(ONE_OF_THREE, DQNConfig(hidden=(), double=double, dueling=dueling), CPU, 0)
    online, target = [9.0, 1.0, 5.0], [10.0, 7.0, 2.0]  # online prefers 0, then 2
    for policy, values in ((agent.policy, online), (agent.policy_target, target)):
        if dueling:
            constant(policy.net.value, [sum(values) / 3])
        constant(policy.net.advantage if dueling else policy.net, values)
    # Of 1 and 2 the target network prefers 1 and the online network 2; only 2; no action at all, so all.
    next_obs = shown([0, 1, 1], [0, 0, 1], [0, 0, 0])
    torch.testing.assert_close(agent.next_value(next_obs), torch.tensor(expected))
    three = torch.full((3,), 3.0)
    batch = Transition(
        shown([1, 0, 0], [1, 0, 0], [1, 0, 0]), torch.zeros(3, dtype=torch.int64), three, three / 6, next_obs
    )
    loss, _ = agent.loss(batch)
    errors = [abs(9.0 - (3.0 + 0.5 * value)) for value in expected]
    assert loss.item() == pytest.approx(sum(e - 0.5 if e > 1 else 0.5 * e**2 for e in errors) / 3, rel=1e-5)
    assert agent.policy.act(next_obs, ())[0].tolist() == [2, 2, 0]


def test_discrete_sac_expects_over_the_allowed_actions_alone() -> None:
    config = DiscreteSACConfig(hidden=(), alpha_init=0.5, target_entropy_frac=0.5, num_critics=1)
    agent = AgentDiscreteSAC(ONE_OF_THREE, config, CPU, 0)
    constant(agent.policy.net, [0.0, math.log(3.0), 5.0])
    with torch.no_grad():
        for critic in (agent.critic, agent.critic_target):
            for layer in critic:
                layer.weight.zero_()
                layer.bias.copy_(torch.tensor([4.0, 8.0, 1e6]).view_as(layer.bias))
    obs = shown([1, 1, 0], [0, 1, 0])
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    expected = [0.25 * 4 + 0.75 * 8 + 0.5 * entropy, 8.0]
    torch.testing.assert_close(agent.next_value(obs, torch.empty(0)), torch.tensor(expected))
    batch = Transition(obs, torch.tensor([0, 1]), torch.ones(2), torch.ones(2), obs)
    loss, metrics = agent.actor_loss(batch, torch.empty(0))
    assert loss.item() == pytest.approx(-sum(expected) / 2, rel=1e-5)
    assert metrics["policy/entropy"].item() == pytest.approx(entropy / 2, rel=1e-5)
    # Two options are allowed in one row and one in the other.
    assert float(agent.target_entropy_of(batch)) == pytest.approx(0.5 * (math.log(2) + math.log(1)) / 2)


def test_the_hamiltonian_term_reads_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "MIN_STEPS", 0)
    monkeypatch.setattr("elegantrl.agents.h_term.EXPLAINED", -1e9)  # values are untrained and explain nothing yet
    env, entry = MaskedLever(4), find_agent("ppo")
    config = entry.config(hidden=(8,), horizon=16, h_term=True, h_store=64, h_windows=8)
    learner = Learner("ppo", config, env.spec, CPU, 0)
    actor = GroupActor(env, learner.policy_spec(), 0)
    for seq in range(3):
        metrics = learner.update([actor.sample(learner.weights(), 16, seq)])
    assert metrics["h_term/energy"].isfinite() and metrics["h_term/energy"] != 0
    h_term, policy = learner.agent.h_term, learner.agent.policy
    assert h_term is not None and isinstance(policy, CategoricalPolicy)
    obs, action, _ = h_term.windows
    assert not obs.mask.all()  # type: ignore[union-attr]
    excess = policy.dist(obs).log_prob(action) + policy.dist(obs).entropy()
    torch.testing.assert_close(policy.logp_above_entropy(obs, action), excess)
    assert (excess > -100).all()  # no forbidden action has come into the windows


# ---- acting


def q_policy(**kwargs: Any) -> QPolicy:
    policy = PolicySpec("q", ONE_OF_THREE.obs, ONE_OF_THREE.action, kwargs=kwargs).build()
    assert isinstance(policy, QPolicy)
    return policy


def test_random_actions_are_uniform_among_the_allowed() -> None:
    policy, count = q_policy(), 20_000
    obs = Obs(torch.zeros(count, 2), torch.tensor([True, False, True]).expand(count, 3))
    (draw,) = policy.draw(1, count, stream())
    share = torch.bincount(policy.explore(obs, (), draw).action, minlength=3) / count
    torch.testing.assert_close(share, torch.tensor([0.5, 0.0, 0.5]), atol=0.012, rtol=0)


def run(name: str, env: Any, updates: int, **overrides: Any) -> Learner:
    """Explore, learn and evaluate; the environment raises if a forbidden action is taken."""
    entry = find_agent(name)
    replay = entry.agent.memory != "rollout"
    defaults: dict[str, Any] = {"hidden": (8,), "lr": 0.01}
    if replay:
        defaults |= {"buffer_size": 2000, "learning_starts": 40, "batch_size": 16, "updates_per_step": 0.1}
        if "explore_steps" in entry.config.__dataclass_fields__:
            defaults["explore_steps"] = 300
    learner = Learner(name, entry.config(**{**defaults, **entry.preset, **overrides}), env.spec, CPU, 0)
    actor, horizon = (
        GroupActor(env, learner.policy_spec(), 0),
        learner.config.horizon if name == "recurrent_dqn" else 10,
    )
    for seq in range(updates):
        learner.update([actor.sample(learner.weights(), horizon, seq)])
        assert learner.weights().flat.isfinite().all()
    evaluator = Evaluator(type(env)(20), learner.policy_spec())
    assert len(evaluator.score(learner.weights(), 1).returns) == 20
    return learner


DISCRETE = ["ppo", "a2c", "dqn", "double_dqn", "dueling_dqn", "d3qn", "recurrent_dqn", "discrete_sac"]


@pytest.mark.parametrize("name", DISCRETE)
def test_no_agent_takes_a_forbidden_action(name: str) -> None:
    learner = run(name, MaskedLever(5), 40)
    assert learner.agent.num_updates > 0


@pytest.mark.parametrize("name", [name for name in DISCRETE if name != "discrete_sac"])
def test_no_agent_takes_a_forbidden_option_of_several_choices(name: str) -> None:
    learner = run(name, MaskedLevers(5), 40)
    assert learner.agent.num_updates > 0


@pytest.mark.parametrize("name", ["dqn", "d3qn", "discrete_sac"])
@pytest.mark.parametrize("overrides", [{"prioritized": True}, {"n_step": 3}, {"prioritized": True, "n_step": 3}])
def test_replay_keeps_masks(name: str, overrides: dict[str, Any]) -> None:
    assert run(name, MaskedLever(5), 20, **overrides).agent.num_updates > 0


def test_the_successor_of_several_steps_has_its_own_mask() -> None:
    steps = 5
    mask = torch.eye(steps + 1, 3, dtype=torch.bool).unsqueeze(1) | torch.tensor([False, False, True])
    mask[4] = torch.tensor([True, True, False])
    obs = Obs(torch.arange(2.0 * (steps + 1)).view(steps + 1, 1, 2), mask)
    none, zeros = torch.zeros(steps, 1, dtype=torch.bool), torch.zeros(steps, 1)
    replay = ReplayBuffer(10, ONE_OF_THREE, CPU)
    now, after = Obs(obs.seen[:-1], mask[:-1]), Obs(obs.seen[1:], mask[1:])
    replay.add(Rollout(now, zeros.long(), zeros, none, none, after))
    batch = replay.gather(torch.tensor([1]), torch.tensor(0.9), 3)
    assert torch.equal(batch.next_obs.mask, mask[4]) and torch.equal(batch.obs.mask, mask[1])


@pytest.mark.parametrize("kind", ["categorical", "q"])
def test_an_ensemble_votes_for_what_is_allowed(kind: str) -> None:
    spec = PolicySpec(kind, ONE_OF_THREE.obs, ONE_OF_THREE.action)
    votes = {"members": [spec.to_json()] * 3, "weights": [0.5, 0.3, 0.2]}
    policy = PolicySpec("ensemble", ONE_OF_THREE.obs, ONE_OF_THREE.action, kwargs=votes).build()
    assert isinstance(policy, EnsemblePolicy)
    mask = torch.rand(200, 3, generator=stream()) < 0.4
    mask[~mask.any(-1), 1] = True
    obs = Obs(torch.randn(200, 2, generator=stream(1)), mask)
    assert not policy.vote(obs)[~mask].any()
    torch.testing.assert_close(policy.vote(obs).sum(-1), torch.ones(200))
    assert mask.gather(1, policy.act(obs, ())[0].unsqueeze(1)).all()


@pytest.mark.parametrize("kind", ["categorical", "q"])
def test_a_mask_that_allows_all_changes_no_number(kind: str) -> None:
    obs, everything = torch.randn(50, 2, generator=stream()), torch.ones(50, 3, dtype=torch.bool)
    with_masks = PolicySpec(kind, ONE_OF_THREE.obs, ONE_OF_THREE.action).build()
    without = PolicySpec(kind, Leaf((2,)), ONE_OF_THREE.action).build()
    without.load_state_dict(with_masks.state_dict())
    assert torch.equal(with_masks.act(Obs(obs, everything), ())[0], without.act(obs, ())[0])
    assert torch.equal(with_masks.vote(Obs(obs, everything)), without.vote(obs))

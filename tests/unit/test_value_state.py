"""The value network of one agent learns from ``Obs.state``, what only training may see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elegantrl import tree
from elegantrl.agents.a2c import A2CConfig, AgentA2C
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.envs import TensorEnv
from elegantrl.nets.normalize import ObsNorm, RunningStats, StateNorm
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, seen_part

CPU = torch.device("cpu")
SPEC = EnvSpec("x", Obs(Leaf((2,)), state=Leaf((3,))), ActionSpec(dim=1), num_envs=4)  # type: ignore[arg-type]


class Coin(TensorEnv):
    """A coin in [100, 102] decides the reward, 1 or -1; the policy sees only noise, training sees the coin."""

    obs = Obs(Leaf((2,)), state=Leaf((1,)))  # type: ignore[arg-type]
    action = ActionSpec(dim=1)
    max_episode_steps = 4

    def initial(self, num_rows: int) -> Tensor:
        coin = torch.randint(2, (num_rows, 1), generator=self.generator) * 2.0 + 100
        return torch.cat([coin, torch.rand(num_rows, 2, generator=self.generator)], 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return state, state[:, 0] - 101, state[:, 0] > 0  # episodes of one step: the value is the reward

    def observe(self, state: Tensor) -> Obs:
        return Obs(state[:, 1:], state=state[:, :1])


class HiddenCoin(Coin):
    obs = Leaf((2,))

    def observe(self, state: Tensor) -> Tensor:  # type: ignore[override]
        return state[:, 1:]


def test_policy_and_value_read_their_own_part() -> None:
    agent = AgentPPO(SPEC, PPOConfig(hidden=(8,)), CPU, seed=0)
    assert agent.policy.net[0].in_features == 2 and agent.value.net[0].in_features == 3
    obs = Obs(torch.randn(5, 2), state=torch.randn(5, 3))
    other_state, other_seen = obs._replace(state=obs.state + 1), obs._replace(seen=obs.seen + 1)  # type: ignore[operator]
    assert torch.equal(agent.values(obs, ()), agent.values(other_seen, ()))
    assert not torch.equal(agent.values(obs, ()), agent.values(other_state, ()))
    assert torch.equal(agent.policy.output(obs), agent.policy.output(other_state))
    assert not torch.equal(agent.policy.output(obs), agent.policy.output(other_seen))


def explained(env: TensorEnv, agent: str, normalize: bool) -> float:
    """The share of the variance of rewards that the value explains after some updates."""
    config = (A2CConfig if agent == "a2c" else PPOConfig)(
        hidden=(32,), horizon=4, lr=0.01, gamma=0.9, normalize_obs=normalize, max_grad_norm=None
    )
    learner = Learner(agent, config, env.spec, CPU, seed=0)
    actor = GroupActor(env, learner.policy_spec(), seed=0)
    for seq in range(60 if agent == "ppo" else 500):
        learner.learn([actor.sample(learner.weights(), config.horizon, seq)])
    test = actor.sample(learner.weights(), 8, 99).rollout
    with torch.no_grad():
        value = learner.agent.values(tree.flatten(test.obs, 0, 1), ())  # type: ignore[operator]
    reward = test.reward.flatten()
    return 1 - float((value - reward).var() / reward.var())


@pytest.mark.parametrize("agent", ["ppo", "a2c"])
def test_the_value_learns_what_only_training_sees(agent: str) -> None:
    assert explained(Coin(64), agent, normalize=True) > 0.95
    assert explained(HiddenCoin(64), agent, normalize=True) < 0.1


def test_the_state_is_normalised_with_the_observations() -> None:
    assert AgentPPO(SPEC, PPOConfig(), CPU, seed=0).state_norm is None
    agent = AgentA2C(SPEC, A2CConfig(normalize_obs=True), CPU, seed=0)
    g = torch.Generator().manual_seed(0)
    rows = Obs(torch.randn(6, 4, 2, generator=g), state=torch.randn(6, 4, 3, generator=g) * 5 + 100)
    agent.observe(rows)
    assert agent.state_norm is not None and rows.state is not None
    normed = agent.value_inputs(rows, None)
    torch.testing.assert_close(normed.mean((0, 1)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normed.square().mean((0, 1)), torch.ones(3), atol=1e-4, rtol=0)
    other = AgentA2C(SPEC, A2CConfig(normalize_obs=True), CPU, seed=1)
    other.load_training_state(agent.training_state())
    assert torch.equal(other.value_inputs(rows, None), normed), "statistics are part of the training state"


def test_both_normalisers_agree() -> None:
    g = torch.Generator().manual_seed(0)
    own, stats, norm = StateNorm(3), RunningStats(3, CPU), ObsNorm(3)
    for num_rows in (5, 7):
        rows = torch.randn(num_rows, 3, generator=g) * torch.tensor([1.0, 0.0, 9.0])
        own.update(rows, lambda x: x, 1)
        stats.update(rows)
    stats.write_to(norm)
    torch.testing.assert_close(own(rows), norm(rows))
    assert (own(rows)[:, 1] == 0).all(), "a constant feature keeps scale 1"


def test_acting_is_the_same_with_and_without_a_state() -> None:
    for num_lanes in (2, 300):  # in NumPy, and with prepared calls of torch
        sampled = []
        for env in (Coin(num_lanes), HiddenCoin(num_lanes)):
            config = PPOConfig(hidden=(8,), horizon=4, normalize_obs=True)
            learner = Learner("ppo", config, env.spec, CPU, seed=0)
            actor = GroupActor(env, learner.policy_spec(), seed=0)
            sampled.append(actor.sample(learner.weights(), 4, 0).rollout)
        (with_state, without) = sampled
        assert torch.equal(seen_part(with_state.obs), without.obs)
        torch.testing.assert_close(with_state.action, without.action)
        torch.testing.assert_close(with_state.kept, without.kept)

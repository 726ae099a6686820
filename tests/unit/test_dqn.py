"""Deep Q-learning: targets by hand, the switches, schedules and the target network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.agents.dqn import AgentDQN, DQNConfig
from elegantrl.data.replay import ReplayBuffer
from elegantrl.errors import SpecError
from elegantrl.nets.policies import QPolicy
from elegantrl.types import EnvSpec, Rollout, Transition

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def build(spec: EnvSpec, seed: int = 0, **settings: Any) -> AgentDQN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AgentDQN(spec, DQNConfig(**{"hidden": (16,), **settings}), CPU, seed)


def fixed_batch(rows: int = 32, obs_dim: int = 3, action_dim: int = 2) -> Transition:
    g = torch.Generator().manual_seed(0)
    discount = torch.where(torch.rand(rows, generator=g) < 0.2, 0.0, 0.9)
    return Transition(
        obs=torch.randn(rows, obs_dim, generator=g),
        action=torch.randint(action_dim, (rows,), generator=g),
        reward=torch.randn(rows, generator=g),
        discount=discount,
        next_obs=torch.randn(rows, obs_dim, generator=g),
    )


def constant(policy: QPolicy, values: list[float]) -> None:
    """Q(s, a) = values[a] for every s."""
    with torch.no_grad():
        policy.net[0].weight.zero_()
        policy.net[0].bias.copy_(torch.tensor(values))


def row(action: int, reward: float, discount: float) -> Transition:
    return Transition(
        obs=torch.zeros(1, 3),
        action=torch.tensor([action]),
        reward=torch.tensor([reward]),
        discount=torch.tensor([discount]),
        next_obs=torch.zeros(1, 3),
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_updates_lower_the_loss_on_a_fixed_batch(make_spec: MakeSpec, double: bool, dueling: bool) -> None:
    # Guards against: D2, DQN variants that crash or do not lower their loss.
    agent = build(make_spec("discrete"), double=double, dueling=dueling, lr=5e-3, target_interval=1000)
    batch = fixed_batch()
    first = agent.loss(batch)[0].item()
    losses = [agent.update(batch).metrics["loss/critic"].item() for _ in range(40)]
    assert losses[0] == pytest.approx(first)
    assert losses[1] < losses[0] and losses[-1] < 0.8 * losses[0]


def test_loss_has_one_term_per_row(make_spec: MakeSpec) -> None:
    """Not a table of every prediction against every target."""
    # Guards against: D2, DQN variants that crash or do not lower their loss.
    agent = build(make_spec("discrete"))
    batch = fixed_batch()
    with torch.no_grad():
        terms = []
        for i in range(32):
            target = batch.reward[i] + batch.discount[i] * agent.policy_target.q(batch.next_obs[i : i + 1]).max()
            error = (agent.policy.q(batch.obs[i : i + 1])[0, batch.action[i]] - target).abs()
            terms.append(torch.where(error < 1, 0.5 * error.square(), error - 0.5))
    torch.testing.assert_close(agent.loss(batch)[0], torch.stack(terms).mean())


@pytest.mark.parametrize(("double", "expected"), [(False, 10.0), (True, 7.0)])
def test_double_selects_online_and_evaluates_with_the_target(
    make_spec: MakeSpec, double: bool, expected: float
) -> None:
    # Guards against: D6, double DQN as the minimum of twins, or D3QN without one of its halves.
    agent = build(make_spec("discrete"), hidden=(), double=double)
    constant(agent.policy, [1.0, 5.0])  # the online network prefers action 1
    constant(agent.policy_target, [10.0, 7.0])  # the target network prefers action 0; the smaller of both would be 5
    assert agent.next_value(torch.zeros(4, 3)).tolist() == [expected] * 4
    # Loss for action 0: Q = 1, target = 3 + 0.5 * next value; far off, so the Huber loss is |error| - 0.5.
    loss, metrics = agent.loss(row(0, 3.0, 0.5))
    assert loss.item() == pytest.approx(abs(1.0 - (3.0 + 0.5 * expected)) - 0.5)
    assert metrics["critic/q"].item() == 1.0


def test_the_end_of_the_mdp_has_no_value(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), hidden=())
    constant(agent.policy, [0.0, 0.0])
    constant(agent.policy_target, [1e6, 1e6])
    assert agent.loss(row(0, 0.5, 0.0))[0].item() == pytest.approx(0.125)


def test_dueling_network_has_a_value_output(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), dueling=True)
    assert agent.policy.net(torch.zeros(1, 3)).shape == (1, 3)  # the state value, then two advantages
    assert agent.policy_target.net(torch.zeros(1, 3)).shape == (1, 3)


@pytest.mark.parametrize("interval", [1, 3])
def test_target_is_copied_at_its_interval(make_spec: MakeSpec, interval: int) -> None:
    agent = build(make_spec("discrete"), tau=1.0, target_interval=interval, lr=1e-2)
    batch = fixed_batch()
    for update in range(1, 8):
        before = agent.target.flat.clone()
        agent.update(batch)
        if update % interval == 0:
            assert torch.equal(agent.target.flat, agent.step.flat)
        else:
            assert torch.equal(agent.target.flat, before)
            assert not torch.equal(agent.target.flat, agent.step.flat)


def test_target_moves_slowly_with_a_small_tau(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), tau=0.1, lr=1e-2)
    before = agent.target.flat.clone()
    agent.update(fixed_batch())
    torch.testing.assert_close(agent.target.flat, before + 0.1 * (agent.step.flat - before))


def test_tau_follows_its_tunable_value(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), tau=0.1)
    agent.hypers.tau.fill_(1.0)
    agent.update(fixed_batch())
    assert torch.equal(agent.target.flat, agent.step.flat)


def test_the_target_network_never_needs_gradients(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), double=True)
    agent.update(fixed_batch())
    assert not any(p.requires_grad or p.grad is not None for p in agent.policy_target.parameters())


@pytest.mark.parametrize(
    ("env_steps", "epsilon"), [(0, 1.0), (100, 1.0), (600, 0.55), (1100, 0.1), (1101, 0.1), (10**6, 0.1)]
)
def test_epsilon_schedule(make_spec: MakeSpec, env_steps: int, epsilon: float) -> None:
    """1 until learning starts, then linearly to its end."""
    # Guards against: D5, one coin for all lanes, an epsilon without a schedule, a duelling stream without a gradient or
    # without its mean taken off.
    agent = build(make_spec("discrete"), learning_starts=100, explore_steps=1000, epsilon_end=0.1)
    agent.schedule(env_steps)
    assert agent.policy.epsilon.item() == pytest.approx(epsilon)
    assert agent.policy.to_flat()[-1].item() == pytest.approx(epsilon)  # it travels with the weights


def test_n_step_target(make_spec: MakeSpec) -> None:
    """Three rewards, then the discounted value of the state three steps ahead."""
    spec = make_spec("discrete", obs_dim=1)
    steps = 5
    obs = torch.arange(steps + 1.0).view(-1, 1, 1)
    none = torch.zeros(steps, 1, dtype=torch.bool)
    reward = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).view(-1, 1)
    replay = ReplayBuffer(10, spec, CPU)
    replay.add(Rollout(obs[:-1], torch.zeros(steps, 1, dtype=torch.int64), reward, none, none, obs[1:], reward))
    agent = build(spec, hidden=())
    constant(agent.policy, [0.0, 0.0])
    with torch.no_grad():  # Q_target(s, 0) = s, and s = 4 is three steps ahead of s = 1
        agent.policy_target.net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        agent.policy_target.net[0].bias.zero_()
    batch = replay.gather(torch.tensor([1]), torch.tensor(0.5), 3)
    target = 2 + 0.5 * 4 + 0.25 * 8 + 0.125 * 4
    assert agent.loss(batch)[0].item() == pytest.approx(target - 0.5)


def test_normaliser_reaches_online_and_target_network(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), normalize_obs=True, double=True)
    agent.observe(torch.randn(100, 3, generator=torch.Generator().manual_seed(1)) * 3 + 5)
    seen: list[Tensor] = []
    for net in (agent.policy.net, agent.policy_target.net):
        net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    batch = fixed_batch()
    agent.loss(batch)
    normed_next, normed = agent.policy.norm(batch.next_obs), agent.policy.norm(batch.obs)
    assert not torch.allclose(normed, batch.obs)
    assert len(seen) == 3
    torch.testing.assert_close(seen[0], normed_next)
    torch.testing.assert_close(seen[1], normed_next)
    torch.testing.assert_close(seen[2], normed)


def test_state_round_trip_includes_the_target(make_spec: MakeSpec) -> None:
    batch = fixed_batch()
    agent = build(make_spec("discrete"), target_interval=4, tau=0.5)
    for _ in range(6):
        agent.update(batch)
    other = build(make_spec("discrete"), seed=3, target_interval=4, tau=0.5)
    other.load_training_state(agent.training_state())
    for _ in range(6):
        agent.update(batch)
        other.update(batch)
    assert torch.equal(agent.step.flat, other.step.flat)
    assert torch.equal(agent.target.flat, other.target.flat)
    assert agent.num_updates == other.num_updates == 12


def test_refuses_continuous_actions(make_spec: MakeSpec) -> None:
    with pytest.raises(SpecError, match="AgentDQN needs discrete or multi_discrete actions, but Made has"):
        build(make_spec("continuous"))

"""The arithmetic of the beginner's version, against numbers computed by hand."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from elegantrl_helloworld.agent import (
    AgentDQN,
    AgentPPO,
    AgentSAC,
    AgentTD3,
    ReplayBuffer,
    Rollout,
    gae,
    look_ahead,
    ppo_loss,
)
from elegantrl_helloworld.env import GymEnv, VecEnv
from elegantrl_helloworld.run import Config


class Corridor(gym.Env):
    """Counts its steps; every third one ends the episode, by the time limit or for good. The reward is 1."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, limit: bool = True, continuous: bool = False):
        self.limit = limit
        self.observation_space = gym.spaces.Box(-9, 9, (1,))
        if continuous:
            self.action_space = gym.spaces.Box(-1, 1, (2,))

    def state(self):
        return np.array([self.count], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.state(), {}

    def step(self, action):
        self.count += 1
        ended = self.count == 3
        return self.state(), 1.0, ended and not self.limit, ended and self.limit, {}


def agent_of(kind, continuous=False, **settings):
    args = Config(kind, Corridor, {"continuous": continuous}, net_dims=[16, 16], **settings)
    return kind(args.net_dims, args.state_dim, args.action_dim, -1, args)


def batch_of(*ends, action=None):
    """Transitions with reward 1 from state 0 to state 0, gamma 0.9; `ends` are pairs (terminated, truncated)."""
    count = len(ends)
    terminated, truncated = torch.tensor(ends, dtype=torch.float32).T
    action = torch.zeros(count, dtype=torch.long) if action is None else action
    ends = (terminated, truncated, 0.9 * (1 - terminated))
    return Rollout(torch.zeros(count, 1), action, torch.ones(count), torch.zeros(count, 1), *ends)


ENDS = ((0, 0), (1, 0), (0, 1))  # going on, terminated, truncated


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def test_advantages():
    # delta = 1 + 1 - 1, 2 + 0 - 1 (terminated), 3 + 1 - 1 (truncated), 4 + 1 - 1; then 0.25 of the later one
    given = column(1, 2, 3, 4), column(1, 1, 1, 1), column(2, 2, 2, 2), column(0, 1, 0, 0), column(0, 0, 1, 0)
    assert gae(*given, 0.5, 0.5).flatten().tolist() == [1.25, 1, 3, 4]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(1.0, 2.0, -2.0), (3.0, 2.0, 0.0), (3.0, -2.0, 6.0), (0.5, -2.0, 0.0), (0.5, 2.0, -1.0)],
)
def test_clipped_objective(ratio, advantage, gradient):
    """Nothing is gained beyond 1 +- clip; the gradient of the log-probability is -ratio * advantage elsewhere."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    ppo_loss(logprob, torch.zeros(1), torch.tensor([advantage]), 0.2).backward()
    assert logprob.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize("continuous", [False, True])
def test_the_first_ratio_of_ppo_is_one(continuous):
    agent = agent_of(AgentPPO, continuous)
    rollout = agent.explore_env(VecEnv(agent.args.make_env, 3, 0), 8)
    logprob, _ = agent.act.logprob_and_entropy(rollout.state.flatten(0, 1), rollout.action.flatten(0, 1))
    assert torch.allclose(logprob, rollout.logprob.flatten())
    assert rollout.logprob.std() > 0 or not continuous


def test_density_of_a_gaussian_policy():
    agent = agent_of(AgentPPO, continuous=True)
    state, raw = torch.ones(1, 1), torch.tensor([[0.3, -2.0]])
    logprob, entropy = agent.act.logprob_and_entropy(state, raw)
    dist = Normal(agent.act.net(state), agent.act.log_std_A.exp())
    assert logprob.item() == pytest.approx(dist.log_prob(raw).sum().item(), rel=1e-5)
    assert entropy.item() == pytest.approx(dist.entropy().sum().item(), rel=1e-5)


def test_ppo_counts_on_what_follows_a_time_limit():
    agent = agent_of(AgentPPO, gamma=0.9, lambda_gae_adv=0.0)
    agent.cri = lambda state: torch.full(state.shape[:-1], 10.0)
    rollout = Rollout(*[x if x is None else x[None] for x in batch_of(*ENDS)])
    advantage, returns = agent.get_advantages(rollout)
    assert advantage.tolist() == [[0.0, -9.0, 0.0]] and returns.tolist() == [[10.0, 1.0, 10.0]]


def test_ppo_uses_every_step_equally_often():
    agent = agent_of(AgentPPO, repeat_times=3, batch_size=10)
    rollout = agent.explore_env(VecEnv(agent.args.make_env, 4, 0), 8)
    seen = []
    original = agent.act.logprob_and_entropy
    agent.act.logprob_and_entropy = lambda state, action: (seen.append(len(state)), original(state, action))[1]
    agent.update_net(rollout)
    assert seen == [10, 10, 10, 2] * 3


def test_an_entropy_coefficient_raises_the_entropy():
    agent = agent_of(AgentPPO, continuous=True, lambda_entropy=1.0)
    before = agent.act.log_std_A.detach().clone()
    agent.update_net(agent.explore_env(VecEnv(agent.args.make_env, 4, 0), 32))
    assert (agent.act.log_std_A > before).all()


def test_target_of_dqn():
    """The online network chooses action 1, the target network says that it is worth 20."""
    agent = agent_of(AgentDQN, gamma=0.9)
    agent.act = lambda state: torch.tensor([[1.0, 5.0]]).expand(len(state), 2)
    agent.act_target = lambda state: torch.tensor([[30.0, 20.0]]).expand(len(state), 2)
    assert agent.q_target(batch_of(*ENDS)).tolist() == [19, 1, 19]


def test_target_of_sac():
    """alpha = 1: the smaller value, 3, less the log-density, 2."""
    agent = agent_of(AgentSAC, continuous=True, gamma=0.9)
    agent.act.sample = lambda state: (torch.zeros(len(state), 2), torch.full((len(state),), 2.0))
    agent.cri_target = lambda state, action: (torch.full((len(state),), 5.0), torch.full((len(state),), 3.0))
    assert agent.q_target(batch_of(*ENDS)).tolist() == pytest.approx([1.9, 1, 1.9])


def test_target_of_td3():
    """The target policy with clipped noise, and the smaller of two values."""
    agent, seen = agent_of(AgentTD3, continuous=True, gamma=0.9), []
    agent.act_target = lambda state: torch.full((len(state), 2), 0.2)

    def critic(state, action):
        seen.append(action)
        return torch.full((len(state),), 5.0), torch.full((len(state),), 3.0)

    agent.cri_target = critic
    assert agent.q_target(batch_of(*ENDS * 300))[:3].tolist() == pytest.approx([3.7, 1, 3.7])
    noise = seen[0] - 0.2
    assert noise.abs().max() == pytest.approx(0.5) and noise.std() == pytest.approx(0.2, abs=0.02)


def test_td3_delays_its_policy():
    agent = agent_of(AgentTD3, continuous=True)
    batch = batch_of(*ENDS, action=torch.zeros(3, 2))
    first = [p.clone() for p in agent.act.parameters()]
    agent.update_once(batch)
    assert all(torch.equal(p, q) for p, q in zip(first, agent.act.parameters(), strict=True))
    agent.update_once(batch)
    assert not all(torch.equal(p, q) for p, q in zip(first, agent.act.parameters(), strict=True))


def test_density_of_a_squashed_sample():
    actor = agent_of(AgentSAC, continuous=True).act
    state = torch.ones(1, 1)
    mean, log_std = actor.net(state).chunk(2, dim=-1)
    dist = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    for _ in range(5):
        action, logprob = actor.sample(state)
        assert logprob.item() == pytest.approx(dist.log_prob(action).sum().item(), abs=1e-4)


@pytest.mark.parametrize(("target_entropy", "sign"), [(100.0, 1), (-100.0, -1)])
def test_temperature_moves_towards_the_target(target_entropy, sign):
    agent = agent_of(AgentSAC, continuous=True)
    assert agent.target_entropy == -2
    agent.target_entropy = target_entropy
    agent.update_once(batch_of(*ENDS, action=torch.zeros(3, 2)))
    assert agent.log_alpha.item() * sign > 0


def test_gradients_reach_only_what_is_updated():
    agent = agent_of(AgentSAC, continuous=True)
    batch = batch_of(*ENDS, action=torch.zeros(3, 2))
    agent.update_critic(batch)
    before = [p.grad.clone() for p in agent.cri.parameters()]
    action, logprob = agent.act.sample(batch.state)
    agent.gradient_step(agent.act_optimizer, (logprob - agent.cri(batch.state, action)[0]).mean())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(agent.cri.parameters(), before, strict=True))
    assert all(p.grad is None for p in agent.cri_target.parameters())
    assert agent.act.net[0].bias.grad.abs().sum() > 0


def test_critics_are_independent():
    critic = agent_of(AgentSAC, continuous=True).cri
    state, action = torch.ones(1, 1), torch.ones(1, 2)
    first, second = critic(state, action)
    torch.nn.init.zeros_(critic.net1[0].weight)
    moved, same = critic(state, action)
    assert moved != first and same == second


def test_target_networks_move_slowly():
    agent = agent_of(AgentDQN, soft_update_tau=0.25)
    torch.nn.init.constant_(agent.act.net[0].weight, 4.0)
    torch.nn.init.constant_(agent.act_target.net[0].weight, 0.0)
    agent.soft_update(agent.act_target, agent.act)
    assert (agent.act_target.net[0].weight == 1).all() and (agent.act.net[0].weight == 4).all()


def rows(*numbers):
    """Transitions from number to number + 1, in one environment."""
    x = torch.tensor(numbers, dtype=torch.float32)[:, None]
    return Rollout(x[..., None], x.long(), x, x[..., None] + 1, x * 0, x * 0, x * 0 + 0.5)


def test_sums_of_rewards_end_with_a_piece_or_an_episode():
    """Rewards 1 to 7, gamma 0.5, pieces of 3; step 4 terminates in one environment and is truncated in the other."""
    one = rows(*range(1, 8))
    both = Rollout(*[torch.cat((x, x), 1) for x in one if x is not None])
    both.terminated[3, 0], both.truncated[3, 1], both.discount[3, 0] = 1, 1, 0
    found = look_ahead(both, 3)
    # 1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3; the episode ends in 4; 5 + 6 / 2, 6; 7 is a piece of its own
    assert found.reward.T.tolist() == [[2.75, 3.5, 3, 4, 8, 6, 7]] * 2
    assert found.next_state[:, :, 0].T.tolist() == [[4, 4, 4, 5, 7, 7, 8]] * 2
    assert found.discount.T.tolist() == [
        [0.125, 0.25, 0.5, 0, 0.25, 0.5, 0.5],
        [0.125, 0.25, 0.5, 0.5, 0.25, 0.5, 0.5],
    ]
    unchanged = look_ahead(rows(*range(1, 8)), 1)
    assert all(torch.equal(x, y) for x, y in zip(unchanged[:-1], one[:-1], strict=True))


def test_replay_buffer_overwrites_the_oldest():
    buffer = ReplayBuffer(5)
    buffer.update(rows(0, 1, 2, 3))
    assert (buffer.size, buffer.added) == (4, 4)
    buffer.update(rows(4, 5))
    batch = buffer.sample(200)
    assert sorted(set(batch.reward.tolist())) == [1, 2, 3, 4, 5] and buffer.size == 5
    assert torch.equal(batch.next_state, batch.state + 1) and batch.action.dtype == torch.long
    buffer.update(rows(*range(10, 18)))  # more than fits
    assert sorted(set(buffer.sample(200).reward.tolist())) == [13, 14, 15, 16, 17]


def test_updates_per_transition_are_constant():
    agent, buffer, counts = agent_of(AgentDQN, repeat_times=0.5), ReplayBuffer(1000), []
    agent.update_once = lambda batch: (counts.append(1), (0.0, 0.0))[1]
    for turn in range(1, 6):
        buffer.update(rows(*range(20)))
        agent.update_net(buffer)
        assert len(counts) == 10 * turn


def test_dqn_explores_with_one_coin_per_environment():
    agent = agent_of(AgentDQN, explore_rate=0.1, explore_steps=1000)
    assert agent.explore_rate() == 1.0
    agent.steps = 500
    assert agent.explore_rate() == 0.5
    (action,) = agent.explore_action(torch.ones(2000, 1))
    best = agent.act.best_action(torch.ones(1, 1))
    assert (action != best).float().mean().item() == pytest.approx(0.25, abs=0.05)
    agent.steps = 10_000
    assert agent.explore_rate() == 0.1


@pytest.mark.parametrize("limit", [True, False])
def test_the_end_of_an_episode_keeps_its_last_state(limit):
    env = VecEnv(lambda: GymEnv(Corridor(limit)), 2, 0)
    steps = [env.step(np.zeros(2, dtype=int)) for _ in range(4)]
    assert [step[0][0].item() for step in steps] == [1, 2, 3, 1]  # the successor of every step
    assert [step[2][0] for step in steps] == [False, False, not limit, False]
    assert [step[3][0] for step in steps] == [False, False, limit, False]
    assert env.state_NS.tolist() == [[1], [1]] and env.returns == [3.0, 3.0]


@pytest.mark.parametrize("n_step", [1, 5])
@pytest.mark.parametrize(("limit", "value"), [(True, 2.0), (False, 1.75)])
def test_values_across_a_time_limit(limit, value, n_step):
    """A reward of 1 for ever is worth 1 / (1 - 0.5); three of them are worth 1 + 0.5 + 0.25."""
    args = Config(AgentDQN, Corridor, {"limit": limit}, gamma=0.5, learning_rate=3e-3, soft_update_tau=0.05)
    agent, buffer = AgentDQN([16, 16], 1, 2, -1, args), ReplayBuffer(1000)
    buffer.update(look_ahead(agent.explore_env(VecEnv(args.make_env, 2, 0), 100), n_step))
    for _ in range(400):
        agent.update_once(buffer.sample(64))
    q = agent.act(torch.tensor([[0.0]]))
    assert q.tolist()[0] == pytest.approx([value, value], abs=0.1)


def test_actions_fill_the_range_of_the_environment():
    ours, raw = GymEnv("Pendulum-v1"), gym.make("Pendulum-v1")
    for action, clipped in ((-1.0, -1.0), (0.25, 0.25), (1.0, 1.0), (3.0, 1.0)):
        ours.reset(seed=0), raw.reset(seed=0)
        state, reward, *_ = ours.step(np.array([action], dtype=np.float32))
        expected, wanted, *_ = raw.step(np.array([2 * clipped], dtype=np.float32))
        assert state == pytest.approx(expected) and reward == pytest.approx(wanted)

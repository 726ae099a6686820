"""Documented agents, replay buffer, networks and evaluator in a loop that a script writes itself.

N12: these names failed, with sentences that led elsewhere.
"""

import inspect
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from elegantrl.agents.AgentDDPG import AgentDDPG
from elegantrl.agents.AgentDQN import AgentD3QN, AgentDQN
from elegantrl.agents.AgentPPO import AgentDiscretePPO, AgentPPO
from elegantrl.agents.AgentSAC import AgentSAC
from elegantrl.agents.net import (
    Actor,
    ActorDiscretePPO,
    ActorPPO,
    ActorSAC,
    Critic,
    CriticPPO,
    CriticTwin,
    QNet,
    QNetDuel,
    QNetTwin,
    QNetTwinDuel,
)  # fmt: skip
from elegantrl.train.config import Arguments, build_env
from elegantrl.train.evaluator import Evaluator, draw_learning_curve
from elegantrl.train.replay_buffer import ReplayBuffer

import elegantrl
from elegantrl.compat.names import AGENTS
from elegantrl.errors import CheckpointError, ConfigError
from tests.names import SINGLE_AGENTS


def mean_return(agent, env, episodes=10):
    total = 0.0
    for _ in range(episodes):
        state, done = env.reset(), False
        while not done:
            state, reward, done, _ = env.step(agent.select_action(state))
            total += reward
    return total / episodes


def test_dqn_by_hand_learns_cartpole():
    env, fresh = build_env("CartPole-v1"), build_env("CartPole-v1")
    agent = AgentDQN([64, 64], env.state_dim, env.action_dim, gpu_id=-1)
    agent.repeat_times = 0.5
    buffer = ReplayBuffer(20_000, env.state_dim, action_dim=1, gpu_id=-1, num_envs=1)
    buffer.update(agent.explore_env(env, 500, if_random=True))
    for _ in range(10):
        buffer.update(agent.explore_env(env, 250))
        critic_loss, _ = agent.update_net(buffer)
    assert np.isfinite(critic_loss) and buffer.cur_size == 3000
    assert mean_return(agent, fresh) > 60  # random actions: about 22


def test_ppo_by_hand_learns_cartpole():
    env = build_env("CartPole-v1", {"num_envs": 8})
    agent = AgentPPO()
    agent.init(64, env.state_dim, env.action_dim)
    buffer: list = []
    for _ in range(12):
        buffer[:] = agent.explore_vec_env(env, 64)
        agent.update_net(buffer)
    assert mean_return(agent, build_env("CartPole-v1")) > 100


@pytest.mark.parametrize("name", [name for name, (algorithm, _) in AGENTS.items() if algorithm in SINGLE_AGENTS])
def test_every_agent_explores_and_learns_by_hand(name):
    agent_class = getattr(elegantrl, name)
    discrete = agent_class.algorithm in ("dqn", "discrete_sac") or "Discrete" in name
    env = build_env("CartPole-v1" if discrete else "Pendulum-v1")
    agent = agent_class([16, 16], env.state_dim, env.action_dim)
    if agent.if_off_policy:
        agent.batch_size, agent.repeat_times = 16, 0.25
        buffer = ReplayBuffer(1000, env.state_dim, env.action_dim)
        buffer.update(agent.explore_env(env, 40, if_random=True))
    items = agent.explore_one_env(env, 24)
    assert len(items) == (5 if agent.if_off_policy else 6)
    assert all(x.shape[:2] == (24, 1) for x in items)
    before = [p.clone() for p in agent.act.parameters()]
    critic_before = [p.clone() for p in agent.cri.parameters()]
    if agent.if_off_policy:
        buffer.update(items)
    losses = agent.update_net(buffer if agent.if_off_policy else items)
    assert len(losses) == 2 and np.isfinite(losses).all()
    assert any((p != q).any() for p, q in zip(before, agent.act.parameters(), strict=True))
    assert any((p != q).any() for p, q in zip(critic_before, agent.cri.parameters(), strict=True))
    action = agent.select_action(env.reset())
    env.step(action)


def test_exploration_goes_on_where_it_ended_and_true_successors_are_kept():
    env = build_env("CartPole-v1")
    agent = AgentDQN([8], 4, 2)
    first, second = agent.explore_env(env, 30), agent.explore_env(env, 30)
    assert torch.equal(second[0][0], agent_state_after(first))
    ended = first.rollout.terminated
    assert ended.any() and not torch.equal(first.rollout.next_obs[:-1][ended[:-1]], first[0][1:][ended[:-1]])
    env.reset()  # the caller used the environment: exploration begins new episodes
    assert (agent.explore_env(env, 1)[0].abs() < 0.05).all()
    assert agent.last_state.shape == (1, 4)
    agent.last_state = env.reset()  # as documents write


def agent_state_after(items):
    rollout = items.rollout
    assert not (rollout.terminated[-1] | rollout.truncated[-1]).any()
    return rollout.next_obs[-1]


def test_a_rollout_of_plain_tensors_is_learned_from_as_well():
    env = build_env("CartPole-v1", {"num_envs": 4})
    for agent in (AgentDiscretePPO([16], 4, 2), AgentDQN([16], 4, 2)):
        items = tuple(x.clone() for x in agent.explore_env(env, 16))
        if agent.if_off_policy:
            buffer = ReplayBuffer(100, 4, 2, num_envs=4)
            buffer.update(items)
            assert buffer.cur_size == 15  # the newest row waits for its successor
            buffer.update(agent.explore_env(env, 16))
            assert buffer.cur_size == 32
            items = buffer
        assert np.isfinite(agent.update_net(items)).all()
    with pytest.raises(ConfigError, match="learns from a ReplayBuffer, not from a tuple"):
        agent.update_net(tuple())
    with pytest.raises(ConfigError, match="learns from what explore_env returned, not from a ReplayBuffer"):
        AgentPPO([16], 4, 2).update_net(buffer)


def test_a_row_cut_by_a_time_limit_never_leads_into_the_next_episode():
    states = torch.arange(6.0).reshape(6, 1, 1)
    one = torch.ones(6, 1)
    unmasks = one.clone()
    unmasks[2] = 0
    buffer = ReplayBuffer(10, 1, 1)
    buffer.update((states, torch.zeros(6, 1, 1), one, one, unmasks))
    found, *_, successors = buffer.sample(200)
    assert dict(zip(found.flatten().tolist(), successors.flatten().tolist(), strict=True)) == {
        0: 1,
        1: 2,
        2: 2,
        3: 4,
        4: 5,
    }


def test_prioritised_replay_by_hand():
    env = build_env("CartPole-v1")
    agent = AgentD3QN([16], 4, 2)
    agent.batch_size = 8
    buffer = ReplayBuffer(200, 4, 2, -1, 1, True, None)
    buffer.update(agent.explore_env(env, 60, if_random=True))
    loss, states = agent.get_obj_critic_per(buffer, 8)
    assert loss.requires_grad and loss.dim() == 0 and states.shape == (8, 4)
    *batch, weights, rows = buffer.sample_for_per(32)
    assert len(batch) == 6 and weights.shape == rows.shape == (32,)
    assert torch.equal(buffer.ring.obs.flatten(0, 1)[rows], batch[0])
    before = buffer.ring.tree.leaves.clone()
    agent.update_net(buffer)
    assert not torch.equal(buffer.ring.tree.leaves, before)
    with pytest.raises(ConfigError, match="no priorities"):
        plain = ReplayBuffer(200, 4, 2)
        plain.update(agent.explore_env(env, 9))
        plain.td_error_update_for_per(rows, weights)


def test_the_critics_loss_scales_with_the_rewards():
    env = build_env("Pendulum-v1")
    losses = []
    for scale in (1.0, 0.1):
        agent = AgentSAC([16], 3, 1)
        agent.reward_scale = scale
        buffer = ReplayBuffer(100, 3, 1)
        buffer.update(agent.explore_env(env, 50, if_random=True))
        losses.append(agent.get_obj_critic_raw(buffer, 256)[0].item())
    assert losses[0] > 3 * losses[1]
    with pytest.raises(ConfigError, match="needs an agent with replay"):
        AgentPPO([16], 3, 1).get_obj_critic_raw(buffer, 4)


def test_saving_and_loading_by_hand_continues_the_same_learning(hash_state):
    """The same data lead to the same parameters, optimisers and random streams, with nothing copied by the script."""
    env = build_env("Pendulum-v1")
    agent, buffer = AgentDDPG([16], 3, 1), ReplayBuffer(500, 3, 1)
    buffer.update(agent.explore_env(env, 100, if_random=True))
    agent.update_net(buffer)
    agent.save_or_load_agent("saved", if_save=True)
    buffer.save_or_load_history("saved", if_save=True)
    again, rows = AgentDDPG([16], 3, 1), ReplayBuffer(500, 3, 1)
    again.save_or_load_agent("saved", if_save=False)
    rows.save_or_load_history("saved", if_save=False)
    assert rows.cur_size == buffer.cur_size == 100
    assert hash_state(again._by_hand.agent.training_state()) == hash_state(agent._by_hand.agent.training_state())
    before = hash_state(agent._by_hand.agent.training_state())
    for _ in range(2):
        items = agent.explore_env(env, 20)
        buffer.update(items)
        rows.update(items)
        assert agent.update_net(buffer) == again.update_net(rows)
        after = [hash_state(one._by_hand.agent.training_state()) for one in (agent, again)]
        assert after[0] == after[1] != before
    loaded = torch.load("saved/actor.pth", weights_only=True)
    assert set(loaded) == set(agent.act.state_dict())
    wrong = AgentDDPG([32], 3, 1)
    with pytest.raises(CheckpointError, match="does not fit this agent"):
        wrong.save_or_load_agent("saved", if_save=False)


def test_an_agent_for_another_environment_says_so():
    agent = AgentPPO([16], 4, 2)
    assert agent.act(torch.zeros(1, 4)).shape == (1, 2)  # numbers, since nothing said choices
    with pytest.raises(ConfigError, match=r"action_dim=2 \(continuous\), but CartPole-v1 has .* \(discrete\)"):
        agent.explore_env(build_env("CartPole-v1"), 5)
    with pytest.raises(ConfigError, match=r"for \(state_dim, action_dim\) \(4, 2\), but Pendulum-v1 has \(3, 1\)"):
        AgentPPO([16], 4, 2).explore_env(build_env("Pendulum-v1"), 5)
    with pytest.raises(ConfigError, match="has no networks yet; call init"):
        AgentPPO().update_net([])
    args = Arguments(AgentPPO, "CartPole-v1")
    assert AgentPPO(args.net_dims, 4, 2, args=args).select_action(np.zeros(4)) in (0, 1)


def test_exploring_shows_the_agent_what_a_run_would_show_it():
    """The H-term's trajectories and the statistics of observations."""
    env = build_env("Pendulum-v1", {"num_envs": 2})
    agent = elegantrl.AgentSAC_H([16], 3, 1)
    agent.state_value_tau = 0.1
    before = agent_copy_of_norm(agent, env)
    agent.explore_env(env, 400)
    core = agent._by_hand.agent
    assert not torch.equal(core.policy.norm.mean, before)
    assert len(core.h_term.trajectories.state_dict()["reward"]) > 0
    with pytest.raises(ConfigError, match=r"kept for num_envs=2, but Pendulum-v1 has num_envs=1"):
        agent.explore_env(build_env("Pendulum-v1"), 5)


def agent_copy_of_norm(agent, env):
    agent.explore_env(env, 1)
    return agent._by_hand.agent.policy.norm.mean.clone()


def test_methods_within_an_update_say_where_to_change_it():
    with pytest.raises(AttributeError, match=r"has no update_objectives: update_net does a whole update; .*register"):
        _ = AgentPPO().update_objectives
    assert not hasattr(AgentPPO(), "soft_update")


def test_an_environment_straight_from_gymnasium_can_be_explored():
    env = gym.make("CartPole-v1")
    agent = AgentDQN([8], 4, 2)
    first = agent.explore_env(env, 5)
    assert torch.equal(agent.explore_env(env, 5)[0][0], agent_state_after(first))


# ---- the evaluator


def test_evaluator_writes_the_documented_files():
    env = build_env("CartPole-v1")
    args = Arguments(AgentDQN, "CartPole-v1")
    args.eval_times, args.target_return = 3, 5
    assert list(inspect.signature(Evaluator).parameters) == ["cwd", "env", "args", "if_tensorboard"]
    evaluator = Evaluator("curve", env, args, if_tensorboard=False)
    agent = AgentDQN([8], 4, 2)
    for _ in range(2):
        assert evaluator.evaluate_and_save(agent.act, steps=100, exp_r=9.0, logging_tuple=(0.5, -0.25))
    rows = np.load("curve/recorder.npy")
    assert rows.shape == (2, 6) and rows[:, 0].tolist() == [100, 200]
    assert rows[0, 3:].tolist() == [9.0, -0.25, 0.5]
    assert evaluator.total_step == 200 and evaluator.max_r == rows[:, 1].max()
    for name in ("actor.pth", "plot_learning_curve.jpg"):
        assert Path("curve", name).is_file()
    draw_learning_curve(rows, "title", "picture.jpg")
    assert Path("picture.jpg").is_file()
    evaluator.close()
    again = Evaluator("curve", "CartPole-v1", args)
    again.save_or_load_recoder(if_save=False)
    assert again.total_step == 200
    again.close()


def test_evaluator_scores_any_callable():
    evaluator = Evaluator("curve", "CartPole-v1")
    evaluator.evaluate_save(lambda state: torch.stack([-state[:, 2], state[:, 2]], 1), 10)  # push where it leans
    assert 20 < evaluator.max_r < 200
    evaluator.close()


# ---- the networks


def test_documented_networks():
    states, actions = torch.randn(5, 3), torch.randn(5, 2)
    for net in (Actor, ActorSAC, ActorPPO):
        actor = net([16, 16], 3, 2)
        assert actor(states).shape == actor.get_action(states).shape == (5, 2) and actor(states).abs().max() <= 1
        assert not torch.equal(actor.get_action(states), actor.get_action(states))
    choices = ActorDiscretePPO([16], 3, 4)
    assert choices(states).shape == (5,) and choices.get_action(states).dtype == torch.int64
    for net in (QNet, QNetDuel, QNetTwin, QNetTwinDuel):
        values = net([16], 3, 4)
        assert values(states).shape == (5, 4) and torch.equal(values.get_action(states), values(states).argmax(1))
    q1, q2 = values.get_q1_q2(states)
    assert torch.equal(q1, values(states)) and not torch.equal(q1, q2)
    assert Critic([16], 3, 2)(states, actions).shape == CriticPPO([16], 3)(states).shape == (5,)
    twin = CriticTwin([16], 3, 2)
    q1, q2 = twin.get_q1_q2(states, actions)
    assert torch.equal(twin.get_q_min(states, actions), torch.minimum(q1, q2))
    values(states).sum().backward()
    assert next(values.parameters()).grad is not None

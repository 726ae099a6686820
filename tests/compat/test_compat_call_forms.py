"""Every documented way to describe and train an agent."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from samples import Line, short

from elegantrl import (
    AgentA2C,
    AgentDiscretePPO,
    AgentDQN,
    AgentPPO,
    AgentSAC,
    Arguments,
    ChasingVecEnv,
    Config,
    build_env,
    get_gym_env_args,
    train_agent,
    train_and_evaluate,
    train_and_evaluate_mp,
)
from elegantrl.errors import ConfigError


def test_s1_agent_class_and_environment_instance():
    # Guards against: K4, a documented call form that does not run.
    args = Arguments(AgentSAC, gym.make("Pendulum-v1"))
    assert args.max_step == 200
    assert (args.state_dim, args.action_dim, args.if_discrete) == (3, 1, False)
    args.net_dim, args.batch_size = 16, 16
    train_and_evaluate(short(args))
    assert Path(args.cwd, "actor.pth").exists()


def test_s2_gym_make_and_env_args(capsys):
    # Guards against: K4, a documented call form that does not run.
    env_args = get_gym_env_args(gym.make("CartPole-v1"), if_print=True)
    assert "'env_name': 'CartPole-v1'" in capsys.readouterr().out
    six = {"env_name": "CartPole-v1", "num_envs": 1, "max_step": 500, "state_dim": 4, "action_dim": 2}
    assert six.items() <= env_args.items() and env_args["if_discrete"] is True
    args = Arguments(AgentDiscretePPO, env_func=gym.make, env_args=env_args)
    args.target_step = args.max_step // 2
    args.eval_times = 2**2
    config = short(args).run_config()
    assert (config.env.id, config.agent_name) == ("CartPole-v1", "ppo")
    assert train_and_evaluate(args).summary["env_steps"] >= 600


def test_s3_environment_and_agent_by_keyword_then_load_and_act():
    # Guards against: K4, a documented call form that does not run.
    env = build_env("CartPole-v1")
    args = Arguments(env=env, agent=AgentDQN())
    args.cwd = "demo_CartPole_DQN"
    args.target_return = 195
    args.reward_scale = 2**-1
    args.agent.if_use_dueling = True
    config = short(args).run_config()
    assert config.agent.dueling and config.agent.reward_scale == 0.5 and config.train.target_return == 195
    train_and_evaluate(args)

    agent = AgentDQN()
    agent.init(args.net_dim, args.state_dim, args.action_dim)
    agent.save_or_load_agent(cwd=args.cwd, if_save=False)
    state = env.reset()
    for _ in range(5):
        state, reward, done, _ = env.step(agent.select_action(state))
        assert state.shape == (4,) and reward == 1.0 and done is False
    with pytest.warns(UserWarning, match="render_mode"):
        env.render()


def test_s3_target_return_of_the_environment():
    args = Arguments(env=build_env("Pendulum-v1"), agent=AgentSAC())
    args.env.target_return = -200
    assert args.target_return == -200
    assert args.run_config().train.target_return == -200


def test_s4_keywords_class_and_instance():
    # Guards against: K4, a documented call form that does not run.
    for agent in (AgentPPO, AgentPPO()):
        args = Arguments(agent=agent, env_func=ChasingVecEnv, env_args={"env_num": 16, "dim": 3, "device_id": -1})
        args.eval_env_func = ChasingVecEnv
        args.eval_env_args = args.env_args.copy()
        args.eval_env_args["env_num"] = 1
        args.net_dim, args.target_step, args.repeat_times = 32, 8, 2
        args.save_gap, args.eval_gap, args.eval_times1, args.eval_times2 = 8, 60, 2, 4
        args.worker_num, args.learner_gpus = 1, -1
    assert args.env_num == 16 and args.state_dim == 12
    args.break_step = 600
    config = args.run_config()
    assert (config.agent.horizon, config.agent.num_epochs, config.agent.hidden) == (8, 2, (32, 32))
    assert (config.env.num_envs, config.eval.episodes, config.env.kwargs) == (16, 2, {"dim": 3})
    train_and_evaluate_mp(args, "/usr/bin/python3")


def test_s5_learner_gpus():
    # Guards against: K4, a documented call form that does not run.
    args = short(Config(AgentPPO, "CartPole-v1"))
    for one in (-1, [-1], [[-1]], [(-1,)]):
        args.learner_gpus = one
        assert args.run_config().train.device == "cpu"
        assert args.run_config().execute.num_learners == 0
    args.num_envs = 4
    for two in ([-1, -1], [[-1, -1]]):
        args.learner_gpus = two
        config = args.run_config()
        assert (config.execute.executor, config.execute.num_learners, config.num_groups) == ("process", 2, 2)
        assert config.train.device == "cpu"
    args.num_envs = 3
    with pytest.raises(ConfigError, match="num_envs=3 cannot be divided equally among 2 groups"):
        args.run_config()
    args.learner_gpus = [[-1], [-1], [-1]]
    assert args.num_tournament_agents == 3 and args.run_config().num_learners == 1
    with pytest.warns(UserWarning, match="a tournament of 3 agents, which train_and_evaluate_mp trains; here one"):
        train_and_evaluate(args)


def test_learners_use_gpus_in_a_row(monkeypatch):
    args = short(Config(AgentPPO, "CartPole-v1"))
    args.num_envs, args.learner_gpus = 4, [1, 2]
    with pytest.warns(UserWarning, match=r"there is no GPU for learner_gpus=\[1, 2\]; one learner trains on the CPU"):
        assert args.run_config().num_learners == 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = args.run_config()
    assert (config.num_learners, config.train.device) == (2, "cuda:1")
    args.learner_gpus = [0, 2]
    with pytest.raises(ConfigError, match=r"learners use GPUs in a row; write \[0, 1\]"):
        args.run_config()


def test_s6_environment_first_both_instances():
    # Guards against: K4, a documented call form that does not run.
    args = short(Arguments(build_env("Pendulum-v1"), AgentPPO()))
    assert not args.if_off_policy
    assert train_and_evaluate(args).summary["agent"] == "ppo"


def test_s7_environment_class_without_arguments():
    # Guards against: K4, a documented call form that does not run.
    args = short(Arguments(agent=AgentPPO(), env_func=Line))
    assert (args.env_name, args.max_step, args.target_return) == ("Line", 20, 19.0)
    args.num_envs, args.num_workers = 2, 2
    result = train_and_evaluate_mp(args)
    assert -1e-6 <= result.best_return <= 20
    # Two workers with two environments each, as documented.
    assert (result.summary["executor"], result.summary["num_workers"], result.summary["num_envs"]) == ("process", 2, 4)


def test_s15_config_of_the_notebooks():
    # Guards against: K4, a documented call form that does not run.
    env_args = {"env_name": "Pendulum-v1", "num_envs": 4, "max_step": 200, "state_dim": 3, "action_dim": 1}
    args = Config(AgentPPO, env_class=gym.make, env_args={**env_args, "if_discrete": False})
    args.target_step, args.env_num = 64, 4
    config = short(args).run_config()
    assert (config.env.num_envs, config.agent.horizon) == (4, 64)
    assert train_agent(args, if_single_process=True).run_dir == Path(args.cwd)


def test_arguments_are_told_apart_by_what_they_are():
    for args in (Config(AgentPPO, "CartPole-v1"), Config("CartPole-v1", AgentPPO), Config({}, "CartPole-v1", AgentPPO)):
        assert args.agent_class is AgentPPO and args.env_name == "CartPole-v1"
    with pytest.raises(ConfigError, match="two values for agent"):
        Config(AgentPPO, AgentSAC)
    with pytest.raises(ConfigError, match="3 is no environment"):
        Config(AgentPPO, 3)
    with pytest.raises(ConfigError, match="put env_name into env_args"):
        Config(AgentPPO, gym.make)


def test_agent_and_environment_may_come_later():
    args = Arguments()
    with pytest.raises(ConfigError, match="has no agent"):
        args.run_config()
    args.agent = AgentA2C()
    with pytest.raises(ConfigError, match="has no environment"):
        args.run_config()
    args.env = build_env("CartPole-v1")
    assert args.run_config().agent_name == "a2c"
    with pytest.raises(ConfigError, match="is no agent"):
        args.agent = "ppo"


def test_a_documented_snippet_learns_and_stops_at_its_target():
    # Guards against: R13, a target return, or a lasting decline, that does not stop the run.
    args = Arguments(AgentPPO, env_func=gym.make, env_args=get_gym_env_args(gym.make("CartPole-v1"), if_print=False))
    args.target_return = 200
    args.break_step = 100_000
    summary = train_and_evaluate(args).summary
    assert summary["stop_reason"] == "target_return"
    assert summary["best_return"] >= 200 and summary["env_steps"] < 50_000

    agent = AgentPPO()
    agent.save_or_load_agent(args.cwd, if_save=False)
    env = build_env("CartPole-v1")
    returns = []
    for _ in range(3):
        state, done, total = env.reset(), False, 0.0
        while not done:
            state, reward, done, _ = env.step(agent.select_action(state))
            total += reward
        returns.append(total)
    assert np.mean(returns) > 150


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the plot of an infinite target
def test_a_run_that_may_not_break_goes_on():
    args = Config(AgentPPO, Line)
    args.target_return, args.if_allow_break = -1, False
    args.eval_per_step = 200
    result = train_agent(short(args))
    assert result.summary["stop_reason"] == "max_steps" and result.summary["env_steps"] >= 600

"""Every documented way to describe and train an agent, with a short budget, and the faults that must not come back."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import elegantrl
from elegantrl import (
    AgentA2C,
    AgentD3QN,
    AgentDiscretePPO,
    AgentDoubleDQN,
    AgentDQN,
    AgentDuelingDQN,
    AgentPPO,
    AgentSAC,
    Arguments,
    ChasingVecEnv,
    Config,
    ReplayBuffer,
    build_env,
    get_gym_env_args,
    kwargs_filter,
    registry,
    train_agent,
    train_and_evaluate,
    train_and_evaluate_mp,
)
from elegantrl.agents.ppo import AgentPPO as CorePPO
from elegantrl.agents.ppo import PPOConfig
from elegantrl.compat.agents import AGENTS
from elegantrl.compat.envs import OLD_IDS
from elegantrl.compat.fields import ALIASES, FIELDS, HANDLED, NAMES, REFUSED, UNUSED
from elegantrl.config.resolve import resolve_config
from elegantrl.envs import TensorEnv
from elegantrl.errors import CheckpointError, ConfigError, SpecError
from elegantrl.types import ActionSpec


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def short(args):
    args.break_step = 600
    args.eval_times = 2
    args.gpu_id = -1
    return args


class Line:
    """A documented custom environment: attributes instead of spaces, ``reset`` without info, four values per step."""

    env_name = "Line"
    state_dim, action_dim, if_discrete = 1, 2, True
    max_step = 20
    target_return = 19.0

    def __init__(self, start=0.0, table=None):
        self.start, self.table = start, table

    def reset(self):
        self.x, self.steps = self.start, 0
        return np.array([self.x], dtype=np.float32)

    def step(self, action):
        self.x += 0.1 * (2 * action - 1)
        self.steps += 1
        return np.array([self.x], dtype=np.float32), float(action), False, {}


class Point(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-3, 3, (1,), np.float32)

    def __init__(self, size=1.0, max_step=8):
        self.size, self.max_step = size, max_step

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.last_action = action
        return np.zeros(2, np.float32), -abs(float(action[0])), False, self.steps >= self.max_step, {}


# ---- the call forms of the documents


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
    with pytest.raises(ConfigError, match="num_envs=3 cannot be shared out equally among 2 groups"):
        args.run_config()
    args.learner_gpus = [[0], [1]]
    with pytest.raises(ConfigError, match="tournament"):
        args.run_config()


def test_learners_use_gpus_in_a_row(monkeypatch):
    args = short(Config(AgentPPO, "CartPole-v1"))
    args.num_envs, args.learner_gpus = 4, [1, 2]
    with pytest.warns(UserWarning, match="there is no GPU 1"):
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


# ---- learning


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


# ---- settings


def test_untouched_settings_are_the_tuned_ones():
    args = Config(AgentPPO, "CartPole-v1")
    tuned, _ = resolve_config("ppo", "CartPole-v1")
    assert args.run_config().agent == tuned.agent
    assert args.num_envs == args.env_num == tuned.env.num_envs == 16
    assert args.learning_rate == tuned.agent.lr
    args.learning_rate = 5e-4
    assert args.run_config().agent == replace(tuned.agent, lr=5e-4)


def test_a_rollout_keeps_its_size_on_any_number_of_lanes():
    args = Config(AgentPPO, "CartPole-v1")
    args.horizon_len = 1024
    assert args.run_config().agent.horizon * args.num_envs == 1024
    assert args.target_step == 1024
    args.num_envs = 2
    assert args.run_config().agent.horizon == 1024


def test_every_on_policy_setting_arrives():
    # Guards against: R13, a target return, or a lasting decline, that does not stop the run.
    args = Config(AgentPPO, "Pendulum-v1")
    args.gamma, args.net_dims, args.clip_grad_norm, args.batch_size = 0.9, [8, 16], 3.0, 32
    args.repeat_times, args.ratio_clip, args.lambda_gae_adv, args.lambda_entropy = 4.0, 0.1, 0.9, 0.02
    args.if_use_vtrace, args.state_value_tau, args.random_seed, args.thread_num = True, 0.1, 3, 1
    args.break_step, args.eval_per_step, args.break_score = 1e5, 2e3, -150
    args.max_memo = 2**16
    config = args.run_config()
    agent = config.agent
    assert (agent.gamma, agent.hidden, agent.max_grad_norm, agent.batch_size) == (0.9, (8, 16), 3.0, 32)
    assert (agent.num_epochs, agent.clip, agent.gae_lambda, agent.entropy_coef) == (4, 0.1, 0.9, 0.02)
    assert agent.vtrace and agent.normalize_obs
    assert (config.train.seed, config.train.max_steps, config.train.target_return) == (3, 100_000, -150)
    assert config.eval.interval == 2000
    args.if_per_or_gae = False
    assert args.run_config().agent.gae_lambda == 1.0


def test_every_replay_setting_arrives():
    args = Config(AgentDQN, "CartPole-v1")
    args.soft_update_tau, args.buffer_size, args.buffer_init_size = 0.01, 2e4, 500
    args.repeat_times, args.explore_rate, args.break_step = 0.5, 0.1, float("inf")
    config = args.run_config()
    agent = config.agent
    assert (agent.tau, agent.buffer_size, agent.learning_starts) == (0.01, 20_000, 500)
    assert (agent.updates_per_step, agent.epsilon_end) == (0.5, 0.1)
    assert config.train.max_steps > 10**11
    args = Config(AgentSAC, "Pendulum-v1")
    args.num_ensembles, args.update_freq, args.target_entropy = 4, 2, -0.5
    agent = args.run_config().agent
    assert (agent.num_critics, agent.actor_interval, agent.target_entropy_per_dim) == (4, 2, -0.5)


@pytest.mark.parametrize("name", sorted({*FIELDS, *HANDLED, *UNUSED, *REFUSED}))
def test_every_field_reads_and_takes_what_it_reads(name):
    owners = (AgentPPO, "CartPole-v1"), (AgentDQN, "CartPole-v1"), (AgentSAC, "Pendulum-v1")
    missing = 0
    for owner in owners:
        args = Config(*owner)
        try:
            value = getattr(args, name)
        except AttributeError as error:
            assert "has no meaning" in str(error)
            missing += 1
            continue
        setattr(args, name, value)
        assert args.run_config() == Config(*owner).run_config()
    assert missing < 3 or name in ("explore_noise_std", "policy_noise_std")


def test_aliases_lead_to_fields():
    assert set(ALIASES.values()) <= NAMES - ALIASES.keys()


def test_widths_are_given_in_either_way_and_the_last_counts():
    args = Config(AgentPPO, "CartPole-v1")
    args.net_dim, args.num_layer = 32, 3
    assert args.net_dims == [32, 32, 32] and args.run_config().agent.hidden == (32, 32, 32)
    args.net_dims = (8, 4)
    assert (args.net_dim, args.num_layer) == (8, 2)
    args.net_dim = 16
    assert args.net_dims == [16, 16]


def test_a_misspelt_setting_is_an_error_with_a_suggestion():
    # Guards against: K1, a misspelt setting that is silently ignored.
    args = Config(AgentPPO, "CartPole-v1")
    with pytest.raises(ConfigError, match="there is no setting clip_ratio; did you mean 'ratio_clip'"):
        args.clip_ratio = 0.1
    with pytest.raises(AttributeError, match="did you mean 'learning_rate'"):
        args.learning_rat = 1e-3
    with pytest.raises(AttributeError, match=r"did you mean .*'env'"):
        args.evn = 1
    with pytest.raises(ConfigError, match="did you mean 'if_use_dueling'"):
        args.agent.if_use_duelling = True
    assert not hasattr(args, "no_such_thing")


def test_a_setting_that_cannot_be_honoured_is_refused():
    args = Config(AgentSAC, "Pendulum-v1")
    args.if_use_per = True
    assert args.run_config().agent.prioritized
    args.if_use_per = False
    args.ratio_clip = 0.1
    with pytest.raises(ConfigError, match="ratio_clip has no meaning for AgentSAC"):
        args.run_config()
    args = Config(AgentSAC, "Pendulum-v1")
    args.if_per_or_gae = True
    assert args.run_config().agent.prioritized
    args = Config(AgentPPO, "Pendulum-v1")
    args.repeat_times = 0.5
    with pytest.raises(ConfigError, match=r"^repeat_times=0.5 is not a whole number"):
        args.run_config()
    with pytest.raises(ConfigError, match="state_dim=4 cannot be set: the environment has 3"):
        args.state_dim = 4
    args.eval_env_args = {"g": 5.0}
    with pytest.raises(ConfigError, match="evaluation in another environment is not available"):
        args.run_config()


@pytest.mark.parametrize("name", ["AgentDQN", "AgentDoubleDQN", "AgentDuelingDQN", "AgentD3QN", "AgentSAC", "AgentTD3"])
def test_the_term_for_cumulative_returns_is_refused(name):
    """Guards against: D3 and D4, a term that is accepted and then crashes, or does not scale, or is ignored."""
    agent_class = getattr(elegantrl, name)
    env = "Pendulum-v1" if name in ("AgentSAC", "AgentTD3") else "CartPole-v1"
    says = r"^lambda_fit_cum_r=0.5 is not available: critics learn from temporal differences alone; remove the line$"
    args = Config(agent_class, env)
    with pytest.raises(ConfigError, match=says):
        args.lambda_fit_cum_r = 0.5
    with pytest.raises(ConfigError, match=says):
        args.agent.lambda_fit_cum_r = 0.5
    with pytest.raises(ConfigError, match=says):
        agent_class().init(16, args.state_dim, args.action_dim, lambda_fit_cum_r=0.5)
    with pytest.raises(ConfigError, match=says):

        class _MyAgent(agent_class):
            lambda_fit_cum_r = 0.5

    args.lambda_fit_cum_r = 0.0
    assert args.run_config() == Config(agent_class, env).run_config()
    with pytest.raises(ConfigError, match="there is no setting lambda_fit_cum_r"):
        elegantrl.train(AGENTS[name][0], env, lambda_fit_cum_r=0.5)


def test_both_names_of_the_vtrace_flag_are_one():
    """Guards against: P4, a flag that the agent reads under another name."""
    for name in ("if_use_v_trace", "if_use_vtrace"):
        args = Config(AgentPPO, "CartPole-v1")
        assert args.run_config().agent.vtrace is False
        setattr(args, name, True)
        assert args.if_use_v_trace is args.if_use_vtrace is args.run_config().agent.vtrace is True


def test_a_missing_gpu_is_a_warning(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    args = Config(AgentPPO, "CartPole-v1")
    args.gpu_id = 0
    with pytest.warns(UserWarning, match="there is no GPU 0; training runs on the CPU"):
        assert args.run_config().train.device == "cpu"


def test_print_shows_the_run(capsys):
    Config(AgentPPO, "CartPole-v1").print()
    assert "name: ppo" in capsys.readouterr().out


# ---- env_args


def test_env_args_of_the_caller_are_not_changed():
    # Guards against: K2, a caller's dict that is changed.
    env_args = {"env_name": "CartPole-v1", "num_envs": 1, "max_step": 500, "state_dim": 4}
    before = json.dumps(env_args)
    args = Config(AgentPPO, gym.make, env_args)
    build_env(gym.make, env_args)
    with pytest.raises(TypeError):
        args.env_args["num_envs"] = 8
    args.run_config()
    assert json.dumps(env_args) == before


def test_env_args_reach_the_constructor():
    args = Config(AgentPPO, Point, {"size": 2.0, "max_step": 5, "env_name": "Point"})
    assert args.run_config().env.kwargs == {"size": 2.0, "max_step": 5}
    assert args.env.max_step == 5
    with pytest.raises(ConfigError, match="no use for 'sise'; did you mean 'size'"):
        Config(AgentPPO, Point, {"sise": 2.0})
    with pytest.raises(ConfigError, match="come too late for an instance"):
        Config(AgentPPO, Point(), {"size": 2.0})


def test_env_args_that_no_file_can_hold():
    args = short(Config(AgentPPO, Line, {"table": np.arange(3)}))
    assert args.run_config().env.kwargs == {}
    train_agent(args)


def test_wrong_claims_about_an_environment_are_a_warning():
    claims = {"env_name": "Pendulum-v1", "action_dim": 4, "if_discrete": True}
    with pytest.warns(UserWarning) as caught:
        args = Config(AgentSAC, gym.make, claims)
    assert [str(w.message) for w in caught] == [
        "env_args say action_dim=4, but Pendulum-v1 has 1, which counts",
        "env_args say if_discrete=True, but Pendulum-v1 has False, which counts",
    ]
    assert args.action_dim == 1


@pytest.mark.parametrize(
    "old", ["CartPole-v0", "Pendulum-v0", "LunarLander-v2", "LunarLanderContinuous-v2", "Hopper-v2"]
)
def test_retired_ids_lead_to_their_successors(old):
    with pytest.warns(UserWarning, match=f"{old} is retired; {OLD_IDS[old]} takes its place"):
        assert build_env(old).env_name == OLD_IDS[old]
    with pytest.warns(UserWarning, match="is retired"):
        assert Config(AgentPPO, gym.make, {"env_name": old}).run_config().env.id == OLD_IDS[old]


# ---- the run folder


def test_no_folder_is_deleted_unasked():
    # Guards against: K3, a folder that is deleted unasked.
    keep = Path("results")
    keep.mkdir()
    (keep / "thesis.txt").write_text("mine")
    args = short(Config(AgentPPO, Line))
    args.cwd = keep
    train_agent(args)
    assert (keep / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="already holds a run; set continue_train"):
        train_agent(args)
    args.if_remove = True
    train_agent(args)
    assert not (keep / "thesis.txt").exists()


def test_a_folder_that_is_none_of_ours_is_never_deleted():
    # Guards against: K3, a folder that is deleted unasked.
    args = short(Config(AgentPPO, Line))
    args.if_remove = True
    Path("other").mkdir()
    Path("other/config.yaml").write_text("wheels: 4\n")
    args.cwd = "other"
    with pytest.raises(CheckpointError, match="wheels"):
        train_agent(args)
    Path("config.yaml").write_text(args.run_config().to_yaml())
    args.cwd = "."
    with pytest.raises(ConfigError, match="holds the working folder"):
        train_agent(args)
    args.continue_train = True
    with pytest.raises(ConfigError, match="contradict"):
        train_agent(args)


def test_the_default_folder_is_a_fresh_one():
    args = short(Config(AgentPPO, Line))
    assert args.cwd == "./Line_PPO_0"
    assert train_agent(args).run_dir == Path("Line_PPO_0")
    again = short(Config(AgentPPO, Line))
    assert again.cwd == "./Line_PPO_0_2"


def test_continue_train_goes_on():
    args = short(Config(AgentPPO, Line))
    args.continue_train = True
    first = train_agent(args).summary["env_steps"]
    args = short(Config(AgentPPO, Line))
    args.continue_train, args.break_step = True, 3 * first
    assert train_agent(args).summary["env_steps"] >= 3 * first
    assert args.cwd == "./Line_PPO_0"


# ---- agents


def test_names_of_the_q_learning_family():
    # Guards against: D6, double DQN as the minimum of twins, or D3QN without one of its halves.
    switches = {AgentDQN: (False, False), AgentDoubleDQN: (True, False), AgentDuelingDQN: (False, True)}
    for agent, (double, dueling) in (switches | {AgentD3QN: (True, True)}).items():
        config = Config(agent, "CartPole-v1").run_config().agent
        assert (config.double, config.dueling) == (double, dueling)
        assert agent.if_off_policy


def test_documented_names_stand_for_their_algorithms():
    """Guards against: P7b, a name that runs another algorithm, as DiscreteA2C ran PPO."""
    # Guards against: R10, a family told from the letters of a class name.
    algorithms = {name: algorithm for name, (algorithm, _) in AGENTS.items()}
    assert algorithms == {
        "AgentA2C": "a2c", "AgentDiscreteA2C": "a2c", "AgentPPO": "ppo", "AgentDiscretePPO": "ppo",
        "AgentDQN": "dqn", "AgentDoubleDQN": "dqn", "AgentDuelingDQN": "dqn", "AgentD3QN": "dqn",
        "AgentSAC": "sac", "AgentDiscreteSAC": "discrete_sac", "AgentModSAC": "mod_sac", "AgentREDQ": "redq",
        "AgentDDPG": "ddpg", "AgentTD3": "td3", "AgentPPO_H": "ppo", "AgentPPOHterm": "ppo", "AgentSAC_H": "sac",
        "AgentReSACHtermK": "sac", "AgentDDPGHterm": "ddpg",
    }  # fmt: skip
    on_policy = {"AgentA2C", "AgentDiscreteA2C", "AgentPPO", "AgentDiscretePPO", "AgentPPO_H", "AgentPPOHterm"}
    assert {name for name in AGENTS if not getattr(elegantrl, name).if_off_policy} == on_policy
    args = short(Config(elegantrl.AgentDiscreteA2C, Line))
    args.num_envs, args.horizon_len = 2, 50
    summary = train_agent(args).summary
    assert (summary["agent"], summary["env_steps"], summary["updates"]) == ("a2c", 600, 6)  # one step per rollout


def test_class_settings_are_checked_like_any_other():
    class Wide(AgentPPO):
        net_dim, num_layer, gamma = 8, 3, 0.5

    class Back(Wide):
        net_dims, gamma = (4, 4), None

    assert Config(Wide, "CartPole-v1").run_config().agent.hidden == (8, 8, 8)
    config = Config(Back, "CartPole-v1").run_config().agent
    assert (config.hidden, config.gamma) == ((4, 4), Config(AgentPPO, "CartPole-v1").run_config().agent.gamma)


def test_a_subclass_keeps_its_family():
    # Guards against: R10, a family told from the letters of a class name.
    class MyAgent(AgentPPO):
        ratio_clip = 0.1

        def __init__(self):
            super().__init__()
            self.lambda_entropy = 0.03

    args = short(Config(MyAgent, Line))
    assert not args.if_off_policy and not MyAgent.if_off_policy
    args.ratio_clip = 0.3  # the agent's own setting is closer to it
    config = args.run_config().agent
    assert (config.clip, config.entropy_coef) == (0.1, 0.03)
    assert train_agent(args).summary["agent"] == "ppo"
    assert args.cwd.startswith("./Line_My")
    assert Config(AgentPPO, Line).run_config().agent.clip == 0.2


def test_a_training_method_that_nobody_calls_is_an_error():
    with pytest.raises(ConfigError, match=r"update_net would never be called; .* elegantrl.agents.ppo.AgentPPO"):

        class _MyAgent(AgentPPO):
            def update_net(self, buffer): ...

    with pytest.raises(ConfigError, match="did you mean 'ratio_clip'"):

        class _Typo(AgentPPO):
            clip_ratio = 0.1


def test_an_agent_of_the_core_is_an_agent(monkeypatch):
    monkeypatch.setattr(registry, "_AGENTS", dict(registry._AGENTS))
    assert Config(CorePPO, "CartPole-v1").run_config() == Config(AgentPPO, "CartPole-v1").run_config()

    class Unknown(CorePPO):
        pass

    with pytest.raises(ConfigError, match="Unknown is not registered"):
        Config(Unknown, "CartPole-v1")
    elegantrl.register_agent("mine", Unknown, PPOConfig)
    assert Config(Unknown, "CartPole-v1").run_config().agent_name == "mine"


def test_agent_with_the_newer_constructor():
    args = Config(AgentPPO, "CartPole-v1")
    args.gamma = 0.9
    agent = AgentPPO([16, 16], 4, 2, gpu_id=0, args=args)
    config = Config(agent, "CartPole-v1").run_config().agent
    assert (config.hidden, config.gamma) == ((16, 16), 0.9)


def test_loading_and_acting():
    args = short(Config(AgentPPO, "Pendulum-v1"))
    train_agent(args)
    agent = AgentPPO()
    with pytest.raises(ConfigError, match="untrained"):
        agent.select_action(np.zeros(3))
    with pytest.raises(CheckpointError, match="there is no run folder"):
        agent.save_or_load_agent("nowhere", if_save=False)
    with pytest.raises(ConfigError, match="training saves"):
        agent.save_or_load_agent(args.cwd, if_save=True)
    agent.init(args.net_dim, args.state_dim, args.action_dim)
    agent.save_or_load_agent(args.cwd, if_save=False)
    expected = elegantrl.TrainedPolicy.load(args.cwd).act(np.ones(3)).clip(-1, 1)
    action = agent.select_action(np.ones(3))
    assert action.shape == (1,) and np.array_equal(action, expected)
    assert agent.select_action(np.full((5, 3), 1e3)).shape == (5, 1)
    assert np.abs(agent.select_action(np.full((5, 3), 1e3))).max() <= 1
    agent.init(64, 4, 1)
    with pytest.raises(CheckpointError, match=r"has \(state_dim, action_dim\) \(3, 1\)"):
        agent.save_or_load_agent(args.cwd, if_save=False)


def test_a_saved_agent_plays_and_renders_what_was_scored():
    """Guards against: R12, saved files that the functions for watching an agent cannot load."""
    args = short(Config(AgentDQN, "CartPole-v1"))
    train_agent(args)
    agent = AgentDQN()
    agent.save_or_load_agent(args.cwd, if_save=False)
    env = build_env("CartPole-v1", {"render_mode": "rgb_array"})
    state, done, total, frames = env.reset(seed=7), False, 0.0, []
    while not done:
        state, reward, done, _ = env.step(agent.select_action(state))
        total += reward
        if len(frames) < 2:
            frames.append(env.render())
    env.close()
    assert total == elegantrl.TrainedPolicy.load(args.cwd).evaluate(episodes=1, seed=7).mean
    assert frames[0].ndim == 3 and not np.array_equal(frames[0], frames[1])


# ---- environments


def test_build_env_from_anything():
    for env in ("CartPole-v1", gym.make("CartPole-v1"), build_env("CartPole-v1")):
        built = build_env(env)
        assert (built.env_name, built.num_envs, built.max_step) == ("CartPole-v1", 1, 500)
        assert (built.state_dim, built.action_dim, built.if_discrete) == (4, 2, True)
        assert built.target_return == 475.0
    assert build_env(Line).target_return == 19.0
    assert build_env(Line(start=2.0)).reset() == 2.0
    assert build_env(Line, {"start": 3.0}).reset() == 3.0
    assert build_env(lambda: Line(start=4.0)).reset() == 4.0


def test_a_built_env_takes_actions_in_the_unit_range():
    env = build_env(inner := Point())
    env.reset()
    env.step(np.array([1.0]))
    assert inner.last_action == 3.0
    env.step([-0.5])
    assert inner.last_action == -1.5


def test_a_built_env_tells_a_cut_from_an_end():
    env = build_env(Line)
    with pytest.raises(ConfigError, match="begins with reset"):
        env.step(1)
    env.reset()
    steps = [env.step(1) for _ in range(20)]
    assert [done for _, _, done, _ in steps] == [False] * 19 + [True]
    assert steps[-1][3] == {"TimeLimit.truncated": True}
    assert steps[-1][0] == pytest.approx(2.0)  # the last state, not the first of the next episode
    with pytest.raises(ConfigError, match="after done"):
        env.step(1)
    assert env.reset() == 0.0


def test_a_custom_env_with_five_values_and_one_with_a_time_limit():
    # Guards against: E10, environments with four values per step that are refused or lose their time limit.
    class Five(Line):
        def step(self, action):
            state, reward, _, info = super().step(action)
            return state, reward, self.steps == 3, self.steps >= 3, info

    class Four(Line):
        def step(self, action):
            state, reward, _, _ = super().step(action)
            return state, reward, self.steps == 3, {"TimeLimit.truncated": True}

    for kind, info in ((Five, {}), (Four, {"TimeLimit.truncated": True})):
        env = build_env(kind)
        env.reset()
        assert [env.step(0)[2] for _ in range(2)] == [False, False]
        assert env.step(0)[2:] == (True, info)


def test_resets_differ_and_scripts_repeat():
    env, again = build_env("CartPole-v1"), build_env("CartPole-v1")
    first, second = env.reset(), env.reset()
    assert not np.array_equal(first, second)
    assert np.array_equal(again.reset(), first) and np.array_equal(again.reset(), second)


def test_a_built_env_with_lanes():
    env = build_env("Pendulum-v1", {"num_envs": 3})
    state = env.reset()
    assert state.shape == (3, 3) and env.num_envs == env.env_num == 3
    state, reward, done, _ = env.step(torch.zeros(3, 1))
    assert state.shape == (3, 3) and reward.shape == done.shape == (3,)


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1", "TensorPendulum"])
def test_a_built_env_with_more_than_64_lanes(name):
    """Guards against: R15, vector environments that end at 64 lanes."""
    env = build_env(name, {"num_envs": 70})
    state = env.reset()
    action = torch.zeros(70, dtype=torch.int64) if env.if_discrete else torch.zeros(70, env.action_dim)
    after, reward, done, _ = env.step(action)
    assert state.shape == after.shape == (70, env.state_dim) and reward.shape == done.shape == (70,)
    assert (after != state).any(1).all() and len({tuple(row) for row in state.tolist()}) == 70
    env.close()


class Slope(TensorEnv):
    """An environment as they are written for GPUs: all lanes in one tensor, ``num_envs`` and ``device`` by keyword."""

    obs_dim, action, max_episode_steps = 1, ActionSpec(dim=1), 9

    def __init__(self, num_envs=1, device="cpu", incline=1.0):
        self.incline = incline
        super().__init__(num_envs, device)

    def initial(self, num_rows):
        return torch.zeros(num_rows, 1, device=self.device)

    def dynamics(self, state, action):
        state = state + action - self.incline
        return state, -state[:, 0], torch.zeros_like(state[:, 0], dtype=torch.bool)


def test_an_environment_written_for_gpus_gets_its_keywords_and_runs_on_the_cpu():
    """Guards against: E8, keywords that never arrive, and environments that need CUDA."""
    env = build_env(Slope, {"num_envs": 5, "incline": 0.25}, gpu_id=0)
    assert (env.num_envs, env.state_dim, env.action_dim, env.max_step) == (5, 1, 1, 9)
    env.reset()
    state, reward, done, _ = env.step(torch.ones(5, 1))
    assert state.tolist() == [[0.75]] * 5 and reward.tolist() == [-0.75] * 5 and not done.any()
    args = Config(AgentPPO, Slope, {"num_envs": 5, "incline": 0.25})
    assert args.run_config().env.kwargs == {"incline": 0.25} and args.num_envs == 5
    summary = train_agent(short(args)).summary
    assert summary["num_envs"] == 5 and summary["episodes"] > 0
    with pytest.raises(ConfigError, match="no use for 'inclin'; did you mean 'incline'"):
        build_env(Slope, {"inclin": 0.25})


def test_a_step_steps_once_and_a_reset_resets_once():
    """Guards against: E9, a wrapper that steps and then resets once more for the state it returns."""
    calls = []

    class Told(Line):
        def reset(self):
            calls.append("reset")
            return super().reset()

        def step(self, action):
            calls.append("step")
            return super().step(action)

    env = build_env(Told)
    calls.clear()
    first = env.reset()
    state, _, _, _ = env.step(1)
    assert calls == ["reset", "step"]
    assert state == pytest.approx(first + 0.1)


@pytest.mark.parametrize("name", ["IsaacVecEnv", "IsaacOneEnv"])
def test_isaac_names_fail_with_one_sentence(name):
    """Guards against: E9, an import error that speaks of somebody else's package."""
    with pytest.raises(ImportError, match=f"^{name} is not available in this version of elegantrl$"):
        getattr(elegantrl, name)
    assert not any("isaac" in module.lower() for module in sys.modules)


def test_seeds_reach_an_environment_of_either_interface():
    """Guards against: E6, a wrapper that keeps the seed to itself."""
    seen = []

    class Newer(Line):
        def reset(self, seed=None):
            seen.append(seed)
            return super().reset()

    class Older(Line):
        def seed(self, seed):
            seen.append(seed)

    for kind in (Newer, Older):
        seen.clear()
        env = build_env(kind)
        for seed in (3, 4, 3):
            env.reset(seed)
        assert len(seen) == 3 and seen[0] == seen[2] != seen[1] and None not in seen


def test_rendering_where_it_is_asked_for():
    env = build_env("CartPole-v1", {"render_mode": "rgb_array"})
    env.reset()
    assert env.render().ndim == 3
    env.close()


def test_chasing_vec_env():
    # Guards against: K4, a documented call form that does not run.
    # Guards against: E8, environments that need CUDA, or whose keywords never arrive.
    env = ChasingVecEnv(dim=2, env_num=64, device_id=-1)
    assert (env.env_num, env.state_dim, env.action_dim, env.max_step) == (64, 8, 2, 100)
    state = env.reset()
    for _ in range(101):
        state, reward, done, _ = env.step(torch.ones(64, 2))
    assert state.shape == (64, 8) and reward.shape == done.shape == (64,)
    assert ChasingVecEnv().num_envs == 4096
    args = Config(AgentPPO, ChasingVecEnv, {"num_envs": 4, "target_return": 3.0, "device_id": -1})
    assert (args.num_envs, args.target_return) == (4, 3.0)
    assert Config(AgentPPO, env).num_envs == 64
    with pytest.raises(ConfigError, match="did you mean 'dim'"):
        Config(AgentPPO, ChasingVecEnv, {"dims": 3})


def test_an_environment_that_says_too_little():
    class Bare:
        def reset(self): ...
        def step(self, action): ...

    with pytest.raises(SpecError, match="neither an action_space nor the attribute state_dim"):
        build_env(Bare)

    class Lanes(Line):
        env_num = 8

    with pytest.raises(SpecError, match=r"derive it from elegantrl.envs.TensorEnv"):
        build_env(Lanes)


def test_kwargs_filter():
    assert kwargs_filter(Line, {"start": 1, "other": 2}) == {"start": 1}


# ---- the replay buffer


def test_replay_buffer_pairs_states_with_their_successors():
    buffer = ReplayBuffer(max_size=100, state_dim=1, action_dim=2, num_seqs=2)
    for start in (0, 10):
        states = torch.arange(start, start + 10.0).reshape(10, 1, 1) + torch.tensor([0.0, 1000.0]).reshape(1, 2, 1)
        ones = torch.ones(10, 2)
        undones = ones.clone()
        undones[4] = 0
        buffer.update((states, torch.zeros(10, 2, 2), states.squeeze(-1), undones, ones))
    assert buffer.cur_size == 19
    states, actions, rewards, undones, unmasks, next_states = buffer.sample(256)
    assert torch.equal(next_states, states + 1) and torch.equal(rewards, states.squeeze(-1))
    assert actions.shape == (256, 2) and bool(unmasks.all())
    assert torch.equal(undones == 0, states.squeeze(-1) % 10 == 4)


@pytest.mark.parametrize("num_seqs", [1, 3])
def test_a_full_replay_buffer_never_pairs_the_newest_with_the_oldest(num_seqs):
    """Guards against: B5, a successor from across the write head."""
    buffer = ReplayBuffer(max_size=5, state_dim=1, action_dim=2, num_seqs=num_seqs)
    for time in range(14):
        number = time + 1000.0 * torch.arange(num_seqs)
        one = torch.ones(1, num_seqs)
        buffer.update((number.view(1, -1, 1), torch.zeros(1, num_seqs, 2), number.view(1, -1), one, one))
        if time:
            states, _, _, _, _, next_states = buffer.sample(100)
            assert torch.equal(next_states, states + 1)
            assert (states % 1000).min() >= max(0, time - 5) and (states % 1000).max() == time - 1


def test_replay_buffer_of_many_choices():
    """Guards against: B6, choices beyond 255 that overflow."""
    buffer = ReplayBuffer(max_size=300, state_dim=1, action_dim=300, if_discrete=True)
    number, one = torch.arange(300.0).view(-1, 1), torch.ones(300, 1)
    buffer.update((number.unsqueeze(-1), number.long().unsqueeze(-1), number, one, one))
    states, actions, *_ = buffer.sample(2000)
    assert torch.equal(actions, states[:, 0].long()) and actions.max() > 255


def test_replay_buffer_of_choices_and_its_limits():
    buffer = ReplayBuffer(4, 3, 2, gpu_id=-1, if_discrete=True)
    with pytest.raises(ConfigError, match="empty"):
        buffer.sample(1)
    row = torch.ones(6, 1)
    buffer.update((torch.zeros(6, 1, 3), torch.ones(6, 1, 1, dtype=torch.int32), row, row, row))
    assert buffer.cur_size == 4
    assert buffer.sample(8)[1].dtype == torch.int64
    with pytest.raises(ConfigError, match=r"data\.prioritized"):
        ReplayBuffer(4, 3, 2, if_use_per=True)


# ---- the package


def test_names_are_complete_and_lazy():
    from elegantrl import compat

    assert set(compat.__all__) <= set(elegantrl.__all__) <= set(dir(elegantrl))
    namespace: dict = {}
    exec("from elegantrl import *", namespace)
    assert set(elegantrl.__all__) <= namespace.keys()
    assert Arguments is Config
    for name in compat.LATER:
        with pytest.raises(ImportError, match=f"{name} is not available in this version"):
            getattr(elegantrl, name)
    with pytest.raises(AttributeError, match=r"did you mean .*'AgentPPO'"):
        _ = elegantrl.AgentPO
    assert not hasattr(elegantrl, "__wrapped__")


def test_importing_the_library_does_not_import_compat():
    import subprocess
    import sys

    code = "import elegantrl, sys; assert 'elegantrl.compat' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_here_warns_by_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config(AgentPPO, "CartPole-v1").run_config()
        ChasingVecEnv(env_num=2).reset()

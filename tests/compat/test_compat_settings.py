"""Documented settings and environment arguments: what becomes of them, and what is refused."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from samples import Line, Point, short

import elegantrl
from elegantrl import (
    AgentDQN,
    AgentPPO,
    AgentSAC,
    Config,
    build_env,
    train_agent,
)
from elegantrl.compat.agents import AGENTS
from elegantrl.compat.envs import OLD_IDS
from elegantrl.compat.fields import ALIASES, FIELDS, HANDLED, NAMES, REFUSED, UNUSED
from elegantrl.config.resolve import resolve_config
from elegantrl.errors import ConfigError


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
    with pytest.warns(UserWarning, match="there is no GPU 0; one learner trains on the CPU"):
        assert args.run_config().train.device == "cpu"


def test_print_shows_the_run(capsys):
    Config(AgentPPO, "CartPole-v1").print()
    assert "name: ppo" in capsys.readouterr().out


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


def test_evaluation_in_another_environment():
    args = Config(AgentPPO, "Pendulum-v1")
    args.eval_env_args = {}
    assert args.run_config().eval.env_id is None and args.sources()[1] is None
    args.eval_env_args = {"g": 5.0}
    config = args.run_config().eval
    assert (config.env_id, config.env_kwargs) == ("Pendulum-v1", {"g": 5.0})

    class Paid(Line):
        def step(self, action):
            state, _, done, info = super().step(action)
            return state, 1000.0, done, info

    args = short(Config(AgentPPO, Line))
    args.eval_env_func = Paid
    args.if_allow_break = False
    assert train_agent(args).best_return == 20_000

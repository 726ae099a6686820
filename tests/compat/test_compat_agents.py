"""The documented agent classes."""

import numpy as np
import pytest
from samples import Line, short

import elegantrl
from elegantrl import (
    AgentD3QN,
    AgentDoubleDQN,
    AgentDQN,
    AgentDuelingDQN,
    AgentPPO,
    Config,
    build_env,
    registry,
    train_agent,
)
from elegantrl.agents.ppo import AgentPPO as CorePPO
from elegantrl.agents.ppo import PPOConfig
from elegantrl.compat.agents import AGENTS
from elegantrl.errors import CheckpointError, ConfigError


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
        "AgentVDN": "vdn", "AgentQMix": "qmix", "AgentMADDPG": "maddpg", "AgentMATD3": "matd3", "AgentMAPPO": "mappo",
    }  # fmt: skip
    on_policy = {"AgentA2C", "AgentDiscreteA2C", "AgentPPO", "AgentDiscretePPO", "AgentPPO_H", "AgentPPOHterm"}
    on_policy.add("AgentMAPPO")
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


def test_a_run_refuses_an_agent_with_training_methods_of_its_own():
    for name in ("update_net", "update_objectives"):
        mine = type("Mine", (AgentPPO,), {name: lambda self, buffer: None})
        with pytest.raises(ConfigError, match=rf"{name} would never be called; .* elegantrl.agents.ppo.AgentPPO"):
            Config(mine, "CartPole-v1").run_config()
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
    with pytest.raises(ConfigError, match="has no networks yet"):
        agent.select_action(np.zeros(3))
    with pytest.raises(CheckpointError, match="there is no run folder"):
        agent.save_or_load_agent("nowhere", if_save=False)
    with pytest.raises(CheckpointError, match="is 'ppo', not 'dqn'"):
        AgentDQN().save_or_load_agent(args.cwd, if_save=False)
    agent.init(args.net_dim, args.state_dim, args.action_dim)
    agent.save_or_load_agent(args.cwd, if_save=False)
    expected = elegantrl.TrainedPolicy.load(args.cwd).act(np.ones(3)) / 2  # torques reach from -2 to 2
    action = agent.select_action(np.ones(3))
    assert action.shape == (1,) and np.array_equal(action, expected)
    assert agent.select_action(np.full((5, 3), 1e3)).shape == (5, 1)
    assert np.abs(agent.select_action(np.full((5, 3), 1e3))).max() <= 1
    with pytest.raises(ConfigError, match=r"a state of shape \(4,\) does not fit an agent of state_dim=3"):
        agent.select_action(np.ones(4))
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

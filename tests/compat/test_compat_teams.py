"""The documented agents of teams: imports, runs of a few steps, a trained team, and what is refused."""

import importlib

import numpy as np
import pytest
import torch

import elegantrl
from elegantrl import Arguments, Config, build_env, train_agent, train_and_evaluate
from elegantrl.envs.tensor import TensorEnv
from elegantrl.errors import CheckpointError, ConfigError, SpecError
from elegantrl.types import ActionSpec, Leaf

TEAMS = ("AgentVDN", "AgentQMix", "AgentMADDPG", "AgentMATD3", "AgentMAPPO")
PARTS = {
    "AgentVDN": [("train", (None, 0, 0))],
    "AgentQMix": [("train", (None, 0, 0, None))],
    "AgentMADDPG": [
        ("update_net", (None, 64, 1.0, 5e-3)),
        ("update_agent", (None,) * 6),
        ("explore_one_env", (None, 4)),
    ],
    "AgentMATD3": [
        ("update_net", (None, 64, 1.0, 5e-3)),
        ("update_agent", (None,) * 6),
        ("explore_one_env", (None, 4)),
    ],
    "AgentMAPPO": [("ppo_update", (None, True)), ("explore_env", (None, 4))],
}
"""The documented methods of teams and arguments as in the documents."""


class Pair(TensorEnv):
    """Two agents; each gets 1 if its option is the one that it sees."""

    name, num_agents, max_episode_steps = "Pair", 2, 5
    obs, action = Leaf((2, 2)), ActionSpec(choices=(2,))

    def initial(self, num_rows):
        return torch.randint(2, (num_rows, 2), generator=self.generator)

    def observe(self, state):
        return torch.nn.functional.one_hot(state, 2).float()

    def dynamics(self, state, action):
        return 1 - state, (action == state).float(), torch.zeros(len(state), dtype=torch.bool)


def short(name, env=Pair, env_args=None, cwd="run"):
    args = Config(getattr(elegantrl, name), env, env_args)
    args.cwd, args.break_step, args.eval_times, args.net_dims = cwd, 64, 2, [8]
    args.num_envs, args.horizon_len, args.random_seed = 2, 8, 1
    if name != "AgentMAPPO":
        args.batch_size = 8
    if name in ("AgentMADDPG", "AgentMATD3"):
        args.buffer_init_size = 16
    return args


@pytest.mark.parametrize("name", TEAMS)
def test_documented_imports(name):
    module = importlib.import_module(f"elegantrl.agents.{name}")
    assert getattr(module, name) is getattr(elegantrl, name)
    namespace = {}
    exec(f"from elegantrl.agents import {name}\nfrom elegantrl.run import *", namespace)
    assert Config(namespace[name], "TensorSpread").agent_class is getattr(elegantrl, name)
    assert Arguments(agent=namespace[name](), env="TensorSpread").state_dim == 18


@pytest.mark.parametrize("name", TEAMS)
def test_a_short_run_and_its_trained_team(name):
    args = short(name)
    assert (args.state_dim, args.action_dim, args.if_discrete) == (2, 2, True)
    result = train_and_evaluate(args)
    assert result.summary["env_steps"] == 64 and set(result.summary["agent_returns"]) == {"agent_0", "agent_1"}
    agent = getattr(elegantrl, name)()
    agent.save_or_load_agent(cwd=args.cwd, if_save=False)
    env = build_env(Pair)
    state, total = env.reset(), np.zeros(2)
    for _ in range(env.max_step):
        state, reward, done, info = env.step(agent.select_actions(state))
        total += reward
    assert done and info == {"TimeLimit.truncated": True} and state.shape == (2, 2)
    assert ((total >= 0) & (total <= 5)).all()
    other = elegantrl.AgentMAPPO if name != "AgentMAPPO" else elegantrl.AgentQMix
    with pytest.raises(CheckpointError, match="load it with its own class"):
        other().save_or_load_agent(cwd=args.cwd, if_save=False)


def test_env_args_and_continuous_actions():
    result = train_agent(short("AgentMADDPG", "TensorSpread", {"continuous_actions": True}))
    actions = result.load_policy().act({"agent_1": np.zeros(18, np.float32)})
    assert actions["agent_1"].shape == (5,)


@pytest.mark.parametrize(("name", "method", "arguments"), [(n, *part) for n, parts in PARTS.items() for part in parts])
def test_parts_of_documented_loops_are_refused_in_a_sentence(name, method, arguments):
    with pytest.raises(ConfigError, match=rf"{name} has no \w+ for scripts: .* train_agent\(Config\({name}"):
        getattr(getattr(elegantrl, name)(), method)(*arguments)


def test_a_team_without_training_and_with_too_few_states():
    with pytest.raises(ConfigError, match="is not trained; load one with save_or_load_agent"):
        elegantrl.AgentVDN().select_actions([0, 0])
    args = short("AgentMAPPO")
    train_and_evaluate(args)
    agent = elegantrl.AgentMAPPO()
    agent.save_or_load_agent(args.cwd, False)
    with pytest.raises(ConfigError, match="there are 1 states for 2 agents: agent_0, agent_1"):
        agent.select_actions([np.zeros(2)])
    with pytest.raises(ConfigError, match="AgentMAPPO has no saving for scripts"):
        agent.save_or_load_agent(args.cwd, True)


def test_a_method_of_a_subclass_that_a_run_would_not_call_is_refused():
    class Own(
        elegantrl.AgentMAPPO.__wrapped__ if hasattr(elegantrl.AgentMAPPO, "__wrapped__") else elegantrl.AgentMAPPO
    ):
        def update_net(self, buffer):
            return 0.0

    with pytest.raises(ConfigError, match=r"Own\.update_net would never be called"):
        Config(Own, Pair).run_config()


@pytest.mark.parametrize(("name", "env"), [("AgentPPO", "TensorSpread"), ("AgentMAPPO", "CartPole-v1")])
def test_a_team_and_a_single_agent_are_not_mixed(name, env):
    with pytest.raises(SpecError, match="learns for"):
        train_and_evaluate(short(name, env))

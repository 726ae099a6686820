"""MAPPO and IPPO: targets, values, agents that have ended, and learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl import tree
from elegantrl.agents.team.mappo import AgentMAPPO, MAPPOConfig
from elegantrl.envs import check_env, make_env
from elegantrl.envs.vec_env import VecEnv
from elegantrl.errors import SpecError
from elegantrl.registry import build_agent, find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.types import Obs, Rollout
from tests.teams import Aims, LeavingSigns, PlainSigns, Signs

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"hidden": (8,), "horizon": 5, "batch_size": 8, "num_epochs": 2}


def build(env: VecEnv, seed: int = 0, name: str = "mappo", **settings: Any) -> AgentMAPPO:
    entry = find_agent(name)
    config = replace(entry.default_config(), **SMALL | settings)  # type: ignore[arg-type]
    agent = build_agent(entry, env.spec, config, CPU, seed)
    assert isinstance(agent, AgentMAPPO)
    return agent


def roll_out(agent: AgentMAPPO, env: VecEnv, horizon: int = 5) -> Rollout:
    from elegantrl.nets.policies import joined
    from elegantrl.types import Weights

    actor = GroupActor(env, agent.policy_spec, seed=3)
    return actor.sample(Weights(0, joined(agent.policy.tensors())), horizon, 0).rollout


@pytest.mark.parametrize("world", [Signs, PlainSigns, LeavingSigns, Aims])
def test_small_teams_keep_the_contract(world: Any) -> None:
    if world is not LeavingSigns and world is not Aims:  # random actions break the rules of these two on purpose
        check_env(make_env(world, 3))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"team_reward": True},
    {"separate": True},
    {"central_value": False},
    {"central_value": False, "separate": True},
    {"memory": "gru", "memory_size": 6},
    {"memory": "lstm", "memory_size": 6, "separate": True},
    {"normalize_obs": True, "normalize_value": False, "entropy_coef": 0.01, "target_kl": 0.1},
]


@pytest.mark.parametrize("world", [Signs, PlainSigns, LeavingSigns, Aims])
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_variant_updates_on_every_world(world: Any, settings: dict[str, Any]) -> None:
    env = make_env(world, 4)
    agent = build(env, **settings)
    before = agent.policy.to_flat()
    update = agent.update(roll_out(agent, env))
    assert all(bool(x.isfinite().all()) for x in update.metrics.values())
    assert not torch.equal(before, agent.policy.to_flat())


def test_own_rewards_have_own_advantages() -> None:
    """GAE of each agent by hand, with lambda 1: discounted rewards, then the value of the successor."""
    env = make_env(Signs, 2)
    agent = build(env, gamma=0.9, gae_lambda=1.0, normalize_advantage=False, normalize_value=False)
    r = roll_out(agent, env, 3)
    rows = agent.targets(r)
    with torch.no_grad():
        value_NG = agent.value(r.obs.state)  # [T, N, G]
        last_NG = agent.value(r.next_obs.state[-1])
    expected = r.reward[0] + 0.9 * r.reward[1] + 0.81 * r.reward[2] + 0.729 * last_NG
    torch.testing.assert_close(rows.value_target.view(3, 2, 3)[0], expected)
    torch.testing.assert_close(rows.advantage.view(3, 2, 3)[0], expected - value_NG[0])


def test_the_reward_of_the_team_is_the_sum() -> None:
    env = make_env(Signs, 2)
    agent = build(env, gamma=0.9, gae_lambda=1.0, normalize_advantage=False, normalize_value=False, team_reward=True)
    r = roll_out(agent, env, 2)
    rows = agent.targets(r)
    with torch.no_grad():
        last_N1 = agent.value(r.next_obs.state[-1])
    total = r.reward.sum(-1, keepdim=True)
    expected = total[0] + 0.9 * total[1] + 0.81 * last_N1
    assert rows.value_target.shape == (4, 1)
    torch.testing.assert_close(rows.value_target.view(2, 2, 1)[0], expected)


def test_an_agent_that_ends_has_no_successor() -> None:
    """Agent 0 ends with its second step: its target there is its reward alone, that of agent 2 is not."""
    env = make_env(LeavingSigns, 2)
    agent = build(env, gamma=0.9, gae_lambda=1.0, normalize_advantage=False, normalize_value=False)
    target_TNG = agent.targets(roll_out(agent, env, 4)).value_target.view(4, 2, 3)
    r = roll_out(agent, env, 4)
    torch.testing.assert_close(target_TNG[1, :, 0], r.reward[1, :, 0])
    torch.testing.assert_close(target_TNG[0, :, 0], r.reward[0, :, 0] + 0.9 * r.reward[1, :, 0])
    assert (target_TNG[1, :, 2] - r.reward[1, :, 2]).abs().min() > 1e-4


@pytest.mark.parametrize("settings", [{}, {"central_value": False}, {"separate": True}], ids=str)
def test_agents_that_have_ended_add_nothing_to_the_loss(settings: dict[str, Any]) -> None:
    env = make_env(LeavingSigns, 4)
    agent = build(env, entropy_coef=0.1, **settings)
    b = agent.targets(roll_out(agent, env))
    assert b.active is not None
    gone = ~b.active
    assert gone.any() and b.active.any()

    def gradient(batch: Any) -> Tensor:
        return agent.step.gradient(agent.loss(batch)[0])

    other = b._replace(
        advantage=torch.where(gone, 50.0, b.advantage),
        value_target=torch.where(gone, -70.0, b.value_target),
        logp=torch.where(gone, -3.0, b.logp),
        action=torch.where(gone, (b.action + 1) % 3, b.action),
    )
    torch.testing.assert_close(gradient(other), gradient(b))
    assert not torch.allclose(gradient(b._replace(advantage=torch.where(gone, b.advantage, 50.0))), gradient(b))


@pytest.mark.parametrize("settings", [{}, {"separate": True}, {"memory": "gru"}, {"memory": "lstm", "separate": True}])
def test_an_actor_sees_its_own_observation_alone(settings: dict[str, Any]) -> None:
    env = make_env(Signs, 2)
    policy = build(env, **settings).policy
    obs, carry = env.reset(0), policy.initial_carry(2)
    changed = obs._replace(seen=obs.seen.clone(), state=obs.state + 9)
    changed.seen[:, 1:] += 5
    first, other = policy.step(obs, carry)[0], policy.step(changed, carry)[0]
    assert torch.equal(first[:, 0], other[:, 0])
    assert not torch.equal(first[:, 1], other[:, 1])


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_separate_weights_equal_a_loop_over_agents(memory: str) -> None:
    env = make_env(Signs, 4)
    agent = build(env, separate=True, memory=memory, central_value=False)
    obs, policy = env.reset(0), agent.policy
    out, _ = policy.step(obs, policy.initial_carry(4))
    for g in range(3):
        x = obs.seen[:, g]
        if policy.core is not None:
            from torch.nn.functional import linear

            core = policy.core
            outer = linear(x, core.input.weight[g].T, core.input.bias[g, 0])
            inner = core.recurrent.bias[g, 0].expand(4, -1)  # the state is zero
            (ro, zo, no), (ri, zi, ni) = outer.chunk(3, -1), inner.chunk(3, -1)
            new = (no + (ro + ri).sigmoid() * ni).tanh()
            x = (1 - (zo + zi).sigmoid()) * new
        for layer in policy.net:
            x = x @ layer.weight[g] + layer.bias[g] if hasattr(layer, "weight") else layer(x.clone())
        torch.testing.assert_close(out[:, g], x, rtol=1e-4, atol=1e-6)


def test_shared_weights_know_the_number_of_the_agent() -> None:
    env = make_env(Signs, 1)
    policy = build(env).policy
    same = torch.ones(1, 3, 4)
    out = policy.output(Obs(same))
    assert not torch.equal(out[:, 0], out[:, 1])


def test_numbers_that_an_agent_lacks_have_no_gradient() -> None:
    env = make_env(Aims, 4)
    agent = build(env, separate=True, entropy_coef=0.1)
    b = agent.targets(roll_out(agent, env))
    grad = dict(zip(agent.step.params, torch.split(agent.step.gradient(agent.loss(b)[0]),
                [p.numel() for p in agent.step.params]), strict=True))  # fmt: skip
    log_std = grad[agent.policy.log_std].view(3, 2)
    assert not log_std[1:, 1].any() and log_std[:, 0].all() and log_std[0, 1] != 0


def test_recurrent_minibatches_keep_lanes_whole() -> None:
    env = make_env(LeavingSigns, 4)
    agent = build(env, memory="gru", batch_size=10)
    rows = agent.targets(roll_out(agent, env))
    parts = agent.minibatches(rows)
    assert [tuple(part.logp.shape) for part in parts] == [(5, 2, 3)] * 2
    assert tree.leaves(parts[0].carry)[0].shape == (2, 3, 64)


@pytest.mark.parametrize("name", ["mappo", "ippo"])
@pytest.mark.parametrize("world", [Signs, PlainSigns, LeavingSigns])
def test_learns_to_read_signs(name: str, world: Any) -> None:
    env = make_env(world, 32)
    agent = build(env, name=name, horizon=12, batch_size=96, num_epochs=4, lr=5e-3, hidden=(32,))
    shares = []
    for _ in range(30):
        r = roll_out(agent, env, 12)
        agent.update(r)
        active = r.obs.active if r.obs.active is not None else torch.ones_like(r.reward)
        shares.append(float(r.reward.sum() / active.sum()))
    assert shares[0] < 0.7 and shares[-1] > 0.9


def test_learns_to_aim() -> None:
    env = make_env(Aims, 64)
    agent = build(env, horizon=12, batch_size=128, num_epochs=6, lr=1e-2, hidden=(32,), log_std_init=-1.0)
    rewards = []
    for _ in range(50):
        r = roll_out(agent, env, 12)
        agent.update(r)
        rewards.append(float(r.reward.mean()))
    assert rewards[0] < -0.25 and rewards[-1] > -0.08


def test_teams_and_single_agents_are_told_apart() -> None:
    team, single = make_env(Signs, 2), make_env("TensorCartPole", 2)
    with pytest.raises(SpecError, match="AgentMAPPO learns for a team, but TensorCartPole has one agent; choose"):
        build_agent(find_agent("mappo"), single.spec, MAPPOConfig(), CPU, 0)
    entry = find_agent("ppo")
    with pytest.raises(SpecError, match="AgentPPO learns for one agent, but Signs has a team of 3; choose"):
        build_agent(entry, team.spec, entry.default_config(), CPU, 0)

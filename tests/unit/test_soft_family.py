"""REDQ, ModSAC and discrete SAC: what each changes about soft actor-critic, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elegantrl.agents.discrete_sac import AgentDiscreteSAC, DiscreteSACConfig
from elegantrl.agents.mod_sac import AgentModSAC, ModSACConfig
from elegantrl.agents.redq import AgentREDQ, REDQConfig
from elegantrl.envs import make_env
from elegantrl.errors import ConfigError, SpecError
from elegantrl.registry import build_agent, find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import EnvSpec, Transition

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def batch(rows: int = 16, action_dim: int | None = 2) -> Transition:
    g = torch.Generator().manual_seed(0)
    discrete = torch.randint(3, (rows,), generator=g)
    return Transition(
        obs=torch.randn(rows, 3, generator=g),
        action=discrete if action_dim is None else torch.rand(rows, action_dim, generator=g) * 2 - 1,
        reward=torch.randn(rows, generator=g),
        discount=torch.full((rows,), 0.9),
        next_obs=torch.randn(rows, 3, generator=g),
    )


# ---- REDQ


def test_redq_target_is_the_minimum_over_the_subset_and_the_actor_climbs_the_mean(make_spec: MakeSpec) -> None:
    spec = make_spec("continuous", obs_dim=1, action_dim=1)
    agent: Any = AgentREDQ(spec, REDQConfig(hidden=(), num_critics=4), CPU, 0)
    with torch.no_grad():  # Q_e(s, a) = slope_e * s + offset_e
        agent.critic_target.net[0].weight.zero_()
        agent.critic_target.net[0].weight[:, 0, 0] = torch.tensor([1.0, -3.0, 0.0, 2.0])
        agent.critic_target.net[0].bias[:, 0, 0] = torch.tensor([-9.0, 5.0, -9.0, 1.0])
        agent.log_alpha.fill_(-math.inf)  # entropy counts nothing
    agent.subset.copy_(torch.tensor([3, 1]))
    # At s = 1 they say 3 and 2, at s = -1 they say -1 and 8; the others would say less.
    value_B = agent.next_value(torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1))
    assert value_B.tolist() == [2.0, -1.0]
    q_EB = torch.tensor([[1.0, 8.0], [5.0, 2.0], [3.0, 4.0], [7.0, 6.0]])
    assert agent.actor_q(q_EB).tolist() == [4.0, 5.0]


def test_redq_losses_use_the_subset_and_the_mean(make_spec: MakeSpec) -> None:
    """Guards against: Q1, rules for target and actor that no loss calls.

    Four critics say 1, 8, 5 and 3 whatever they see; the subset holds the second and the third of them.
    """
    config = REDQConfig(hidden=(), num_critics=4, alpha_init=0.5)
    agent = AgentREDQ(make_spec("continuous"), config, CPU, 0)
    with torch.no_grad():
        for net in (agent.critic.net[0], agent.critic_target.net[0]):
            net.weight.zero_()
            net.bias.copy_(torch.tensor([1.0, 8.0, 5.0, 3.0]).view(4, 1, 1))
    agent.subset.copy_(torch.tensor([1, 2]))
    b, noise = batch(), torch.zeros(16, 2)
    with torch.no_grad():
        next_logp, logp = (agent.policy.sample(obs, noise)[1] for obs in (b.next_obs, b.obs))
        torch.testing.assert_close(agent.next_value(b.next_obs, noise), 5.0 - 0.5 * next_logp)
        torch.testing.assert_close(agent.actor_loss(b, noise)[0], (0.5 * logp - 4.25).mean())


def test_redq_takes_its_updates_for_every_step() -> None:
    """Guards against: Q1, an update-to-data ratio that is set where nobody reads it."""
    env = make_env("TensorPendulum", 1)
    config = REDQConfig(hidden=(4,), batch_size=4, buffer_size=50, learning_starts=3)
    learner = Learner("redq", config, env.spec, CPU, 0)
    worker = GroupActor(env, learner.policy_spec(), 0)
    updates = []
    for seq in range(6):
        learner.update([worker.sample(learner.weights(), 1, seq)])
        updates.append(learner.num_updates())
    assert updates == [0, 0, 0, 20, 40, 60]


def test_redq_draws_a_new_subset_of_distinct_critics_for_every_update(make_spec: MakeSpec) -> None:
    # Guards against: Q1, REDQ without its ensemble, its random subset or its many updates.
    agent = AgentREDQ(make_spec("continuous"), REDQConfig(hidden=(8,), num_critics=5), CPU, 0)
    seen = set()
    for _ in range(60):
        agent.update(batch())
        pair = tuple(agent.subset.tolist())
        assert len(set(pair)) == 2
        seen.add(frozenset(pair))
    assert len(seen) == 10  # every pair of five critics


def test_redq_moves_the_actor_once_per_interval_and_all_critics_always(make_spec: MakeSpec) -> None:
    agent = AgentREDQ(make_spec("continuous"), REDQConfig(hidden=(8,), num_critics=3, actor_interval=4), CPU, 0)
    for update in range(9):
        actor, critic = agent.actor_step.flat.clone(), agent.critic.net[0].weight.clone()
        agent.update(batch())
        assert torch.equal(actor, agent.actor_step.flat) == (update % 4 != 3)  # C7: the last of four
        assert all(not torch.equal(critic[e], agent.critic.net[0].weight[e]) for e in range(3))


def test_redq_updates_twenty_times_per_step_by_default_and_refuses_a_subset_larger_than_the_ensemble() -> None:
    # Guards against: Q1, REDQ without its ensemble, its random subset or its many updates.
    assert REDQConfig().updates_per_step == 20 and REDQConfig().num_critics == 10
    with pytest.raises(ConfigError, match="subset_size=3 is more than"):
        REDQConfig(num_critics=2, subset_size=3)


# ---- ModSAC


def drive(agent: AgentModSAC, loss: float, updates: int) -> int:
    """Actor updates among ``updates`` with a constant mean square error of one critic."""
    count = 0
    for _ in range(updates):
        count += agent.actor_is_due({"loss/critic": torch.tensor(loss * agent.config.num_critics / 2)})
        agent.num_updates += 1
    return count


def test_modsac_average_starts_where_the_trust_is_one_half_and_follows_the_loss(make_spec: MakeSpec) -> None:
    # Guards against: SAC4, a ModSAC whose loss average never changes, so that the actor's share is constant.
    agent = AgentModSAC(make_spec("continuous"), ModSACConfig(hidden=(8,)), CPU, 0)
    assert math.exp(-(agent.loss_average.item() ** 2)) == pytest.approx(0.5)
    before = agent.loss_average.item()
    drive(agent, loss=3.0, updates=1)
    assert agent.loss_average.item() == pytest.approx(0.995 * before + 0.005 * 3.0)


def test_modsac_actor_moves_every_second_update_at_large_and_every_update_at_small_loss(make_spec: MakeSpec) -> None:
    # Guards against: SAC4, a ModSAC whose loss average never changes, so that the actor's share is constant.
    agent = AgentModSAC(make_spec("continuous"), ModSACConfig(hidden=(8,)), CPU, 0)
    drive(agent, loss=50.0, updates=2000)
    assert drive(agent, loss=50.0, updates=1000) == pytest.approx(500, abs=20)
    drive(agent, loss=0.0, updates=4000)
    assert drive(agent, loss=0.0, updates=1000) == pytest.approx(1000, abs=20)


def test_modsac_follows_the_loss_of_its_own_updates(make_spec: MakeSpec) -> None:
    """Guards against: SAC4, an average that never changes, so that the actor's share is a constant."""
    agent = AgentModSAC(make_spec("continuous"), ModSACConfig(hidden=(8,), num_critics=3), CPU, 0)
    averages, expected = [agent.loss_average.item()], [agent.loss_average.item()]
    for _ in range(4):
        loss = (
            agent.update(batch()).metrics["loss/critic"].item()
        )  # half the mean square error, summed over three critics
        averages.append(agent.loss_average.item())
        expected.append(0.995 * expected[-1] + 0.005 * loss * 2 / 3)
    assert averages == pytest.approx(expected) and len(set(averages)) == 5
    assert agent.actor_step.count.item() == agent.actor_updates.item() < agent.critic_step.count.item() == 4


def test_modsac_counters_are_part_of_the_training_state(make_spec: MakeSpec) -> None:
    agent = AgentModSAC(make_spec("continuous"), ModSACConfig(hidden=(8,)), CPU, 0)
    for _ in range(5):
        agent.update(batch())
    other = AgentModSAC(make_spec("continuous"), ModSACConfig(hidden=(8,)), CPU, 1)
    other.load_training_state(agent.training_state())
    assert other.actor_updates == agent.actor_updates > 0 and other.loss_average == agent.loss_average


# ---- discrete SAC


def discrete_agent(make_spec: MakeSpec, **settings: Any) -> AgentDiscreteSAC:
    config = DiscreteSACConfig(**{"hidden": (), "alpha_init": 0.5, **settings})
    return AgentDiscreteSAC(make_spec("discrete", action_dim=3), config, CPU, 0)


def set_critic(net: Any, values: list[list[float]]) -> None:
    """Q_e(s, a) = values[e][a] in every state."""
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.copy_(torch.tensor(values).unsqueeze(1))


def set_policy(agent: AgentDiscreteSAC, probs: list[float]) -> None:
    with torch.no_grad():
        agent.policy.net[0].weight.zero_()
        agent.policy.net[0].bias.copy_(torch.tensor(probs).log())


def test_discrete_target_is_the_soft_expectation_of_the_smaller_critic(make_spec: MakeSpec) -> None:
    agent = discrete_agent(make_spec)
    probs = [0.5, 0.3, 0.2]
    set_policy(agent, probs)
    set_critic(agent.critic_target, [[1.0, 5.0, 2.0], [3.0, 4.0, 0.0]])
    smaller = [1.0, 4.0, 0.0]
    expected = sum(p * (q - 0.5 * math.log(p)) for p, q in zip(probs, smaller, strict=True))
    value = agent.next_value(torch.randn(4, 3), torch.empty(0))
    assert value.shape == (4,)
    torch.testing.assert_close(value, torch.full((4,), expected))


def test_discrete_critic_loss_looks_at_the_action_taken(make_spec: MakeSpec) -> None:
    agent = discrete_agent(make_spec)
    set_critic(agent.critic, [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    b = batch(action_dim=None)._replace(action=torch.tensor([2, 0] * 8))
    assert agent.q_taken(b)[:, :2].tolist() == [[3.0, 1.0], [30.0, 10.0]]


def test_discrete_actor_loss_by_hand_and_its_gradient_stays_in_the_policy(make_spec: MakeSpec) -> None:
    agent = discrete_agent(make_spec)
    probs = [0.2, 0.3, 0.5]
    set_policy(agent, probs)
    set_critic(agent.critic, [[1.0, 0.0, 2.0], [0.5, 1.0, 3.0]])
    loss, metrics = agent.actor_loss(batch(action_dim=None), torch.empty(0))
    expected = sum(p * (0.5 * math.log(p) - q) for p, q in zip(probs, [0.5, 0.0, 2.0], strict=True))
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics["policy/entropy"].item() == pytest.approx(-sum(p * math.log(p) for p in probs), abs=1e-6)
    assert torch.autograd.grad(loss, list(agent.critic.parameters()), allow_unused=True) == (None, None)


def test_discrete_temperature_steers_to_a_share_of_the_largest_entropy(make_spec: MakeSpec) -> None:
    agent = discrete_agent(make_spec, target_entropy_frac=0.5)
    assert agent.target_entropy == pytest.approx(0.5 * math.log(3))
    for probs, rises in (([0.98, 0.01, 0.01], True), ([1 / 3] * 3, False)):
        set_policy(agent, probs)
        before = agent.log_alpha.item()
        agent.update_actor(batch(action_dim=None), agent.draw_noise(batch(action_dim=None)))
        assert (agent.log_alpha.item() > before) == rises


def test_discrete_agent_refuses_continuous_actions(make_spec: MakeSpec) -> None:
    with pytest.raises(SpecError, match="needs discrete actions"):
        AgentDiscreteSAC(make_spec("continuous"), DiscreteSACConfig(), CPU, 0)


# ---- all of them


@pytest.mark.parametrize("name", ["sac", "mod_sac", "redq"])
@pytest.mark.parametrize("action_dim", [1, 3])
def test_the_entropy_target_is_minus_the_number_of_actions(make_spec: MakeSpec, name: str, action_dim: int) -> None:
    """Guards against: SAC2, a target of another size or sign in one member of the family."""
    entry = find_agent(name)
    config: Any = entry.config(hidden=(8,), num_critics=2)
    agent: Any = build_agent(entry, make_spec("continuous", action_dim=action_dim), config, CPU, 0)
    assert agent.target_entropy == -action_dim
    # log std of every action: -5 leaves almost no entropy, 0 more than the target.
    for log_std, rises in ((-5.0, True), (0.0, False)):
        with torch.no_grad():
            agent.policy.net[-1].weight.zero_()
            agent.policy.net[-1].bias.copy_(torch.tensor([0.0] * action_dim + [log_std] * action_dim))
        agent.alpha_step.mean.zero_()
        before = agent.log_alpha.item()
        entropy = agent.update_actor(batch(action_dim=action_dim), agent.draw_noise(batch(action_dim=action_dim)))[
            "policy/entropy"
        ].item()
        assert (entropy < -action_dim) == rises
        assert (agent.log_alpha.item() > before) == rises


@pytest.mark.parametrize(("name", "double", "dueling"), [
    ("dqn", False, False), ("double_dqn", True, False), ("dueling_dqn", False, True), ("d3qn", True, True),
])  # fmt: skip
def test_names_of_the_value_family_fix_the_switches(name: str, double: bool, dueling: bool) -> None:
    # Guards against: D6, double DQN as the minimum of twins, or D3QN without one of its halves.
    config: Any = find_agent(name).default_config()
    assert (config.double, config.dueling) == (double, dueling)


@pytest.mark.parametrize(("agent", "env"), [
    ("redq", "TensorPendulum"), ("mod_sac", "Pendulum-v1"), ("discrete_sac", "CartPole-v1"), ("d3qn", "TensorCartPole"),
])  # fmt: skip
def test_resumed_equals_uninterrupted(
    agent: str, env: str, run_quietly: Callable[..., Any], load_commit: Callable[[Path], Any],
    hash_state: Callable[[Any], str], tmp_path: Path,
) -> None:  # fmt: skip
    settings = {
        "num_envs": 2,
        "hidden": (8, 8),
        "batch_size": 16,
        "buffer_size": 500,
        "learning_starts": 20,
        "horizon": 2,
    }
    settings |= {"eval": {"interval": 10**9, "episodes": 1}, "updates_per_step": 1.0, "seed": 3}
    run_quietly(agent, env, max_steps=120, run_dir=tmp_path / "whole", **settings)
    run_quietly(agent, env, max_steps=60, run_dir=tmp_path / "parts", **settings)
    run_quietly(agent, env, max_steps=120, run_dir=tmp_path / "parts", resume=True, **settings)
    whole, parts = (load_commit(tmp_path / name) for name in ("whole", "parts"))
    assert whole["supervisor"]["env_steps"] == 120
    for part in ("learner", "group0"):
        assert hash_state(whole[part]) == hash_state(parts[part])

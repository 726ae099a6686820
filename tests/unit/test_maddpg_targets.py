"""MADDPG and MATD3: targets by hand, agents that end, what networks see, settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from team_games import (
    AGENTS,
    CONTINUOUS,
    CPU,
    DIM,
    DISCRETE,
    ROWS,
    SIZED,
    Pick,
    Sum,
    build,
    team_spec,
    transitions,
)

from elegantrl.agents.off_policy import ActionNoise
from elegantrl.agents.team.maddpg import AgentMADDPG, AgentMATD3, MADDPGConfig, MATD3Config
from elegantrl.errors import ConfigError, SpecError
from elegantrl.runtime.run import RunResult
from elegantrl.types import ActionSpec, EnvSpec, Transition

# ---- targets


def linear(layer: Any, weights: list[list[float]]) -> None:
    """Member m computes the sum of its inputs times ``weights[m][:-1]``, plus the last number."""
    with torch.no_grad():
        for member, (*slopes, offset) in enumerate(weights):
            layer.weight[member].copy_(torch.tensor(slopes).unsqueeze(1))
            layer.bias[member].fill_(offset)


def two_agents(name: str, **settings: Any) -> Any:
    """Two agents that see one number each and act with one; target actors are tanh(x) and tanh(-x)."""
    agent = build(team_spec(ActionSpec(dim=1), full=False, obs_dim=1, num_agents=2), name, hidden=(), **settings)
    linear(agent.policy_target.net[0], [[1.0, 0.0], [-1.0, 0.0]])
    for net in (agent.critic.net, agent.critic_target.net):
        linear(net[0], [[0.0, 0.0, 0.0, 0.0, 0.0]] * len(net[0].weight))
    return agent


HAND = Transition(
    obs=torch.zeros(1, 2, 1),
    action=torch.zeros(1, 2, 1),
    reward=torch.tensor([[1.0, -2.0]]),
    discount=torch.tensor([0.5]),
    next_obs=torch.tensor([[[0.3], [0.7]]]),
)


def test_maddpg_targets_by_hand() -> None:
    agent = two_agents("maddpg")
    # Inputs of critics: both observations, then both actions.
    linear(agent.critic_target.net[0], [[1.0, 10.0, 2.0, 4.0, 0.5], [0.0, 1.0, -1.0, 3.0, 0.0]])
    first, second = math.tanh(0.3), math.tanh(-0.7)
    targets = [1 + 0.5 * (0.3 + 7.0 + 2 * first + 4 * second + 0.5), -2 + 0.5 * (0.7 - first + 3 * second)]
    loss, _ = agent.critic_loss(HAND, agent.draw_noise(HAND))
    assert loss.item() == pytest.approx(sum(target**2 / 2 for target in targets), rel=1e-5)  # values are 0


def test_matd3_targets_by_hand() -> None:
    """Twin critics of each agent, and noise that is clipped: 5 * 0.2 at 0.5."""
    agent = two_agents("matd3")
    first_critics = [[0.0, 0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0, 2.0]]
    second_critics = [[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 9.0]]
    linear(agent.critic_target.net[0], first_critics + second_critics)
    noise = torch.tensor([[[5.0], [-1.0]]])
    second = math.tanh(-0.7) - 0.2
    targets = [1 + 0.5 * 1.0, -2 + 0.5 * (second + 2.0)]  # the smaller of 2 + action and 1, and of 2 + action and 9
    loss, _ = agent.critic_loss(HAND, ActionNoise(noise, noise))
    assert loss.item() == pytest.approx(2 * sum(target**2 / 2 for target in targets), rel=1e-5)
    with torch.no_grad():
        agent.critic_target.net[0].bias[2].fill_(99.0)
    value = agent.next_value(HAND.next_obs, noise)
    assert value[0, 0].item() == pytest.approx(math.tanh(0.3) + 0.5 + 2.0, rel=1e-5)


def test_a_random_subset_takes_the_same_critics_of_all_agents() -> None:
    agent = build(team_spec(CONTINUOUS), num_critics=3, target_critics="subset", subset_size=2)
    with torch.no_grad():
        agent.critic_target.net[-1].weight.zero_()
        agent.critic_target.net[-1].bias.copy_(torch.arange(9.0).view(9, 1, 1))
    agent.subset.copy_(torch.tensor([2, 1]))
    batch = transitions(team_spec(CONTINUOUS))
    value = agent.next_value(batch.next_obs, torch.zeros(ROWS, AGENTS, DIM))
    assert torch.equal(value, torch.tensor([3.0, 4.0, 5.0]) * batch.next_obs.active)  # type: ignore[operator,union-attr]


# ---- agents that have ended


@pytest.mark.parametrize("action", [CONTINUOUS, DISCRETE])
def test_an_agent_that_has_ended_adds_nothing(action: ActionSpec) -> None:
    """Its action, its reward and the noise for it change neither loss nor gradient; its value in a target is 0."""
    spec = team_spec(action)
    agent, batch = build(spec), transitions(spec, weighted=True)
    ended = ~batch.obs.active  # type: ignore[operator,union-attr]
    assert ended.any() and not ended.all()
    noise = agent.draw_noise(batch)
    other_action = torch.where(ended if action.choices else ended.unsqueeze(-1), (batch.action - 1).abs(), batch.action)
    other = batch._replace(action=other_action, reward=torch.where(ended, 1e6, batch.reward))
    other_noise = noise._replace(action=torch.where(ended.unsqueeze(-1), 3.0, noise.action))
    assert not torch.equal(other.action, batch.action)
    for name, module in (("critic_loss", agent.critic), ("policy_loss", agent.policy)):
        one, two = getattr(agent, name)(batch, noise), getattr(agent, name)(other, other_noise)
        assert torch.equal(one[0], two[0])
        for a, b in zip(*(torch.autograd.grad(x[0], list(module.parameters())) for x in (one, two)), strict=True):
            assert torch.equal(a, b)
        if "td_error" in one[1]:
            assert torch.equal(one[1]["td_error"], two[1]["td_error"])
    assert not agent.next_value(batch.next_obs, noise.next_action)[~batch.next_obs.active].any()  # type: ignore[operator,union-attr]


def test_a_batch_in_which_an_agent_never_acts_leaves_it_as_it_is() -> None:
    spec = team_spec(CONTINUOUS)
    agent, batch = build(spec, "maddpg"), transitions(spec)
    batch.obs.active[:, 1] = False  # type: ignore[union-attr]
    before = [p.detach().clone() for p in agent.policy.parameters()]
    agent.update(batch)
    assert agent.is_finite()
    for old, new in zip(before, agent.policy.parameters(), strict=True):
        assert torch.equal(old[1], new[1]) and not torch.equal(old[0], new[0])


# ---- what networks see


def test_an_actor_sees_its_own_observation_and_a_critic_all() -> None:
    spec = team_spec(CONTINUOUS, full=False)
    agent, batch = build(spec), transitions(spec)
    other = batch.obs.clone()
    other[:, 1] += 1
    for one, two, changed in zip(
        *(agent.policy.act(obs, ())[0].unbind(1) for obs in (batch.obs, other)), (False, True, False), strict=True
    ):
        assert torch.equal(one, two) != changed
    difference = agent.q_taken(batch) - agent.q_taken(batch._replace(obs=other))
    assert (difference != 0).all()


def test_normalised_observations_reach_all_networks() -> None:
    spec = team_spec(CONTINUOUS, full=False)
    plain, normed = (build(spec, normalize_obs=on) for on in (False, True))
    normed.policy.norm.mean.fill_(1.0)
    normed.policy.norm.inv_std.fill_(2.0)
    raw = transitions(spec)
    prepared = raw._replace(obs=(raw.obs - 1) * 2, next_obs=(raw.next_obs - 1) * 2)
    for _ in range(4):
        normed.update(raw)
        plain.update(prepared)
    for (label, a), (_, b) in zip(plain.named_parameters(), normed.named_parameters(), strict=True):
        assert torch.equal(a, b), label


def test_padded_numbers_stay_zero() -> None:
    spec = team_spec(SIZED)
    agent = build(spec, noise="ou", warm_up_hold=3)
    obs = transitions(spec).obs
    agent.schedule(10**6)
    for frac in (0.0, 1.0):
        agent.policy.random_frac.fill_(frac)
        (draw,) = agent.policy.draw(1, ROWS, torch.Generator().manual_seed(0))
        action = agent.policy.explore(obs, agent.policy.initial_carry(ROWS), draw).action
        assert not action[:, 1, 1].any() and action[:, 1, 0].all() and action[:, 0].all()
    assert not agent.policy.act(obs, ())[0][:, 1, 1].any()


def test_priorities_are_mean_errors_of_agents_that_act() -> None:
    spec = team_spec(CONTINUOUS)
    agent, batch = build(spec), transitions(spec, weighted=True)
    noise = agent.draw_noise(batch)
    _, metrics = agent.critic_loss(batch, noise)
    next_value = agent.next_value(batch.next_obs, noise.next_action)
    error = agent.q_taken(batch) - batch.reward - batch.discount.unsqueeze(1) * next_value
    active = batch.obs.active  # type: ignore[union-attr]
    for row in range(ROWS):
        mine = error[:, row, active[row]].abs()  # type: ignore[index]
        assert metrics["td_error"][row].item() == pytest.approx(mine.mean().item() if mine.numel() else 0.0, rel=1e-5)


# ---- settings and refusals


def test_settings_are_those_of_the_kind_of_action(run_quietly: Callable[..., RunResult], tmp_path: Path) -> None:
    small = {"hidden": [8], "max_steps": 8, "buffer_size": 100, "batch_size": 8, "num_envs": 2}
    with pytest.raises(ConfigError, match=r"agent\.temperature=0\.5 has no effect on continuous actions"):
        run_quietly("maddpg", Sum, run_dir=tmp_path / "a", temperature=0.5, **small)
    with pytest.raises(ConfigError, match=r"agent\.noise_std=0\.5 has no effect on discrete actions"):
        run_quietly("matd3", Pick, run_dir=tmp_path / "b", noise_std=0.5, **small)


def test_one_agent_and_several_choices_are_refused(make_spec: Callable[..., EnvSpec]) -> None:
    with pytest.raises(SpecError, match="AgentMADDPG learns for a team, but Made has one agent"):
        AgentMADDPG(make_spec("continuous"), MADDPGConfig(), CPU, 0)
    with pytest.raises(SpecError, match="AgentMATD3 needs continuous or discrete actions"):
        AgentMATD3(team_spec(ActionSpec(choices=(2, 3))), MATD3Config(), CPU, 0)


def test_warm_up_then_a_share_of_random_actions() -> None:
    agent = build(team_spec(DISCRETE), epsilon=0.25, learning_starts=100)
    for steps, frac in ((0, 1.0), (99, 1.0), (100, 0.25), (10**6, 0.25)):
        agent.schedule(steps)
        assert agent.policy.random_frac.item() == frac

"""Soft actor-critic: targets by hand, who gets gradients, the temperature, and independent critics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elegantrl.agents.off_policy import ActionNoise
from elegantrl.agents.sac import AgentSAC, SACConfig
from elegantrl.errors import SpecError
from elegantrl.nets.critics import EnsembleCritic
from elegantrl.nets.layers import EnsembleLinear
from elegantrl.nets.networks import NetSpec
from elegantrl.types import EnvSpec, Leaf, Transition

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def twice(noise: Tensor) -> ActionNoise:
    return ActionNoise(noise, noise)


def build(spec: EnvSpec, seed: int = 0, **settings: Any) -> AgentSAC:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AgentSAC(spec, SACConfig(**{"hidden": (8,), **settings}), CPU, seed)


def fixed_batch(rows: int = 16, obs_dim: int = 3, action_dim: int = 2) -> Transition:
    g = torch.Generator().manual_seed(0)
    return Transition(
        obs=torch.randn(rows, obs_dim, generator=g),
        action=torch.rand(rows, action_dim, generator=g) * 2 - 1,
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.2, 0.0, 0.9),
        next_obs=torch.randn(rows, obs_dim, generator=g),
    )


def linear_critic(critic: nn.Module, members: list[tuple[float, float, float]]) -> None:
    """Q_e(s, a) = s * members[e][0] + a * members[e][1] + members[e][2]."""
    layer = critic.net[0]  # type: ignore[index]
    with torch.no_grad():
        for e, (of_obs, of_action, offset) in enumerate(members):
            layer.weight[e].copy_(torch.tensor([[of_obs], [of_action]]))
            layer.bias[e].fill_(offset)


def linear_agent(spec: EnvSpec, mean: float, std: float, alpha: float) -> AgentSAC:
    agent = build(spec, hidden=(), alpha_init=alpha)
    with torch.no_grad():
        agent.policy.net[0].weight.zero_()
        agent.policy.net[0].bias.copy_(torch.tensor([mean, math.log(std)]))
    return agent


def sample_by_hand(mean: float, std: float, noise: float) -> tuple[float, float]:
    raw = mean + std * noise
    action = math.tanh(raw)
    logp = -0.5 * noise**2 - math.log(std) - 0.5 * math.log(2 * math.pi) - math.log(1 - action**2)
    return action, logp


def test_critic_target_and_loss_by_hand(make_spec: MakeSpec) -> None:
    # Guards against: SAC1, a log-probability of the mean, or of the action before squashing.
    agent = linear_agent(make_spec("continuous", obs_dim=1, action_dim=1), mean=0.3, std=0.5, alpha=0.2)
    linear_critic(agent.critic_target, [(1.0, 2.0, 0.0), (1.0, -1.0, 0.5)])
    linear_critic(agent.critic, [(0.0, 0.0, 1.0), (0.0, 0.0, -2.0)])
    noise = [0.7, -1.2]
    targets = []
    for x, next_obs, reward, discount in ((noise[0], 2.0, 1.0, 0.9), (noise[1], -1.0, 3.0, 0.0)):
        action, logp = sample_by_hand(0.3, 0.5, x)
        smallest = min(next_obs + 2 * action, next_obs - action + 0.5)
        targets.append(reward + discount * (smallest - 0.2 * logp))
    assert targets[1] == 3.0  # the MDP ended there
    batch = Transition(
        obs=torch.zeros(2, 1),
        action=torch.zeros(2, 1),
        reward=torch.tensor([1.0, 3.0]),
        discount=torch.tensor([0.9, 0.0]),
        next_obs=torch.tensor([[2.0], [-1.0]]),
    )
    loss, metrics = agent.critic_loss(batch, twice(torch.tensor(noise).unsqueeze(1)))
    expected = sum(0.5 * sum((q - target) ** 2 for target in targets) / 2 for q in (1.0, -2.0))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert metrics["critic/q"].item() == pytest.approx(-0.5)


def test_actor_loss_by_hand_with_the_online_critics(make_spec: MakeSpec) -> None:
    # Guards against: SAC3, an actor that climbs the target critics, or target networks with gradients.
    agent = linear_agent(make_spec("continuous", obs_dim=1, action_dim=1), mean=-0.4, std=0.8, alpha=0.5)
    linear_critic(agent.critic, [(1.0, 2.0, 0.0), (1.0, -1.0, 0.5)])
    linear_critic(agent.critic_target, [(99.0, 99.0, 99.0), (99.0, 99.0, 99.0)])
    action, logp = sample_by_hand(-0.4, 0.8, 1.1)
    batch = fixed_batch(1, 1, 1)._replace(obs=torch.tensor([[3.0]]))
    loss, metrics = agent.actor_loss(batch, torch.tensor([[1.1]]))
    assert loss.item() == pytest.approx(0.5 * logp - min(3 + 2 * action, 3 - action + 0.5), rel=1e-5)
    assert metrics["policy/entropy"].item() == pytest.approx(-logp, rel=1e-5)


def test_an_actor_update_leaves_the_critics_alone(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"))
    critics = agent.critic_step.flat.clone(), agent.target.flat.clone()
    actor = agent.actor_step.flat.clone()
    agent.update_actor(fixed_batch(), agent.draw_noise(fixed_batch()))
    assert torch.equal(agent.critic_step.flat, critics[0]) and torch.equal(agent.target.flat, critics[1])
    assert not torch.equal(agent.actor_step.flat, actor)


def test_a_critic_update_leaves_the_actor_alone(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"))
    actor, alpha = agent.actor_step.flat.clone(), agent.log_alpha.item()
    loss, _ = agent.critic_loss(fixed_batch(), twice(torch.zeros(16, 2)))
    agent.critic_step(loss)
    assert torch.equal(agent.actor_step.flat, actor) and agent.log_alpha.item() == alpha


def test_target_critics_never_hold_gradients(make_spec: MakeSpec) -> None:
    # Guards against: SAC3, an actor that climbs the target critics, or target networks with gradients.
    agent = build(make_spec("continuous"))
    for _ in range(3):
        agent.update(fixed_batch())
    assert not any(p.requires_grad for p in agent.critic_target.parameters())
    assert all(p.grad is None for p in agent.parameters())
    loss, _ = agent.critic_loss(fixed_batch(), twice(torch.zeros(16, 2)))
    grads = torch.autograd.grad(loss, list(agent.policy.parameters()), allow_unused=True)
    assert all(g is None for g in grads)  # nor does the actor, through the target


def test_target_critics_follow_by_tau(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"), tau=0.1, lr=0.01)
    before = agent.target.flat.clone()
    agent.update(fixed_batch())
    torch.testing.assert_close(agent.target.flat, before + 0.1 * (agent.critic_step.flat - before))


@pytest.mark.parametrize(("target_per_dim", "direction"), [(50.0, 1), (-50.0, -1)])
def test_temperature_moves_towards_the_entropy_target(
    make_spec: MakeSpec, target_per_dim: float, direction: int
) -> None:
    # Guards against: SAC2, an entropy target of another size or sign, or a temperature that runs away from it.
    agent = build(make_spec("continuous"), target_entropy_per_dim=target_per_dim, lr=0.01)
    assert agent.log_alpha.item() == 0.0
    for _ in range(5):
        metrics = agent.update(fixed_batch()).metrics
    assert math.copysign(1, agent.log_alpha.item()) == direction
    assert metrics["policy/alpha"].item() == pytest.approx(math.exp(agent.log_alpha.item()))


def test_temperature_gradient_is_the_entropy_error(make_spec: MakeSpec) -> None:
    # Guards against: SAC2, an entropy target of another size or sign, or a temperature that runs away from it.
    agent = build(make_spec("continuous", action_dim=3), target_entropy_per_dim=-1.0)
    assert agent.target_entropy == -3.0
    entropy = agent.update_actor(fixed_batch(action_dim=3), agent.draw_noise(fixed_batch(action_dim=3)))[
        "policy/entropy"
    ].item()
    # After one step the first moment of Adam is 0.1 times the gradient.
    assert agent.alpha_step.mean.item() == pytest.approx(0.1 * (entropy + 3.0), rel=1e-5)


def test_actor_interval(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"), actor_interval=2)
    changed = []
    for _ in range(6):
        before = agent.actor_step.flat.clone()
        agent.update(fixed_batch())
        changed.append(not torch.equal(before, agent.actor_step.flat))
    assert changed == [False, True] * 3
    assert agent.critic_step.count.item() == 6 and agent.actor_step.count.item() == 3


def test_updates_lower_the_critic_loss_on_a_fixed_batch(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"), lr=3e-3, tau=0.001, hidden=(32,))
    losses = [agent.update(fixed_batch()).metrics["loss/critic"].item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


def test_random_actions_until_learning_starts(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"), learning_starts=100)
    shares = []
    for env_steps in (0, 99, 100, 5000):
        agent.schedule(env_steps)
        shares.append(agent.policy.random_frac.item())
    assert shares == [1.0, 1.0, 0.0, 0.0]


def test_stacked_critics_equal_a_loop_over_linear_layers() -> None:
    # Guards against: ENS1, ensemble members that share layers, or linear layers in a row.
    critic = EnsembleCritic(Leaf((3,)), 2, NetSpec(hidden=(7, 6)), 4)
    obs, action = torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(0)).split([1, 1])
    obs, action = obs[0], action[0, :, :2]
    singles = []
    for e in range(4):
        layers: list[nn.Module] = []
        for stacked in critic.net:
            if isinstance(stacked, EnsembleLinear):
                single = nn.Linear(stacked.weight.shape[1], stacked.weight.shape[2])
                single.load_state_dict({"weight": stacked.weight[e].T, "bias": stacked.bias[e, 0]})
                layers.append(single)
            else:
                layers.append(nn.ReLU())
        singles.append(nn.Sequential(*layers))
    expected = torch.stack([net(torch.cat([obs, action], -1)).squeeze(-1) for net in singles])
    q_EB = critic(obs, action)
    assert q_EB.shape == (4, 10)
    torch.testing.assert_close(q_EB, expected)
    weight = torch.linspace(-1, 1, 40).view(4, 10)
    stacked_grads = torch.autograd.grad((q_EB * weight).sum(), list(critic.parameters()))
    for e, net in enumerate(singles):
        grads = torch.autograd.grad((expected[e] * weight[e]).sum(), list(net.parameters()), retain_graph=True)
        for i, grad in enumerate(grads):
            ours = stacked_grads[i][e]
            torch.testing.assert_close(ours.T if i % 2 == 0 else ours[0], grad)


def test_ensemble_members_are_independent() -> None:
    # Guards against: ENS1, ensemble members that share layers, or linear layers in a row.
    critic = EnsembleCritic(Leaf((3,)), 2, NetSpec(hidden=(7, 6)), 3)
    obs, action = torch.randn(10, 3), torch.randn(10, 2)
    before = critic(obs, action)
    grads_before = torch.autograd.grad(before[1:].square().sum(), list(critic.parameters()))
    with torch.no_grad():
        for p in critic.parameters():
            p[0] += 1.0
    after = critic(obs, action)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1:], after[1:])
    grads = torch.autograd.grad(after[1:].square().sum(), list(critic.parameters()))
    for old, new in zip(grads_before, grads, strict=True):
        assert torch.equal(old[1:], new[1:])
        assert not new[0].any()  # the others' loss does not reach member 0


def test_ensemble_members_start_apart_and_alternate_with_a_non_linearity() -> None:
    critic = EnsembleCritic(Leaf((3,)), 2, NetSpec(hidden=(7, 6)), 3)
    for p in critic.parameters():
        assert not torch.equal(p[0], p[1]) and not torch.equal(p[1], p[2])
        bound = 1 / math.sqrt({7: 5, 6: 7, 1: 6}[p.shape[-1]])
        assert p.abs().max() <= bound and p.abs().max() > 0.5 * bound
    kinds = [isinstance(layer, EnsembleLinear) for layer in critic.net]
    assert kinds == [True, False, True, False, True]


@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_any_number_of_critics(make_spec: MakeSpec, num_critics: int) -> None:
    agent = build(make_spec("continuous"), num_critics=num_critics)
    metrics = agent.update(fixed_batch()).metrics
    assert agent.critic(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (num_critics, 4)
    assert all(value.isfinite() for value in metrics.values())


def test_state_round_trip_includes_temperature_and_noise(make_spec: MakeSpec) -> None:
    batch = fixed_batch()
    agent, other = build(make_spec("continuous")), build(make_spec("continuous"), seed=4)
    for _ in range(3):
        agent.update(batch)
    other.load_training_state(agent.training_state())
    for _ in range(3):
        agent.update(batch)
        other.update(batch)
    flats: list[tuple[Tensor, Tensor]] = [
        (agent.actor_step.flat, other.actor_step.flat),
        (agent.critic_step.flat, other.critic_step.flat),
        (agent.target.flat, other.target.flat),
        (agent.alpha_step.flat, other.alpha_step.flat),
    ]
    assert all(torch.equal(a, b) for a, b in flats)
    assert agent.log_alpha.data_ptr() == agent.alpha_step.flat.data_ptr()  # the optimiser holds the live parameter


def test_refuses_discrete_actions(make_spec: MakeSpec) -> None:
    with pytest.raises(SpecError, match="AgentSAC needs continuous actions, but Made has discrete ones"):
        build(make_spec("discrete"))

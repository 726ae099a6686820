"""Value networks: scaling of targets, layer normalisation, what an ensemble says of a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elegantrl.agents.on_policy import OnPolicyConfig
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.agents.sac import AgentSAC, SACConfig
from elegantrl.agents.td3 import AgentTD3, TD3Config
from elegantrl.nets.critics import EnsembleCritic, ScaledValueNet
from elegantrl.nets.layers import EnsembleLayerNorm, EnsembleLinear, mlp
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import joined
from elegantrl.registry import find_agent
from elegantrl.roles.learner import Learner
from elegantrl.types import EnvSpec, Leaf

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def observe(net: ScaledValueNet, target: Tensor) -> None:
    net.observe(target.mean(), target.var(correction=0))


def test_scaled_value_network_knows_the_mean_and_deviation_of_its_targets() -> None:
    net = ScaledValueNet(Leaf((3,)), NetSpec(hidden=(8,)))
    observe(net, torch.tensor([100.0, 300.0]))
    assert net.mean.item() == pytest.approx(200) and net.std.item() == pytest.approx(100)
    observe(net, torch.tensor([400.0, 600.0]))  # of all four: mean 350, variance (250^2 + 50^2 + 50^2 + 250^2) / 4
    assert net.mean.item() == pytest.approx(350) and net.std.item() == pytest.approx(32500**0.5)


def test_values_do_not_change_when_the_scale_does() -> None:
    net, obs = ScaledValueNet(Leaf((3,)), NetSpec(hidden=(8,))), torch.randn(20, 3)
    observe(net, torch.tensor([1.0, 5.0]))
    before = net(obs)
    observe(net, torch.tensor([1000.0, 5000.0]))
    torch.testing.assert_close(net(obs), before, atol=1e-2, rtol=1e-4)


def test_loss_is_in_units_of_the_targets() -> None:
    net, obs = ScaledValueNet(Leaf((3,)), NetSpec(hidden=(8,))), torch.randn(2, 3)
    target = torch.tensor([100.0, 300.0])
    observe(net, target)
    expected = 0.5 * ((net(obs) - target) / 100).square().mean()
    torch.testing.assert_close(net.loss(obs, target), expected)


def test_statistics_forget_what_is_long_past() -> None:
    net = ScaledValueNet(Leaf((3,)), NetSpec(hidden=(8,)))
    for _ in range(200):
        observe(net, torch.tensor([0.0, 2.0]))
    for _ in range(1000):
        observe(net, torch.tensor([99.0, 101.0]))
    assert net.mean.item() == pytest.approx(100, abs=0.1) and net.std.item() == pytest.approx(1, abs=0.5)


def test_the_weight_of_the_entropy_falls_over_its_schedule_and_only_then(make_spec: MakeSpec) -> None:
    def coefficients(schedule: str) -> list[float]:
        config = PPOConfig(entropy_coef=0.04, entropy_schedule=schedule, schedule_steps=100)  # type: ignore[arg-type]
        agent, found = AgentPPO(make_spec("discrete"), config, CPU, 0), []
        for env_steps in (0, 50, 100, 200):
            agent.schedule(env_steps)
            found.append((agent.hypers.entropy_coef * agent.entropy_left).item())
        return found

    assert coefficients("linear") == pytest.approx([0.04, 0.02, 0.0, 0.0])
    assert coefficients("constant") == pytest.approx([0.04] * 4)
    assert OnPolicyConfig().entropy_schedule == "constant"


@pytest.mark.parametrize("num_members", [None, 3])
def test_layer_norm_stands_before_every_activation_and_nowhere_else(num_members: int | None) -> None:
    net = mlp((3, 8, 8, 1), "relu", num_members=num_members, normed=True)
    linear, norm = (nn.Linear, nn.LayerNorm) if num_members is None else (EnsembleLinear, EnsembleLayerNorm)
    assert [type(layer) for layer in net] == [linear, norm, nn.ReLU, linear, norm, nn.ReLU, linear]


def test_stacked_layer_norm_equals_one_network_at_a_time() -> None:
    stacked = mlp((3, 8, 1), "relu", num_members=2, normed=True)
    nn.init.normal_(stacked[1].weight)  # type: ignore[arg-type]
    x = torch.randn(5, 3)
    for member in range(2):
        single = mlp((3, 8, 1), "relu", normed=True)
        for layer, source in ((0, stacked[0]), (1, stacked[1]), (3, stacked[3])):
            weight, bias = source.weight[member], source.bias[member].squeeze(0)
            weight = weight.squeeze(0) if isinstance(source, EnsembleLayerNorm) else weight.t()
            single[layer].load_state_dict({"weight": weight, "bias": bias})
        torch.testing.assert_close(stacked(x)[member], single(x))


def test_what_an_ensemble_says_of_a_target(make_spec: MakeSpec) -> None:
    inputs = torch.eye(2), torch.zeros(2, 1)

    def agent(target_critics: str) -> Any:
        config = TD3Config(hidden=(), num_critics=3, target_critics=target_critics)  # type: ignore[arg-type]
        agent: Any = AgentTD3(make_spec("continuous", obs_dim=2, action_dim=1), config, CPU, 0)
        agent.critic_target.net[0].weight.zero_()
        agent.critic_target.net[0].bias.zero_()
        agent.critic_target.net[0].weight[:, :2, 0] = torch.tensor([[1.0, 8.0], [3.0, 2.0], [5.0, 5.0]])  # [E, B]
        return agent

    assert agent("min").target_q(*inputs).tolist() == [1.0, 2.0]
    assert agent("mean").target_q(*inputs).tolist() == [3.0, 5.0]
    subset = agent("subset")
    subset.subset.copy_(torch.tensor([2, 0]))
    assert subset.target_q(*inputs).tolist() == [1.0, 5.0]


@pytest.mark.parametrize("members", [slice(1), slice(1, 3), torch.tensor([2, 0])])
@pytest.mark.parametrize("normed", [False, True])
def test_some_members_say_what_they_say_among_all(members: slice | Tensor, normed: bool) -> None:
    critic = EnsembleCritic(Leaf((3,)), 2, NetSpec(hidden=(7, 6)), 3, normed=normed)
    for p in critic.parameters():
        nn.init.normal_(p)
    obs, action = torch.randn(10, 3), torch.randn(10, 2)
    some, expected = critic.subset(members, obs, action), critic(obs, action)[members]
    torch.testing.assert_close(some, expected)
    weight = torch.linspace(-1, 1, some.numel()).view_as(some)
    parameters = list(critic.parameters())
    grads = [torch.autograd.grad((q_EB * weight).sum(), parameters) for q_EB in (some, expected)]
    torch.testing.assert_close(*grads)


def test_orthogonal_start_reaches_the_critics(make_spec: MakeSpec) -> None:
    agent = AgentSAC(make_spec("continuous"), SACConfig(hidden=(16, 16), init="orthogonal"), CPU, 0)
    assert isinstance(agent.critic, EnsembleCritic)
    weight = agent.critic.net[2].weight[1]
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(16), atol=1e-4, rtol=1e-4)


def double(inputs: Leaf, num_outputs: int, net: NetSpec, head_gain: float, normed: bool) -> nn.Module:
    """Somebody else's network."""
    return nn.Sequential(nn.Linear(inputs.shape[0], 5), nn.GELU(), nn.Linear(5, num_outputs))


def test_critics_have_the_network_that_is_named() -> None:
    """Each is built by a call of its own, sees observation and action side by side, and a subset gives the same."""
    critic = EnsembleCritic(Leaf((3,)), 2, NetSpec(network=f"{__name__}:double"), 4)
    obs, action = torch.randn(6, 3), torch.randn(6, 2)
    networks: Any = critic.net[0].networks  # type: ignore[union-attr]
    q_EB = critic(obs, action)
    for i, network in enumerate(networks):
        assert torch.equal(q_EB[i], network(torch.cat([obs, action], 1)).squeeze(-1))
    assert not torch.equal(q_EB[0], q_EB[1])
    assert torch.equal(critic.subset(torch.tensor([2, 0]), obs, action), q_EB[[2, 0]])


def test_critics_with_a_network_of_ones_own_see_features_of_pictures() -> None:
    """An action cannot stand beside a picture: an encoder makes features of it."""
    critic = EnsembleCritic(Leaf((1, 12, 12), "uint8"), 2, NetSpec(network=f"{__name__}:double"), 2)
    assert critic.encoder is not None
    assert critic(torch.zeros(3, 1, 12, 12, dtype=torch.uint8), torch.zeros(3, 2)).shape == (2, 3)


@pytest.mark.parametrize("name", ["td3", "redq", "discrete_sac", "d3qn"])
def test_agents_learn_with_a_network_of_ones_own(
    name: str, make_spec: MakeSpec, make_rollout: Callable[..., Any]
) -> None:
    kind = "continuous" if name in ("td3", "redq") else "discrete"
    entry = find_agent(name)
    settings = {"network": f"{__name__}:double", "learning_starts": 4, "batch_size": 4, "updates_per_step": 0.5}
    config = replace(entry.config(**settings), **entry.preset)
    learner = Learner(name, config, make_spec(kind, num_envs=2), CPU, seed=0)
    before = joined(learner.policy_tensors).clone()
    rollout = make_rollout(learner.agent, kind, 12, 2)
    for _ in range(20):  # the actor of REDQ learns with every twentieth update
        learner.memory.add(rollout, 24)
        metrics = learner.agent.update(learner.memory.draw()).metrics
    assert all(bool(value.isfinite().all()) for value in metrics.values())
    assert not torch.equal(joined(learner.policy_tensors), before)
    assert any(isinstance(module, nn.GELU) for module in learner.agent.modules())

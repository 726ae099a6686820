"""TD3 and DDPG: targets by hand, who moves when, what exploration adds, and exact repetition and resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor, nn

from elegantrl import tree
from elegantrl.agents.off_policy import ActionNoise
from elegantrl.agents.td3 import AgentDDPG, AgentTD3, DDPGConfig, TD3Config
from elegantrl.config.recipes import find_recipe
from elegantrl.config.resolve import resolve_config
from elegantrl.config.run import RunConfig
from elegantrl.envs import VecEnv, make_env
from elegantrl.errors import ConfigError, SpecError
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.normalize import ObsNorm
from elegantrl.nets.policies import POLICIES, DeterministicPolicy, Policy, PolicySpec
from elegantrl.roles.group import GroupActor
from elegantrl.runtime.run import RunResult
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Metrics, State, Step, Transition, Weights, from_state

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def twice(noise: Tensor) -> ActionNoise:
    return ActionNoise(noise, noise)


def build(spec: EnvSpec, seed: int = 0, **settings: Any) -> AgentTD3:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AgentTD3(spec, TD3Config(**{"hidden": (8,), **settings}), CPU, seed)


def build_ddpg(spec: EnvSpec, seed: int = 0, **settings: Any) -> AgentDDPG:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AgentDDPG(spec, DDPGConfig(**{"hidden": (8,), **settings}), CPU, seed)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fixed_batch(rows: int = 16, obs_dim: int = 3, action_dim: int = 2) -> Transition:
    g = stream()
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


def linear_actor(policy: DeterministicPolicy, of_obs: float, offset: float) -> None:
    """mu(s) = tanh(s * of_obs + offset)."""
    with torch.no_grad():
        policy.net[0].weight.fill_(of_obs)
        policy.net[0].bias.fill_(offset)


def linear_agent(agent: AgentTD3) -> AgentTD3:
    """Online and target networks that give different answers everywhere; no hidden layers, one number each."""
    members = agent.config.num_critics
    linear_critic(agent.critic, [(0.0, 0.0, 1.0), (0.0, 0.0, -2.0)][:members])
    linear_critic(agent.critic_target, [(1.0, 2.0, 0.0), (1.0, -1.0, 0.5)][:members])
    linear_actor(agent.policy, 99.0, 99.0)
    linear_actor(agent.policy_target, 0.5, -0.3)
    return agent


TWO_ROWS = Transition(
    obs=torch.zeros(2, 1),
    action=torch.zeros(2, 1),
    reward=torch.tensor([1.0, 3.0]),
    discount=torch.tensor([0.9, 0.0]),
    next_obs=torch.tensor([[2.0], [-1.0]]),
)


# ---- targets


def test_td3_target_and_loss_by_hand(make_spec: MakeSpec) -> None:
    # Guards against: T1, TD3 without target actor, clipped smoothing, delay or independent critics.
    spec = make_spec("continuous", obs_dim=1, action_dim=1)
    agent = linear_agent(build(spec, hidden=(), smooth_std=0.2, smooth_clip=0.5))
    targets = []
    for noise, next_obs, reward, discount in ((0.7, 2.0, 1.0, 0.9), (-1.2, -1.0, 3.0, 0.0)):
        action = math.tanh(0.5 * next_obs - 0.3) + 0.2 * noise  # of the target actor; neither limit is reached
        targets.append(reward + discount * min(next_obs + 2 * action, next_obs - action + 0.5))
    assert targets[1] == 3.0  # the MDP ended there
    loss, metrics = agent.critic_loss(TWO_ROWS, twice(torch.tensor([[0.7], [-1.2]])))
    expected = sum(0.5 * sum((q - target) ** 2 for target in targets) / 2 for q in (1.0, -2.0))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert metrics["critic/q"].item() == pytest.approx(-0.5)


def test_ddpg_target_and_loss_by_hand(make_spec: MakeSpec) -> None:
    """[B, 1] against [B] would compare every row with every target: 0.5 * mean of four squares instead of two."""
    # Guards against: D1, a DDPG target of another shape than the reward, which broadcasts to every row against every
    # target.
    agent = linear_agent(build_ddpg(make_spec("continuous", obs_dim=1, action_dim=1), hidden=()))
    action = math.tanh(0.5 * 2.0 - 0.3)
    targets = [1.0 + 0.9 * (2.0 + 2 * action), 3.0]
    loss, _ = agent.critic_loss(TWO_ROWS, twice(torch.tensor([[5.0], [-5.0]])))  # noise without effect
    assert loss.item() == pytest.approx(0.5 * sum((1.0 - target) ** 2 for target in targets) / 2, rel=1e-5)


@pytest.mark.parametrize("build_one", [build, build_ddpg])
def test_a_target_has_the_shape_of_the_reward(make_spec: MakeSpec, build_one: Callable[..., AgentTD3]) -> None:
    # Guards against: D1, a DDPG target of another shape than the reward, which broadcasts to every row against every
    # target.
    agent, batch = build_one(make_spec("continuous")), fixed_batch()
    seen: list[Tensor] = []

    def spy(next_obs_BO: Tensor, noise_BA: Tensor) -> Tensor:
        seen.append(type(agent).next_value(agent, next_obs_BO, noise_BA))
        return seen[-1]

    agent.next_value = spy  # type: ignore[method-assign]
    agent.critic_loss(batch, twice(torch.zeros(16, 2)))
    assert seen[0].shape == batch.reward.shape == (16,)
    assert agent.q_taken(batch).shape == (agent.config.num_critics, 16)
    assert not seen[0].requires_grad


def test_the_target_action_comes_from_the_target_actor(make_spec: MakeSpec) -> None:
    # Guards against: D1b, a DDPG target action from the online actor.
    agent, batch = build_ddpg(make_spec("continuous")), fixed_batch()
    before = agent.next_value(batch.next_obs, torch.zeros(16, 2))
    with torch.no_grad():
        agent.actor_step.flat.add_(1.0)
    assert torch.equal(agent.next_value(batch.next_obs, torch.zeros(16, 2)), before)
    with torch.no_grad():
        agent.actor_target.flat.add_(1.0)
    assert not torch.equal(agent.next_value(batch.next_obs, torch.zeros(16, 2)), before)


@pytest.mark.parametrize(
    ("noise", "added"),
    [(1.0, 0.2), (-1.0, -0.2), (2.0, 0.3), (9.0, 0.3), (-9.0, -0.3), (0.0, 0.0)],
)
def test_smoothing_noise_is_scaled_and_clipped(make_spec: MakeSpec, noise: float, added: float) -> None:
    # Guards against: T1, TD3 without target actor, clipped smoothing, delay or independent critics.
    agent = build(make_spec("continuous", obs_dim=1, action_dim=1), hidden=(), smooth_std=0.2, smooth_clip=0.3)
    linear_actor(agent.policy_target, 0.0, 0.1)
    linear_critic(agent.critic_target, [(0.0, 1.0, 0.0), (0.0, 1.0, 0.0)])  # says what the action was
    value = agent.next_value(torch.zeros(1, 1), torch.tensor([[noise]]))
    assert value.item() == pytest.approx(math.tanh(0.1) + added, abs=1e-6)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_smoothed_action_stays_within_the_limits(make_spec: MakeSpec, side: float) -> None:
    agent = build(make_spec("continuous", obs_dim=1, action_dim=1), hidden=())
    linear_actor(agent.policy_target, 0.0, 2.0 * side)  # tanh(2) + 0.4 > 1
    linear_critic(agent.critic_target, [(0.0, 1.0, 0.0), (0.0, 1.0, 0.0)])
    assert agent.next_value(torch.zeros(1, 1), torch.full((1, 1), 2.0 * side)).item() == side


def test_smoothing_noise_is_drawn_from_the_agents_stream(make_spec: MakeSpec) -> None:
    agent, batch = build(make_spec("continuous")), fixed_batch()
    seen: list[Tensor] = []
    inner = agent.next_value
    agent.next_value = lambda obs, noise: seen.append(noise) or inner(obs, noise)  # type: ignore
    expected = agent.normal_like(batch.action)
    agent.generator.set_state(build(make_spec("continuous")).generator.get_state())
    torch.manual_seed(11)
    agent.update(batch)
    assert torch.equal(seen[0], expected)


def test_targets_see_the_policys_current_normaliser(make_spec: MakeSpec) -> None:
    agent = linear_agent(build(make_spec("continuous", obs_dim=1, action_dim=1), hidden=(), normalize_obs=True))
    for norm, mean, inv_std in ((agent.policy.norm, 1.0, 3.0), (agent.policy_target.norm, 70.0, 70.0)):
        assert isinstance(norm, ObsNorm)
        norm.mean.fill_(mean)
        norm.inv_std.fill_(inv_std)
    obs = (2.0 - 1.0) * 3.0
    action = math.tanh(0.5 * obs - 0.3)
    value = agent.next_value(torch.tensor([[2.0]]), torch.zeros(1, 1))
    assert value.item() == pytest.approx(min(obs + 2 * action, obs - action + 0.5), rel=1e-5)


def test_prioritised_rows_are_weighed_and_give_their_errors(make_spec: MakeSpec) -> None:
    agent = linear_agent(build(make_spec("continuous", obs_dim=1, action_dim=1), hidden=(), smooth_std=0.0))
    batch = TWO_ROWS._replace(weight=torch.tensor([0.5, 0.0]))
    target = 1.0 + 0.9 * min(2.0 + 2 * math.tanh(0.7), 2.5 - math.tanh(0.7))
    loss, metrics = agent.critic_loss(batch, twice(torch.zeros(2, 1)))
    assert loss.item() == pytest.approx(sum(0.5 * 0.5 * (q - target) ** 2 / 2 for q in (1.0, -2.0)), rel=1e-5)
    errors = [(abs(1.0 - y) + abs(-2.0 - y)) / 2 for y in (target, 3.0)]
    torch.testing.assert_close(metrics["td_error"], torch.tensor(errors))


# ---- the actor


def test_the_actor_maximises_the_first_critic(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous", obs_dim=1, action_dim=1), hidden=(), lr=0.01)
    linear_actor(agent.policy, 0.2, 0.1)
    linear_actor(agent.policy_target, 99.0, 99.0)
    linear_critic(agent.critic, [(1.0, 2.0, 0.0), (-50.0, -50.0, -50.0)])  # the second is the lower one
    linear_critic(agent.critic_target, [(99.0, 99.0, 99.0), (99.0, 99.0, 99.0)])
    batch = fixed_batch(2, 1, 1)._replace(obs=torch.tensor([[3.0], [0.5]]))
    loss, _ = agent.actor_loss(batch, torch.zeros(2, 1))
    expected = [obs + 2 * math.tanh(0.2 * obs + 0.1) for obs in (3.0, 0.5)]
    assert loss.item() == pytest.approx(-sum(expected) / 2, rel=1e-5)
    agent.update_actor(batch, agent.draw_noise(batch))
    assert agent.policy.net[0].bias.item() == pytest.approx(0.11, abs=1e-4)  # up: the first critic likes large actions


def test_the_actor_sees_normalised_observations(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous", obs_dim=1, action_dim=1), hidden=(), normalize_obs=True)
    assert isinstance(agent.policy.norm, ObsNorm)
    agent.policy.norm.mean.fill_(1.0)
    agent.policy.norm.inv_std.fill_(4.0)
    linear_actor(agent.policy, 0.2, 0.1)
    linear_critic(agent.critic, [(1.0, 2.0, 0.0), (0.0, 0.0, 0.0)])
    batch = fixed_batch(1, 1, 1)._replace(obs=torch.tensor([[1.5]]))
    loss, _ = agent.actor_loss(batch, torch.zeros(1, 1))
    assert loss.item() == pytest.approx(-(2.0 + 2 * math.tanh(0.2 * 2.0 + 0.1)), rel=1e-5)


def test_an_actor_update_leaves_the_critics_and_the_targets_alone(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"))
    others = agent.critic_step.flat, agent.target.flat, agent.actor_target.flat
    before = [flat.clone() for flat in others]
    actor = agent.actor_step.flat.clone()
    agent.update_actor(fixed_batch(), agent.draw_noise(fixed_batch()))
    assert all(torch.equal(a, b) for a, b in zip(others, before, strict=True))
    assert not torch.equal(agent.actor_step.flat, actor)


def test_a_critic_update_leaves_the_actor_alone(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"))
    actors = agent.actor_step.flat.clone(), agent.actor_target.flat.clone()
    loss, _ = agent.critic_loss(fixed_batch(), twice(torch.zeros(16, 2)))
    agent.critic_step(loss)
    assert torch.equal(agent.actor_step.flat, actors[0]) and torch.equal(agent.actor_target.flat, actors[1])


def test_targets_never_hold_gradients(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"))
    for _ in range(4):
        agent.update(fixed_batch())
    targets = [*agent.critic_target.parameters(), *agent.policy_target.parameters()]
    assert len(targets) == 8 and not any(p.requires_grad for p in targets)
    assert all(p.grad is None for p in agent.parameters())
    loss, _ = agent.critic_loss(fixed_batch(), twice(torch.zeros(16, 2)))
    grads = torch.autograd.grad(loss, list(agent.policy.parameters()), allow_unused=True)
    assert all(g is None for g in grads)


# ---- who moves when


def moves(agent: AgentTD3, updates: int) -> dict[str, list[bool]]:
    """For each network, at which updates it changed."""
    flats = {
        "critic": agent.critic_step.flat,
        "actor": agent.actor_step.flat,
        "critic target": agent.target.flat,
        "actor target": agent.actor_target.flat,
    }
    changed: dict[str, list[bool]] = {name: [] for name in flats}
    for _ in range(updates):
        before = {name: flat.clone() for name, flat in flats.items()}
        agent.update(fixed_batch())
        for name, flat in flats.items():
            changed[name].append(not torch.equal(flat, before[name]))
    return changed


def test_td3_delays_the_actor_and_the_targets(make_spec: MakeSpec) -> None:
    # Guards against: T1, TD3 without target actor, clipped smoothing, delay or independent critics.
    changed = moves(build(make_spec("continuous")), 6)
    assert changed["critic"] == [True] * 6
    # C7: in the paper the actor and both targets move in the same update; the actor moved one update earlier.
    assert changed["actor"] == changed["critic target"] == changed["actor target"] == [False, True] * 3


def test_other_intervals(make_spec: MakeSpec) -> None:
    changed = moves(build(make_spec("continuous"), actor_interval=3, target_interval=1), 6)
    assert changed["actor"] == [False, False, True] * 2
    assert changed["critic target"] == [True] * 6
    # Until the first move of the actor its target is equal to it, and thereafter it follows at every update.
    assert changed["actor target"] == [False, False, True, True, True, True]


def test_ddpg_delays_nothing(make_spec: MakeSpec) -> None:
    changed = moves(build_ddpg(make_spec("continuous")), 3)
    assert all(times == [True] * 3 for times in changed.values())


@pytest.mark.parametrize("build_one", [build, build_ddpg])
def test_both_targets_follow_by_tau(make_spec: MakeSpec, build_one: Callable[..., AgentTD3]) -> None:
    # Guards against: T1, TD3 without target actor, clipped smoothing, delay or independent critics.
    agent = build_one(make_spec("continuous"), tau=0.1, lr=0.01)
    before = agent.target.flat.clone(), agent.actor_target.flat.clone()
    for _ in range(agent.config.target_interval):
        agent.update(fixed_batch())
    for target, source, old in zip(
        (agent.target, agent.actor_target), (agent.critic_step, agent.actor_step), before, strict=True
    ):
        torch.testing.assert_close(target.flat, old + 0.1 * (source.flat - old))
    first = next(agent.policy_target.parameters())
    assert first.data_ptr() == agent.actor_target.flat.data_ptr()  # the network that is used is the one that follows


def test_every_update_reports_the_latest_actor_step(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"), actor_interval=3)
    logged: list[Metrics] = [agent.update(fixed_batch()).metrics for _ in range(6)]
    assert "loss/actor" not in logged[0] and "loss/actor" not in logged[1]
    losses = [metrics["loss/actor"].item() for metrics in logged[2:]]
    assert losses[0] == losses[1] == losses[2] != losses[3]
    critic = [metrics["loss/critic"].item() for metrics in logged]
    assert len(set(critic)) == 6


def test_the_critics_of_td3_are_independent(make_spec: MakeSpec) -> None:
    # Guards against: T1, TD3 without target actor, clipped smoothing, delay or independent critics.
    agent, batch = build(make_spec("continuous"), actor_interval=1), fixed_batch()
    for p in agent.critic.parameters():
        assert p.shape[0] == 2 and not torch.equal(p[0], p[1])
    other = build(make_spec("continuous"), actor_interval=1)
    with torch.no_grad():
        for p in other.critic.parameters():
            p[1] += 0.1
    for one in (agent, other):  # the same targets for both
        one.critic_step(one.critic_loss(batch, twice(torch.zeros(16, 2)))[0])
    for a, b in zip(agent.critic.parameters(), other.critic.parameters(), strict=True):
        assert torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1])


def test_ddpg_is_the_plain_case() -> None:
    c = DDPGConfig()
    assert (c.num_critics, c.actor_interval, c.target_interval, c.smooth_std) == (1, 1, 1, 0.0)
    t = TD3Config()
    assert (t.num_critics, t.actor_interval, t.target_interval, t.smooth_std, t.smooth_clip) == (2, 2, 2, 0.2, 0.5)


@pytest.mark.parametrize("build_one", [build, build_ddpg])
def test_updates_lower_the_critic_loss_on_a_fixed_batch(
    make_spec: MakeSpec, build_one: Callable[..., AgentTD3]
) -> None:
    agent = build_one(make_spec("continuous"), lr=3e-3, tau=0.001, hidden=(32,))
    losses = [agent.update(fixed_batch()).metrics["loss/critic"].item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


def test_same_seed_same_updates(make_spec: MakeSpec) -> None:
    flats = []
    for seed, noise in ((1, 1), (1, 2), (2, 1)):
        torch.manual_seed(noise)  # the global stream is nobody's
        agent = build(make_spec("continuous"), seed=seed)
        for _ in range(5):
            agent.update(fixed_batch())
        flats.append(torch.cat([agent.actor_step.flat, agent.critic_step.flat, agent.actor_target.flat]))
    assert torch.equal(flats[0], flats[1]) and not torch.equal(flats[0], flats[2])


@pytest.mark.parametrize("updates", [3, 4])
def test_state_round_trip_includes_the_target_actor(make_spec: MakeSpec, updates: int) -> None:
    batch = fixed_batch()
    agent, other = build(make_spec("continuous")), build(make_spec("continuous"), seed=4)
    for _ in range(updates):
        agent.update(batch)
    other.load_training_state(agent.training_state())
    assert torch.equal(other.actor_target.flat, agent.actor_target.flat)
    for _ in range(3):
        agent.update(batch)
        other.update(batch)
    flats = [(a.actor_step.flat, a.critic_step.flat, a.target.flat, a.actor_target.flat) for a in (agent, other)]
    assert all(torch.equal(a, b) for a, b in zip(*flats, strict=True))


@pytest.mark.parametrize(("build_one", "name"), [(build, "AgentTD3"), (build_ddpg, "AgentDDPG")])
def test_refuses_discrete_actions(make_spec: MakeSpec, build_one: Callable[..., AgentTD3], name: str) -> None:
    with pytest.raises(SpecError, match=f"{name} needs continuous actions, but Made has discrete ones"):
        build_one(make_spec("discrete"))


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"agent\.smooth_clip=-0\.5 is out of range"):
        TD3Config(smooth_clip=-0.5)
    with pytest.raises(ConfigError, match=r"agent\.noise_std=-1 is out of range"):
        TD3Config(noise_std=-1)
    with pytest.raises(ConfigError, match="noise"):
        resolve_config("td3", "TensorPendulum", {"agent": {"noise": "pink"}})


@pytest.mark.parametrize("name", ["td3", "ddpg"])
@pytest.mark.parametrize("env", ["Pendulum-v1", "TensorPendulum", "Pusher-v5"])
def test_tuned_settings_make_a_config(name: str, env: str) -> None:
    config, _ = resolve_config(name, env)
    assert RunConfig.from_yaml(config.to_yaml()) == config
    known = env.endswith(("Pendulum", "Pendulum-v1"))
    assert (config.train.target_return is not None) == known
    assert ("source" in find_recipe(name, env).sections) == known


# ---- exploration


def still_policy(mean: float = 0.0, action_dim: int = 1, **settings: Any) -> DeterministicPolicy:
    """Wants the same action everywhere, after the warm-up."""
    policy = DeterministicPolicy(Leaf((1,)), ActionSpec(dim=action_dim), NetSpec(hidden=()), **settings)
    policy.requires_grad_(False)
    linear_actor(policy, 0.0, math.atanh(mean))
    policy.random_frac.zero_()
    return policy


def noise_of(policy: DeterministicPolicy, steps: int, lanes: int, generator: torch.Generator) -> Tensor:
    """Exploration noise [T, N, A] of a policy that wants the action 0."""
    carry, actions = policy.initial_carry(lanes), []
    for draw in policy.draw(steps, lanes, generator):
        action, _, carry = policy.explore(torch.zeros(lanes, 1), carry, draw)
        actions.append(action)
    return torch.stack(actions)


def explored(policy: Policy, obs: Tensor, generator: torch.Generator) -> Tensor:
    """The actions of the first step."""
    (draw,) = policy.draw(1, len(obs), generator)
    return policy.explore(obs, policy.initial_carry(len(obs)), draw).action


def test_gaussian_noise_has_its_standard_deviation_and_no_memory() -> None:
    policy = still_policy(0.2, action_dim=2, noise="gaussian", noise_std=0.15)
    x = noise_of(policy, 400, 100, stream())
    assert x.mean().item() == pytest.approx(0.2, abs=0.003)
    assert x.std().item() == pytest.approx(0.15, abs=0.002)
    centred = x - 0.2
    assert abs((centred[1:] * centred[:-1]).mean().item()) < 0.02 * 0.15**2
    assert abs((centred[..., 0] * centred[..., 1]).mean().item()) < 0.02 * 0.15**2  # components differ
    assert abs((centred[:, 0] * centred[:, 1]).mean().item()) < 0.15 * 0.15**2  # and so do lanes
    assert policy.initial_carry(3) == ()


def test_ornstein_uhlenbeck_noise_has_its_autocorrelation() -> None:
    policy = still_policy(action_dim=2, noise="ou", noise_std=0.1)
    x = noise_of(policy, 2000, 100, stream())
    x = x[100:]  # past its start at 0
    variance = x.var().item()
    assert variance == pytest.approx(0.1**2 / (1 - 0.85**2), rel=0.03)  # the fixed point of v = 0.85^2 v + sigma^2
    for lag in (1, 2, 5):
        correlation = (x[lag:] * x[:-lag]).mean().item() / variance
        assert correlation == pytest.approx(0.85**lag, abs=0.02)
    assert abs((x[..., 0] * x[..., 1]).mean().item()) < 0.05 * variance
    increments = x[1:] - 0.85 * x[:-1]
    assert increments.std().item() == pytest.approx(0.1, rel=0.02)


def test_ornstein_uhlenbeck_noise_by_hand() -> None:
    # Guards against: N1, Ornstein-Uhlenbeck noise that is selected and not used.
    policy = still_policy(action_dim=2, noise="ou", noise_std=0.1)
    x = noise_of(policy, 3, 4, stream(5))
    g = stream(5)
    expected = torch.zeros(4, 2)
    for t in range(3):
        expected = expected - 0.15 * expected + 0.1 * torch.empty(4, 2).normal_(generator=g)
        torch.empty(4, 2).uniform_(generator=g)  # the random action that is not taken
        torch.empty(4).uniform_(generator=g)  # the coin
        torch.testing.assert_close(x[t], expected)


@pytest.mark.parametrize("noise", ["gaussian", "ou"])
@pytest.mark.parametrize("random_frac", [0.0, 0.5, 1.0])
def test_actions_stay_within_the_limits(noise: Any, random_frac: float) -> None:
    policy = still_policy(0.9, noise=noise, noise_std=1.0)
    policy.random_frac.fill_(random_frac)
    x = noise_of(policy, 50, 100, stream())
    assert x.abs().max() <= 1.0
    if random_frac < 1:
        assert (x == 1.0).any() and (x == -1.0).any()


@pytest.mark.parametrize("noise", ["gaussian", "ou"])
def test_share_of_random_actions(noise: Any) -> None:
    policy = still_policy(0.5, noise=noise, noise_std=0.0)
    obs = torch.zeros(10_000, 1)
    policy.random_frac.fill_(1.0)
    action = explored(policy, obs, stream())
    assert abs(float(action.mean())) < 0.03 and abs(float(action.var()) - 1 / 3) < 0.02  # uniform on [-1, 1]
    policy.random_frac.fill_(0.3)
    action = explored(policy, obs, stream())
    assert float(((action - 0.5).abs() < 1e-6).float().mean()) == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("noise", ["gaussian", "ou"])
def test_no_noise_when_judged(noise: Any) -> None:
    policy = DeterministicPolicy(Leaf((3,)), ActionSpec(dim=2), NetSpec(hidden=(5,)), noise=noise, noise_std=0.5)
    assert policy.random_frac.item() == 1.0
    obs, carry = torch.randn(4, 3, generator=stream()), policy.initial_carry(4)
    action, after = policy.act(obs, carry)
    torch.testing.assert_close(action, policy.net(obs).tanh())
    assert after is carry  # evaluating does not move the noise


def test_random_actions_until_learning_starts(make_spec: MakeSpec) -> None:
    agent = build(make_spec("continuous"), learning_starts=100)
    shares = []
    for env_steps in (0, 99, 100, 5000):
        agent.schedule(env_steps)
        shares.append(agent.policy.random_frac.item())
    assert shares == [1.0, 1.0, 0.0, 0.0]


def test_the_agents_noise_settings_reach_the_policy_that_travels(make_spec: MakeSpec) -> None:
    # Guards against: N1, Ornstein-Uhlenbeck noise that is selected and not used.
    agent = build(make_spec("continuous"), noise="ou", noise_std=0.37)
    policy = agent.policy_spec.build()
    assert isinstance(policy, DeterministicPolicy)
    assert policy.initial_carry(2) != () and policy.noise_std == 0.37
    assert policy.to_flat().shape == agent.policy.to_flat().shape
    explored(policy, torch.zeros(5, 3), stream())
    assert policy.to_flat().shape == agent.policy.to_flat().shape  # the noise stays with the worker


def test_only_drifting_noise_and_held_actions_need_a_carry() -> None:
    for kind in POLICIES.keys() - {"ensemble"}:
        action = ActionSpec(choices=(2,)) if kind in ("categorical", "q") else ActionSpec(dim=2)
        assert PolicySpec(kind, Leaf((3,)), action).build().initial_carry(4) == (), kind
    assert tree.leaves(still_policy(noise="ou").initial_carry(4))[0].shape == (4, 1)
    assert tree.named_leaves(still_policy(warm_up_hold=2).initial_carry(4)).keys() == {"held", "holds"}


def test_a_random_action_is_held_and_ends_with_its_episode() -> None:
    """On average for so many steps; where an episode ended another one is drawn at once."""
    policy = still_policy(action_dim=2, warm_up_hold=4)
    policy.random_frac.fill_(1.0)
    x = noise_of(policy, 400, 50, stream())
    changed = (x[1:] != x[:-1]).any(-1)
    assert changed.float().mean().item() == pytest.approx(0.25, abs=0.01)
    ends: dict[str, list[tuple[int, int]]] = {"truncated": [(t, 0) for t in range(39)]}
    settings = {"warm_up_hold": 1000}
    spec = PolicySpec("deterministic", Leaf((1,)), ActionSpec(dim=2), NetSpec(hidden=()), settings)
    actor = GroupActor(ending_env(ends), spec, seed=3)
    action = actor.sample(Weights(0, policy.to_flat()), 40, 0).rollout.action
    changed = (action[1:] != action[:-1]).any(-1)
    assert changed[:, 0].all() and changed[:, 1:].sum() < 4


# ---- exploration in a worker


class EndingEnv(VecEnv):
    """Continuous actions without effect; episodes end where a table [T, N] of flags says."""

    def __init__(self, terminated: Tensor, truncated: Tensor):
        self.terminated, self.truncated, self.time = terminated, truncated, 0
        self.device = CPU
        self.spec = EnvSpec("Ending", (1,), ActionSpec(dim=2), terminated.shape[1])

    def obs(self) -> Tensor:
        return torch.full((self.spec.num_envs, 1), float(self.time))

    def reset(self, seed: int) -> Tensor:
        self.time = 0
        return self.obs()

    def step(self, action: Tensor) -> Step:
        t = self.time
        self.time += 1
        return Step(self.obs(), torch.zeros(self.spec.num_envs), self.terminated[t], self.truncated[t], self.obs())

    def state_dict(self) -> State:
        return {"time": self.time}

    def load_state_dict(self, state: State) -> Tensor:
        self.time = state["time"]
        return self.obs()


OU_SPEC = PolicySpec(
    "deterministic", Leaf((1,)), ActionSpec(dim=2), NetSpec(hidden=()), {"noise": "ou", "noise_std": 0.01}
)  # small enough that no action is clipped
OU_WEIGHTS = Weights(0, still_policy(action_dim=2).to_flat())


def ending_env(ends: dict[str, list[tuple[int, int]]], steps: int = 40, lanes: int = 3) -> EndingEnv:
    """Ends as (time, lane)."""
    flags = {kind: torch.zeros(steps, lanes, dtype=torch.bool) for kind in ("terminated", "truncated")}
    for kind, places in ends.items():
        for time, lane in places:
            flags[kind][time, lane] = True
    return EndingEnv(**flags)


def increments(worker: GroupActor) -> Tensor:
    """What a worker with the same seed draws at each step, from runs whose episodes end at every step."""
    return worker.sample(OU_WEIGHTS, 40, 0).rollout.action


def test_a_worker_resets_the_noise_of_a_lane_at_an_episodes_end() -> None:
    # Guards against: N1, Ornstein-Uhlenbeck noise that is selected and not used.
    every = [(t, n) for t in range(40) for n in range(3)]
    fresh = increments(GroupActor(ending_env({"truncated": every}), OU_SPEC, seed=3))
    ends = {"terminated": [(9, 0)], "truncated": [(24, 2)]}
    worker = GroupActor(ending_env(ends), OU_SPEC, seed=3)
    noise = torch.cat([worker.sample(OU_WEIGHTS, horizon, 0).rollout.action for horizon in (10, 10, 20)])
    expected = torch.zeros_like(noise)
    for n, first in ((0, 10), (1, None), (2, 25)):
        drift = torch.zeros(2)
        for t in range(40):
            drift = fresh[t, n] + (0.0 if t == first else 0.85) * drift
            expected[t, n] = drift
    torch.testing.assert_close(noise, expected)
    assert fresh.std().item() == pytest.approx(0.01, rel=0.15)


def test_a_worker_continues_its_noise_from_its_state(hash_state: Callable[[Any], str]) -> None:
    ends: dict[str, list[tuple[int, int]]] = {"truncated": [(15, 1), (30, 0)]}
    worker = GroupActor(ending_env(ends), OU_SPEC, seed=3)
    fresh = worker.state_dict()  # before the first step there is nothing to remember
    worker.sample(OU_WEIGHTS, 20, 0)
    state = worker.state_dict()
    kept = hash_state(state)
    expected = worker.sample(OU_WEIGHTS, 20, 1).rollout
    other = GroupActor(ending_env(ends), OU_SPEC, seed=99)
    other.sample(OU_WEIGHTS, 3, 0)
    assert not other.load_state_dict(state).any()
    result = other.sample(OU_WEIGHTS, 20, 1).rollout
    assert all(torch.equal(a, b) for a, b in zip(expected[:6], result[:6], strict=True))
    assert hash_state(worker.state_dict()) == hash_state(other.state_dict())
    assert hash_state(state) == kept  # a state is a snapshot
    other.load_state_dict(fresh)
    again = GroupActor(ending_env(ends), OU_SPEC, seed=3)
    assert torch.equal(other.sample(OU_WEIGHTS, 5, 0).rollout.action, again.sample(OU_WEIGHTS, 5, 0).rollout.action)


def test_noise_starts_anew_where_a_resume_restarts_the_episode() -> None:
    def make() -> GroupActor:
        env = make_env(gym.make_vec("Pendulum-v1", 2, vectorization_mode="sync"), 2)
        spec = PolicySpec("deterministic", Leaf((3,)), ActionSpec(dim=1), NetSpec(hidden=()), {"noise": "ou"})
        return GroupActor(env, spec, seed=5)

    worker, other = make(), make()
    worker.sample(Weights(0, worker.policy.policy.to_flat()), 5, 0)
    state = worker.state_dict()
    assert from_state(state["carry"])[2].all()
    assert other.load_state_dict(state).all()
    assert not from_state(other.state_dict()["carry"])[2].any()


# ---- whole runs

Run = Callable[..., RunResult]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

REPLAY: dict[str, Any] = {"hidden": [8], "buffer_size": 150, "learning_starts": 30, "batch_size": 8, "horizon": 4}
CASES = [
    pytest.param("td3", "Pendulum-v1", {**REPLAY, "num_envs": 1, "noise": "ou", "updates_per_step": 0.3}, id="td3-1"),
    pytest.param("td3", "TensorPendulum", {**REPLAY, "num_envs": 3, "noise": "ou", "n_step": 3, "normalize_obs": True,
                 "updates_per_step": 0.3, "lr_schedule": "linear"}, id="td3-t"),
    pytest.param("ddpg", "Pendulum-v1", {**REPLAY, "num_envs": 2, "updates_per_step": 0.3, "normalize_obs": True},
                 id="ddpg-2"),
    pytest.param("ddpg", "TensorPendulum", {**REPLAY, "num_envs": 3, "updates_per_step": 0.5, "n_step": 2},
                 id="ddpg-t"),
]  # fmt: skip


def learned(parts: dict[str, Any]) -> dict[str, Any]:
    """All that decides the rest of a run; scores of the extra evaluation at a stop do not."""
    names = ("env_steps", "seq", "episodes", "recent_returns")
    return {**parts, "supervisor": {name: parts["supervisor"][name] for name in names}}


def arguments(settings: dict[str, Any]) -> dict[str, Any]:
    return {"seed": 7, "eval": {"interval": 10**9, "episodes": 2}, **settings}


@pytest.mark.parametrize(("agent", "env", "settings"), CASES)
def test_resumed_run_equals_uninterrupted_run(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: Any,
) -> None:
    steps = 120 * settings["num_envs"]  # an episode has 200 steps: one ends in each lane after the resume
    run_quietly(agent, env, run_dir=tmp_path / "whole", max_steps=2 * steps, **arguments(settings))
    run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=steps, **arguments(settings))
    half = learned(load_commit(tmp_path / "parts"))
    run_quietly(agent, env, run_dir=tmp_path / "parts", max_steps=2 * steps, resume=True, **arguments(settings))
    whole, parts = (learned(load_commit(tmp_path / name)) for name in ("whole", "parts"))
    for part in whole:
        assert hash_state(parts[part]) == hash_state(whole[part]), part
    assert whole["supervisor"]["episodes"] == settings["num_envs"]
    assert hash_state(half["learner"]) != hash_state(whole["learner"])
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0
    carry = from_state(half["group0"]["carry"])  # of drifting noise, or nothing
    assert (carry != () and bool(carry[2].all())) == (agent == "td3")


@pytest.mark.parametrize(("agent", "env", "settings"), CASES[1:3])
def test_same_seed_same_run(
    run_quietly: Run,
    load_commit: LoadCommit,
    hash_state: HashState,
    tmp_path: Path,
    agent: str,
    env: str,
    settings: Any,
) -> None:
    hashes = []
    for i, seed in enumerate((4, 4, 5)):
        torch.manual_seed(i)
        run_quietly(agent, env, run_dir=tmp_path / str(i), max_steps=150, **arguments(settings) | {"seed": seed})
        hashes.append({name: hash_state(part) for name, part in load_commit(tmp_path / str(i)).items()})
    assert hashes[0] == hashes[1]
    assert all(hashes[0][name] != hashes[2][name] for name in hashes[0])


def test_prioritized_runs_learn(run_quietly: Run, tmp_path: Path) -> None:
    settings = arguments({**REPLAY, "num_envs": 2, "prioritized": True, "n_step": 2, "updates_per_step": 0.3})
    result = run_quietly("td3", "TensorPendulum", run_dir=tmp_path / "r", max_steps=100, **settings)
    assert result.summary["updates"] == 22  # int(0.3 * (104 - 30)): thirteen rounds of 8 steps

"""MADDPG and MATD3: stacked updates against a loop over agents, targets by hand, masks, agents that end, whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from team_games import Chase, Leaving, Pick, SizedSum, Sum
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from elegantrl import tree
from elegantrl.agents.off_policy import ActionNoise
from elegantrl.agents.team.maddpg import AgentMADDPG, AgentMATD3, MADDPGConfig, MATD3Config
from elegantrl.data.replay import ReplayBuffer
from elegantrl.errors import ConfigError, SpecError
from elegantrl.registry import build_agent, find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.runtime.run import RunResult
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs, Transition, Weights

CPU = torch.device("cpu")
ROWS, AGENTS, DIM = 6, 3, 2
DISCRETE, CONTINUOUS = ActionSpec(choices=(DIM + 2,)), ActionSpec(dim=DIM)
SIZED = ActionSpec(dim=DIM, sizes=(2, 1, 2))


def build(spec: EnvSpec, name: str = "matd3", seed: int = 0, **settings: Any) -> Any:
    entry = find_agent(name)
    return build_agent(entry, spec, entry.config(**{"hidden": (8, 8), **settings}), CPU, seed)


def team_spec(action: ActionSpec, full: bool = True, obs_dim: int = 4, num_agents: int = AGENTS) -> EnvSpec:
    """Of a team with mask, state and agents that end, or with plain observations."""
    obs: Any = Leaf((num_agents, obs_dim))
    if full:
        mask = Leaf((num_agents, action.num_outputs), "bool") if action.choices else None
        obs = Obs(obs, mask, Leaf((5,)), Leaf((num_agents,), "bool"))  # type: ignore[arg-type]
    return EnvSpec("Team", obs, action, 1, num_agents=num_agents)


def transitions(spec: EnvSpec, weighted: bool = False, seed: int = 0) -> Transition:
    g = torch.Generator().manual_seed(seed)

    def observed() -> Any:
        seen = torch.randn(ROWS, *spec.obs.seen.shape if isinstance(spec.obs, Obs) else spec.obs.shape, generator=g)
        if not isinstance(spec.obs, Obs):
            return seen
        active = torch.rand(ROWS, AGENTS, generator=g) < 0.7
        mask = None
        if spec.obs.mask is not None:
            mask = (torch.rand(ROWS, *spec.obs.mask.shape, generator=g) < 0.6) & active.unsqueeze(-1)
        return Obs(seen * active.unsqueeze(-1), mask, torch.randn(ROWS, 5, generator=g), active)

    action = spec.action.random((ROWS, AGENTS), g)
    if spec.action.sizes:
        action = action * torch.tensor([[i < size for i in range(DIM)] for size in spec.action.sizes])
    discount = torch.where(torch.rand(ROWS, generator=g) < 0.3, 0.0, 0.9)
    weight = torch.rand(ROWS, generator=g) if weighted else None
    reward = torch.randn(ROWS, AGENTS, generator=g)
    return Transition(observed(), action, reward, discount, observed(), weight)


# ---- a loop over agents, written plainly


def dense(layers: nn.Module, member: int, x: Tensor) -> Tensor:
    """One member of stacked layers, with ordinary products."""
    for layer in layers:  # type: ignore[attr-defined]
        x = x @ layer.weight[member] + layer.bias[member] if hasattr(layer, "weight") else x.relu()
    return x


def as_vectors(spec: EnvSpec, action: Tensor) -> Tensor:
    return torch.eye(spec.action.num_outputs)[action] if spec.action.choices else action


def parts(obs: Any, agent: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Observation and mask of an agent, what critics see, and which agents are active."""
    if isinstance(obs, Obs):
        assert obs.state is not None and obs.active is not None
        return obs.seen[:, agent], None if obs.mask is None else obs.mask[:, agent], obs.state, obs.active
    return obs[:, agent], None, obs.reshape(len(obs), -1), torch.ones(len(obs), AGENTS, dtype=torch.bool)


def logits_of(policy: Any, obs: Any, agent: int) -> Tensor:
    seen, mask, _, _ = parts(obs, agent)
    out = dense(policy.net, agent, seen)
    if mask is None:
        return out
    return torch.stack([row if not ok.any() else torch.where(ok, row, -1e8) for row, ok in zip(out, mask, strict=True)])


def fresh(spec: EnvSpec, policy: Any, obs: Any, agent: int, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of one actor and its differentiable action."""
    out = logits_of(policy, obs, agent)
    if spec.action.choices:
        soft = torch.softmax((out + noise[:, agent]) / policy.temperature, 1)
        hard = torch.eye(soft.shape[1])[soft.argmax(1)]
        return out, hard + soft - soft.detach()
    size = spec.action.sizes[agent] if spec.action.sizes else DIM
    out = torch.cat([out[:, :size], torch.zeros(ROWS, DIM - size)], 1)
    return out, torch.tanh(out)


def looped(agent: AgentMATD3, spec: EnvSpec, b: Transition, noise: ActionNoise) -> tuple[Tensor, Tensor]:
    """The critics' and the actors' loss, agent by agent and row by row."""
    c, critics, targets = agent.config, agent.critic.net, agent.critic_target.net
    _, _, state, active = parts(b.obs, 0)
    _, _, next_state, next_active = parts(b.next_obs, 0)
    taken, chosen = as_vectors(spec, b.action), []
    for h in range(AGENTS):
        smooth = (c.smooth_std * noise.next_action[:, h]).clamp(-c.smooth_clip, c.smooth_clip)
        if spec.action.choices:
            logits = logits_of(agent.policy_target, b.next_obs, h)
            chosen.append(torch.eye(logits.shape[1])[(logits + smooth).argmax(1)])
        else:
            size = spec.action.sizes[h] if spec.action.sizes else DIM
            action = (logits_of(agent.policy_target, b.next_obs, h).tanh() + smooth).clamp(-1, 1)
            chosen.append(torch.cat([action[:, :size], torch.zeros(ROWS, DIM - size)], 1))
    critic_loss = actor_loss = torch.zeros(())
    for g in range(AGENTS):
        rows = max(1, int(active[:, g].sum()))
        out, own = fresh(spec, agent.policy, b.obs, g, noise.action)
        for i in range(ROWS):
            if not active[i, g]:
                continue
            after = torch.cat([next_state[i], *(chosen[h][i] * next_active[i, h] for h in range(AGENTS))])
            values = [dense(targets, e * AGENTS + g, after)[0, 0] for e in range(c.num_critics)]
            target = b.reward[i, g] + b.discount[i] * torch.stack(values).min() * next_active[i, g]
            weight = 1.0 if b.weight is None else b.weight[i]
            now = torch.cat([state[i], *(taken[i, h] * active[i, h] for h in range(AGENTS))])
            for e in range(c.num_critics):
                error = dense(critics, e * AGENTS + g, now)[0, 0] - target.detach()
                critic_loss = critic_loss + weight * error**2 / 2 / rows
            mixed = [own[i] if h == g else taken[i, h] * active[i, h] for h in range(AGENTS)]
            actor_loss = actor_loss - dense(critics, g, torch.cat([state[i], *mixed]))[0, 0] / rows
            square = torch.where(out[i] > -1e7, out[i], 0.0).square().mean()
            actor_loss = actor_loss + c.output_penalty * square / rows
    return critic_loss, actor_loss


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("action", [CONTINUOUS, DISCRETE, SIZED])
def test_the_stacked_update_equals_a_loop_over_agents(name: str, full: bool, action: ActionSpec) -> None:
    spec = team_spec(action, full)
    agent = build(spec, name, output_penalty=0.1)
    for module in (agent.policy_target, agent.critic_target):  # targets that differ from their sources
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    batch = transitions(spec, weighted=True)
    noise = agent.draw_noise(batch)
    with torch.enable_grad():
        expected = looped(agent, spec, batch, noise)
    found = agent.critic_loss(batch, noise)[0], agent.policy_loss(batch, noise)[0]
    for module, one, other in zip((agent.critic, agent.policy), found, expected, strict=True):
        torch.testing.assert_close(one, other)
        parameters = list(module.parameters())
        for gradient, wanted in zip(*(torch.autograd.grad(x, parameters) for x in (one, other)), strict=True):
            torch.testing.assert_close(gradient, wanted)
            assert wanted.abs().sum() > 0


def test_an_actor_learns_through_its_own_critic_alone() -> None:
    agent = build(team_spec(CONTINUOUS, full=False), "maddpg", output_penalty=0.0)
    batch = transitions(team_spec(CONTINUOUS, full=False))
    with torch.no_grad():
        agent.critic.net[-1].weight[1].zero_()
    loss, _ = agent.policy_loss(batch, agent.draw_noise(batch))
    for gradient in torch.autograd.grad(loss, list(agent.policy.parameters())):
        assert gradient[0].abs().sum() > 0 and gradient[2].abs().sum() > 0
        assert not gradient[1].any()


class Hot(nn.Module):
    """One hot function of an agent as a module, which is what ``functional_call`` takes."""

    def __init__(self, agent: AgentMATD3, name: str):
        super().__init__()
        self.agent, self.name = agent, name

    def forward(self, batch: Transition, noise: ActionNoise) -> Tensor:
        loss: Tensor = getattr(self.agent, self.name)(batch, noise)[0]
        return loss


@pytest.mark.parametrize("hot", AgentMATD3.hot)
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("action", [CONTINUOUS, DISCRETE, SIZED])
def test_hot_functions_can_be_mapped_over_populations(action: ActionSpec, full: bool, hot: str) -> None:
    """Losses are functions of parameters, buffers and arguments alone."""
    spec = team_spec(action, full)
    agents = [build(spec, seed=seed, normalize_obs=True, layer_norm=True) for seed in range(2)]
    modules = [Hot(agent, hot) for agent in agents]
    data = [transitions(spec, weighted=True, seed=seed) for seed in range(2)]
    args = [(batch, agent.draw_noise(batch)) for agent, batch in zip(agents, data, strict=True)]
    params, buffers = stack_module_state(modules)  # type: ignore[arg-type]

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], *leaves: Tensor) -> Tensor:
        rest = iter(leaves)
        found: Tensor = functional_call(modules[0], (params, buffers), tree.map_leaves(lambda _: next(rest), args[0]))
        return found

    mapped = vmap(grad(loss))(params, buffers, *tree.leaves(tree.stack(args)))
    for i, module in enumerate(modules):
        alone = {key: p for key, p in module.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(module(*args[i]), list(alone.values()), allow_unused=True)
        for key, wanted in zip(alone, gradients, strict=True):
            torch.testing.assert_close(mapped[key][i], torch.zeros_like(alone[key]) if wanted is None else wanted)
        assert any(wanted is not None and bool(wanted.any()) for wanted in gradients)


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


# ---- whole runs

REPLAY: dict[str, Any] = {
    "hidden": [8],
    "buffer_size": 90,
    "learning_starts": 24,
    "batch_size": 8,
    "horizon": 4,
    "updates_per_step": 0.4,
}
RUNS = [
    pytest.param("maddpg", Leaving, {"n_step": 3, "prioritized": True}, id="maddpg-masks"),
    pytest.param("matd3", Leaving, {"normalize_obs": True, "layer_norm": True}, id="matd3-masks"),
    pytest.param("maddpg", SizedSum, {"noise": "ou", "normalize_obs": True, "lr_schedule": "linear"}, id="maddpg-ou"),
    pytest.param("matd3", Sum, {"num_critics": 3, "target_critics": "subset", "warm_up_hold": 3}, id="matd3-subset"),
    pytest.param("matd3", Chase, {"max_grad_norm": 0.5, "reward_scale": 2.0}, id="matd3-zero-sum"),
]


def arguments(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"seed": 7, "num_envs": 3, "eval": {"interval": 10**9, "episodes": 2}, **REPLAY, **settings, **more}


def learned(found: dict[str, Any]) -> dict[str, Any]:
    """All that decides the rest of a run; scores of the extra evaluation at a stop do not."""
    names = ("env_steps", "seq", "episodes", "recent_returns")
    return {**found, "supervisor": {name: found["supervisor"][name] for name in names}}


@pytest.mark.parametrize(("agent", "env", "settings"), RUNS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    tmp_path: Path,
    agent: str,
    env: Any,
    settings: Any,
) -> None:
    for folder, stops in (("whole", (120,)), ("parts", (60, 120)), ("again", (120,))):
        for i, stop in enumerate(stops):
            more = arguments(settings, max_steps=stop, resume=i > 0)
            torch.manual_seed(stop + len(folder))  # a run does not depend on torch's global stream
            run_quietly(agent, env, run_dir=tmp_path / folder, **more)
            if folder == "parts" and i == 0:
                half = learned(load_commit(tmp_path / folder))
    whole, split, again = (learned(load_commit(tmp_path / name)) for name in ("whole", "parts", "again"))
    for part in whole:
        assert hash_state(split[part]) == hash_state(whole[part]) == hash_state(again[part]), part
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0
    run_quietly(agent, env, run_dir=tmp_path / "other", **arguments(settings, max_steps=120) | {"seed": 8})
    assert hash_state(load_commit(tmp_path / "other")["learner"]) != hash_state(whole["learner"])


@pytest.mark.parametrize("frac", [0.0, 0.3, 1.0])
def test_a_masked_action_is_never_taken(frac: float) -> None:
    """Leaving raises an error if one is."""
    env = Leaving(16)
    agent = build(env.spec, "maddpg")
    agent.policy.random_frac.fill_(frac)
    for parameter in agent.policy.parameters():
        parameter.data.mul_(30)  # logits far apart
    group = GroupActor(env, agent.policy_spec, 0)
    rollout = group.sample(Weights(0, agent.policy.to_flat()), 40, 0).rollout
    mask, active = rollout.obs.mask, rollout.obs.active  # type: ignore[union-attr]
    taken = mask.gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1)  # type: ignore[union-attr]
    assert taken[active].all()
    best, _ = agent.policy.act(rollout.obs, ())
    assert mask.gather(-1, best.unsqueeze(-1)).squeeze(-1)[active].all()  # type: ignore[union-attr]


# ---- learning


def improve(env: Any, name: str, steps: int, **settings: Any) -> Callable[[], Tensor]:
    """Train on a small game; returns a function that gives mean rewards [G] of the policy without exploration."""
    lanes = 32
    game = env(lanes)
    agent = build(game.spec, name, hidden=(32,), lr=3e-3, tau=0.02, gamma=0.5, **settings)
    group, replay = GroupActor(game, agent.policy_spec, 0), ReplayBuffer(20_000, game.spec, CPU)
    sampler = torch.Generator().manual_seed(1)
    for step in range(steps):
        agent.schedule(0 if step < 10 else 10**6)
        rollout = group.sample(Weights(step, agent.policy.to_flat()), 4, step).rollout
        replay.add(rollout)
        if step >= 10:
            agent.update(replay.sample(128, agent.hypers.gamma, 1, sampler))

    def score() -> Tensor:
        state = game.initial(2000)
        return game.dynamics(state, agent.policy.act(game.observe(state), ())[0])[1].mean(0)

    return score


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
def test_a_team_learns_to_add_up(name: str) -> None:
    score = improve(Sum, name, 400)()
    # Random actions miss by 2/3 + 1/3 in the mean square, half of it each; standing still by 1/3.
    assert score.sum().item() > -0.03
    assert score[0] == score[1]


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
def test_a_team_learns_to_pick(name: str) -> None:
    assert improve(Pick, name, 300)().sum().item() > 0.95  # 0.5 at random


def test_opponents_learn_without_end() -> None:
    score = improve(Chase, "maddpg", 200)()
    assert score.isfinite().all() and score.sum().item() == pytest.approx(0.0, abs=1e-6)

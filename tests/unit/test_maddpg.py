"""MADDPG and MATD3: stacked updates against a loop over agents, and mapped over populations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from team_games import (
    AGENTS,
    CONTINUOUS,
    DIM,
    DISCRETE,
    ROWS,
    SIZED,
    build,
    team_spec,
    transitions,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from elegantrl import tree
from elegantrl.agents.off_policy import ActionNoise
from elegantrl.agents.team.maddpg import AgentMATD3
from elegantrl.types import ActionSpec, EnvSpec, Obs, Transition

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

"""The recurrent DQN: its memory of fragments, its targets, and its loss against loops by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from elegantrl import tree
from elegantrl.agents.recurrent_dqn import AgentRecurrentDQN, RecurrentDQNConfig
from elegantrl.agents.returns import n_step_targets
from elegantrl.data.fragments import FragmentRing, Sequences
from elegantrl.errors import ConfigError
from elegantrl.nets.policies import QPolicy
from elegantrl.types import EnvSpec, Rollout

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def agent_of(spec: EnvSpec, **settings: Any) -> AgentRecurrentDQN:
    torch.manual_seed(1)
    values: dict[str, Any] = {"hidden": (6,), "memory_size": 5, "burn_in": 3, "horizon": 4, **settings}
    return AgentRecurrentDQN(spec, RecurrentDQNConfig(**values), CPU, 0)


def counting(seq: int, length: int, lanes: int) -> Rollout:
    """A fragment whose numbers say where they come from: 1000 * lane + step of the run."""
    step = torch.arange(seq * length, (seq + 1) * length).unsqueeze(1) + 1000.0 * torch.arange(lanes)
    ended = step % 7 == 3
    obs = step.unsqueeze(-1)
    carry = (step[0].unsqueeze(-1) - 0.5,)
    return Rollout(obs, step.long(), step, ended & (step % 2 == 0), ended & (step % 2 == 1), obs + 1, (), carry)


# ---- the memory


@pytest.mark.parametrize("burn_in", [0, 2, 4, 6])
def test_sequences_are_consecutive_and_begin_with_their_carry(make_spec: MakeSpec, burn_in: int) -> None:
    ring = FragmentRing(3 * 4 * 6 + 5, make_spec("discrete", obs_dim=1, num_envs=3), CPU, 4, burn_in)
    assert ring.num_rows == 24
    g = torch.Generator().manual_seed(0)
    for seq in range(10):
        ring.add(counting(seq, 4, 3))
        held = min(seq + 1, 6)
        assert ring.num_starts == max(0, held - -(-burn_in // 4))
        if not ring.num_starts:
            continue
        b = ring.sample_sequences(200, g)
        assert b.obs.shape == (4 + burn_in, 200, 1) and b.carry[0].shape == (200, 1)
        assert torch.equal(b.reward, b.reward[0] + torch.arange(4.0 + burn_in).unsqueeze(1))
        assert torch.equal(b.obs[..., 0], b.reward) and torch.equal(b.action, b.reward.long())
        assert torch.equal(b.next_obs, b.obs + 1)
        assert torch.equal(b.terminated | b.truncated, b.reward % 7 == 3)
        assert torch.equal(b.carry[0][:, 0], b.reward[0] - 0.5)
        assert (b.reward[0] % 1000 % 4 == 0).all()
        starts = {(int(x) // 1000, int(x) % 1000 // 4) for x in b.reward[0]}
        assert starts == {(lane, seq - held + 1 + k) for lane in range(3) for k in range(ring.num_starts)}


def test_a_ring_of_fragments_continues_from_its_state(make_spec: MakeSpec) -> None:
    spec = make_spec("discrete", obs_dim=1, num_envs=2)
    whole, parts = (FragmentRing(2 * 4 * 5, spec, CPU, 4, 3) for _ in range(2))
    parts.load_state_dict(FragmentRing(2 * 4 * 5, spec, CPU, 4, 3).state_dict())
    for seq in range(9):
        whole.add(counting(seq, 4, 2))
        parts.add(counting(seq, 4, 2))
        restored = FragmentRing(2 * 4 * 5, spec, CPU, 4, 3)
        restored.load_state_dict(parts.state_dict())
        parts = restored
        if whole.num_starts:
            one, other = (ring.sample_sequences(50, torch.Generator().manual_seed(seq)) for ring in (whole, parts))
            torch.testing.assert_close(one, other, atol=0, rtol=0)


def test_a_ring_too_small_for_a_sequence_is_refused(make_spec: MakeSpec) -> None:
    with pytest.raises(ConfigError, match=r"agent\.buffer_size=15 holds not even one sequence of 7 steps .*; raise it"):
        FragmentRing(15, make_spec("discrete", num_envs=2), CPU, 4, 3)


# ---- targets


@pytest.mark.parametrize("n_step", [1, 2, 3, 9])
def test_n_step_targets_equal_sums_by_hand(n_step: int) -> None:
    g = torch.Generator().manual_seed(0)
    reward, value = torch.randn(2, 6, 4, generator=g)
    terminated = torch.rand(6, 4, generator=g) < 0.2
    truncated = (torch.rand(6, 4, generator=g) < 0.2) & ~terminated
    found = n_step_targets(reward, value, terminated, truncated, 0.9, n_step)
    for t in range(6):
        for lane in range(4):
            total, discount = 0.0, 1.0
            for k in range(t, min(t + n_step, 6)):
                total += discount * reward[k, lane].item()
                discount *= 0.9
                if terminated[k, lane] or truncated[k, lane]:
                    break
            total += discount * value[k, lane].item() * (not terminated[k, lane])
            assert found[t, lane].item() == pytest.approx(total, rel=1e-5, abs=1e-6)


# ---- the loss


def sequences(agent: AgentRecurrentDQN, steps: int = 7, lanes: int = 3) -> Sequences:
    g = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, steps, lanes, 3, generator=g)
    terminated = torch.rand(steps, lanes, generator=g) < 0.2
    truncated = (torch.rand(steps, lanes, generator=g) < 0.2) & ~terminated
    ended = (terminated | truncated).unsqueeze(-1)
    next_obs[:-1] = torch.where(ended[:-1], next_obs[:-1], obs[1:])
    carry = tree.map_leaves(lambda x: torch.randn(x.shape, generator=g), agent.policy.initial_carry(lanes))
    action = torch.randint(2, (steps, lanes), generator=g)
    return Sequences(obs, action, torch.randn(steps, lanes, generator=g), terminated, truncated, next_obs, carry)


def step_by_step(agent: AgentRecurrentDQN, net: QPolicy, b: Sequences) -> tuple[list[Tensor], list[Tensor]]:
    """Action values of the observations and of the true successors [S][B, A], one step after another; what comes before
    the loss has no gradient."""
    assert net.core is not None
    state, values, next_values = b.carry, [], []
    for t in range(len(b.reward)):
        if t:
            state = tree.where(b.terminated[t - 1] | b.truncated[t - 1], net.initial_carry(len(b.reward[0])), state)
        if t == agent.config.burn_in:
            state = tree.map_leaves(torch.detach, state)
        state = net.core(net.encode(agent.policy.normed(b.obs[t])), state)
        values.append(net.q_from(state[0]))
        next_values.append(net.q_from(net.core(net.encode(agent.policy.normed(b.next_obs[t])), state)[0]))
    return values, next_values


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("settings", [{"burn_in": 0, "horizon": 7}, {"n_step": 2, "dueling": True}])
def test_the_loss_equals_a_loop_by_hand(
    make_spec: MakeSpec, memory: str, double: bool, settings: dict[str, Any]
) -> None:
    agent = agent_of(make_spec("discrete"), memory=memory, double=double, normalize_obs=True, gamma=0.9, **settings)
    agent.observe(torch.randn(50, 3) * 2 + 1)
    with torch.no_grad():
        agent.target.flat.add_(0.3 * torch.randn_like(agent.target.flat))
    b = sequences(agent)
    n, c = agent.config.burn_in, agent.config
    q, online_next = step_by_step(agent, agent.policy, b)
    _, target_next = step_by_step(agent, agent.policy_target, b)
    best = torch.stack(online_next if double else target_next).argmax(-1, keepdim=True)
    next_value = torch.stack(target_next).gather(-1, best).squeeze(-1).detach()
    flags = (b.terminated[n:], b.truncated[n:])
    target = n_step_targets(b.reward[n:], next_value[n:], *flags, 0.9, c.n_step)
    taken = torch.stack(q)[n:].gather(-1, b.action[n:].unsqueeze(-1)).squeeze(-1)
    expected = smooth_l1_loss(taken, target)
    found, _ = agent.loss(b)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(agent.step.gradient(found), agent.step.gradient(expected), atol=1e-6, rtol=1e-4)


def test_burnt_in_steps_refresh_the_state_and_have_no_loss(make_spec: MakeSpec) -> None:
    agent = agent_of(make_spec("discrete"), burn_in=3)
    b = sequences(agent)
    quiet = b._replace(terminated=b.terminated & False, truncated=b.truncated & False)
    loss = agent.loss(quiet)[0].item()
    early = quiet.reward.clone()
    early[:3] += 10
    assert agent.loss(quiet._replace(reward=early))[0].item() == loss
    moved = quiet.obs.clone()
    moved[:3] += 1
    assert agent.loss(quiet._replace(obs=moved))[0].item() != loss
    assert agent.loss(quiet._replace(carry=tree.map_leaves(lambda x: x + 1, quiet.carry)))[0].item() != loss

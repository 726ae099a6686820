"""Memory in policies: cores against torch's cells, gradients of whole sequences, carries of rollouts and callers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elegantrl
from elegantrl import tree
from elegantrl.agents.a2c import A2CConfig, AgentA2C
from elegantrl.agents.on_policy import AgentOnPolicy
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.envs import make_env
from elegantrl.errors import ConfigError
from elegantrl.fast import recurrent as fast_recurrent
from elegantrl.fast.acting import actor_for, as_arrays
from elegantrl.fast.learning import gradients_of
from elegantrl.nets.recurrent import CORES, GRU, Core, first_steps
from elegantrl.roles.evaluator import Evaluator
from elegantrl.roles.group import GroupActor
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import EnvSpec, Rollout, Weights

CPU = torch.device("cpu")
KINDS = ["gru", "lstm"]
MakeSpec = Callable[..., EnvSpec]
MakeRollout = Callable[..., Rollout]
Run = Callable[..., Any]


def ppo(spec: EnvSpec, **settings: Any) -> AgentPPO:
    torch.manual_seed(1)
    values: dict[str, Any] = {"hidden": (6,), "memory": "gru", "memory_size": 5, "init": "default", **settings}
    return AgentPPO(spec, PPOConfig(**values), CPU, 0)


def torch_cell(core: Core) -> nn.GRUCell | nn.LSTMCell:
    """The cell of torch with the weights of ``core``."""
    size, inputs = core.size, core.input.in_features
    order = torch.arange(core.num_gates * size)
    cell: nn.GRUCell | nn.LSTMCell = nn.GRUCell(inputs, size)
    inner_bias = core.recurrent.bias
    if core.num_gates == 4:  # torch has the output gate last
        cell, inner_bias = nn.LSTMCell(inputs, size), torch.zeros(4 * size)
        order = order.view(4, size)[[0, 1, 3, 2]].flatten()
    weights = (core.input.weight, core.recurrent.weight, core.input.bias, inner_bias)
    with torch.no_grad():
        for own, weight in zip(cell.parameters(), weights, strict=True):
            own.copy_(weight[order])
    return cell


def looped(cell: nn.GRUCell | nn.LSTMCell, x: Tensor, state: tuple[Tensor, ...], first: Tensor) -> list[Any]:
    """The states after each step, lane by lane and step by step: one episode after another."""
    states = []
    for x_N, first_N in zip(x, first, strict=True):
        rows = []
        for lane, begins in enumerate(first_N.tolist()):
            before = [torch.zeros_like(part[lane]) if begins else part[lane] for part in state]
            after = cell(x_N[lane], before[0] if isinstance(cell, nn.GRUCell) else tuple(before))
            rows.append((after,) if isinstance(after, Tensor) else after)
        state = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        states.append(state)
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_a_core_equals_the_cell_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    core = CORES[kind](3, 5, "default")
    x, first = torch.randn(7, 4, 3), torch.rand(7, 4) < 0.3
    state = tuple(torch.randn(4, 5) for _ in range(core.num_parts))
    found = core.unroll(x, state, first)
    expected = looped(torch_cell(core), x, state, first)
    torch.testing.assert_close(list(zip(*found, strict=True)), [tuple(part) for part in expected])
    begun = core.unroll(x[:1], state, torch.ones(1, 4) > 0)
    torch.testing.assert_close(core(x[0], core.initial(4)), tree.rows(begun, 0))


@pytest.mark.parametrize("init", ["default", "orthogonal"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_core_starts_with_the_chosen_weights(kind: str, init: Any) -> None:
    core = CORES[kind](3, 4, init)
    weight = core.recurrent.weight
    assert torch.allclose(weight.mT @ weight, torch.eye(4), atol=1e-5) == (init == "orthogonal")
    assert bool((core.input.bias == 0).all()) == (init == "orthogonal")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_minibatch_gradients_equal_a_full_unroll_by_hand(
    make_spec: MakeSpec, make_rollout: MakeRollout, kind: str, actions: str
) -> None:
    """Loops over lanes and steps with the cells of torch; episodes end in the middle."""
    agent = ppo(make_spec(actions, num_envs=4), memory=kind, batch_size=2 * 9, normalize_obs=True, entropy_coef=0.01)
    agent.observe(torch.randn(50, 3) * 2 + 1)
    rollout = make_rollout(agent, actions, 9, 4)
    state = tuple(torch.randn(4, 5) for _ in tree.leaves(rollout.carry))
    rollout = rollout._replace(carry=state, kept=rollout.kept + 0.1 * torch.randn(9, 4))
    assert (rollout.terminated | rollout.truncated)[:-1].any()
    parts = agent.minibatches(agent.targets(rollout))
    assert [part.logp.shape for part in parts] == [(9, 2), (9, 2)]
    policy, core = agent.policy, agent.policy.core
    assert core is not None
    cell = torch_cell(core)
    for part in parts:
        found = agent.step.gradient(agent.loss(part)[0])
        assert part.first is not None
        hidden = torch.stack([state[0] for state in looped(cell, policy.features(part.obs), part.carry, part.first)])
        losses = []
        for t in range(9):
            for lane in range(2):
                dist = policy.dist_from(hidden[t, lane], None)
                ratio = (dist.log_prob(part.action[t, lane]) - part.logp[t, lane]).exp()
                advantage = part.advantage[t, lane]
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                error = agent.value(hidden[t, lane]) - part.value_target[t, lane]
                losses.append(-surrogate + 0.25 * error.square() - 0.01 * dist.entropy())
        loss = torch.stack(losses).mean()
        own = {id(p): p for p in core.parameters()}
        others = [p for p in agent.step.params if id(p) not in own]
        gradients = torch.autograd.grad(loss, [*cell.parameters(), *others])
        of_cell, of_others = gradients[:4], gradients[4:]
        order = torch.arange(len(of_cell[0]))
        if kind == "lstm":
            order = order.view(4, 5)[[0, 1, 3, 2]].flatten()
        expected_core = [of_cell[0][order], of_cell[2][order], of_cell[1][order]]
        expected_core += [of_cell[3][order]] if kind == "gru" else []
        expected = dict(zip(map(id, core.parameters()), expected_core, strict=True))
        expected |= dict(zip(map(id, others), of_others, strict=True))
        flat = torch.cat([expected[id(p)].flatten() for p in agent.step.params])
        torch.testing.assert_close(found, flat, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_successors_are_valued_with_the_state_after_their_step(
    make_spec: MakeSpec, make_rollout: MakeRollout, kind: str
) -> None:
    agent = ppo(make_spec("discrete", num_envs=4), memory=kind)
    rollout = make_rollout(agent, "discrete", 8, 4)
    assert rollout.truncated[:-1].any()
    first = first_steps(rollout.terminated | rollout.truncated)
    with torch.no_grad():
        values, carry = agent.rollout_values(rollout, first)
        found = agent.next_values(rollout, values, carry)
        for t in range(8):
            for lane in range(4):
                after = tree.map_leaves(lambda x, at=(t, lane): x[at].unsqueeze(0), carry)
                expected = agent.values(rollout.next_obs[t, lane].unsqueeze(0), after)[0]
                if not rollout.terminated[t, lane]:
                    torch.testing.assert_close(found[t, lane], expected)


@pytest.mark.parametrize("agent_class", [AgentPPO, AgentA2C])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_worker_kept_is_what_the_learner_computes(agent_class: type[AgentOnPolicy], kind: Any) -> None:
    """Fragments begin in the middle of episodes, and episodes end in the middle of fragments."""
    env = make_env("CartPole-v1", 3)
    settings: dict[str, Any] = {"hidden": (6,), "memory": kind, "memory_size": 5, "init": "default"}
    config = PPOConfig(**settings) if agent_class is AgentPPO else A2CConfig(**settings)
    torch.manual_seed(0)
    agent = agent_class(env.spec, config, CPU, 0)
    actor = GroupActor(env, agent.policy_spec, seed=0)
    weights = Weights(0, agent.policy.to_flat())
    moved = 0
    for seq in range(5):
        rollout = actor.sample(weights, 11, seq).rollout
        first = first_steps(rollout.terminated | rollout.truncated)
        moved += int(rollout.carry[0].any())
        with torch.no_grad():
            features, carry = agent.policy.unroll(rollout.obs, rollout.carry, first)
            logp = agent.policy.dist_from(features, None).log_prob(rollout.action)
        torch.testing.assert_close(rollout.kept, logp, atol=1e-5, rtol=1e-5)
        ended = rollout.terminated[-1] | rollout.truncated[-1]
        expected = tree.where(ended, agent.policy.initial_carry(3), tree.rows(carry, -1))
        torch.testing.assert_close(actor.carry, expected)
    assert moved == 4  # all but the first


def test_minibatches_are_lanes_over_the_whole_rollout(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    agent = ppo(make_spec("discrete", num_envs=5), memory="lstm", batch_size=20)
    rows = agent.targets(make_rollout(agent, "discrete", 8, 5))
    rows = rows._replace(carry=tree.map_leaves(lambda x: torch.randn_like(x), rows.carry))
    parts = agent.minibatches(rows)
    assert [part.logp.shape[1] for part in parts] == [2, 2, 1]
    seen = []
    for part in parts:
        for i in range(part.logp.shape[1]):
            (lane,) = (rows.obs == part.obs[:, i : i + 1]).all(0).all(-1).nonzero().flatten().tolist()
            assert all(torch.equal(a[:, i], b[:, lane]) for a, b in zip(part[:6], rows[:6], strict=True))
            assert all(torch.equal(a[i], b[lane]) for a, b in zip(part.carry, rows.carry, strict=True))
            seen.append(lane)
    assert sorted(seen) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "settings", [{"vtrace": True}, {"normalize_value": True, "target_kl": 1e-12}, {"init": "default"}]
)
def test_options_of_the_family_work_with_memory(
    make_spec: MakeSpec, make_rollout: MakeRollout, settings: dict[str, Any]
) -> None:
    agent = ppo(make_spec("continuous", num_envs=4), batch_size=12, num_epochs=3, **settings)
    before = agent.step.flat.clone()
    update = agent.update(make_rollout(agent, "continuous", 6, 4))
    assert all(value.isfinite() for value in update.metrics.values())
    assert not torch.equal(before, agent.step.flat)
    assert agent.num_updates == (2 if "target_kl" in settings else 6)


def test_on_policy_vtrace_with_memory_equals_gae(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    """Right after acting all ratios are 1, which holds only if the learner's states are those of the worker."""
    plain, corrected = (ppo(make_spec("discrete", num_envs=3), memory="lstm", vtrace=on) for on in (False, True))
    rollout = make_rollout(plain, "discrete", 10, 3)
    torch.testing.assert_close(plain.targets(rollout).advantage, corrected.targets(rollout).advantage)


@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_keeps_the_carry(run_quietly: Run, tmp_path: Path, kind: str) -> None:
    """``policy.act`` with a dict plays the same episode as the evaluator; a new dict begins a new episode."""
    settings = {"memory": kind, "memory_size": 8, "hidden": [8], "horizon": 16, "max_steps": 64, "num_envs": 2}
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path, seed=0, **settings)
    policy = TrainedPolicy.load(tmp_path)
    with torch.no_grad():
        for p in policy.policy.parameters():
            p.mul_(3)  # an untrained policy hardly depends on its state
    env = make_env("CartPole-v1", 1)
    score = Evaluator(env, policy.spec).score(Weights(0, policy.policy.to_flat()), seed=5)
    for _ in range(2):
        obs, carry, total, ended = env.reset(5), dict[str, Any](), 0.0, False
        while not ended:
            action = policy.act(obs[0].numpy(), carry)
            step = env.step(torch.tensor([action]))
            obs, total, ended = step.obs, total + step.reward.item(), bool(step.terminated | step.truncated)
        assert total == score.mean
    assert {x.shape for x in tree.leaves(carry["carry"])} == {(1, 8)}
    with torch.no_grad():
        fresh, used = (policy.policy.advance(obs, c)[0] for c in (policy.policy.initial_carry(1), carry["carry"]))
    assert not torch.allclose(fresh, used)


def test_what_memory_excludes_is_said_in_one_sentence(run_quietly: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.h_term=True .* agent\.memory=gru; switch one of them off"):
        elegantrl.train("ppo", "CartPole-v1", run_dir=tmp_path / "h", memory="gru", h_term=True)
    assert not (tmp_path / "h").exists()
    with pytest.raises(ConfigError, match=r"agent\.memory_size=32 has no effect without agent\.memory=gru\|lstm"):
        elegantrl.train("ppo", "CartPole-v1", run_dir=tmp_path / "size", memory_size=32)
    run_quietly("a2c", "CartPole-v1", run_dir=tmp_path / "run", memory="gru", max_steps=64)
    with pytest.raises(ConfigError, match=r"run has a memory, .* no member of an ensemble"):
        TrainedPolicy.ensemble([tmp_path / "run", tmp_path / "run"])


# ---- faster ways


@pytest.mark.parametrize("kind", KINDS)
def test_a_core_unrolled_by_hand_has_the_same_states_and_gradients(kind: str) -> None:
    torch.manual_seed(0)
    core = CORES[kind](3, 7, "default")
    x, first = torch.randn(9, 4, 3, requires_grad=True), torch.rand(9, 4) < 0.2
    state = tuple(torch.randn(4, 7) for _ in range(core.num_parts))
    weights = torch.randn(core.num_parts, 9, 4, 7)
    inputs = [x, *core.parameters()]
    for used in range(1, core.num_parts + 1):  # gradients of the outputs alone, and of the cells too
        by_autograd, by_hand = (way(core, x, state, first) for way in (type(core).unroll, fast_recurrent.unroll))
        torch.testing.assert_close(by_hand, by_autograd)
        found, expected = (
            torch.autograd.grad((torch.stack(states[:used]) * weights[:used]).sum(), inputs)
            for states in (by_hand, by_autograd)
        )
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_an_edited_core_is_not_unrolled_by_hand(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = ppo(make_spec("discrete", num_envs=2))
    assert gradients_of(agent).description == "autograd (memory by hand)"
    assert gradients_of(agent, "autograd").description == "autograd"
    advance = GRU.advance
    monkeypatch.setattr(GRU, "advance", lambda self, gates, state: (0.9 * advance(self, gates, state)[0],))
    edited = ppo(make_spec("discrete", num_envs=2))
    assert gradients_of(edited).description.startswith("autograd (none derived by hand for this AgentPPO)")
    assert "unroll" not in vars(edited.policy.core)
    assert [r.getMessage() for r in caplog.records] == [
        "GRU is not the core known to fast/recurrent.py: autograd is used"
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_acting_in_numpy_equals_the_policy(make_spec: MakeSpec, kind: str, actions: str) -> None:
    policy = ppo(make_spec(actions), memory=kind, normalize_obs=True).policy.requires_grad_(False)
    actor = actor_for(policy, 4)
    assert actor is not None
    carry = other = policy.initial_carry(4)
    g = torch.Generator().manual_seed(0)
    for obs, draw in zip(torch.randn(5, 4, 3), policy.draw(5, 4, g), strict=True):
        action, out, carry = policy.explore(obs, carry, draw)
        found = actor.explore(obs, other, as_arrays(draw))
        other = found.carry
        torch.testing.assert_close((found.action, found.out, other), (action, out, carry))
    assert actor_for(policy, 1000) is None

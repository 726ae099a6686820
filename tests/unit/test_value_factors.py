"""VDN and QMIX: targets and mixer by hand, masks, agents that have ended, padding, priorities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl import tree
from elegantrl.agents.returns import td_lambda_targets
from elegantrl.data.episodes import EpisodeBatch, PrioritizedEpisodes
from elegantrl.envs import make_env
from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.errors import SpecError
from elegantrl.nets.mixers import Mixer
from elegantrl.registry import build_agent, find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import Leaf, Obs, State
from tests.episode_games import Additive, Climbing, Monotonic, Relay, TwoSteps

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("name", ["vdn", "qmix"])
MEMORIES = pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
SMALL: dict[str, Any] = {"hidden": (8,), "horizon": 6, "batch_size": 16, "buffer_size": 600, "learning_starts": 60}


def build(name: str, env: TensorEnv, seed: int = 0, **settings: Any) -> Any:
    entry = find_agent(name)
    return build_agent(entry, env.spec, entry.config(**{"hidden": (8,), **settings}), CPU, seed)


def learn(name: str, env: TensorEnv, num_steps: int, seed: int = 0, **settings: Any) -> Learner:
    """A learner after so many steps of ``env``."""
    entry = find_agent(name)
    learner = Learner(name, entry.config(**{**SMALL, **settings}), env.spec, CPU, seed)
    actor = GroupActor(env, learner.policy_spec(), seed)
    weights = learner.weights()
    for i in range(num_steps // (env.spec.num_envs * learner.config.horizon)):
        _, weights = learner.learn([actor.sample(weights, learner.config.horizon, i)])
    return learner


@pytest.fixture(scope="module")
def batch() -> EpisodeBatch:
    """Episodes of different lengths, in which agents end, options are forbidden and some end as terminated."""
    found: EpisodeBatch = learn("vdn", Relay(16), 480, learning_starts=10**6, epsilon_end=1.0).memory.draw()
    lengths = found.valid.sum(0)
    assert lengths.min() < lengths.max() == 6 and found.terminated.any() and found.truncated.any()
    assert not found.obs.active[found.valid].all() and not found.obs.mask[found.valid].all()
    return found


# ---- numbers by hand


def test_td_lambda_by_hand() -> None:
    """Lane 0 is truncated after two steps and another episode follows; lane 1 terminates at its third step."""
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 3.0]])
    next_value = torch.tensor([[10.0, 10.0], [20.0, 20.0], [30.0, 99.0]])
    terminated = torch.tensor([[False, False], [False, False], [False, True]])
    truncated = torch.tensor([[False, False], [True, False], [False, False]])
    target = td_lambda_targets(reward, next_value, terminated, truncated, 0.5, 0.25)
    expected = [
        # 1 + 0.5 (0.75 * 10 + 0.25 * 12); 1 + 0.5 (0.75 * 10 + 0.25 * 9.875)
        [6.25, 5.984375],
        # truncated: 2 + 0.5 * 20; 2 + 0.5 (0.75 * 20 + 0.25 * 3)
        [12.0, 9.875],
        # the sequence ends: 4 + 0.5 * 30; terminated: 3
        [19.0, 3.0],
    ]
    assert torch.equal(target, torch.tensor(expected))


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_limits_of_td_lambda(batch: EpisodeBatch, lam: float) -> None:
    next_value, reward = torch.randn(6, 16), batch.reward.sum(-1)
    target = td_lambda_targets(reward, next_value, batch.terminated, batch.truncated, 0.9, lam)
    one_step = reward + 0.9 * next_value * ~batch.terminated
    if lam == 0.0:
        torch.testing.assert_close(target, one_step)
        return
    for episode, length in enumerate(batch.valid.sum(0).tolist()):
        total = one_step[length - 1, episode]
        for t in reversed(range(length - 1)):
            total = reward[t, episode] + 0.9 * total
        torch.testing.assert_close(target[0, episode], total)


def test_the_mixer_by_hand() -> None:
    mixer = Mixer(num_agents=2, state_dim=1, size=2)
    with torch.no_grad():
        # W1 = [[1, -2], [-3, 0.5]] s, w2 = (-1, 2) s, b1 = (0, -20), hidden of V = (s, -s)
        mixer.hyper.weight.copy_(torch.tensor([1.0, -2, -3, 0.5, -1, 2, 0, 0, 1, -1]).unsqueeze(1))
        mixer.hyper.bias.copy_(torch.tensor([0.0, 0, 0, 0, 0, 0, 0, -20, 0, 0]))
        mixer.value.weight.copy_(torch.tensor([[3.0, 100.0]]))
        mixer.value.bias.fill_(0.5)
        found = mixer(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0]]))
    # |W1| = [[2, 4], [6, 1]]: sums 1 * 2 + 2 * 6 = 14 and 1 * 4 + 2 * 1 - 20 = -14, elu 14 and exp(-14) - 1;
    # |w2| = (2, 4); V = 3 * 2 + 0.5
    expected = 2 * 14 + 4 * (torch.tensor(-14.0).exp() - 1) + 6.5
    torch.testing.assert_close(found, expected.unsqueeze(0))


@pytest.mark.parametrize("seed", range(20))
def test_the_mixer_is_monotonic(seed: int) -> None:
    torch.manual_seed(seed)
    mixer = Mixer(num_agents=4, state_dim=5, size=8)
    q, state = 5 * torch.randn(64, 4), 3 * torch.randn(64, 5)
    q.requires_grad_()
    (slope,) = torch.autograd.grad(mixer(q, state).sum(), q)
    assert (slope >= 0).all() and (slope > 0).any()


def fixed(values: list[list[float]]) -> Callable[[Tensor], Tensor]:
    """A network that gives agent g the values ``values[g]`` at every step."""
    return lambda features: torch.tensor(values).expand(*features.shape[:-2], -1, -1)


def by_hand(b: EpisodeBatch, online: Tensor, target: Tensor, gamma: float, lam: float) -> Tensor:
    """The loss of VDN with the same values [G, A] at all steps, one number at a time."""
    squares, count = 0.0, 0
    for episode, length in enumerate(b.valid.sum(0).tolist()):
        later = 0.0
        for t in reversed(range(length)):
            value = next_value = 0.0
            for g in range(2):
                if b.obs.active[t, episode, g]:
                    value += online[g, b.action[t, episode, g]].item()
                if b.next_obs.active[t, episode, g]:
                    options = b.next_obs.mask[t, episode, g].nonzero().flatten().tolist()
                    next_value += target[g, max(options, key=lambda a: online[g, a].item())].item()
            if b.terminated[t, episode]:
                next_value = 0.0
            mixed = next_value if t == length - 1 else (1 - lam) * next_value + lam * later
            later = b.reward[t, episode].sum().item() + gamma * mixed
            squares, count = squares + (value - later) ** 2, count + 1
    return torch.tensor(squares / count)


def test_the_loss_of_vdn_by_hand(batch: EpisodeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against forbidden successors in targets, values of ended agents, and padding that counts."""
    agent = build("vdn", Relay(), gamma=0.9, td_lambda=0.7)
    # The online network prefers option 2, then 1, which are not always allowed; the target network other ones.
    online, target = [[1.0, 2.0, 3.0], [0.5, 1.5, 2.5]], [[7.0, 5.0, 3.0], [-1.0, -2.0, -4.0]]
    monkeypatch.setattr(agent.policy, "q_from", fixed(online))
    monkeypatch.setattr(agent.policy_target, "q_from", fixed(target))
    found, metrics = agent.loss(batch)
    torch.testing.assert_close(found, by_hand(batch, torch.tensor(online), torch.tensor(target), 0.9, 0.7))
    assert metrics.keys() == {"loss/critic", "critic/q"}


# ---- what must not matter


def gradient(agent: Any, b: EpisodeBatch) -> Tensor:
    found: Tensor = agent.step.gradient(agent.loss(b)[0])
    assert found.abs().sum() > 0
    return found


@BOTH
@MEMORIES
@pytest.mark.parametrize("has_state", [True, False])
def test_agents_that_have_ended_add_nothing(batch: EpisodeBatch, name: str, memory: str, has_state: bool) -> None:
    env = Relay()
    if not has_state:
        env.obs = env.obs._replace(state=None)
        env = type("Joined", (Relay,), {"obs": env.obs})()
        batch = batch._replace(obs=batch.obs._replace(state=None), next_obs=batch.next_obs._replace(state=None))
    agent = build(name, env, memory=memory, memory_size=5)

    def spoil(obs: Obs) -> Obs:
        ended = ~obs.active.unsqueeze(-1)
        return obs._replace(seen=torch.where(ended, 7.0, obs.seen), mask=obs.mask | ended)

    action = torch.where(batch.obs.active, batch.action, 2)
    spoiled = batch._replace(obs=spoil(batch.obs), next_obs=spoil(batch.next_obs), action=action)
    assert not torch.equal(spoiled.obs.seen, batch.obs.seen) and not torch.equal(action, batch.action)
    torch.testing.assert_close(gradient(agent, spoiled), gradient(agent, batch), rtol=1e-5, atol=1e-6)


@BOTH
@MEMORIES
def test_padding_does_not_matter(batch: EpisodeBatch, name: str, memory: str) -> None:
    agent = build(name, Relay(), memory=memory, memory_size=5)

    def longer(x: Tensor) -> Tensor:
        end = torch.ones(3, *x.shape[1:], dtype=x.dtype)
        spoiled = torch.where(tree.across(batch.valid, x), x, torch.ones_like(x))
        return torch.cat([spoiled, end])

    spoiled = tree.map_leaves(longer, batch)._replace(valid=torch.cat([batch.valid, torch.zeros(3, 16).bool()]))
    torch.testing.assert_close(gradient(agent, spoiled), gradient(agent, batch), rtol=1e-4, atol=1e-6)


@MEMORIES
def test_memory_has_the_states_of_acting(memory: str) -> None:
    """The values that a loss computes for an episode are those by which the policy acts in it."""
    torch.manual_seed(0)
    agent, obs = build("vdn", Additive(1), memory=memory), torch.randn(5, 3, 2, 1)
    found, carry = agent.values(agent.policy, obs).q, agent.policy.initial_carry(3)
    for t in range(5):
        out, carry = agent.policy.step(obs[t], carry)
        torch.testing.assert_close(found[t], out)


def test_own_weights_change_alone(batch: EpisodeBatch) -> None:
    """With ``separate`` the weights of an agent that has always ended get no gradient from the other's data."""
    agent = build("vdn", Relay(), separate=True)
    parts = [obs._replace(active=obs.active & torch.tensor([True, False])) for obs in (batch.obs, batch.next_obs)]
    batch = batch._replace(obs=parts[0], next_obs=parts[1])
    grads = torch.autograd.grad(agent.loss(batch)[0], list(agent.policy.parameters()))
    assert all(g[0].abs().sum() > 0 and g[1].abs().sum() == 0 for g in grads)


# ---- prioritised replay of episodes


def test_priorities_of_episodes_by_hand() -> None:
    ring = PrioritizedEpisodes(4 * 6, Relay(2).spec, CPU, alpha=1.0, beta=1.0)
    source = learn("vdn", Relay(2), 48, learning_starts=10**6).memory
    draw = source.draw()  # any contents will do
    for slot in range(3):
        for ours, theirs in zip(tree.leaves(ring.steps), tree.leaves(draw[:6]), strict=True):
            ours[4, :] = theirs[:, slot].clone() if len(theirs) == 6 else 0
        ring.open_length[0] = 6
        ring._close([0])
    assert torch.equal(ring.tree.leaves, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    ring.update_priorities(torch.tensor([0, 1]), torch.tensor([3.0, 0.5]))
    torch.testing.assert_close(ring.tree.leaves, torch.tensor([3.0, 0.5, 1.0, 0.0]))
    ring.open_length[1] = 6
    ring._close([1])  # a new episode gets the largest priority so far
    torch.testing.assert_close(ring.tree.leaves, torch.tensor([3.0, 0.5, 1.0, 3.0]))
    batch = ring.sample(6000, torch.Generator().manual_seed(0))
    counts = torch.bincount(batch.rows, minlength=4)
    torch.testing.assert_close(counts / 6000, torch.tensor([3.0, 0.5, 1.0, 3.0]) / 7.5, atol=0.02, rtol=0)
    expected = 0.5 / torch.tensor([3.0, 0.5, 1.0, 3.0])[batch.rows]
    torch.testing.assert_close(batch.weight, expected)


def test_the_priority_is_the_mean_error_and_the_weight_scales_the_loss(batch: EpisodeBatch) -> None:
    agent = build("qmix", Relay(), prioritized=True)
    weighted = batch._replace(weight=torch.zeros(16))
    loss, metrics = agent.loss(weighted)
    assert loss == 0
    single = [agent.loss(tree.map_leaves(lambda x, i=i: x[:, i : i + 1], batch))[0] for i in range(16)]
    lengths = batch.valid.sum(0)
    weight = torch.rand(16)
    expected = (torch.stack(single) * weight * lengths).sum() / lengths.sum()
    torch.testing.assert_close(agent.loss(batch._replace(weight=weight))[0], expected)
    one_step = lengths == 1
    torch.testing.assert_close(metrics["td_error"][one_step] ** 2, torch.stack(single)[one_step])
    assert (metrics["td_error"] ** 2 <= torch.stack(single) + 1e-6).all()


def test_priorities_change_with_learning() -> None:
    learner = learn("qmix", Relay(8), 960, prioritized=True, updates_per_step=0.05)
    priorities = learner.memory.ring.tree.leaves  # type: ignore[attr-defined]
    assert learner.agent.num_updates > 20 and len(priorities[priorities > 0].unique()) > 10
    state: State = learner.memory.state_dict()
    other = learn("qmix", Relay(8), 48, prioritized=True)
    other.memory.load_state_dict(state)
    assert torch.equal(other.memory.ring.tree.leaves, priorities)  # type: ignore[attr-defined]
    other.memory.ring.beta = learner.memory.ring.beta  # type: ignore[attr-defined]  # as the next rollout would set it
    for each in (learner, other):
        each.memory.setup.generator.manual_seed(3)  # type: ignore[attr-defined]
    one, two = learner.memory.draw(), other.memory.draw()
    assert torch.equal(one.rows, two.rows) and torch.equal(one.weight, two.weight)


# ---- learning


def greedy_total(learner: Learner, env: TensorEnv) -> tuple[list[int], Tensor]:
    """The greedy actions at the first observation, and the team's values of all pairs of actions there [A, A]."""
    agent: Any = learner.agent
    obs = env.reset(0)
    with torch.no_grad():
        values = agent.values(agent.policy, tree.map_leaves(lambda x: x[None], obs))
        q = values.q[0, 0]
        num = q.shape[-1]
        pairs = torch.cartesian_prod(torch.arange(num), torch.arange(num))
        chosen = torch.stack([q[0, pairs[:, 0]], q[1, pairs[:, 1]]], -1)
        rows = tree.map_leaves(lambda x: x[:1].expand(len(pairs), *x.shape[1:]), obs)
        features = values.features[0, :1].expand(len(pairs), -1, -1)
        total = agent.mix(chosen, rows, features, is_target=False)
    return q.argmax(-1).tolist(), total.view(num, num)


GAME: dict[str, Any] = {"horizon": 1, "learning_starts": 64, "epsilon_end": 1.0, "batch_size": 64, "buffer_size": 1000}
GAME |= {"updates_per_step": 0.02, "lr": 5e-3, "hidden": (16,), "tau": 0.05, "gamma": 0.99}


@BOTH
def test_both_solve_the_additive_game(name: str) -> None:
    env = Additive(64)
    action, total = greedy_total(learn(name, env, 19_200, **GAME), env)
    assert action == [1, 2]
    torch.testing.assert_close(total, torch.tensor(Additive.payoff), atol=0.5, rtol=0)


@pytest.mark.slow
def test_qmix_fits_the_monotonic_game_and_vdn_cannot() -> None:
    env, payoff = Monotonic(64), torch.tensor(Monotonic.payoff)
    _, mixed = greedy_total(learn("qmix", env, 32_000, **GAME), env)
    _, summed = greedy_total(learn("vdn", env, 32_000, **GAME), env)
    torch.testing.assert_close(mixed, payoff, atol=0.25, rtol=0)
    # The nearest sum to 0, 0, 0, 8 is that of its means over rows and columns.
    torch.testing.assert_close(summed, torch.tensor([[-2.0, 2.0], [2.0, 6.0]]), atol=0.5, rtol=0)


@pytest.mark.slow
def test_the_two_step_game_needs_a_mixer() -> None:
    """VDN takes 7 for certain, because a sum estimates the 8 of the other table as less; QMIX finds the 8."""
    env = TwoSteps(64)
    settings = {**GAME, "horizon": 2, "td_lambda": 0.0}
    taken = {name: greedy_total(learn(name, env, 38_400, **settings), env)[0][0] for name in ("vdn", "qmix")}
    assert taken == {"vdn": 0, "qmix": 1}


@BOTH
def test_neither_solves_the_climbing_game(name: str) -> None:
    env = Climbing(64)
    action, _ = greedy_total(learn(name, env, 19_200, **GAME), env)
    assert Climbing.payoff[action[0]][action[1]] == 0.0  # the best pair gets 8


@BOTH
@MEMORIES
def test_masked_actions_are_never_taken(name: str, memory: str) -> None:
    """``Relay`` fails at a forbidden action of an active agent: by random ones, and by greedy ones while learning."""
    for epsilon in (1.0, 0.0):
        learner = learn(name, Relay(8), 480, epsilon_end=epsilon, explore_steps=1, memory=memory, memory_size=5)
        assert learner.agent.num_updates > 0


def test_they_refuse_what_they_cannot() -> None:
    cartpole: Any = make_env("TensorCartPole", 1)
    with pytest.raises(SpecError, match="AgentVDN learns for a team, but TensorCartPole has one agent"):
        build("vdn", cartpole)
    env = Relay()
    env.spec = type(env.spec)("Picture", Obs(Leaf((2, 3)), state=Leaf((2, 2))), env.spec.action, 1, 6, num_agents=2)
    with pytest.raises(SpecError, match=r"state of Picture is float32 of shape \(2, 2\), but QMIX .*; flatten"):
        build("qmix", env)

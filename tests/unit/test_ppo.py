"""Proximal policy optimisation: the surrogate, the minibatches and the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.agents.a2c import A2CConfig, AgentA2C
from elegantrl.agents.gradients import Gradients
from elegantrl.agents.on_policy import Batch
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.agents.returns import gae, vtrace
from elegantrl.envs import make_env
from elegantrl.nets.distributions import Categorical
from elegantrl.nets.normalize import ObsNorm
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import EnvSpec, Rollout

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]
MakeRollout = Callable[..., Rollout]


def build(spec: EnvSpec, seed: int = 0, **settings: Any) -> AgentPPO:
    config = PPOConfig(**{"hidden": (8,), **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AgentPPO(spec, config, CPU, seed)


def surrogate_gradient(agent: AgentPPO, log_ratio: float, advantage: float) -> float:
    """d loss / d log pi(a|s) of one row."""
    log_probs = torch.tensor([[-0.5, -1.0]], requires_grad=True)
    batch = Batch(
        obs=torch.zeros(1, 3),
        action=torch.tensor([0]),
        logp=torch.tensor([-0.5 - log_ratio]),
        advantage=torch.tensor([advantage]),
        value_target=torch.zeros(1),
    )
    loss, _ = agent.policy_loss(Categorical(log_probs), batch)
    (grad,) = torch.autograd.grad(loss, log_probs)
    assert grad[0, 1] == 0
    return float(grad[0, 0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (3.0, 1.0, 0.0),  # already far more likely, and good: nothing more to gain
        (0.1, -1.0, 0.0),  # already far less likely, and bad
        (1.21, 2.0, 0.0),
        (0.79, -2.0, 0.0),
        (3.0, -1.0, 3.0),  # far more likely although bad: the full gradient brings it back
        (0.1, 1.0, -0.1),
        (1.0, 2.0, -2.0),  # inside the range: ratio * advantage
        (1.1, -0.5, 0.55),
    ],
)
def test_gradient_is_zero_where_the_clip_is_active(
    make_spec: MakeSpec, ratio: float, advantage: float, expected: float
) -> None:
    # Guards against: P1, a PPO surrogate with a gradient beyond the clip range.
    agent = build(make_spec("discrete"), clip=0.2)
    assert surrogate_gradient(agent, math.log(ratio), advantage) == pytest.approx(expected, abs=1e-6)


def test_gradient_is_zero_for_a_ratio_beyond_the_range_of_float32(make_spec: MakeSpec) -> None:
    assert surrogate_gradient(build(make_spec("discrete")), 100.0, 1.0) == 0.0


def test_surrogate_value_kl_and_clip_fraction_by_hand(make_spec: MakeSpec) -> None:
    # Guards against: P1, a PPO surrogate with a gradient beyond the clip range.
    agent = build(make_spec("discrete"), clip=0.2)
    ratio, advantage = torch.tensor([2.0, 0.5, 1.0, 1.1]), torch.tensor([1.0, 1.0, -3.0, -1.0])
    batch = Batch(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), -ratio.log(), advantage, torch.zeros(4))
    loss, metrics = agent.policy_loss(Categorical(torch.zeros(4, 2)), batch)
    # Terms: min(2, 1.2) = 1.2;  min(0.5, 0.8) = 0.5;  -3;  -1.1.  Sum -2.4.
    assert loss.item() == pytest.approx(2.4 / 4)
    metrics = agent.diagnose(metrics)
    assert metrics["policy/clip_frac"].item() == 0.5
    kl = sum(r - 1 - math.log(r) for r in (2.0, 0.5, 1.0, 1.1)) / 4
    assert metrics["policy/kl"].item() == pytest.approx(kl, rel=1e-5)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_entropy_coefficient_raises_entropy(make_spec: MakeSpec, kind: str) -> None:
    # Guards against: P2, an entropy bonus with the wrong sign.
    obs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    entropies = {}
    for coef in (0.0, 0.05):
        agent = build(make_spec(kind), entropy_coef=coef, value_coef=0.0, lr=0.01, log_std_init=-1.0)
        with torch.no_grad():
            for p in agent.policy.net.parameters():
                p.mul_(3.0 if p.dim() > 1 else 1.0).add_(0.5 * torch.linspace(-1, 1, p.numel()).view_as(p))
        with torch.no_grad():
            (draw,) = agent.policy.draw(1, 64, torch.Generator().manual_seed(1))
            action = agent.policy.explore(obs, (), draw).action
            logp = agent.policy.dist(obs).log_prob(action)
        batch = Batch(obs, action, logp, torch.zeros(64), torch.zeros(64))
        before = agent.policy.dist(obs).entropy().mean().item()
        for _ in range(30):
            loss, metrics = agent.loss(batch)
            agent.step(loss)
        after = agent.policy.dist(obs).entropy().mean().item()
        entropies[coef] = after - before
        assert coef == 0.0 or metrics["policy/entropy"].item() == pytest.approx(after, abs=0.05)
    assert entropies[0.0] == pytest.approx(0.0, abs=1e-6)
    assert entropies[0.05] > 0.01


@pytest.mark.parametrize(
    ("env_id", "normalize_obs"), [("TensorCartPole", False), ("TensorCartPole", True), ("TensorPendulum", True)]
)
def test_first_ratio_of_an_iteration_is_one(env_id: str, normalize_obs: bool) -> None:
    # Guards against: P8, stored log-probabilities that are not those of the policy that acted.
    env = make_env(env_id, 3)
    config = PPOConfig(hidden=(8,), horizon=20, batch_size=16, num_epochs=2, lr=0.01, normalize_obs=normalize_obs)
    learner = Learner("ppo", config, env.spec, CPU, 1)
    worker = GroupActor(env, learner.policy_spec(), 1)
    agent = learner.agent
    assert isinstance(agent, AgentPPO)
    ratios: list[Tensor] = []
    original = agent.policy_loss

    def recorded(dist: Any, b: Batch) -> Any:
        ratios.append((dist.log_prob(b.action) - b.logp).detach().exp())
        return original(dist, b)

    agent.policy_loss = recorded  # type: ignore[method-assign]
    agent.gradients = Gradients()
    for seq in range(3):
        ratios.clear()
        learner.update([worker.sample(learner.weights(), 20, seq)])
        # The first rollout was acted on before there were statistics; initial policies hardly depend on them.
        tolerance = 0.05 if normalize_obs and seq == 0 else 1e-5
        torch.testing.assert_close(ratios[0], torch.ones(16), atol=tolerance, rtol=0)
        assert not torch.allclose(ratios[-1], torch.ones_like(ratios[-1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("horizon", "num_envs", "epochs", "batch_size", "expected"),
    [(16, 1, 1, 16, 1), (16, 4, 3, 16, 12), (32, 4, 3, 16, 24), (10, 3, 2, 8, 8), (4, 1, 5, 1000, 5)],
)
def test_number_of_updates(
    make_spec: MakeSpec,
    make_rollout: MakeRollout,
    horizon: int,
    num_envs: int,
    epochs: int,
    batch_size: int,
    expected: int,
) -> None:
    """epochs * ceil(horizon * num_envs / batch_size)."""
    # Guards against: P5, updates that ignore lanes or epochs, minibatches drawn with replacement, advantages normalised
    # in parts.
    agent = build(make_spec("discrete", num_envs=num_envs), num_epochs=epochs, batch_size=batch_size)
    agent.update(make_rollout(agent, "discrete", horizon, num_envs))
    assert agent.num_updates == expected
    assert agent.step.count.item() == expected


def test_every_row_is_used_once_per_epoch_in_another_order(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    # Guards against: P5, updates that ignore lanes or epochs, minibatches drawn with replacement, advantages normalised
    # in parts.
    agent = build(make_spec("discrete", num_envs=3), num_epochs=4, batch_size=8)
    rollout = make_rollout(agent, "discrete", 10, 3)
    numbered = rollout.obs.clone()
    numbered[..., 0] = torch.arange(30).view(10, 3)
    seen: list[list[int]] = []
    original = agent.loss

    def recorded(b: Batch) -> Any:
        seen.append(b.obs[:, 0].long().tolist())
        return original(b)

    agent.loss = recorded  # type: ignore[method-assign]
    agent.update(rollout._replace(obs=numbered))
    assert [len(part) for part in seen] == [8, 8, 8, 6] * 4
    epochs = [[row for part in seen[4 * i : 4 * i + 4] for row in part] for i in range(4)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(epoch != list(range(30)) for epoch in epochs)


def test_rows_stay_together_when_flattened_and_shuffled(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    agent = build(make_spec("continuous", num_envs=3), batch_size=7)
    rollout = make_rollout(agent, "continuous", 5, 3)
    rows = agent.targets(rollout)
    for t in range(5):
        for n in range(3):
            assert torch.equal(rows.obs[3 * t + n], rollout.obs[t, n])
            assert torch.equal(rows.action[3 * t + n], rollout.action[t, n])
            assert rows.logp[3 * t + n] == rollout.kept[t, n]
    for part in agent.minibatches(rows):
        for i in range(len(part.logp)):
            (source,) = (rows.obs == part.obs[i]).all(1).nonzero().flatten().tolist()
            assert all(torch.equal(a[i], b[source]) for a, b in zip(part[:5], rows[:5], strict=True))


def test_advantages_are_normalised_over_the_whole_batch(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    # Guards against: P5, updates that ignore lanes or epochs, minibatches drawn with replacement, advantages normalised
    # in parts.
    agent = build(make_spec("discrete", num_envs=4), batch_size=8, gamma=0.9, gae_lambda=0.8)
    rollout = make_rollout(agent, "discrete", 12, 4)
    rows = agent.targets(rollout)
    assert rows.advantage.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert rows.advantage.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    parts = agent.minibatches(rows)
    assert all(abs(part.advantage.mean().item()) > 1e-4 for part in parts)  # not once more per minibatch
    with torch.no_grad():
        value, next_value = agent.value(rollout.obs), agent.value(rollout.next_obs)
    raw = gae(rollout.reward, value, next_value, rollout.terminated, rollout.truncated, 0.9, 0.8)
    torch.testing.assert_close(
        rows.advantage, ((raw - raw.mean()) / raw.std(correction=0)).flatten(), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(rows.value_target, (raw + value).flatten(), atol=1e-5, rtol=1e-4)


def test_advantages_may_be_normalised_over_each_minibatch(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    settings = {"batch_size": 8, "gamma": 0.9, "gae_lambda": 0.8}
    agent = build(make_spec("discrete", num_envs=4), **settings, normalize_advantage_over="minibatch")
    plain = build(make_spec("discrete", num_envs=4), **settings, normalize_advantage=False)
    rollout = make_rollout(agent, "discrete", 12, 4)
    rows, raw = agent.targets(rollout), plain.targets(rollout)
    torch.testing.assert_close(rows.advantage, raw.advantage)
    parts = agent.minibatches(rows)
    assert len(parts) == 6
    for part, own in zip(parts, plain.minibatches(raw), strict=True):
        a = own.advantage.tolist()
        mean = sum(a) / 8
        std = (sum((x - mean) ** 2 for x in a) / 8) ** 0.5
        torch.testing.assert_close(part.advantage, torch.tensor([(x - mean) / std for x in a]))
    assert agent.minibatches(rows._replace(advantage=torch.ones(48)))[0].advantage.tolist() == [0.0] * 8


@pytest.mark.parametrize("recompute", [False, True])
def test_advantages_may_be_computed_again_with_the_values_learned_by_then(
    make_spec: MakeSpec, make_rollout: MakeRollout, monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    agent = build(make_spec("discrete", num_envs=4), batch_size=1000, num_epochs=3, recompute_advantage=recompute)
    rollout = make_rollout(agent, "discrete", 12, 4)
    expected: list[Batch] = []  # what targets() gives just before the gradient step of each epoch
    learned: list[Batch] = []
    descend = agent.descend_policy

    def descend_and_look(name: str, step: Any, part: Batch) -> Any:
        expected.append(agent.targets(rollout))
        learned.append(part)
        return descend(name, step, part)

    monkeypatch.setattr(agent, "descend_policy", descend_and_look)
    agent.update(rollout)
    assert len(learned) == 3
    assert not torch.equal(expected[0].value_target, expected[1].value_target)
    for part, fresh in zip(learned, expected if recompute else [expected[0]] * 3, strict=True):
        assert torch.equal(part.advantage, fresh.advantage)
        assert torch.equal(part.value_target, fresh.value_target)
        assert torch.equal(part.logp, rollout.kept.flatten())  # the policy that acted stays what it was


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_next_values_equal_a_dense_evaluation(
    make_spec: MakeSpec, make_rollout: MakeRollout, normalize_obs: bool
) -> None:
    # Guards against: P3, a time limit treated as death, or valued without gamma or at the wrong state.
    agent = build(make_spec("discrete", num_envs=5), normalize_obs=normalize_obs)
    if normalize_obs:
        agent.observe(torch.randn(50, 3, generator=torch.Generator().manual_seed(1)) * 4 + 2)
    for seed in range(5):
        rollout = make_rollout(agent, "discrete", 15, 5, seed=seed)
        assert rollout.truncated.any() and rollout.terminated.any()
        with torch.no_grad():
            value = agent.value(agent.policy.norm(rollout.obs))
            dense = agent.value(agent.policy.norm(rollout.next_obs))
            result = agent.next_values(rollout, value, ())
        alive = ~rollout.terminated  # a terminated step has no successor that counts
        torch.testing.assert_close(result[alive], dense[alive], atol=1e-6, rtol=1e-5)


def test_targets_are_the_same_whatever_follows_a_termination(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    agent = build(make_spec("discrete", num_envs=5))
    rollout = make_rollout(agent, "discrete", 15, 5)
    poisoned = torch.where(rollout.terminated.unsqueeze(-1), 1e6, rollout.next_obs)
    for a, b in zip(agent.targets(rollout)[:5], agent.targets(rollout._replace(next_obs=poisoned)), strict=False):
        assert torch.equal(a, b)


def test_reward_scale_reaches_the_targets(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    plain, scaled = (build(make_spec("discrete"), reward_scale=s, normalize_advantage=False) for s in (1.0, 0.1))
    rollout = make_rollout(plain, "discrete", 20, 1)
    smaller = rollout._replace(reward=rollout.reward * 0.1)
    torch.testing.assert_close(scaled.targets(rollout).advantage, plain.targets(smaller).advantage)


def test_rewards_are_cut_before_they_are_scaled(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    cut = build(make_spec("discrete"), reward_clip=5.0, reward_scale=0.1)
    rollout = make_rollout(cut, "discrete", 4, 1)._replace(reward=torch.tensor([[-100.0], [-5.0], [0.5], [7.0]]))
    torch.testing.assert_close(cut.rewards(rollout), torch.tensor([[-0.5], [-0.5], [0.05], [0.5]]))


def test_vtrace_setting_uses_vtrace(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    """On-policy the value targets agree with those of GAE; for older data they differ."""
    # Guards against: P4, an advantage path without a value at the end of the rollout, a V-trace that is none, a flag
    # with two names.
    plain, corrected = (build(make_spec("discrete"), vtrace=v) for v in (False, True))
    rollout = make_rollout(plain, "discrete", 20, 1)
    for one, other in zip(corrected.targets(rollout), plain.targets(rollout), strict=True):
        torch.testing.assert_close(one, other)
    stale = rollout._replace(kept=rollout.kept + 1.0)
    assert not torch.allclose(corrected.targets(stale).value_target, plain.targets(stale).value_target)


@pytest.mark.parametrize("agent", [AgentPPO, AgentA2C])
def test_the_ratio_of_old_data_counts_once(make_spec: MakeSpec, make_rollout: MakeRollout, agent: Any) -> None:
    """The first gradient is that of -mean(clipped ratio * advantage): PPO's loss contains the ratio, A2C's does not.

    C8: no test noticed that the ratio was in PPO's loss and in its advantages.
    """
    config = {AgentPPO: PPOConfig, AgentA2C: A2CConfig}[agent]
    torch.manual_seed(0)
    a = agent(make_spec("discrete"), config(hidden=(8,), vtrace=True, normalize_advantage=False), CPU, 0)
    rollout = make_rollout(a, "discrete", 20, 1)
    rollout = rollout._replace(kept=rollout.kept + 0.15)  # ratio 0.86: clipped by neither
    with torch.no_grad():
        value = a.value(rollout.obs)
        log_ratio = a.policy.dist(rollout.obs).log_prob(rollout.action) - rollout.kept
        flags = (rollout.terminated, rollout.truncated)
        next_value = a.next_values(rollout, value, ())
        _, weighed = vtrace(rollout.reward, value, next_value, *flags, log_ratio, 0.99, 0.95)
    dist = a.policy.dist(rollout.obs.flatten(0, 1))
    expected = -(dist.log_prob(rollout.action.flatten()) * weighed.flatten()).mean()
    loss, _ = a.policy_loss(dist, a.targets(rollout))
    params = list(a.policy.parameters())
    for one, other in zip(*(torch.autograd.grad(x, params, retain_graph=True) for x in (loss, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("vtrace", [False, True])
@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
def test_every_advantage_path_bootstraps_at_the_end_of_the_rollout(
    make_spec: MakeSpec, vtrace: bool, gae_lambda: float
) -> None:
    """Guards against: P3 and P4, a last step without a future, and a cut one with V(s) instead of gamma V(final).

    V(x) = x and gamma = 0.5. Lane 0 is open at the end, lane 1 cut there, lane 2 ended there.
    """
    agent = build(
        make_spec("discrete", obs_dim=1, num_envs=3), hidden=(), gamma=0.5, gae_lambda=gae_lambda, vtrace=vtrace,
        normalize_advantage=False,
    )  # fmt: skip
    with torch.no_grad():
        agent.value.net[0].weight.fill_(1.0)
        agent.value.net[0].bias.zero_()
    obs = torch.tensor([[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]).unsqueeze(-1)
    next_obs = torch.tensor([[3.0, 3.0, 3.0], [8.0, 9.0, 999.0]]).unsqueeze(-1)
    last = torch.tensor([[0, 0, 0], [0, 1, 1]], dtype=torch.bool)
    lane = torch.arange(3)
    action = torch.zeros(2, 3, dtype=torch.int64)
    with torch.no_grad():
        logp = agent.policy.dist(obs).log_prob(action)
    reward = torch.tensor([[1.0] * 3, [10.0] * 3])
    rows = agent.targets(Rollout(obs, action, reward, last & (lane == 2), last & (lane == 1), next_obs, logp))
    final = torch.tensor([10 + 0.5 * 8 - 3, 10 + 0.5 * 9 - 3, 10 - 3])
    torch.testing.assert_close(rows.advantage.view(2, 3)[1], final)
    torch.testing.assert_close(rows.value_target.view(2, 3)[1], final + 3)
    # The first step: 1 + 0.5 * 3 - 2 = 0.5, then the share of what follows.
    torch.testing.assert_close(rows.advantage.view(2, 3)[0], 0.5 + 0.5 * gae_lambda * final)
    torch.testing.assert_close(rows.value_target.view(2, 3)[0], 2 + 0.5 + 0.5 * gae_lambda * final)


def test_kl_stop_skips_the_remaining_epochs(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    counts = {}
    for target_kl in (None, 1e-8, 1e8):
        agent = build(make_spec("discrete"), num_epochs=6, batch_size=10, lr=0.01, target_kl=target_kl)
        metrics = agent.update(make_rollout(agent, "discrete", 30, 1)).metrics
        assert metrics["policy/kl"].isfinite()
        counts[target_kl] = agent.num_updates
    assert counts == {None: 18, 1e-8: 3, 1e8: 18}


@pytest.mark.parametrize(("target_kl", "stops"), [(0.15, True), (0.25, False)])
def test_kl_stop_looks_at_the_mean_over_an_epoch(make_spec: MakeSpec, target_kl: float, stops: bool) -> None:
    # C11: the last minibatch alone decided. Divergences: (e - 2) / 2 = 0.36 and 0, on average 0.18.
    agent = build(make_spec("discrete"), target_kl=target_kl)
    assert agent.should_stop([{"log_ratio": x} for x in (torch.tensor([1.0, 0.0]), torch.zeros(2))]) is stops


@pytest.mark.parametrize(
    ("schedule", "expected"), [("linear", [0.01, 0.0075, 0.005, 0.0, 0.0]), ("constant", [0.01] * 5)]
)
def test_learning_rate_schedule(make_spec: MakeSpec, schedule: str, expected: list[float]) -> None:
    agent = build(make_spec("discrete"), lr=0.01, lr_schedule=schedule, schedule_steps=1000)
    rates = []
    for env_steps in (0, 250, 500, 1000, 9000):
        agent.schedule(env_steps)
        rates.append(agent.step.lr.item())
    assert rates == pytest.approx(expected)


def test_normaliser_is_updated_before_the_first_update_and_after_others(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    # Guards against: P6, observation normalisation that is dead, partial or lost on resume.
    spec = make_spec("discrete", num_envs=2)
    agent = build(spec, normalize_obs=True, num_epochs=3, batch_size=8)
    norm = agent.policy.norm
    assert isinstance(norm, ObsNorm)
    first = make_rollout(agent, "discrete", 10, 2)
    seen: list[Tensor] = []
    original = agent.loss

    def recorded(b: Batch) -> Any:
        seen.append(norm.mean.clone())
        return original(b)

    agent.loss = recorded  # type: ignore[method-assign]
    agent.update(first)
    rows = first.obs.reshape(-1, 3)
    torch.testing.assert_close(norm.mean, rows.mean(0))
    torch.testing.assert_close(norm.inv_std, rows.std(0, correction=0).reciprocal())
    assert all(torch.equal(mean, norm.mean) for mean in seen)  # C11: the first rollout was learned un-normalised
    seen.clear()
    before = norm.mean.clone()
    agent.update(make_rollout(agent, "discrete", 10, 2, seed=4))
    assert all(torch.equal(mean, before) for mean in seen)  # no change while a rollout is being learned from
    assert not torch.equal(norm.mean, before)

    del agent.loss
    other = build(spec, seed=9, normalize_obs=True, num_epochs=3, batch_size=8)
    other.load_training_state(agent.training_state())
    assert torch.equal(other.policy.to_flat(), agent.policy.to_flat())
    second = make_rollout(agent, "discrete", 10, 2, seed=5)
    agent.update(second)
    other.update(second)
    assert torch.equal(other.policy.to_flat(), agent.policy.to_flat())
    assert torch.equal(other.step.flat, agent.step.flat)
    assert agent.obs_stats is not None and agent.obs_stats.count.item() == 60


def test_a_training_state_is_a_snapshot(
    make_spec: MakeSpec, make_rollout: MakeRollout, hash_state: Callable[[Any], str]
) -> None:
    agent = build(make_spec("discrete"), normalize_obs=True)
    agent.update(make_rollout(agent, "discrete", 10, 1))
    state = agent.training_state()
    before = hash_state(state)
    agent.update(make_rollout(agent, "discrete", 10, 1, seed=1))
    assert hash_state(state) == before


@pytest.mark.filterwarnings("ignore:std")
def test_a_rollout_of_one_step_keeps_the_weights_finite(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    agent = build(make_spec("discrete"))
    agent.update(make_rollout(agent, "discrete", 1, 1))
    assert agent.policy.to_flat().isfinite().all()


def test_learning_rate_follows_its_tunable_value(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete"), lr=0.01)
    agent.hypers.lr.fill_(0.5)
    agent.schedule(0)
    assert agent.step.lr.item() == 0.5


@pytest.mark.parametrize("name", ["gamma", "gae_lambda", "entropy_coef", "clip"])
def test_tunable_values_are_read_at_every_update(make_spec: MakeSpec, make_rollout: MakeRollout, name: str) -> None:
    agents = [build(make_spec("discrete"), num_epochs=2, lr=0.01, clip=0.05, entropy_coef=0.01) for _ in range(2)]
    rollout = make_rollout(agents[0], "discrete", 30, 1)
    getattr(agents[1].hypers, name).fill_(0.3)
    for agent in agents:
        for _ in range(2):
            agent.update(rollout)
    assert not torch.equal(agents[0].step.flat, agents[1].step.flat)


def test_initial_policy_is_nearly_uniform_and_finite(make_spec: MakeSpec) -> None:
    agent = build(make_spec("discrete", action_dim=4))
    entropy = agent.policy.dist(torch.randn(20, 3, generator=torch.Generator().manual_seed(0))).entropy()
    assert (entropy > math.log(4) - 1e-2).all()


@pytest.mark.parametrize("log_std_init", [-1.0, 0.0, 1.5])
def test_initial_actions_spread_as_log_std_init_says(
    make_spec: MakeSpec, make_rollout: MakeRollout, log_std_init: float
) -> None:
    # C9: no test noticed that the setting was ignored.
    agent = build(make_spec("continuous"), log_std_init=log_std_init)
    actions = make_rollout(agent, "continuous", 200, 10).action
    assert actions.std().item() == pytest.approx(math.exp(log_std_init), rel=0.1)

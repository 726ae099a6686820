"""Advantage actor-critic: gradients by hand, several lanes, both kinds of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elegantrl import tree
from elegantrl.agents.a2c import A2CConfig, AgentA2C
from elegantrl.agents.gradients import Gradients
from elegantrl.agents.ppo import AgentPPO
from elegantrl.envs import make_env
from elegantrl.nets.policies import GaussianPolicy
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import EnvSpec, Rollout

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]
MakeRollout = Callable[..., Rollout]


def linear(spec: EnvSpec, **settings: Any) -> AgentA2C:
    """Linear policy and value with zero weights, except V(x) = x."""
    config = A2CConfig(hidden=(), gamma=0.0, normalize_advantage=False, max_grad_norm=None, **settings)
    agent = AgentA2C(spec, config, CPU, 0)
    agent.step.flat.zero_()
    with torch.no_grad():
        agent.value.net[0].weight.fill_(1.0)
    return agent


def gradients(agent: AgentA2C, rollout: Rollout) -> dict[str, Tensor]:
    """What one update hands to the optimiser, by parameter name."""
    named = {**dict(agent.policy.named_parameters()), **{f"v.{k}": p for k, p in agent.value.named_parameters()}}
    (flat,) = record_gradients(agent, lambda: agent.update(rollout))
    parts = torch.split(flat, [p.numel() for p in named.values()])
    return {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}


def record_gradients(agent: AgentA2C, learn: Callable[[], Any]) -> list[Tensor]:
    """The flat gradient of every step that ``learn`` takes."""
    found: list[Tensor] = []

    class Recorded(Gradients):
        def __call__(self, *args: Any) -> Any:
            grad, metrics = super().__call__(*args)
            found.append(grad.clone())
            return grad, metrics

    agent.gradients = Recorded()
    learn()
    return found


def rollout_of(obs: list[float], action: Any, reward: list[float]) -> Rollout:
    """One lane; the step count is the number of rewards."""
    steps = len(reward)
    ended = torch.zeros(steps, 1, dtype=torch.bool)
    return Rollout(
        obs=torch.tensor(obs).view(steps, 1, 1),
        action=torch.tensor(action).unsqueeze(1),
        reward=torch.tensor(reward).view(steps, 1),
        terminated=ended,
        truncated=ended,
        next_obs=torch.zeros(steps, 1, 1),
        kept=torch.full((steps, 1), -123.0),  # A2C has no use for it
    )


def test_discrete_gradient_by_hand(make_spec: MakeSpec) -> None:
    # Guards against: P7, A2C that breaks on lanes or workers, or averages log-probabilities over the action axis.
    # gamma = 0: the advantage is r - V, the value target is r. V(x) = x; both actions have probability 1/2.
    # Row 0: x = 1, a = 0, r = 3, advantage 2.   Row 1: x = 2, a = 1, r = 1, advantage -1.
    # d loss / d logit_k = -mean(advantage * (1[a = k] - 1/2)):
    #   bias 0: -(2 * 0.5 + -1 * -0.5) / 2 = -0.75;     weight 0: -(2 * 0.5 * 1 + -1 * -0.5 * 2) / 2 = -1
    # Value loss 0.5 * 0.5 * mean((V - r)^2):  bias 0.5 * mean(-2, 1) = -0.25;  weight 0.5 * mean(-2 * 1, 1 * 2) = 0
    agent = linear(make_spec("discrete", obs_dim=1))
    grads = gradients(agent, rollout_of([1.0, 2.0], [0, 1], [3.0, 1.0]))
    torch.testing.assert_close(grads["net.0.bias"], torch.tensor([-0.75, 0.75]))
    torch.testing.assert_close(grads["net.0.weight"], torch.tensor([[-1.0], [1.0]]))
    torch.testing.assert_close(grads["v.net.0.bias"], torch.tensor([-0.25]))
    torch.testing.assert_close(grads["v.net.0.weight"], torch.tensor([[0.0]]))


def test_continuous_gradient_by_hand_sums_over_the_action_axis(make_spec: MakeSpec) -> None:
    # Guards against: P7, A2C that breaks on lanes or workers, or averages log-probabilities over the action axis.
    # Two action numbers, mean 0, log std 0: d logp / d mean_k = a_k and d logp / d log_std_k = a_k^2 - 1.
    # Advantages as above, 2 and -1, for the actions (1, 3) and (2, 0):
    #   mean bias: -(2 * 1 - 1 * 2) / 2 = 0 and -(2 * 3 - 0) / 2 = -3
    #   log std:   -(2 * 0 - 1 * 3) / 2 = 1.5 and -(2 * 8 + 1) / 2 = -8.5
    # A mean over the action axis would halve all of them.
    agent = linear(make_spec("continuous", obs_dim=1))
    grads = gradients(agent, rollout_of([1.0, 2.0], [[1.0, 3.0], [2.0, 0.0]], [3.0, 1.0]))
    torch.testing.assert_close(grads["net.0.bias"], torch.tensor([0.0, -3.0]))
    torch.testing.assert_close(grads["log_std"], torch.tensor([1.5, -8.5]))


def test_entropy_bonus_by_hand(make_spec: MakeSpec) -> None:
    # Guards against: P2, an entropy bonus with the wrong sign.
    # The entropy of a Gaussian grows by 1 per unit of each log std.
    agent = linear(make_spec("continuous", obs_dim=1), entropy_coef=0.25)
    grads = gradients(agent, rollout_of([1.0], [[1.0, 1.0]], [1.0]))  # advantage 0
    torch.testing.assert_close(grads["log_std"], torch.tensor([-0.25, -0.25]))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_lanes_only_add_rows(make_spec: MakeSpec, make_rollout: MakeRollout, kind: str) -> None:
    """Gradients of several lanes are the mean of the gradients of each lane alone."""
    # Guards against: P7, A2C that breaks on lanes or workers, or averages log-probabilities over the action axis.
    spec = make_spec(kind, num_envs=3)
    config = A2CConfig(hidden=(4,), normalize_advantage=False, max_grad_norm=None)
    template = AgentA2C(spec, config, CPU, 0)
    rollout = make_rollout(template, kind, 6, 3)

    def grads_of(part: Rollout) -> dict[str, Tensor]:
        agent = AgentA2C(spec, config, CPU, 0)
        agent.load_state_dict(template.state_dict())
        return gradients(agent, part)

    together = grads_of(rollout)
    alone = [grads_of(Rollout(*(x[:, n : n + 1] for x in rollout[:7]))) for n in range(3)]
    for name, grad in together.items():
        torch.testing.assert_close(grad, torch.stack([g[name] for g in alone]).mean(0), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_is_not_ppo(make_spec: MakeSpec, make_rollout: MakeRollout, kind: str) -> None:
    """One update per rollout, and the log-probabilities of the acting policy play no part."""
    # Guards against: P7b, discrete A2C that is PPO.
    results = []
    for shift in (0.0, 3.0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            agent = AgentA2C(make_spec(kind), A2CConfig(hidden=(4,)), CPU, 0)
        rollout = make_rollout(agent, kind, 8, 2)
        agent.update(rollout._replace(kept=rollout.kept + shift))
        assert agent.num_updates == 1
        results.append(agent.step.flat.clone())
    assert torch.equal(*results)
    assert not isinstance(agent, AgentPPO)


def test_loss_equals_an_independent_implementation(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    agent = AgentA2C(make_spec("continuous"), A2CConfig(hidden=(4,), entropy_coef=0.01, value_coef=0.7), CPU, 0)
    assert isinstance(agent.policy, GaussianPolicy)
    rows = agent.targets(make_rollout(agent, "continuous", 8, 2))
    loss, _ = agent.loss(rows)
    mean = agent.policy.net(rows.obs)
    dist = torch.distributions.Normal(mean, agent.policy.log_std.exp().expand_as(mean))
    policy_loss = -(dist.log_prob(rows.action).sum(-1) * rows.advantage).mean()
    value_loss = 0.5 * nn.functional.mse_loss(agent.value(rows.obs), rows.value_target)
    expected = policy_loss + 0.7 * value_loss - 0.01 * dist.entropy().sum(-1).mean()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(("env_id", "num_envs"), [("TensorCartPole", 1), ("TensorCartPole", 4), ("TensorPendulum", 4)])
def test_runs_with_several_lanes(env_id: str, num_envs: int) -> None:
    env = make_env(env_id, num_envs)
    learner = Learner("a2c", A2CConfig(hidden=(8,), horizon=8), env.spec, CPU, 0)
    worker = GroupActor(env, learner.policy_spec(), 0)
    before = learner.weights().flat
    for seq in range(4):
        metrics = learner.update([worker.sample(learner.weights(), 8, seq)])
    assert learner.env_steps == 32 * num_envs and learner.num_updates() == 4
    assert all(value.isfinite() for value in metrics.values())
    assert not torch.equal(before, learner.weights().flat)


@pytest.mark.parametrize("env_id", ["TensorCartPole", "TensorPendulum"])
def test_workers_only_add_lanes(env_id: str) -> None:
    """Guards against: P7, an update that takes the data of one worker or breaks on the shapes of several."""
    config = A2CConfig(hidden=(8,), horizon=8)
    together, apart = (Learner("a2c", config, make_env(env_id, 5).spec, CPU, 0) for _ in range(2))
    sizes = (2, 3)
    workers = [GroupActor(make_env(env_id, n), apart.policy_spec(), 0, group) for group, n in enumerate(sizes)]
    for seq in range(3):
        parts = [worker.sample(apart.weights(), 8, seq) for worker in workers]
        joined = tree.cat([p.rollout for p in parts], dim=1)
        together.agent.update(joined)
        apart.update(parts)
    assert apart.env_steps == 3 * 8 * 5
    assert torch.equal(together.weights().flat, apart.weights().flat)

"""SAC's updates by hand are those of autograd, and a helper changes no bit, dead or alive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.agents.gradients import Gradients
from elegantrl.agents.mod_sac import AgentModSAC, ModSACConfig
from elegantrl.agents.redq import AgentREDQ, REDQConfig
from elegantrl.agents.sac import AgentSAC, SACConfig
from elegantrl.envs import make_env
from elegantrl.fast import core_helper
from elegantrl.fast import sac as fast
from elegantrl.fast.core_helper import CoreHelper
from elegantrl.fast.learning import gradients_of
from elegantrl.fast.sac import SACByHand
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner, digest
from elegantrl.roles.ranks import Ranks
from elegantrl.types import ActionSpec, EnvSpec, Metrics, Transition

SPEC = EnvSpec("rows", (5,), ActionSpec(dim=3), 1)
CPU = torch.device("cpu")
ROWS = 32


def plain(**settings: Any) -> AgentSAC:
    torch.manual_seed(0)
    return AgentSAC(SPEC, SACConfig(**{"hidden": (16, 8), "batch_size": ROWS, "lr": 3e-3} | settings), CPU, 0)


def build(**settings: Any) -> AgentSAC:
    """An agent whose gradients are derived by hand."""
    agent = plain(**settings)
    agent.gradients = gradients_of(agent)
    assert isinstance(agent.gradients, SACByHand)
    return agent


def by_hand(agent: AgentSAC) -> SACByHand:
    assert isinstance(agent.gradients, SACByHand)
    return agent.gradients


def batches(count: int) -> Iterator[Transition]:
    g = torch.Generator().manual_seed(1)
    for _ in range(count):
        obs, next_obs = torch.randn(2, ROWS, 5, generator=g) * 3
        action = torch.rand(ROWS, 3, generator=g) * 2 - 1
        discount = 0.99 * (torch.rand(ROWS, generator=g) < 0.9).float()
        yield Transition(obs, action, torch.randn(ROWS, generator=g), discount, next_obs)


def parameters(agent: AgentSAC) -> Tensor:
    return torch.cat([agent.actor_step.flat, agent.critic_step.flat, agent.target.flat, agent.log_alpha.detach()[None]])


POSTS = 6
"""Tasks that are given to a helper per update."""


def learn(agent: AgentSAC, count: int = 20) -> list[Metrics]:
    return [agent.update(batch).metrics for batch in batches(count)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden": ()},
        {"hidden": (32,), "max_grad_norm": 0.5},
        {"normalize_obs": True, "target_interval": 3, "target_entropy_per_dim": -0.5, "alpha_init": 0.2},
        {"init": "orthogonal", "lr_schedule": "linear"},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_hand_and_autograd_take_the_same_steps(settings: dict[str, Any]) -> None:
    hand, auto = build(**settings), plain(**settings)
    before = parameters(hand).clone()
    for agent in (hand, auto):
        agent.observe(torch.randn(100, 5, generator=torch.Generator().manual_seed(2)) * 3 + 1)
        agent.schedule(10_000)
    for mine, theirs in zip(learn(hand), learn(auto), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(parameters(hand), parameters(auto), atol=2e-5, rtol=1e-4)
    assert not torch.allclose(parameters(hand), before, atol=1e-3)
    assert torch.equal(hand.generator.get_state(), auto.generator.get_state())


def test_equal_critics_share_the_gradient() -> None:
    """Where both values are the minimum, autograd gives half of the gradient to each; so does the hand."""
    hand, auto = build(), plain()
    for agent in (hand, auto):
        for param in agent.critic_step.params:
            param.data[1] = param.data[0]
        agent.critic_step.lr.zero_()  # they stay equal
        learn(agent, 3)
    torch.testing.assert_close(parameters(hand), parameters(auto), atol=2e-5, rtol=1e-4)


@pytest.fixture
def always_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "TRIAL", 0)
    monkeypatch.setattr(SACByHand, "is_faster_with_help", lambda self: True)


def spawn(agent: AgentSAC) -> CoreHelper:
    gradients = by_hand(agent)
    gradients.helper = helper = CoreHelper(gradients.sizes, gradients.fd, gradients.control)
    while not helper.is_ready():
        assert helper.process.is_alive()
        time.sleep(0.01)
    return helper


@pytest.mark.usefixtures("always_helped")
def test_a_helper_changes_no_bit_and_leaves_with_its_learner() -> None:
    alone, helped = build(), build()
    helper = spawn(helped)
    learn(alone)
    learn(helped)
    assert helper.posted == 20 * POSTS
    assert torch.equal(parameters(alone), parameters(helped))
    assert torch.equal(alone.generator.get_state(), helped.generator.get_state())
    helper.close()
    assert helper.process.exitcode == -signal.SIGKILL


@pytest.mark.usefixtures("always_helped")
@pytest.mark.parametrize("task", range(len(fast.TASKS)))
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_is_lost_in_the_middle_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, task: int, blow: signal.Signals
) -> None:
    alone, helped = build(), build()
    helper = spawn(helped)
    learn(helped, 1)  # it has come to life
    monkeypatch.setattr(core_helper, "TIMEOUT_SECONDS", 0.2)
    post = helper.post

    def strike(number: int) -> None:
        if number == task:
            os.kill(helper.process.pid or 0, blow)
        post(number)

    helper.post = strike  # type: ignore[method-assign]
    learn(helped, 5)
    learn(alone, 1)
    learn(alone, 5)
    assert by_hand(helped).helper is None and not helper.process.is_alive()
    assert torch.equal(parameters(alone), parameters(helped))


def test_the_clock_decides_whether_help_is_asked_for() -> None:
    agent = build()
    helper = spawn(agent)
    alone, helped = by_hand(agent).seconds
    try:
        learn(agent, 2 * fast.TRIAL)
        assert len(alone) == len(helped) == fast.TRIAL and max(*alone, *helped) < 1.0
        assert helper.posted == fast.TRIAL * POSTS
        helped.extend([2.0] * 3)
        learn(agent, 3)
        assert helper.posted == fast.TRIAL * POSTS
        alone.extend([3.0] * 3)
        learn(agent, 3)
        assert helper.posted == (fast.TRIAL + 3) * POSTS
    finally:
        helper.close()


def test_what_is_saved_is_what_was_learned() -> None:
    first, second = build(), build()
    learn(first)
    second.load_training_state(first.training_state())
    learn(first, 5)
    learn(second, 5)
    assert torch.equal(parameters(first), parameters(second))


def test_only_what_is_known_is_done_by_hand() -> None:
    for settings in (
        {"activation": "tanh"}, {"layer_norm": True}, {"num_critics": 3}, {"target_critics": "mean"},
        {"actor_interval": 2}, {"prioritized": True},
    ):  # fmt: skip
        assert gradients_of(plain(**settings)).description.startswith("autograd"), settings
    for agent in (AgentREDQ(SPEC, REDQConfig(), CPU, 0), AgentModSAC(SPEC, ModSACConfig(), CPU, 0)):
        assert gradients_of(agent).description.startswith("autograd")
    assert gradients_of(plain(h_term=True)).description.startswith("by hand")  # the term is not in the loss
    shared = plain()
    shared.averaging = Ranks(0, 2)
    assert gradients_of(shared).description.startswith("autograd")


def test_a_batch_of_another_size_is_differentiated_by_autograd() -> None:
    hand, auto = build(), plain()
    for agent in (hand, auto):
        for batch in batches(3):
            agent.update(Transition(*(x[:-1] for x in batch[:5])))
    assert torch.equal(parameters(hand), parameters(auto))


def test_an_edited_loss_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = AgentSAC.actor_loss

    def edited(self: AgentSAC, *args: Any) -> Any:  # F1
        loss, metrics = known(self, *args)
        return 1.01 * loss, metrics

    monkeypatch.setattr(AgentSAC, "actor_loss", edited)
    assert gradients_of(plain()).description.startswith("autograd")


# ---- the learner and its minibatches


def collector(**settings: Any) -> tuple[Learner, GroupActor]:
    env = make_env("TensorPendulum", 2)
    config = SACConfig(**{"hidden": (8,), "batch_size": 16, "buffer_size": 40, "learning_starts": 4} | settings)
    learner = Learner("sac", config, env.spec, CPU, 0)
    return learner, GroupActor(env, learner.policy_spec(), 0)


def go_on(learner: Learner, worker: GroupActor, seqs: Iterable[int]) -> None:
    for seq in seqs:
        learner.update([worker.sample(learner.weights(), 1, seq)])


def minibatches(**settings: Any) -> list[Transition]:
    """What the agent of a run learns from."""
    learner, group = collector(**settings)
    update, drawn = learner.agent.update, []
    learner.agent.update = lambda batch: drawn.append(batch) or update(batch)  # type: ignore[method-assign, func-returns-value]
    learner.agent.policy.random_frac.fill_(1.0)  # type: ignore[operator, union-attr]
    learner.agent.schedule = lambda env_steps: None  # type: ignore[method-assign]
    go_on(learner, group, range(30))
    return drawn


def test_the_way_of_differentiation_does_not_decide_which_minibatches_are_drawn() -> None:
    # F3: a batch drawn before the newest steps were stored was a property of the accelerator.
    by_hand, by_autograd = minibatches(), minibatches(layer_norm=True)
    assert len(by_hand) == len(by_autograd) > 50
    for one, other in zip(by_hand, by_autograd, strict=True):
        assert torch.equal(one.obs, other.obs) and torch.equal(one.reward, other.reward)


def test_a_normaliser_that_moves_leaves_the_hand_at_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    # F2: critic gradients differed by 0.2-0.7 %, since a batch was normalised before the statistics of new steps.
    learner, group = collector(normalize_obs=True, updates_per_step=1.0)
    hand, seen = by_hand(learner.agent), []  # type: ignore[arg-type]
    original = SACByHand.__call__

    def compared(self: SACByHand, agent: Any, name: str, step: Any, *args: Any) -> Any:
        expected, _ = Gradients()(agent, name, step, *args)
        grad, metrics = original(self, agent, name, step, *args)
        seen.append(float(torch.linalg.vector_norm(grad - expected) / torch.linalg.vector_norm(expected)))
        return grad, metrics

    monkeypatch.setattr(SACByHand, "__call__", compared)
    go_on(learner, group, range(30))
    assert learner.agent.gradients is hand and len(seen) > 50 and max(seen) < 1e-4


@pytest.mark.parametrize("settings", [{}, {"updates_per_step": 0.3}, {"normalize_obs": True}, {"n_step": 3}])
def test_a_commit_in_between_changes_no_bit(settings: dict[str, Any]) -> None:
    through, saving, resumed = (collector(**settings) for _ in range(3))
    go_on(*through, range(40))
    for seq in range(40):
        go_on(*saving, [seq])
        state = [deepcopy(role.state_dict()) for role in saving]
        if seq == 25:
            for role, saved in zip(resumed, state, strict=True):
                role.load_state_dict(saved)
    go_on(*resumed, range(26, 40))
    assert through[0].num_updates() > 10
    for learner, _ in (saving, resumed):
        assert digest(learner.state_dict()) == digest(through[0].state_dict())

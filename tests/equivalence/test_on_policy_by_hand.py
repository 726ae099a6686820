"""Gradients derived by hand are those of autograd, and whoever changes a loss has autograd."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.agents.a2c import A2CConfig, AgentA2C
from elegantrl.agents.on_policy import AgentOnPolicy, Batch
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.fast import on_policy as fast
from elegantrl.fast.learning import gradients_of
from elegantrl.fast.on_policy import OnPolicyByHand, ppo_loss
from elegantrl.roles.ranks import Ranks
from elegantrl.types import EnvSpec, Metrics, Rollout

MakeSpec = Callable[..., EnvSpec]
MakeRollout = Callable[..., Rollout]
CPU = torch.device("cpu")
AGENTS: dict[str, tuple[type[AgentOnPolicy], type[Any]]] = {"ppo": (AgentPPO, PPOConfig), "a2c": (AgentA2C, A2CConfig)}


def build(name: str, spec: EnvSpec, **settings: Any) -> AgentOnPolicy:
    agent, config = AGENTS[name]
    torch.manual_seed(0)
    return agent(spec, config(**{"hidden": (16, 8), "lr": 3e-3, "num_epochs": 4, "batch_size": 16} | settings), CPU, 0)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "relu"},
        {"activation": "tanh", "entropy_coef": 0.02, "entropy_schedule": "linear"},
        {"activation": "tanh", "normalize_obs": True, "normalize_value": True, "value_coef": 2.0},
        {"activation": "relu", "max_grad_norm": None, "vtrace": True, "batch_size": 1000},
        {"activation": "tanh", "hidden": ()},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_hand_and_autograd_take_the_same_steps(
    make_spec: MakeSpec,
    make_rollout: MakeRollout,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    settings: dict[str, Any],
    in_blocks: bool,
) -> None:
    def learned(by_hand: bool) -> tuple[list[Metrics], Tensor]:
        agent = build(name, make_spec(kind), **settings)
        if by_hand:
            agent.gradients = gradients_of(agent)
            assert isinstance(agent.gradients, OnPolicyByHand)
        rollouts = [make_rollout(agent, kind, 13, 3, seed=seed) for seed in range(3)]  # 39 rows: 16, 16 and 7
        with monkeypatch.context() as patch:
            if in_blocks:
                patch.setattr(fast, "MAX_NUMPY_ROWS", 0)
                patch.setattr(fast, "BLOCK_ROWS", 6)
            agent.schedule(40_000)
            metrics = [agent.update(rollout).metrics for rollout in rollouts]
        assert agent.num_updates == (3 if settings.get("batch_size") else 9) * 4
        return metrics, agent.step.flat

    (hand, hand_flat), (auto, auto_flat) = learned(True), learned(False)
    torch.testing.assert_close(hand_flat, auto_flat, atol=1e-5, rtol=1e-4)
    assert not torch.equal(hand_flat, build(name, make_spec(kind), **settings).step.flat)
    for mine, theirs in zip(hand, auto, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            torch.testing.assert_close(value, theirs[key], atol=1e-4, rtol=1e-3)


def test_a_ratio_beyond_all_reason_has_no_gradient_either_way(make_spec: MakeSpec) -> None:
    agent = build("ppo", make_spec("discrete"))
    assert isinstance(agent, AgentPPO)
    logp = torch.zeros(6)
    new_logp = torch.tensor([25.0, -25.0, 0.1, 0.3, -0.1, -0.3], requires_grad=True)
    advantage = torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0, -1.0])

    class Known:
        def log_prob(self, _: Tensor) -> Tensor:
            return new_logp

    loss, _ = agent.policy_loss(Known(), Batch(logp, logp, logp, advantage, logp))  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss * len(logp), new_logp)
    mine = ppo_loss(agent, new_logp.detach().numpy(), logp.numpy(), advantage.numpy())
    torch.testing.assert_close(torch.from_numpy(mine.gradient), gradient)
    assert mine.values.mean() == pytest.approx(loss.item())


@pytest.mark.parametrize("steps", [13, 1000])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_nothing_of_a_rollout_is_held_after_the_update(
    make_spec: MakeSpec, make_rollout: MakeRollout, kind: str, steps: int
) -> None:
    # A rollout may lie in memory that a worker waits for: it must be free at once, not when cycles are next looked for.
    agent = build("ppo", make_spec(kind), batch_size=10_000)
    agent.gradients = gradients_of(agent)
    rollout = make_rollout(agent, kind, steps, 3)
    arrays = [x.numpy() for x in rollout[:7]]  # what owns the memory from here on
    watched = [weakref.ref(array) for array in arrays]
    rollout = Rollout(*map(torch.from_numpy, arrays))
    del arrays
    gc.disable()
    try:
        agent.update(rollout)
        del rollout
        assert all(ref() is None for ref in watched)
    finally:
        gc.enable()


class AgentOther(AgentPPO):
    """Minimises something else, and says so in autograd's terms alone."""

    def policy_loss(self, dist: Any, b: Batch) -> tuple[Tensor, Metrics]:
        return -dist.log_prob(b.action).mean(), {"log_ratio": b.logp}


def test_only_what_is_known_is_done_by_hand(make_spec: MakeSpec) -> None:
    spec = make_spec("discrete")
    assert gradients_of(AgentOther(spec, PPOConfig(), CPU, 0)).description.startswith("autograd")
    for settings in ({"activation": "silu"}, {"layer_norm": True}, {"hidden": (129, 64)}):
        assert gradients_of(build("ppo", spec, **settings)).description.startswith("autograd"), settings
    # The term is no part of the loss.
    assert gradients_of(build("ppo", spec, h_term=True)).description.startswith("by hand")
    shared = build("ppo", spec)
    shared.averaging = Ranks(0, 2)
    assert gradients_of(shared).description.startswith("autograd")


def test_a_loss_that_was_edited_in_place_counts(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    # F1: the table knows the function, but its text is another.
    known = AgentPPO.policy_loss

    def edited(self: AgentPPO, dist: Any, b: Batch) -> tuple[Tensor, Metrics]:
        loss, metrics = known(self, dist, b)
        return 1.01 * loss, metrics

    monkeypatch.setattr(AgentPPO, "policy_loss", edited)
    monkeypatch.setitem(fast.KNOWN_LOSSES, edited, ppo_loss)
    assert gradients_of(build("ppo", make_spec("discrete"))).description.startswith("autograd")

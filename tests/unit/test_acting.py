"""Acting in NumPy and with prepared torch calls: as the policy itself, for every version of its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elegantrl import tree
from elegantrl.fast.acting import NumpyActor, actor_for
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import POLICIES, Acted, CategoricalPolicy, FlatPolicy, NetPolicy, PolicySpec
from elegantrl.roles.acting import actor_of
from elegantrl.types import ActionSpec, Leaf

CPU = torch.device("cpu")
KINDS = sorted(
    set(POLICIES) - {"ensemble", "multi_categorical", "joint_q", "gumbel"}
)  # one does not explore, two act as they are


def spec_of(kind: str, hidden: tuple[int, ...] = (16, 16), num_choices: int = 2, **settings: Any) -> PolicySpec:
    action = ActionSpec(choices=(num_choices,)) if kind in ("categorical", "q") else ActionSpec(dim=2)
    net = {name: settings.pop(name) for name in ("activation", "normalize_obs") if name in settings}
    return PolicySpec(kind, Leaf((4,)), action, NetSpec(hidden=hidden, **net), settings)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def explored(actor: Any, obs: torch.Tensor, carry: Any = ()) -> Acted:
    (draw,) = actor.draw(1, len(obs), stream(1))
    with torch.no_grad():
        acted: Acted = actor.explore(obs, carry, draw)
    return acted


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu", "elu"])
@pytest.mark.parametrize("kind", KINDS)
def test_prepared_calls_act_bit_for_bit_like_the_policy_itself(kind: str, activation: str) -> None:
    spec = spec_of(kind, activation=activation)
    obs, copy = torch.randn(300, 4), FlatPolicy(spec, CPU)
    assert actor_for(copy.policy, 300) is None  # too many lanes for NumPy: the policy itself, with its output prepared
    assert "output" in vars(copy.policy)
    for _ in range(2):
        policy = spec.build()
        pairs = zip(
            tree.leaves(explored(policy, obs)), tree.leaves(explored(copy.load(policy.to_flat()), obs)), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("num_choices", [1, 2, 3])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_for_few_lanes_explores_like_the_policy_itself(kind: str, activation: str, num_choices: int) -> None:
    """In NumPy where that is faster: the same random numbers, the same choices, the same output to rounding."""
    extra = {"dueling": True} if kind == "q" else {}
    spec = spec_of(kind, (64, 64), num_choices, activation=activation, normalize_obs=True, **extra)
    copy = FlatPolicy(spec, CPU)
    actor = actor_of(copy.policy, 8)
    in_numpy = kind in ("categorical", "gaussian", "squashed", "q") and activation != "silu"
    assert isinstance(actor, NumpyActor) == in_numpy
    for seed in range(2):
        policy = spec.build().requires_grad_(False)
        policy.norm.mean.fill_(0.5 + seed)  # type: ignore[operator, union-attr]
        copy.load(policy.to_flat())
        obs = torch.randn(8, 4, generator=stream(seed)) * 20  # beyond where normalised observations are clipped
        for a, b in zip(tree.leaves(explored(policy, obs)), tree.leaves(explored(actor, obs)), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b)


def test_numpy_is_for_small_layers_and_few_lanes() -> None:
    def in_numpy(hidden: tuple[int, ...], num_lanes: int) -> bool:
        return actor_for(FlatPolicy(spec_of("gaussian", hidden), CPU).policy, num_lanes) is not None

    assert in_numpy((128, 128), 256) and not in_numpy((128, 128), 257)
    assert in_numpy((129, 128), 2) and not in_numpy((129, 128), 3)


@pytest.mark.parametrize("kind", ["categorical", "deterministic"])
def test_many_rows_give_the_output_of_few(kind: str) -> None:
    policy, obs = FlatPolicy(spec_of(kind), CPU).policy, torch.randn(1500, 4)
    actor_for(policy, 1500)
    assert isinstance(policy, NetPolicy)
    torch.testing.assert_close(policy.output(obs), torch.cat([policy.output(part) for part in obs.split(300)]))


def test_an_edited_policy_acts_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    # F1 for acting: what one reads in nets/policies is what acts, on a CPU with few lanes too.
    edited = lambda self, out, draw: torch.zeros(len(out), dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(CategoricalPolicy, "choose", edited)
    policy = FlatPolicy(spec_of("categorical"), CPU).policy
    actor = actor_of(policy, 64)
    assert actor is policy
    assert not explored(actor, torch.randn(64, 4)).action.any()


class Cautious(CategoricalPolicy):
    """Somebody else's policy."""


def test_other_classes_act_by_themselves() -> None:
    policy = Cautious(Leaf((4,)), ActionSpec(choices=(2,)))
    assert actor_of(policy, 2) is policy and "output" not in vars(policy)

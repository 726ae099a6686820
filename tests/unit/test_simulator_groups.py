"""Groups of observations, actions and spaces of simulators."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from elegantrl.envs.isaac import IsaacLabVecEnv
from elegantrl.envs.isaac.groups import ObsGroups, TensorActions, as_space
from elegantrl.envs.isaac.isaac_lab import spread
from elegantrl.errors import SpecError
from elegantrl.testing import FakeIsaacLabEnv
from elegantrl.types import Leaf, Obs


def test_groups_can_be_named() -> None:
    env = IsaacLabVecEnv(FakeIsaacLabEnv(3), policy_group="critic")
    assert env.spec.obs == Leaf((4,)), "the policy sees what is meant for the critic, which then needs no more"
    assert IsaacLabVecEnv(FakeIsaacLabEnv(3), critic_group="").spec.obs == Leaf((3,))
    expected = r"'FakeIsaacLabEnv': its observations have the groups \['critic', 'policy'\] and not 'teacher'; name one"
    with pytest.raises(SpecError, match=expected):
        IsaacLabVecEnv(FakeIsaacLabEnv(3), critic_group="teacher")
    sample = {"student": torch.zeros(3, 2), "teacher": torch.zeros(3, 2)}
    with pytest.raises(SpecError, match=r"and not 'policy or actor or obs'; name one of them by policy_group"):
        ObsGroups("x", sample, 3, torch.device("cpu"))


def test_terms_of_groups_are_trees_and_one_state() -> None:
    picture = torch.arange(24, dtype=torch.uint8).view(2, 2, 3, 2)
    policy = {"camera": picture, "joints": torch.ones(2, 4, dtype=torch.float64), "height": torch.ones(2)}
    sample = {
        "policy": policy,
        "critic": {"mass": torch.full((2, 1), 3.0), "map": torch.zeros(2, 2, 2)},
        "other": picture,
    }
    groups = ObsGroups("x", sample, 2, torch.device("cpu"))
    leaves = {"camera": Leaf((2, 3, 2), "uint8"), "joints": Leaf((4,)), "height": Leaf((1,))}
    assert groups.spec == Obs(leaves, state=Leaf((5,)))  # type: ignore[arg-type]
    obs = groups.read(sample)
    picture.zero_()
    assert obs.seen["camera"].sum() == 276 and obs.seen["joints"].dtype == torch.float32
    assert obs.state.tolist() == [[3, 0, 0, 0, 0]] * 2
    assert isinstance(groups.space, gym.spaces.Dict) and groups.space["camera"] == gym.spaces.Box(
        0, 255, (2, 3, 2), np.uint8
    )
    with pytest.raises(SpecError, match=r"'x': an observation has shape \(2, 3\), expected \(2, 4\) as at its first"):
        groups.read(sample | {"policy": policy | {"joints": torch.ones(2, 3)}})
    with pytest.raises(SpecError, match=r"the parts \['camera'\] of the group 'policy', expected \['camera', 'heig"):
        groups.read({"policy": {"camera": picture}})
    with pytest.raises(SpecError, match=r"the parts \['mass'\] of the group 'critic', expected \['map', 'mass'\]"):
        groups.read(sample | {"critic": {"mass": torch.ones(2, 1)}})


def test_terms_in_another_order_are_the_same_observation() -> None:
    """Dicts of last observations are often put together elsewhere than those of steps."""
    sample = {"policy": {"a": torch.ones(2, 1), "b": torch.full((2, 1), 2.0)}, "critic": {"a": torch.ones(2, 1)}}
    sample["critic"] |= {"b": torch.full((2, 1), 2.0)}
    groups = ObsGroups("x", sample, 2, torch.device("cpu"))
    turned = {group: dict(reversed(terms.items())) for group, terms in reversed(sample.items())}
    one, other = groups.read(sample), groups.read(turned)
    assert torch.equal(one.state, other.state) and one.state.tolist() == [[1, 2]] * 2
    assert torch.equal(one.seen["a"], other.seen["a"])
    row = {group: {key: x[1] + 5 for key, x in terms.items()} for group, terms in turned.items()} | {"log": 0}
    found, flags = spread([None, row], sample)
    assert flags == [False, True] and groups.read(found).state.tolist() == [[1, 2], [6, 7]]


def test_actions_have_the_units_of_their_space() -> None:
    cpu = torch.device("cpu")
    box = gym.spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32))
    given = torch.tensor([[-1.0, 7.0], [3.0, -7.0]])
    decoded = TensorActions("x", box, 2, cpu).decode(given)
    assert decoded.tolist() == [[0, 7], [4, -7]] and decoded.data_ptr() != given.data_ptr()
    choice = TensorActions("x", gym.spaces.Discrete(3, start=2), 2, cpu)
    assert choice.decode(torch.tensor([0, 2])).tolist() == [[2], [4]]
    several = TensorActions("x", gym.spaces.MultiDiscrete([3, 2]), 1, cpu)
    assert several.decode(torch.tensor([[2, 1]])).tolist() == [[2, 1]]
    with pytest.raises(SpecError, match=r"action has shape \(2, 1\), expected \(2, 2\)"):
        TensorActions("x", box, 2, cpu).decode(torch.zeros(2, 1))


def test_spaces_of_other_libraries() -> None:
    box = SimpleNamespace(shape=(2,), dtype="float32", low=-1.0, high=(2.0, 3.0))
    assert as_space(box) == gym.spaces.Box(np.array([-1, -1], np.float32), np.array([2, 3], np.float32))
    assert as_space(SimpleNamespace(spaces={"a": box}, shape=()))["a"] == as_space(box)  # type: ignore[index]
    assert as_space(SimpleNamespace(n=3)) == gym.spaces.Discrete(3)
    assert as_space(SimpleNamespace(nvec=[3, 2])) == gym.spaces.MultiDiscrete([3, 2])
    with pytest.raises(SpecError, match="a space of kind SimpleNamespace is not known"):
        as_space(SimpleNamespace())

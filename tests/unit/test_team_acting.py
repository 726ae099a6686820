"""A team's policy acts by agent, in the units of each, and nothing but its own observation reaches an agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from elegantrl.config.resolve import resolve_config
from elegantrl.envs.space_text import describe_spaces, describe_tensors, spaces_from
from elegantrl.errors import CheckpointError, ConfigError, SpecError
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import PolicySpec
from elegantrl.store.best import BestFile
from elegantrl.store.side_files import SideFiles
from elegantrl.store.team_units import TeamUnits, units_of
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Obs

NAMES = ("scout", "carrier", "agent_10", "agent_2")  # not in alphabetical order
SIZES = (3, 5, 4, 2)  # numbers that each sees


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,))


def named(parts: list[Any]) -> spaces.Dict:
    return spaces.Dict(list(zip(NAMES, parts, strict=True)))


SEEN = named([box(size) for size in SIZES])
DISCRETE = named([spaces.Discrete(2, start=5), spaces.Discrete(4), spaces.Discrete(3), spaces.Discrete(4)])
NUMBERS = named([spaces.Box(0.0, 10.0, (size,), np.float64) for size in (2, 1, 1, 2)])
CHOICES = named([spaces.MultiDiscrete([2, 3])] * 2 + [spaces.Discrete(2), spaces.MultiDiscrete([1, 2])])
OBS = Leaf((4, 5))
MASKED = Obs(OBS, Leaf((4, 4), "bool"))  # type: ignore[arg-type]
NET = NetSpec(hidden=(8,), num_agents=4)
SEPARATE = NetSpec(hidden=(8,), num_agents=4, separate=True)

KINDS: dict[str, tuple[str, spaces.Dict, Any, ActionSpec, NetSpec]] = {
    "discrete": ("categorical", DISCRETE, MASKED, ActionSpec(choices=(4,)), NET),
    "own weights": (
        "categorical",
        DISCRETE,
        MASKED,
        ActionSpec(choices=(4,)),
        NetSpec((8,), num_agents=4, separate=True),
    ),
    "values": ("q", DISCRETE, MASKED, ActionSpec(choices=(4,)), NET),
    "memory": ("categorical", DISCRETE, MASKED, ActionSpec(choices=(4,)), NetSpec((8,), num_agents=4, memory="gru")),
    "numbers": ("gaussian", NUMBERS, OBS, ActionSpec(dim=2, sizes=(2, 1, 1, 2)), NET),
    "deterministic": ("deterministic", NUMBERS, OBS, ActionSpec(dim=2, sizes=(2, 1, 1, 2)), NET),
    "several choices": (
        "multi_categorical",
        CHOICES,
        Obs(OBS, Leaf((4, 5), "bool")),  # type: ignore[arg-type]
        ActionSpec(choices=(2, 3)),
        NET,
    ),
}


def trained(kind: str, seen: Any = SEEN, **changes: Any) -> TrainedPolicy:
    policy_kind, takes, obs, action, net = KINDS[kind]
    spec = PolicySpec(policy_kind, changes.get("obs", obs), action, net)
    policy = spec.build().requires_grad_(False)
    with torch.no_grad():
        for x in policy.parameters():
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(x.numel())))
    units = units_of(describe_spaces(seen, takes), spec, "Depot")
    config, _ = resolve_config("ppo", "CartPole-v1")
    return TrainedPolicy(policy, spec, units, config, Path("run"))


def look(seed: int = 0, *lead: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=(*lead, size)).astype(np.float32) for name, size in zip(NAMES, SIZES, strict=True)}


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stochastic", [False, True])
def test_each_action_fits_the_space_of_its_agent(kind: str, stochastic: bool) -> None:
    policy = trained(kind)
    for seed in range(20):
        actions = policy.act(look(seed), stochastic=stochastic, seed=seed)
        assert list(actions) == list(NAMES)
        for name, action in actions.items():
            space = KINDS[kind][1][name]
            assert space.contains(action), (name, action)
            assert np.asarray(action).dtype == space.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stochastic", [False, True])
def test_nothing_but_its_own_observation_reaches_an_agent(kind: str, stochastic: bool) -> None:
    """Bit for bit, with others that see something else, and without them; over three steps with a carry."""
    policy = trained(kind)
    for name in NAMES:
        together: dict[str, Any] = {}
        beside: dict[str, Any] = {}
        alone: dict[str, Any] = {}
        for step in range(3):
            obs, other = look(step), look(100 + step)
            asked: dict[str, Any] = {"stochastic": stochastic, "seed": step}
            one = policy.act(obs, together, **asked)[name]
            assert same(policy.act({**other, name: obs[name]}, beside, **asked)[name], one)
            only = policy.act({name: obs[name]}, alone, **asked)
            assert list(only) == [name] and same(only[name], one)


def test_the_order_of_the_dict_does_not_matter() -> None:
    policy, obs = trained("numbers"), look()
    one, other = policy.act(obs), policy.act(dict(reversed(obs.items())))
    assert all(same(one[name], other[name]) for name in NAMES) and list(other) == list(reversed(NAMES))


def test_agents_differ_though_they_share_weights() -> None:
    policy = trained("numbers")
    obs = {name: np.zeros(size, np.float32) for name, size in zip(NAMES, SIZES, strict=True)}
    actions = policy.act(obs)
    assert not np.array_equal(actions["scout"], actions["agent_2"])


def test_a_batch_gives_the_same_as_its_rows() -> None:
    policy, obs = trained("deterministic"), look(0, 6)
    many = policy.act(obs)
    for i in range(6):
        one = policy.act({name: x[i] for name, x in obs.items()})
        for name in NAMES:
            assert many[name][i] == pytest.approx(one[name], abs=1e-6)


def test_the_memory_of_agents_that_are_left_out_stays() -> None:
    policy, carry = trained("memory"), dict[str, Any]()
    policy.act(look(1), carry)
    before = carry["carry"][0].clone()
    policy.act({"carrier": look(2)["carrier"]}, carry)
    after = carry["carry"][0]
    assert [torch.equal(before[:, g], after[:, g]) for g in range(4)] == [True, False, True, True]


def test_an_agent_with_fewer_options_takes_only_its_own() -> None:
    policy = trained("discrete")
    policy.policy.net[-1].bias.copy_(torch.tensor([0.0, 1.0, 50.0, 100.0]))  # by far the option that scout has not
    assert policy.act(look()) == {"scout": 6, "carrier": 3, "agent_10": 2, "agent_2": 3}


def test_masks_by_agent() -> None:
    policy = trained("discrete")
    allowed = {"carrier": [False, True, False, False], "scout": [1, 0]}
    for seed in range(10):
        actions = policy.act(look(seed), mask=allowed, stochastic=True, seed=seed)
        assert actions["carrier"] == 1 and actions["scout"] == 5


def test_an_observation_that_holds_its_mask() -> None:
    parts = [spaces.Dict({"observation": box(size), "action_mask": spaces.MultiBinary(4)}) for size in SIZES]
    policy = trained("values", named(parts))
    policy.units = units_of(describe_spaces(named(parts), named([spaces.Discrete(4)] * 4)), policy.spec, "Depot")
    obs = look()
    for option in range(4):
        mask = (np.arange(4) == option).astype(np.int8)
        held = {"carrier": {"observation": obs["carrier"], "action_mask": mask}}
        assert policy.act(held) == {"carrier": option}
    with pytest.raises(SpecError, match=r"agent 'carrier' of Depot forbids every action"):
        policy.act({"carrier": {"observation": obs["carrier"], "action_mask": np.zeros(4, np.int8)}})


def test_masks_that_an_environment_gives_are_needed() -> None:
    policy = trained("values")
    policy.units = units_of(describe_spaces(SEEN, named([spaces.Discrete(4)] * 4)), policy.spec, "Depot")
    with pytest.raises(SpecError, match=r"agent 'scout' of Depot takes only actions that a mask allows"):
        policy.act(look())


@pytest.mark.parametrize(
    ("obs", "mask", "words"),
    [
        ({"scott": np.zeros(3)}, None, "Depot has no agent 'scott'; its agents are scout, carrier, agent_10, agent_2"),
        ({"scout": np.zeros(4)}, None, r"agent 'scout' of Depot has the shape \(4,\), expected \(3,\)"),
        ({}, None, "of no agent"),
        (np.zeros((4, 5)), None, "are a ndarray, expected a dict by agent"),
        ({"scout": np.zeros(3), "carrier": np.zeros((2, 5))}, None, "different numbers of observations"),
        ({"scout": np.full(3, np.nan)}, None, "has NaN or infinity"),
        ({"scout": np.zeros(3)}, {"scot": [1, 1]}, "has no agent 'scot'"),
        ({"scout": np.zeros(3)}, [1, 1], "the masks for Depot are a list, expected a dict by agent"),
        ({"scout": np.zeros(3)}, {"scout": [1, 1, 1]}, r"expected 2 flags for each of 1 observations"),
        ({"scout": np.zeros(3)}, {"scout": [0, 0]}, "forbids every action"),
    ],
)
def test_bad_input_is_one_sentence(obs: Any, mask: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        trained("discrete").act(obs, mask=mask)


def test_a_mask_for_a_policy_without_masks_is_refused() -> None:
    with pytest.raises(SpecError, match="trained without action masks"):
        trained("numbers").act(look(), mask={"scout": [1, 1]})


# ---- tensor environments and files


def tensor_spec(action: ActionSpec, obs: Any = OBS) -> EnvSpec:
    return EnvSpec("Depot", obs, action, 1, num_agents=4, agent_names=NAMES)


def test_actions_of_tensor_environments_by_agent() -> None:
    seen, takes = spaces_from(describe_tensors(tensor_spec(ActionSpec(dim=2, sizes=(2, 1, 1, 2)))))
    assert seen is None and list(takes.spaces) == list(NAMES)
    assert [space.shape for space in takes.spaces.values()] == [(2,), (1,), (1,), (2,)]
    _, takes = spaces_from(describe_tensors(tensor_spec(ActionSpec(choices=(3,)))))
    assert takes["agent_10"] == spaces.Discrete(3)


def test_a_tensor_environment_shows_its_agents_rows() -> None:
    """Without spaces an agent sees its row of the tensor, padded as it is."""
    spec = PolicySpec("gaussian", OBS, ActionSpec(dim=2), NET)
    policy = spec.build().requires_grad_(False)
    config, _ = resolve_config("ppo", "CartPole-v1")
    units = units_of(describe_tensors(tensor_spec(spec.action)), spec, "Depot")
    loaded = TrainedPolicy(policy, spec, units, config, Path("run"))
    obs = torch.randn(3, 4, 5)
    expected, _ = policy.act(obs, ())
    actions = loaded.act({name: obs[:, g] for g, name in enumerate(NAMES)})
    for g, name in enumerate(NAMES):
        assert np.array_equal(actions[name], expected[:, g].clamp(-1, 1).numpy())


def write_best(folder: Path, kind: str, edit: Callable[[dict[str, Any]], None] = lambda text: None) -> None:
    """A run folder with a team's policy; ``edit`` changes the description of its spaces."""
    policy_kind, takes, obs, action, net = KINDS[kind]
    text = json.loads(describe_spaces(SEEN, takes))
    edit(text)
    spec = PolicySpec(policy_kind, obs, action, net)
    env = EnvSpec("Depot", obs, action, 1, num_agents=4, agent_names=NAMES, spaces=json.dumps(text))
    folder.mkdir()
    BestFile(folder, spec, env, SideFiles()).save(spec.build().to_flat(), 1, 0.0)
    config, _ = resolve_config("ppo", "CartPole-v1")
    (folder / "config.yaml").write_text(config.to_yaml())


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_of_a_team_is_saved_and_loaded(tmp_path: Path, kind: str) -> None:
    write_best(tmp_path / "run", kind)
    policy = TrainedPolicy.load(tmp_path / "run")
    assert isinstance(policy.units, TeamUnits) and list(policy.act(look())) == list(NAMES)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text["observation"]["spaces"].pop("scout"),
        lambda text: text["action"]["spaces"].pop("scout"),
        lambda text: text["observation"]["spaces"].update(scout={"kind": "discrete", "n": 10**9, "start": 0}),
        lambda text: text["action"]["spaces"].update(scout={"kind": "discrete", "n": 7, "start": 0}),
        lambda text: text.update(action={"kind": "discrete", "n": 2, "start": 0}),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    write_best(tmp_path / "run", "discrete", edit)
    with pytest.raises(CheckpointError, match="does not hold a policy of this version"):
        TrainedPolicy.load(tmp_path / "run")


def test_an_ensemble_of_teams(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_best(tmp_path / name, "numbers")
    members = [TrainedPolicy.load(tmp_path / name) for name in ("a", "b")]
    both = TrainedPolicy.ensemble([tmp_path / "a", tmp_path / "b"], [3, 1]).act(look())
    votes = [member.act(look()) for member in members]
    for name in NAMES:
        assert both[name] == pytest.approx(0.75 * votes[0][name] + 0.25 * votes[1][name], abs=1e-5)
    write_best(tmp_path / "c", "memory")
    with pytest.raises(ConfigError, match="an ensemble needs one kind of task"):
        TrainedPolicy.ensemble([tmp_path / "a", tmp_path / "c"])

"""Encoders: which one a leaf gets, what it computes, and how gradients reach it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elegantrl import tree
from elegantrl.agents.ppo import PPOConfig
from elegantrl.errors import ConfigError
from elegantrl.nets.encoders import ENCODERS, Encoder
from elegantrl.nets.encoders.cells import NUM_VALUES, Cells
from elegantrl.nets.encoders.layout import layout_of
from elegantrl.nets.encoders.pictures import Pixels
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.normalize import ObsNorm, TreeNorm, TreeStats, build_norm, build_stats
from elegantrl.registry import build_agent, find_agent
from elegantrl.tree import Tree
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Rollout, Transition, from_state, to_state
from tests.names import SINGLE_AGENTS

CPU = torch.device("cpu")
PICTURE = Leaf((84, 84, 3), "uint8")
MIXED = {"grid": Leaf((7, 7, 3), "uint8"), "place": Leaf((2,)), "facing": Leaf((4,), one_hot=True)}
KINDS: dict[str, Tree] = {
    "picture": Leaf((4, 40, 36), "uint8", stack=4),
    "flags": Leaf((10, 10, 4), "bool"),
    "dict": MIXED,
    "tuple": (Leaf((3,)), Leaf((6, 5), "uint8")),
    "matrix": Leaf((2, 3)),
}


def random_rows(leaves: Tree, *lead: int, seed: int = 0) -> Tree:
    g = torch.Generator().manual_seed(seed)

    def rows(leaf: Leaf) -> Tensor:
        if leaf.dtype == "float32":
            return torch.randn(*lead, *leaf.shape, generator=g)
        top = 2 if leaf.dtype == "bool" else 256
        return torch.randint(top, (*lead, *leaf.shape), generator=g).to(leaf.torch_dtype)

    return tree.map_leaves(rows, leaves)


# ---- layouts


@pytest.mark.parametrize(
    ("leaf", "sizes"),
    [
        (Leaf((84, 84), "uint8"), (1, 1, 84, 84, False)),
        (Leaf((84, 80, 3), "uint8"), (1, 3, 84, 80, True)),
        (Leaf((3, 84, 80), "uint8"), (1, 3, 84, 80, False)),
        (Leaf((10, 10, 10), "bool"), (1, 10, 10, 10, True)),
        (Leaf((4, 84, 80), "uint8", stack=4), (4, 1, 84, 80, False)),
        (Leaf((4, 84, 80, 3), "uint8", stack=4), (4, 3, 84, 80, True)),
        (Leaf((4, 3, 84, 80), "uint8"), (4, 3, 84, 80, False)),
        (Leaf((9, 8, 3)), (1, 3, 9, 8, True)),
    ],
)
def test_the_axes_of_a_picture_are_found(leaf: Leaf, sizes: tuple[int, ...]) -> None:
    assert layout_of(leaf) == sizes


@pytest.mark.parametrize("leaf", [Leaf((4,)), Leaf((5, 6)), Leaf((5,), "uint8"), Leaf((2, 2, 2, 2, 2), "uint8")])
def test_what_is_no_picture_has_no_layout(leaf: Leaf) -> None:
    assert layout_of(leaf) is None


def test_pixels_are_scaled_and_frames_become_channels() -> None:
    x = torch.zeros(1, 2, 3, 4, 2, dtype=torch.uint8)  # [B, K, H, W, C]
    x[0, 1, 2, 3, 0] = 51
    layout = layout_of(Leaf((2, 3, 4, 2), "uint8", stack=2))
    assert layout is not None
    out = Pixels(layout)(x)
    assert out.shape == (1, 4, 3, 4) and out.dtype == torch.float32
    assert out[0, 2, 2, 3].item() == pytest.approx(0.2) and out.sum().item() == pytest.approx(0.2)
    assert out.is_contiguous(memory_format=torch.channels_last)
    flags = torch.ones(1, 3, 4, 2, dtype=torch.bool)
    assert Pixels(layout_of(Leaf((3, 4, 2), "bool")))(flags).unique().tolist() == [1.0]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nature_cnn", "small_cnn", "impala_cnn", "embedding"])
def test_channels_may_come_first_or_last(name: str) -> None:
    last, first = Leaf((40, 36, 3), "uint8"), Leaf((3, 40, 36), "uint8")
    one, other = Encoder(last, name), Encoder(first, name)
    other.load_state_dict(one.state_dict())
    x = random_rows(last, 2)
    assert torch.equal(one(x), other(x.permute(0, 3, 1, 2)))


# ---- values


def test_a_convolution_by_hand() -> None:
    encoder = Encoder(Leaf((5, 5), "uint8"), "small_cnn")
    part = encoder.net.parts[0]
    first, second, head = part[1], part[3], part[6]
    with torch.no_grad():
        for p in encoder.parameters():
            p.zero_()
        first.weight[0, 0] = 1.0  # sums of 3x3 windows
        second.weight[0, 0, 1, 1] = 2.0  # twice the middle of these sums
        head.weight[0, 0] = 1.0
    x = torch.zeros(1, 5, 5, dtype=torch.uint8)
    x[0, 1:4, 1:4] = 255
    assert encoder(x)[0, :2].tolist() == [18.0, 0.0]


def test_a_cell_is_the_sum_of_the_vectors_of_its_channels() -> None:
    layout = layout_of(Leaf((2, 3, 2), "uint8"))
    assert layout is not None
    cells = Cells(layout)
    x = torch.zeros(1, 2, 3, 2, dtype=torch.uint8)
    x[0, 1, 2] = torch.tensor([7, 255], dtype=torch.uint8)
    table = cells.tables.weight
    out = cells(x)
    assert out.shape == (1, table.shape[1], 2, 3)
    assert torch.allclose(out[0, :, 1, 2], table[7] + table[NUM_VALUES + 255])
    assert torch.allclose(out[0, :, 0, 0], table[0] + table[NUM_VALUES])


def test_an_embedded_choice_is_a_row_of_its_table() -> None:
    encoder = Encoder(Leaf((4,), one_hot=True), "embedding")
    x = torch.eye(4)
    assert torch.allclose(encoder(x), encoder.net.parts[0].weight.t())


def test_flat_keeps_numbers_and_scales_bytes() -> None:
    assert Encoder(Leaf((2, 2)), "flat")(torch.arange(4.0).view(1, 2, 2)).tolist() == [[0, 1, 2, 3]]
    assert Encoder(Leaf((2,), "uint8"), "flat")(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0, 1]]


def test_orthogonal_initialisation() -> None:
    encoder = Encoder(Leaf((84, 84, 4), "uint8"), "nature_cnn", "orthogonal")
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            rows = layer.weight.flatten(1)
            gram = rows @ rows.t() if len(rows) <= rows.shape[1] else rows.t() @ rows
            assert torch.allclose(gram, 2 * torch.eye(len(gram)), atol=1e-4) and not layer.bias.any()


@pytest.mark.parametrize("kind", KINDS)
def test_any_leading_axes(kind: str) -> None:
    encoder = Encoder(KINDS[kind])
    x = random_rows(KINDS[kind], 2, 3)
    assert torch.allclose(encoder(x).flatten(0, 1), encoder(tree.flatten(x, 0, 1)), atol=1e-6)
    assert encoder(x).shape == (2, 3, encoder.num_features)


# ---- what is selected


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (Leaf((4, 84, 84), "uint8", stack=4), "nature_cnn for the observation (4, 84, 84) uint8, 512 features"),
        (Leaf((10, 10, 4), "bool"), "small_cnn for the observation (10, 10, 4) bool, 128 features"),
        (Leaf((28, 28), "uint8"), "small_cnn for the observation (28, 28) uint8, 128 features"),
        (Leaf((64, 64, 3)), "nature_cnn for the observation (64, 64, 3) float32, 512 features"),
        (Leaf((2, 3, 2)), "flat for the observation (2, 3, 2) float32, 12 features"),
        ((Leaf((2,)), Leaf((3,))), "flat for 0 (2,) float32, 2 features; flat for 1 (3,) float32, 3 features"),
        (
            MIXED,
            "embedding for grid (7, 7, 3) uint8, 128 features; mlp for place (2,) float32, 64 features; embedding for"
            " facing (4,) float32, 32 features",
        ),
    ],
)
def test_auto_selects_by_shape_and_type(seen: Tree, text: str) -> None:
    encoder = Encoder(seen)
    assert encoder.description == text
    assert encoder(random_rows(seen, 2)).shape == (2, encoder.num_features)


def test_a_named_encoder_reads_the_leaves_it_fits() -> None:
    encoder = Encoder(MIXED, "small_cnn")
    assert encoder.description.startswith("small_cnn for grid") and "mlp for place" in encoder.description
    with pytest.raises(ConfigError, match=r"agent.encoder=nature_cnn fits no part of the observation \(grid uint8 of"):
        Encoder(MIXED, "nature_cnn")
    with pytest.raises(ConfigError, match="there is no encoder 'nature'; did you mean 'nature_cnn'"):
        Encoder(MIXED, "nature")


def test_a_vector_needs_no_encoder() -> None:
    assert NetSpec().build_encoder(Leaf((3,))) is None
    assert NetSpec(encoder="mlp").build_encoder(Leaf((3,))) is not None
    assert NetSpec(network="mine:network").build_encoder(PICTURE) is None


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("side", [2, 5, 16, 36])
def test_every_encoder_takes_every_size_it_fits(name: str, side: int) -> None:
    for leaf in (Leaf((side, side, 2), "uint8"), Leaf((side, side + 1), "bool")):
        module = ENCODERS[name](leaf)
        assert (module is None) == (name == "nature_cnn" and side < 36)
        if module is not None:
            assert module(leaf.zeros(3)).dim() == 2


# ---- encoders of the user's


class Mine(nn.Module):
    """Reads the whole observation."""

    def __init__(self, leaves: Tree):
        super().__init__()
        self.leaves = leaves
        self.layer = nn.Linear(sum(math.prod(leaf.shape) for leaf in tree.leaves(leaves)), 5)

    def forward(self, seen: Tree) -> Tensor:
        return self.layer(torch.cat([x.flatten(1).float() for x in tree.leaves(seen)], -1))  # type: ignore[no-any-return]


def make_norm(leaves: Tree) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(2))


def make_wrong(leaves: Tree) -> nn.Module:
    return nn.Unflatten(1, (1, 2))


def make_nothing(leaves: Tree) -> int:
    return 3


def test_an_encoder_of_ones_own_reads_the_whole_observation() -> None:
    encoder = Encoder(MIXED, f"{__name__}:Mine")
    assert encoder.net.leaves is MIXED
    assert encoder.description == f"{__name__}:Mine, 5 features"
    assert encoder(random_rows(MIXED, 2, 3)).shape == (2, 3, 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("make_norm", r"has the torch.int64 tensor '1.num_batches_tracked', but weights are sent as float32; use"),
        ("make_wrong", r"gave \(2, 1, 2\) for 2 observations, expected features of shape \(2, F\)"),
        ("make_nothing", "gave a int, expected a torch.nn.Module"),
        ("missing", "cannot be imported"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Encoder(Leaf((2,)), f"{__name__}:{name}")


# ---- gradients


def test_the_shared_encoder_learns_from_policy_and_value() -> None:
    spec = EnvSpec("Made", MIXED, ActionSpec(choices=(3,)), 2)
    agent: Any = build_agent(find_agent("ppo"), spec, PPOConfig(hidden=()), CPU, 0)
    features = agent.policy.features(random_rows(MIXED, 6))
    params = list(agent.policy.encoder.parameters())
    advantage = torch.randn(6)
    policy_loss = (
        agent.policy.dist_from(features, None).log_prob(torch.zeros(6, dtype=torch.int64)) * advantage
    ).mean()
    value_loss = agent.value.loss(features, torch.randn(6))
    for loss in (policy_loss, value_loss):
        grads = torch.autograd.grad(loss, params, retain_graph=True)
        assert all(bool(grad.any()) for grad in grads)


# ---- every agent


def batch_of(agent: Any, seen: Tree, kind: str, seed: int) -> Any:
    """What ``update`` takes."""
    g = torch.Generator().manual_seed(seed)
    lead = (4, 2) if agent.memory == "rollout" else (8,)
    action = torch.rand(*lead, 2, generator=g) * 2 - 1 if kind == "continuous" else torch.randint(3, lead, generator=g)
    obs, next_obs = random_rows(seen, *lead, seed=seed), random_rows(seen, *lead, seed=seed + 50)
    reward, ended = torch.randn(lead, generator=g), torch.rand(lead, generator=g) < 0.2
    if agent.memory == "rollout":
        kept = agent.policy.dist(obs).log_prob(action).detach()
        return Rollout(obs, action, reward, ended, ~ended & (reward > 1), next_obs, kept)
    return Transition(obs, action, reward, 0.9 * ~ended, next_obs)


CASES = [(name, kind) for name in SINGLE_AGENTS for kind in ("discrete", "continuous")]
CASES = [(name, kind) for name, kind in CASES if kind in find_agent(name).agent.actions]
CASES = [(name, kind) for name, kind in CASES if find_agent(name).agent.memory in ("rollout", "replay")]


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("seen", [Leaf((6, 5, 2), "uint8"), MIXED, KINDS["tuple"]], ids=["picture", "dict", "tuple"])
def test_every_agent_learns_from_every_kind(name: str, kind: str, seen: Tree) -> None:
    entry = find_agent(name)
    action = ActionSpec(choices=(3,)) if kind == "discrete" else ActionSpec(dim=2)
    spec = EnvSpec("Made", seen, action, 2)
    config = entry.config(hidden=(8,), normalize_obs=True, **entry.preset)
    agent: Any = build_agent(entry, spec, config, CPU, 0)
    agent.observe(random_rows(seen, 4, 2, seed=9))
    before = {label: p.clone() for label, p in agent.named_parameters()}
    for seed in range(20):
        update = agent.update(batch_of(agent, seen, kind, seed))
    assert all(bool(x.isfinite().all()) for x in update.metrics.values())
    encoders = [label for label in before if ".encoder." in label]
    assert encoders
    for label, p in agent.named_parameters():
        if label in encoders:
            assert not torch.equal(p, before[label]), label  # targets too
    other: Any = build_agent(entry, spec, config, CPU, 1)
    other.load_training_state(agent.training_state())
    data = batch_of(agent, seen, kind, 33)
    for one in (agent, other):
        one.update(data)
    assert torch.equal(agent.policy.to_flat(), other.policy.to_flat())


# ---- normalisation


def test_every_leaf_of_floats_is_normalised_by_itself() -> None:
    norm, stats = build_norm(MIXED), build_stats(MIXED, CPU)
    assert isinstance(norm, TreeNorm) and isinstance(stats, TreeStats)
    rows = random_rows(MIXED, 50, 4)
    rows["place"] = rows["place"] * torch.tensor([3.0, 0.5]) + torch.tensor([10.0, -1.0])
    for part in tree.split(rows, 20):
        stats.update(part)
    stats.write_to(norm)
    out = norm(rows)
    assert torch.equal(out["grid"], rows["grid"]) and torch.equal(out["facing"], rows["facing"])
    assert torch.allclose(out["place"].flatten(0, 1).mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(out["place"].flatten(0, 1).std(0, correction=0), torch.ones(2), atol=1e-4)
    assert list(norm.state_dict()) == ["leaves.1.mean", "leaves.1.inv_std"]
    again = TreeStats(MIXED, CPU)
    again.load_state_dict(stats.state_dict())
    assert torch.equal(again.leaves[1].m2, stats.leaves[1].m2)


def test_one_vector_is_normalised_as_ever() -> None:
    norm = build_norm(Leaf((3,)))
    assert isinstance(norm, ObsNorm) and list(norm.state_dict()) == ["mean", "inv_std"]
    for leaf in (PICTURE, Leaf((4,), one_hot=True)):
        assert isinstance(build_norm(leaf), nn.Identity) and build_stats(leaf, CPU) is None


def test_a_leaf_of_choices_is_stored_as_one() -> None:
    leaf = from_state(to_state(Leaf((4,), one_hot=True)))
    assert leaf.one_hot and not from_state(to_state(Leaf((4,)))).one_hot
    assert from_state({"leaf": [[4], "float32"]}) == leaf  # files of before say neither stack nor choice

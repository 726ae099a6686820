"""Matrix products by oneDNN equal torch's own, alone and in the layers of agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from elegantrl.agents.gradients import Gradients
from elegantrl.fast import products, wide_layers
from elegantrl.fast.learning import gradients_of
from elegantrl.registry import build_agent, find_agent
from elegantrl.types import ActionSpec, EnvSpec, Transition

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
ROWS = 64


@pytest.fixture(autouse=True)
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (products, wide_layers):
        monkeypatch.setattr(module, "are_faster", lambda: True)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"vendor_id": "AuthenticAMD", "cpu family": "26"}, True),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25"}, False),  # Zen 4 splits wide vectors
        ({"vendor_id": "GenuineIntel", "cpu family": "26"}, False),
        ({}, False),  # no Linux
    ],
)
def test_only_zen_5_gains(facts: dict[str, str], expected: bool) -> None:
    assert products.is_zen_5(facts) is expected


@pytest.mark.parametrize("shape", [(64, 128, 256), (256, 23, 256), (2048, 64, 64), (7, 5, 3)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_product_equals_that_of_torch(shape: tuple[int, int, int], is_transposed: bool) -> None:
    rows, inputs, outputs = shape
    a, b = torch.randn(rows, inputs), torch.randn(inputs, outputs)
    if is_transposed:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    expected = (a.double() @ b.double()).float()
    torch.testing.assert_close(products.mm(a, b), expected, rtol=1e-4, atol=1e-4)
    out = torch.empty(outputs, rows).t()
    assert products.mm(a, b, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def agent_with(name: str, action: ActionSpec, **settings: Any) -> Any:
    found = find_agent(name)
    config = replace(found.default_config(), hidden=(256, 256), batch_size=ROWS, **settings)
    return build_agent(found, EnvSpec("Made", (20,), action, 1), config, torch.device("cpu"), 0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("td3", {}), ("ddpg", {}), ("redq", {"num_critics": 3}), ("sac", {"layer_norm": True}), ("d3qn", {}),
     ("discrete_sac", {})],
)  # fmt: skip
def test_gradients_equal_those_of_plain_autograd(name: str, settings: dict[str, Any]) -> None:
    is_discrete = name in ("d3qn", "discrete_sac")
    action = ActionSpec(choices=(4,)) if is_discrete else ActionSpec(dim=6)
    agents = [agent_with(name, action, **settings) for _ in range(2)]
    agents[0].gradients, agents[1].gradients = Gradients(), gradients_of(agents[1])
    assert isinstance(agents[1].gradients, wide_layers.ByOneDNN)
    g = torch.Generator().manual_seed(1)
    taken = torch.randint(4, (ROWS,), generator=g) if is_discrete else torch.rand(ROWS, 6, generator=g)
    obs, next_obs = torch.randn(2, ROWS, 20, generator=g)
    batch = Transition(obs, taken, torch.randn(ROWS, generator=g), torch.full((ROWS,), 0.9), next_obs)
    for _ in range(3):
        plain, other = (agent.update(batch).metrics for agent in agents)
        for key, value in plain.items():  # losses and the norms of gradients
            torch.testing.assert_close(other[key], value, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(agents[1].parameters(), agents[0].parameters(), strict=True):
        # Adam turns the rounding error of a gradient near 0 into a step of full size, so some elements differ.
        assert (mine - theirs).abs().mean() < 1e-3 * theirs.abs().mean() + 1e-6


def test_small_layers_and_layers_of_others_stay_as_they_are() -> None:
    agent = agent_with("td3", ActionSpec(dim=6))
    by = gradients_of(agent)
    assert isinstance(by, wide_layers.ByOneDNN)
    small, x = nn.Linear(3, 5), torch.randn(4, 3)
    assert torch.equal(by.linear(small, x), small(x))
    assert "products by oneDNN" in by.description

"""The pretended accelerator finds faults that are planted here and names their place; clean code has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elegantrl.agents.optim import GradStep
from tests.accelerator import ACCELERATOR, Accelerator, Event, Events, MixedDevices
from tests.device.listed import LISTED, unlisted

Planted = Callable[[Tensor], Any]
READS: dict[str, Planted] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "index of a list": lambda x: [1, 2, 3, 4][x.long().abs().amin() % 4],
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy to the host": lambda x: torch.empty(4, 3).copy_(x),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(force=True),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "rows of a mask": lambda x: x[x > 0],
    "rows of a mask written": lambda x: x.clone().__setitem__(x > 0, x[0, 0]),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: x.repeat_interleave(x[0].abs().long(), 1),
    "equal": lambda x: torch.equal(x, x + 1),
    "a list of numbers": lambda x: torch.tensor([x[0, 0], x[0, 1]]),
    "contains": lambda x: 2.0 in x,
}
UPLOADS: dict[str, Planted] = {
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
    "to": lambda x: torch.arange(3).to(x.device),
    "copy": lambda x: torch.empty_like(x[0]).copy_(torch.ones(3)),
    "an array": lambda x: torch.from_numpy(np.ones(3)).to(x.device),
    "a list as an index": lambda x: x[:, [0, 1]],
    "written to a list of rows": lambda x: x.clone().__setitem__([0, 1], 2.0),
}
MIXED: dict[str, Planted] = {
    "product": lambda x: x * torch.ones(3),
    "one number": lambda x: x * torch.tensor(2.0),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(3)),
    "cat": lambda x: torch.cat([x, torch.zeros(1, 3)]),
    "index": lambda x: x[torch.tensor([0, 1])],
    "written": lambda x: x.index_copy(0, torch.tensor([0]), x[:1]),
    "generator of the host": lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
    "generator of the host, in place": lambda x: torch.empty_like(x).normal_(generator=torch.Generator()),
    "generator of the device": lambda x: torch.rand(3, generator=torch.Generator(device=x.device)),
    "parameter of the host": lambda x: nn.Linear(3, 2)(x),
    "learning rate of the host": lambda x: GradStep([nn.Parameter(x.clone())], torch.tensor(0.1)).follow(x.flatten()),
}
CLEAN: dict[str, Planted] = {
    "arithmetic": lambda x: (x * 2.0 + 1).clamp(min=0).softmax(-1).topk(2).values,
    "numbers in where": lambda x: torch.where(x > 0, x, 0.0),
    "made there": lambda x: x + torch.arange(3, device=x.device) + torch.full((3,), 2.0, device=x.device),
    "integers as an index": lambda x: x[x[:, 0].abs().long() % 4, 1:].sum(),
    "filled": lambda x: x.masked_fill(x > 0, 1.0),
    "slices": lambda x: x[1:3, 0].clone().fill_(2.0),
    "drawn": lambda x: torch.rand(3, device=x.device, generator=torch.Generator(device=x.device)) + x,
    "shuffled": lambda x: x[torch.randperm(4, device=x.device, generator=torch.Generator(device=x.device))],
    "shape": lambda x: x.reshape(len(x), -1).unbind(),
    "of the host alone": lambda x: (torch.ones(3) * 2).sum().item(),
}


def events_of(planted: Planted, inference: bool = False) -> Events:
    with Accelerator() as accelerator:
        x = torch.linspace(-2, 5, 12).view(4, 3).to(ACCELERATOR)
        with accelerator.watch() as events, torch.inference_mode(inference):
            planted(x)
    return events


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", READS)
def test_a_host_read_is_found(name: str, inference: bool) -> None:
    events = events_of(READS[name], inference)
    assert {event.kind for event in events} == {"read"}
    assert unlisted(events) == list(events)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", UPLOADS)
def test_an_upload_is_found(name: str, inference: bool) -> None:
    events = events_of(UPLOADS[name], inference)
    assert {event.kind for event in events} == {"upload"}
    assert unlisted(events) == list(events)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_found(name: str, inference: bool) -> None:
    with pytest.raises(MixedDevices):
        events_of(MIXED[name], inference)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", CLEAN)
def test_clean_code_has_no_events(name: str, inference: bool) -> None:
    assert not events_of(CLEAN[name], inference)


def scale(x: Tensor) -> Tensor:
    return x * torch.ones(3)


def test_events_and_errors_name_the_function() -> None:
    with pytest.raises(MixedDevices, match=r"tests/device/test_harness\.py:scale: aten\.mul\.Tensor meets tensors of"):
        events_of(scale)

    def read(x: Tensor) -> list[Any]:
        return [x.max().item() for _ in range(2)]

    (event,) = found = events_of(read)
    where = "tests/device/test_harness.py:test_events_and_errors_name_the_function"
    assert event == Event("read", where, "aten._local_scalar_dense") and found[event] == 2


def test_a_read_within_a_gradient_is_found() -> None:
    class Loud(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * float(grad.sum())

    def learn(x: Tensor) -> Any:
        return torch.autograd.grad(Loud.apply(x.requires_grad_()).sum(), x)

    assert [event.kind for event in events_of(learn)] == ["read"]


def test_only_listed_events_are_allowed() -> None:
    kind, place = next(iter(LISTED))
    assert not unlisted(Counter([Event(kind, place, "aten.nonzero")]))
    other = Event("upload" if kind == "read" else "read", place, "aten.nonzero")
    assert unlisted(Counter([other])) == [other]


def train(device: torch.device) -> tuple[Tensor, ...]:
    """A few steps with a copy of a network, its optimiser, random numbers, views, and a value that the host decides."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 1)).to(device)
    target = deepcopy(net)
    step = GradStep(net.parameters(), torch.tensor(0.01, device=device), max_grad_norm=0.5)
    generator = torch.Generator(device=device).manual_seed(1)
    seen = torch.zeros(5, 3, device=device)
    for i in range(4):
        x = torch.randn(5, 3, generator=generator, device=device)
        seen[i % 5].copy_(x[0])
        seen[:, 1] += x[:, 1]
        loss = (net(x) - target(seen).detach()).square().mean()
        if loss > 0.1:
            loss = loss * 2
        norm = step(loss)
    return (*(p.detach() for p in net.parameters()), seen, norm, seen[seen > 0])


def test_numbers_are_those_of_a_cpu() -> None:
    expected = train(torch.device("cpu"))
    with Accelerator() as accelerator:
        found = accelerator.values(train(ACCELERATOR))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_a_generator_is_saved_and_goes_on() -> None:
    with Accelerator() as accelerator:
        generator = torch.Generator(device=ACCELERATOR).manual_seed(4)
        assert generator.device == ACCELERATOR
        state = generator.get_state()
        first, second = (torch.rand(3, generator=generator, device=ACCELERATOR) for _ in range(2))
        generator.set_state(state)
        again = torch.rand(3, generator=generator, device=ACCELERATOR)
        values = accelerator.values((first, second, again))
    assert torch.equal(values[0], values[2]) and not torch.equal(values[0], values[1])
    assert torch.equal(values[0], torch.rand(3, generator=torch.Generator().manual_seed(4)))


def test_afterwards_torch_is_as_before() -> None:
    before = torch.Generator
    with pytest.raises(ZeroDivisionError), Accelerator():
        torch.Generator(device=ACCELERATOR)
        _ = 1 / 0
    assert torch.Generator is before
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]

"""A pretended accelerator: finds on a machine without a GPU what a GPU would refuse or wait for.

Tensors are torch's fake tensors (``torch._subclasses.fake_tensor``) on the device ``meta``, which stands for the
accelerator: torch itself computes the device and the shape of every result. Unlike a plain fake tensor each has a twin,
a tensor on the CPU with its numbers, on which every operation is repeated. A host read therefore has its true answer,
code continues as it would on a GPU, and results can be compared with those of a CPU, bit for bit.

What is found, each with the function of the library in which it happened:

- Mixed devices, an error: tensors of both, or a random generator and a tensor of different ones, meet in one operation.
  A single number on the CPU counts too: torch accepts it, but a CUDA graph would keep its first value for ever.
- Uploads, an event: data are copied to the accelerator, as with ``torch.tensor([...], device=device)``.
- Reads, an event: the host needs a value, or a shape that depends on values, and waits for all kernels before it.

What is substituted, because a CPU build of torch has none of it:

- The device is ``meta`` and not ``cuda``: indexing a fake CUDA tensor asks for CUDA's device guard, which is missing.
- ``torch.Generator(device=...)`` is a CPU generator that names the accelerator as its device; it draws for the twins.
- ``torch.tensor(..., device=...)`` is made on the CPU and copied, and so is a list as an index: on ``meta`` torch would
  drop their values.
- The kernel of Adam has no fake version: its operands are checked, and it runs on the twins only.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ROOT = Path(__file__).parent.parent
ACCELERATOR = torch.device("meta")
CPU = torch.device("cpu")
aten = torch.ops.aten

COPIES = {aten._to_copy.default, aten.copy_.default}
READS = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
"""Operations that return a number to the host; others that read are known by the exceptions of fake tensors."""
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
WITHOUT_FAKE = {aten._fused_adam_.tensor_lr}
SHAPED_BY_DEVICE = {aten._embedding_bag.default, aten._embedding_bag_forward_only.default}
"""Operations with results besides the first, for their gradients, whose shapes differ between devices."""
TRANSFERS = {Tensor.copy_, Tensor.to, Tensor.cpu, Tensor.data.__set__, Tensor.type_as}
"""Python calls in which tensors of two devices may meet."""
ITEMS = {Tensor.__getitem__, Tensor.__setitem__}

Kind = Literal["upload", "read"]


class Event(NamedTuple):
    """Something that takes time between host and device."""

    kind: Kind
    place: str  # path/of/file.py:Class.method
    what: str  # the operation


Events = Counter[Event]


class MixedDevices(AssertionError):
    """An operation that fails on an accelerator."""


class PretendedGenerator(torch.Generator):
    """A CPU generator for the twins of the accelerator's tensors."""

    @property
    def device(self) -> torch.device:
        return ACCELERATOR

    def set_state(self, state: Tensor) -> torch.Generator:
        return super().set_state(on_host(state))


class Accelerator:
    """A context in which ``ACCELERATOR`` is a device. Tensors that are made in it are of no use outside."""

    def __init__(self) -> None:
        self.fake = FakeTensorMode()
        self.events: Events | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Accelerator:
        original = torch.Generator

        def make(device: torch.device | str = CPU) -> torch.Generator:
            return PretendedGenerator() if is_accelerator(torch.device(device)) else original(device)

        self._stack.callback(setattr, torch, "Generator", original)
        torch.Generator = make  # type: ignore[misc, assignment]
        for mode in (self.fake, Operations(self), Calls(self)):
            self._stack.enter_context(mode)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    @contextmanager
    def watch(self) -> Iterator[Events]:
        """Collect uploads and reads within this context; mixed devices are an error everywhere."""
        assert self.events is None, "one watch at a time"
        self.events = Counter()
        try:
            yield self.events
        finally:
            self.events = None

    def note(self, kind: Kind, what: object) -> None:
        if self.events is not None:
            self.events[Event(kind, place_of(sys._getframe(1)), str(what).removesuffix(".default"))] += 1

    def refuse(self, what: object) -> None:
        raise MixedDevices(f"{place_of(sys._getframe(1))}: {what} meets tensors of two devices")

    def put(self, tree: Any) -> Any:
        """Tensors of the CPU on the accelerator."""
        return mapped(lambda x: x.to(ACCELERATOR) if isinstance(x, Tensor) else x, tree)

    def values(self, tree: Any) -> Any:
        """Copies of the tensors' numbers, for use outside."""
        with _disable_current_modes():
            return mapped(lambda x: x.twin.clone() if isinstance(x, FakeTensor) else x, tree)


def is_accelerator(device: torch.device) -> bool:
    return device.type == ACCELERATOR.type


def is_mask(x: Tensor | None) -> bool:
    return x is not None and x.dtype == torch.bool


def place_of(frame: FrameType | None) -> str:
    """The innermost function of this repository, apart from this file."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path != Path(__file__) and ".venv" not in path.parts:
            return f"{path.relative_to(ROOT)}:{frame.f_code.co_qualname.split('.<')[0]}"
        frame = frame.f_back
    return "?"


class Operations(TorchDispatchMode):
    """Sees every operation below autograd, also those of backward passes."""

    def __init__(self, owner: Accelerator):
        super().__init__()
        self.owner = owner

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # a question for the device of a tensor
            return func(*args, **(kwargs or {}))
        args, kwargs = mapped(self.enter, (args, kwargs or {}))
        if torch.is_inference_mode_enabled():  # only then do operations arrive that are made of others
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        self.check(func, args, kwargs)
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            if func is aten.view.default:
                lay_out_twin(args[0])
            real_args, real_kwargs = mapped(on_host, (args, kwargs))
            real = func(*real_args, **real_kwargs)
        result = self.pretend(func, args, kwargs, real)
        # The memo's weak references would keep a module from moving its parameters to another device.
        self.owner.fake.fake_tensor_converter.meta_converter.tensor_memo.clear()
        for fake, twin in zip(parts(result), parts(real), strict=True):
            if isinstance(fake, FakeTensor):
                assert fake.shape == twin.shape or func in SHAPED_BY_DEVICE, func
                fake.twin = twin  # type: ignore[attr-defined]
        return result

    def enter(self, x: Any) -> Any:
        """A fake tensor for an ordinary one, such as a NumPy array's; other arguments as they are."""
        if isinstance(x, FakeTensor) or not isinstance(x, Tensor):
            return x
        assert x.device == CPU, "torch made a tensor of the accelerator without its numbers"
        fake = self.owner.fake.from_tensor(x)
        with _disable_current_modes():
            fake.twin = x.detach()  # type: ignore[attr-defined]
        return fake

    def check(self, func: Any, args: Any, kwargs: Any) -> None:
        tensors = [x for x in parts((args, kwargs)) if isinstance(x, Tensor)]
        on_device = [is_accelerator(x.device) for x in tensors]
        if not tensors:
            return
        if func in COPIES:
            target = kwargs.get("device") or tensors[0].device
            source = tensors[-1].device
            if is_accelerator(target) != is_accelerator(source):
                self.owner.note("upload" if is_accelerator(target) else "read", func)
        elif any(on_device):
            if any(not there and x.dim() for x, there in zip(tensors, on_device, strict=True)):
                self.owner.refuse(func)
            if func in READS or (func in INDEXING and any(is_mask(x) for x in args[1])):
                self.owner.note("read", func)

    def pretend(self, func: Any, args: Any, kwargs: Any, real: Any) -> Any:
        """The result on the pretended device; ``real`` has its numbers and, where these decide it, its shape."""
        if func in READS or func in WITHOUT_FAKE:
            return real
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            tensors = [x for x in parts((args, kwargs)) if isinstance(x, Tensor)]
            if is_accelerator(tensors[0].device) and func not in INDEXING:
                self.owner.note("read", func)
            return mapped(partial(made_on, tensors[0].device), real)


def made_on(device: torch.device, like: Any) -> Any:
    """Memory for a result; numbers stay numbers."""
    if not isinstance(like, Tensor):
        return like
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def lay_out_twin(x: Any) -> None:
    """Give the twin the memory layout of the fake tensor; a kernel of a CPU may have chosen one that allows no view."""
    if x.stride() != x.twin.stride():
        x.twin = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.twin)


def mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    """Every leaf of tuples, lists and dicts replaced; torch's own function takes longer than the operations."""
    if isinstance(tree, tuple | list):
        made = [mapped(f, part) for part in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else (made if isinstance(tree, list) else tuple(made))
    return {key: mapped(f, part) for key, part in tree.items()} if isinstance(tree, dict) else f(tree)


def parts(tree: Any) -> list[Any]:
    """All leaves."""
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def on_host(x: Any) -> Any:
    """An argument of the same operation on the twins."""
    if isinstance(x, FakeTensor):
        return x.twin  # type: ignore[attr-defined]
    return CPU if isinstance(x, torch.device) else x


class Calls(TorchFunctionMode):
    """Sees every call of Python: what never becomes an operation, and single numbers on the CPU."""

    def __init__(self, owner: Accelerator):
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        substitute = SUBSTITUTES.get(func)
        if substitute is not None:
            return substitute(self.owner, *args, **kwargs)
        if func not in TRANSFERS and getattr(func, "__name__", "") != "__get__":  # which reads an attribute
            self.check(func, args, kwargs)
        if func in ITEMS:
            args = (args[0], index_on(args[0].device, args[1]), *args[2:])
        return func(*args, **kwargs)

    def check(self, func: Any, args: Any, kwargs: Any) -> None:
        tensors = [x for x in parts((args, kwargs)) if isinstance(x, Tensor)]
        # Tensors with axes are compared in ``Operations``, which also sees what torch makes of lists and arrays.
        numbers = [x for x in tensors if not x.dim() and not is_accelerator(x.device)]
        mixed = bool(numbers) and any(is_accelerator(x.device) for x in tensors)
        generator = kwargs.get("generator")
        if generator is not None:
            device = kwargs.get("device") or (tensors[0].device if tensors else CPU)
            mixed = mixed or is_accelerator(torch.device(device)) != isinstance(generator, PretendedGenerator)
        if mixed:
            self.owner.refuse(getattr(func, "__name__", func))


# ---- calls that fake tensors do not know


def make_on_host(make: Any, owner: Accelerator, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    if make is torch.tensor:
        args = mapped(lambda x: x.item() if isinstance(x, Tensor) else x, args)  # numbers of the device are read
    made: Tensor = make(*args, **kwargs)
    return made if device is None else made.to(device)


def index_on(device: torch.device, index: Any) -> Any:
    """An index in which lists are tensors."""
    if isinstance(index, tuple):
        return tuple(index_on(device, part) for part in index)
    return torch.tensor(index).to(device) if isinstance(index, list) else index


def set_data(owner: Accelerator, x: FakeTensor, value: FakeTensor) -> None:
    Tensor.data.__set__(x, value)  # type: ignore[attr-defined]
    x.twin, x.fake_device = value.twin, value.fake_device  # type: ignore[attr-defined]


def copy_deeply(owner: Accelerator, x: Tensor, memo: dict[int, Any]) -> Any:
    if id(x) not in memo:
        copy = x.detach().clone()
        is_parameter = isinstance(x, nn.Parameter)
        memo[id(x)] = nn.Parameter(copy, x.requires_grad) if is_parameter else copy.requires_grad_(x.requires_grad)
    return memo[id(x)]


def to_numpy(owner: Accelerator, x: Tensor, *, force: bool = False) -> Any:
    if is_accelerator(x.device):
        owner.note("read", "numpy")
    with _disable_current_modes():
        return on_host(x).numpy(force=force)


SUBSTITUTES: dict[Any, Any] = {
    torch.tensor: partial(make_on_host, torch.tensor),
    torch.as_tensor: partial(make_on_host, torch.as_tensor),
    Tensor.data.__set__: set_data,  # type: ignore[attr-defined]
    Tensor.__deepcopy__: copy_deeply,
    Tensor.numpy: to_numpy,
}

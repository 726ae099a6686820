"""Values as bytes: a short body, and a block of memory that holds the big tensors and arrays.

The receiver of a message was busy or asleep and its caches are cold: the time depends less on the number of bytes than
on the amount of code that runs. Values of numbers, strings, tensors, arrays, lists, dicts, tuples and named tuples are
therefore written by marshal, which takes a third of pickle's time, and their tensors are rebuilt through NumPy, the
fastest way. Everything else is pickled, with its arrays outside the pickle (protocol 5).

Pickle runs code that the sender chooses, and a body may name a class. Both are used only between a process and the
children it started, over pipes that no other process can open.
"""

from __future__ import annotations

import io
import marshal
import pickle
from functools import cache
from importlib import import_module
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ALIGN_BYTES = 64  # the alignment of torch's own allocator: kernels then round in the same way
INSIDE_BYTES = 2048
"""Arrays below this size stay inside the body."""

PICKLED, PLAIN, TREE = range(3)
"""Forms of a body."""
MAX_DEPTH = 12
"""Deeper values, and values that contain themselves, are pickled."""

DTYPES = tuple(map(np.dtype, "?bBhHiIlLefdFD"))
DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}
SCALARS = frozenset({type(None), bool, int, float, str, bytes})
ARRAY, TENSOR, TUPLE, DICT = range(4)
"""Marks of arrays, tensors, tuples and dicts in a body; a named tuple is marked by the name of its class."""
KNOWN_TO_NUMPY = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip


class Cargo:
    """Arrays outside the body, and the start of each in a block of ``size`` bytes."""

    def __init__(self) -> None:
        self.arrays: list[tuple[int, pickle.PickleBuffer]] = []
        self.size = 0

    def add(self, x: Any) -> tuple[int, pickle.PickleBuffer]:
        start = -(-self.size // ALIGN_BYTES) * ALIGN_BYTES
        self.arrays.append((start, pickle.PickleBuffer(x)))
        self.size = start + x.nbytes
        return self.arrays[-1]

    def load_into(self, stretch: memoryview) -> None:
        for start, x in self.arrays:
            raw = x.raw()
            stretch[start : start + raw.nbytes] = raw


def pack(value: Any) -> tuple[int, bytes, Cargo]:
    """The form of a value, its body, and its arrays outside the body."""
    if is_plain(value):
        return PLAIN, marshal.dumps(value), Cargo()
    cargo = Cargo()
    try:
        skeleton = take_apart(value, cargo, MAX_DEPTH)
    except Unfit:
        packer = Packer()
        packer.dump(value)
        return PICKLED, packer.stream.getvalue(), packer.cargo
    inside = bytearray(cargo.size if cargo.size < INSIDE_BYTES else 0)
    if inside:
        cargo.load_into(memoryview(inside))
        cargo = Cargo()
    return TREE, marshal.dumps((skeleton, inside)), cargo


def unpack(form: int, body: bytes | memoryview, raw: Any) -> Any:
    """The value of a body; ``raw`` is the block with its cargo, and the big tensors of the value are views of it."""
    if form == PICKLED:
        unpickler = pickle.Unpickler(io.BytesIO(body), buffers=repeat(raw))  # the whole block: arrays hold offsets
        unpickler.persistent_load = BY_NUMBER.__getitem__  # type: ignore[method-assign]
        return unpickler.load()
    value = marshal.loads(body)
    if form == PLAIN:
        return value
    skeleton, inside = value
    return put_together(skeleton, bytearray(inside) if inside else raw)


# ---- frequent values


class Unfit(Exception):
    """A value that only pickle can write."""


def take_apart(value: Any, cargo: Cargo, depth: int) -> Any:
    """A value in a form for marshal, with its tensors and arrays in ``cargo``."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is Tensor:
        if not (value.is_cpu and value.dtype in KNOWN_TO_NUMPY):
            raise Unfit
        x = contiguous(value)
        return TENSOR, x.shape, DTYPE_NUMBERS[x.dtype], cargo.add(x)[0]
    if depth == 0:
        raise Unfit
    if kind is list:
        return [take_apart(part, cargo, depth - 1) for part in value]
    if kind is dict and all(type(key) is str for key in value):
        return DICT, list(value), *[take_apart(part, cargo, depth - 1) for part in value.values()]
    if issubclass(kind, tuple):
        mark = TUPLE if kind is tuple else name_of(kind)
        return mark, *[take_apart(part, cargo, depth - 1) for part in value]
    if kind is np.ndarray and value.dtype in DTYPE_NUMBERS and value.flags.c_contiguous:
        return ARRAY, value.shape, DTYPE_NUMBERS[value.dtype], cargo.add(value)[0]
    raise Unfit


def put_together(skeleton: Any, raw: Any) -> Any:
    """The value of a skeleton, whose arrays are in ``raw``."""
    kind = type(skeleton)
    if kind is list:
        return [put_together(part, raw) for part in skeleton]
    if kind is not tuple:
        return skeleton
    mark = skeleton[0]
    if mark in (TENSOR, ARRAY):
        _, shape, dtype, start = skeleton
        x = np.ndarray(shape, DTYPES[dtype], raw, start)
        return torch.from_numpy(x) if mark == TENSOR else x
    if mark == DICT:
        return dict(zip(skeleton[1], [put_together(part, raw) for part in skeleton[2:]], strict=True))
    parts = [put_together(part, raw) for part in skeleton[1:]]
    return tuple(parts) if mark == TUPLE else tuple.__new__(class_of(mark), parts)  # the constructor is slow Python


@cache
def name_of(kind: type) -> str:
    """``module:Class`` of a named tuple that a receiver can import."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not hasattr(kind, "_fields") or kind.__module__ == "__main__" or "<" in name or class_of(name) is not kind:
        raise Unfit
    return name


@cache
def class_of(name: str) -> Any:
    module, _, path = name.partition(":")
    return attrgetter(path)(import_module(module))


def is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether marshal alone restores the value: of other types it keeps the bytes without an error."""
    kind = type(value)
    if kind is list or kind is tuple:
        return depth > 0 and all(is_plain(x, depth - 1) for x in value)
    return kind in SCALARS


# ---- everything else


class Packer(pickle.Pickler):
    """Pickles a value, with its big tensors and arrays outside the pickle."""

    def __init__(self) -> None:
        self.stream, self.cargo = io.BytesIO(), Cargo()
        arrays = self.cargo.arrays
        # Other buffers stay inside. A lambda, not a method: a reference cycle would keep packed values alive.
        is_inside = lambda buffer: not arrays or arrays[-1][1] is not buffer  # noqa: E731
        super().__init__(self.stream, protocol=5, buffer_callback=is_inside)

    def persistent_id(self, x: Any) -> int | None:
        return NUMBERS.get(id(x))

    def reducer_override(self, x: Any) -> Any:
        kind = type(x)
        if kind is Tensor or kind is nn.Parameter:
            return self.reduce_tensor(x)
        if kind is np.ndarray and x.dtype.kind in "biufc" and x.flags.c_contiguous:
            return rebuild, (*self.reduce_array(x), None)
        return NotImplemented

    def reduce_tensor(self, x: Tensor) -> tuple[Any, ...]:
        """A tensor as raw bytes, type and shape; a GPU tensor is copied through the host and back to its device."""
        device = "cpu" if x.is_cpu else str(x.device)
        if x.dtype in KNOWN_TO_NUMPY:
            return rebuild, (*self.reduce_array(contiguous(x)), device)
        host = x.detach().cpu().contiguous()
        flat = host.as_strided((host.numel(),), (1,))  # an axis of size 0 or 1 may have any stride, and view needs 1
        return rebuild_strange, (flat.view(torch.uint8), x.dtype, tuple(x.shape), device)

    def reduce_array(self, x: Any) -> tuple[Any, ...]:
        """Bytes, offset, type and shape. NumPy's own reduction takes the reader several times as long."""
        start, buffer = (0, pickle.PickleBuffer(x)) if x.nbytes < INSIDE_BYTES else self.cargo.add(x)
        return buffer, start, x.dtype, x.shape


def contiguous(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.numpy(force=True)).reshape(x.shape)


def rebuild(raw: Any, start: int, dtype: Any, shape: tuple[int, ...], device: str | None) -> np.ndarray | Tensor:
    """An array, or a tensor on ``device``."""
    x = np.ndarray(shape, dtype, raw, start)
    if device is None:
        return x
    return on_device(torch.from_numpy(x), device)


def rebuild_strange(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
    return on_device(raw.view(dtype).view(shape), device)


def on_device(x: Tensor, device: str) -> Tensor:
    """A tensor on the device it came from; on the host if this machine has no GPU."""
    return x if device == "cpu" or not torch.cuda.is_available() else x.to(device)


BY_NUMBER = (rebuild, rebuild_strange, *DTYPES)
NUMBERS = {id(x): number for number, x in enumerate(BY_NUMBER)}
"""Objects that pickles name by a number: importing a name takes the reader several microseconds."""

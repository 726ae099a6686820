"""Values as bytes: a short body, and a stretch of memory in which the big tensors and arrays lie.

Whoever takes a message was busy with something else or asleep, and all caches are cold: what costs time is not the
bytes but every new piece of code that runs. So what is sent all the time (fragments, weights, calls with a few numbers)
is taken apart into numbers and strings for marshal, a third of pickle's work, and tensors come to life through NumPy,
which has the shortest way to a view with a shape. Everything else is pickled with its arrays set aside (protocol 5).

Pickle runs code of the sender's choosing. It is used here only between a process and the children it started, over
pipes that nobody else can open.
"""

from __future__ import annotations

import io
import marshal
import pickle
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..types import Episodes, Fault, Fragment, Rollout, Weights

ALIGN_BYTES = 64  # where torch's own allocator puts tensors: kernels then round as they do elsewhere
INSIDE_BYTES = 2048
"""Arrays below this size stay inside the body."""

PICKLED, PLAIN, WEIGHTS, FRAGMENTS = range(4)
"""Forms of a body."""
PLAIN_DEPTH = 5
"""How deep values are looked through for anything but numbers and strings; calls are four deep."""

DTYPES = tuple(map(np.dtype, "?bBhHiIlLefdFD"))
ROLLOUT_SIZE = len(Rollout._fields)
FLOAT64, INT64 = np.dtype(np.float64), np.dtype(np.int64)
KNOWN_TO_NUMPY = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip


class Cargo:
    """Arrays that are set aside, and where each is to begin in a stretch of ``size`` bytes."""

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
    """The form of a value, its body, and what goes with it."""
    form, plain, tensors = take_apart(value)
    if form == PICKLED or not all(is_numpys(x) for x in tensors):
        packer = Packer()
        packer.dump(value)
        return PICKLED, packer.stream.getvalue(), packer.cargo
    cargo, places = Cargo(), []
    for tensor in tensors:
        x = contiguous(tensor)
        places.append((x.shape, DTYPES.index(x.dtype), cargo.add(x)[0]))
    inside = bytearray(cargo.size if cargo.size < INSIDE_BYTES else 0)
    if inside:
        cargo.load_into(memoryview(inside))
        cargo = Cargo()
    return form, marshal.dumps((plain, places, inside)), cargo


def unpack(form: int, body: bytes | memoryview, raw: Any) -> Any:
    """The value of a body; ``raw`` is the stretch with its cargo, in which its big tensors then lie."""
    if form == PICKLED:
        unpickler = pickle.Unpickler(io.BytesIO(body), buffers=repeat(raw))  # all of it, for arrays to find their place
        unpickler.persistent_load = BY_NUMBER.__getitem__  # type: ignore[method-assign]
        return unpickler.load()
    plain, places, inside = marshal.loads(body)
    raw = bytearray(inside) if inside else raw
    tensors = [torch.from_numpy(np.ndarray(shape, DTYPES[dtype], raw, start)) for shape, dtype, start in places]
    if form == FRAGMENTS:
        return put_together(plain, tensors)
    return Weights(plain, *tensors) if form == WEIGHTS else plain


# ---- what is sent all the time


def take_apart(value: Any) -> tuple[int, Any, list[Tensor]]:
    """The form of a value, what marshal keeps of it, and its tensors."""
    if type(value) is Weights:
        return WEIGHTS, int(value.version), [value.flat]
    if type(value) is list and value and all(type(x) is Fragment for x in value):
        return FRAGMENTS, [plain_fragment(x) for x in value], [x for fragment in value for x in fragment.rollout]
    return PLAIN if is_plain(value) else PICKLED, value, []


def plain_fragment(fragment: Fragment) -> tuple[Any, ...]:
    group, seq, version, _, (returns, lengths), faults, lost = fragment
    ended = len(returns), returns.astype(FLOAT64).tobytes(), lengths.astype(INT64).tobytes()
    told = [(int(x.lane), str(x.what), str(x.where), int(x.step), str(x.trace)) for x in faults]
    return int(group), int(seq), int(version), *ended, told, int(lost)


def put_together(plain: list[Any], tensors: list[Tensor]) -> list[Fragment]:
    fragments, make = [], tuple.__new__  # the constructor of a named tuple is in Python
    for group, seq, version, count, returns, lengths, faults, lost in plain:
        rollout, tensors = make(Rollout, tensors[:ROLLOUT_SIZE]), tensors[ROLLOUT_SIZE:]
        ended = np.ndarray(count, FLOAT64, bytearray(returns)), np.ndarray(count, INT64, bytearray(lengths))
        told = tuple([Fault(*fault) for fault in faults]) if faults else ()
        fragments.append(make(Fragment, (group, seq, version, rollout, make(Episodes, ended), told, lost)))
    return fragments


def is_plain(value: Any, depth: int = PLAIN_DEPTH) -> bool:
    """Whether marshal gives it back as it was: of others it keeps the bytes without saying so."""
    kind = type(value)
    if kind is list or kind is tuple:
        return depth > 0 and all(is_plain(x, depth - 1) for x in value)
    return value is None or kind in (bool, int, float, str, bytes)


def is_numpys(x: Any) -> bool:
    """Whether NumPy has a name for a tensor, and it need not come from another device."""
    return type(x) is Tensor and x.is_cpu and x.dtype in KNOWN_TO_NUMPY


# ---- everything else


class Packer(pickle.Pickler):
    """Pickles a value, with its big tensors and arrays set aside."""

    def __init__(self) -> None:
        self.stream, self.cargo = io.BytesIO(), Cargo()
        arrays = self.cargo.arrays
        # Others' buffers stay inside. No method of this object: as a cycle it would hold on to what it has packed.
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
        """A tensor as raw bytes and what they mean; one on a GPU goes through the host and back to its device."""
        device = "cpu" if x.is_cpu else str(x.device)
        if x.dtype in KNOWN_TO_NUMPY:
            return rebuild, (*self.reduce_array(contiguous(x)), device)
        host = x.detach().cpu().contiguous()
        flat = host.as_strided((host.numel(),), (1,))  # an axis of size 0 or 1 may have any stride, and view wants 1
        return rebuild_strange, (flat.view(torch.uint8), x.dtype, tuple(x.shape), device)

    def reduce_array(self, x: Any) -> tuple[Any, ...]:
        """Bytes, where to begin in them, type and shape. NumPy's own way costs the reader several times as much."""
        start, buffer = (0, pickle.PickleBuffer(x)) if x.nbytes < INSIDE_BYTES else self.cargo.add(x)
        return buffer, start, x.dtype, x.shape


def contiguous(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.numpy(force=True)).reshape(x.shape)


def rebuild(raw: Any, start: int, dtype: Any, shape: tuple[int, ...], device: str | None) -> np.ndarray | Tensor:
    """An array, or the tensor of a device."""
    x = np.ndarray(shape, dtype, raw, start)
    if device is None:
        return x
    return torch.from_numpy(x) if device == "cpu" else torch.from_numpy(x).to(device)


def rebuild_strange(raw: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
    return raw.view(dtype).view(shape).to(device)


BY_NUMBER = (rebuild, rebuild_strange, *DTYPES)
NUMBERS = {id(x): number for number, x in enumerate(BY_NUMBER)}
"""What pickles name by a number: to import a name takes the reader several microseconds."""

"""Messages between two processes: a few bytes through a pipe, everything big through shared memory.

A message is pickled with its tensors and arrays set aside (pickle protocol 5); these are copied into a nameless block
of shared memory, and only their places cross the pipe. The receiver gets tensors that lie in the block. A block is
written again once the last of them is gone, so whoever keeps what it received holds the sender back. Blocks have no
name in the file system: they vanish with the last process that maps them, whichever way it ends.

Pickle runs code of the sender's choosing. It is used here only between a process and the children it started, over
pipes that nobody else can open.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import select
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MAX_READERS = 512
HEADER_BYTES = 8 * MAX_READERS
MIN_BLOCK_BYTES = 1 << 16
ALIGN_BYTES = 64  # where torch's own allocator puts tensors: kernels then round as they do elsewhere
INSIDE_BYTES = 2048
"""Arrays below this size stay inside the pickle."""
PIPE_BYTES = 8192
"""Pickles up to this size cross the pipe, in one piece: a sender that dies leaves no half of them."""


class Parcel(NamedTuple):
    """Where a packed value is: its pickle in ``body``, or first in the block, and the arrays in the spans after it."""

    body: bytes
    block: int | None = None
    spans: tuple[tuple[int, int], ...] = ()


class Message(NamedTuple):
    """What crosses a pipe. A block is introduced once to each reader; its descriptor follows the message."""

    head: str
    parcels: tuple[Parcel, ...]
    new_block: int | None = None
    seconds: float = 0.0
    """How long an answer took to make."""


# ---- tensors


def reduce_tensor(x: Tensor) -> tuple[Any, ...]:
    """A tensor as raw bytes and what they mean; one on a GPU goes through the host and back to its device."""
    host = x.detach().cpu().contiguous()
    flat = host.as_strided((host.numel(),), (1,))  # an axis of size 0 or 1 may have any stride, and view wants 1
    raw: Any = flat.view(torch.uint8).numpy()
    return rebuild_tensor, (pickle.PickleBuffer(raw), x.dtype, tuple(x.shape), str(x.device))


def rebuild_tensor(raw: Any, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    here = torch.frombuffer(raw, dtype=dtype).view(shape)
    return here if device == "cpu" else here.to(device)


REDUCERS = copyreg.dispatch_table | {Tensor: reduce_tensor, nn.Parameter: reduce_tensor}


# ---- blocks


class Block:
    """A piece of nameless shared memory: for each reader a count of what it gave back, then the data."""

    def __init__(self, number: int, fd: int):
        self.number, self.fd = number, fd
        memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.returned = np.frombuffer(memory, np.uint64, MAX_READERS)  # written by readers, each in its own place
        self.data = memoryview(memory)[HEADER_BYTES:]
        # The writer's side of the account.
        self.lent = np.zeros(MAX_READERS, np.uint64)
        self.known_to: set[int] = set()
        self.holders = 0

    def is_free(self) -> bool:
        return self.holders == 0 and bool((self.lent == self.returned).all())

    def forget(self, reader: int) -> None:
        """A reader is gone and gives nothing back any more; its place may be taken by another."""
        self.lent[reader] = self.returned[reader]
        self.known_to.discard(reader)

    def lease(self, reader: int) -> memoryview:
        """The data; given back when the last slice of it is gone."""
        # Slices of a memoryview hold what exported it: an array of this lease alone, whose end can be watched.
        root: Any = np.frombuffer(self.data, np.uint8)
        weakref.finalize(root, give_back, self.returned, reader).atexit = False
        return memoryview(root)


def give_back(returned: np.ndarray, reader: int) -> None:
    returned[reader] += np.uint64(1)


class Outbox:
    """The blocks that this process writes; they are made as needed and used again for ever."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def pack(self, value: Any) -> Parcel:
        aside: list[memoryview] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes >= INSIDE_BYTES:
                aside.append(raw)
            return raw.nbytes < INSIDE_BYTES

        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, protocol=5, buffer_callback=keep_inside)
        pickler.dispatch_table = REDUCERS
        pickler.dump(value)
        body = stream.getbuffer()
        if not aside and body.nbytes <= PIPE_BYTES:
            return Parcel(bytes(body))
        inside = body.nbytes > PIPE_BYTES
        pieces = [body, *aside] if inside else aside
        spans, end = [], 0
        for piece in pieces:
            start = -(-end // ALIGN_BYTES) * ALIGN_BYTES
            end = start + piece.nbytes
            spans.append((start, end))
        block = self.take(end)
        for (start, stop), piece in zip(spans, pieces, strict=True):
            block.data[start:stop] = piece
        return Parcel(b"" if inside else bytes(body), block.number, tuple(spans))

    def take(self, size: int) -> Block:
        """A block that nobody reads, the smallest that is large enough."""
        fitting = [block for block in self.blocks if len(block.data) >= size and block.is_free()]
        if fitting:
            return min(fitting, key=lambda block: len(block.data))
        # Powers of two: whatever sizes come along, outgrown blocks never add up to more than the largest.
        capacity = max(MIN_BLOCK_BYTES, 1 << (size - 1).bit_length())
        fd = os.memfd_create(f"elegantrl-{len(self.blocks)}")  # only a label in /proc, no name anybody could open
        os.truncate(fd, HEADER_BYTES + capacity)
        self.blocks.append(Block(len(self.blocks), fd))
        return self.blocks[-1]

    def block_of(self, parcel: Parcel) -> Block | None:
        return None if parcel.block is None else self.blocks[parcel.block]

    def num_busy(self) -> int:
        return sum(not block.is_free() for block in self.blocks)

    def close(self) -> None:
        for block in self.blocks:
            os.close(block.fd)
        self.blocks = []


class LimitedOutbox(Outbox):
    """Waits while ``limit`` blocks are being read: a role works ahead of its caller so far and no further."""

    def __init__(self, limit: int, conn: Connection):
        super().__init__()
        self.limit = limit
        self.hang_up = select.poll()
        self.hang_up.register(conn.fileno(), select.POLLRDHUP)

    def take(self, size: int) -> Block:
        while self.num_busy() >= self.limit:
            if self.hang_up.poll(1):  # a millisecond, or at once if the reader is gone
                raise EOFError
        return super().take(size)


# ---- the pipe


class Channel:
    """One end of a pipe: sends parcels of an outbox to reader number ``peer``, and reads as number ``reader``."""

    def __init__(self, conn: Connection, outbox: Outbox, peer: int, reader: int):
        self.conn, self.outbox, self.peer, self.reader = conn, outbox, peer, reader
        self.inbox: dict[int, Block] = {}

    def lend(self, parcel: Parcel) -> Parcel:
        """Count a parcel as on its way, so that its block is left alone until it comes back."""
        block = self.outbox.block_of(parcel)
        if block is not None:
            block.lent[self.peer] += np.uint64(1)
        return parcel

    def take_back(self, parcels: Iterable[Parcel]) -> None:
        """What was lent is not sent after all."""
        for parcel in parcels:
            block = self.outbox.block_of(parcel)
            if block is not None:
                block.lent[self.peer] -= np.uint64(1)

    def send(self, head: str, parcels: tuple[Parcel, ...], seconds: float = 0.0) -> None:
        """Send parcels that were lent before."""
        for parcel in parcels:
            block = self.outbox.block_of(parcel)
            if block is not None and self.peer not in block.known_to:
                block.known_to.add(self.peer)
                self._write(Message("", (), block.number))
                send_handle(self.conn, block.fd, None)
        self._write(Message(head, parcels, seconds=seconds))

    def _write(self, message: Message) -> None:
        # As plain tuples: every named class in a pickle is looked up again by its reader.
        parcels = [tuple(parcel) for parcel in message.parcels]
        self.conn.send_bytes(pickle.dumps((message.head, parcels, message.new_block, message.seconds), protocol=5))

    def _read(self) -> Message:
        head, parcels, new_block, seconds = pickle.loads(self.conn.recv_bytes())
        return Message(head, tuple(Parcel(*parcel) for parcel in parcels), new_block, seconds)

    def recv(self) -> Message:
        """The next message; raises EOFError or OSError when the other side is gone."""
        while (message := self._read()).new_block is not None:
            fd = recv_handle(self.conn)
            self.inbox[message.new_block] = Block(message.new_block, fd)
            os.close(fd)  # the mapping stays
        return message

    def unpack(self, parcel: Parcel) -> Any:
        """The value of a parcel that ``recv`` brought; its big tensors lie in the sender's block."""
        if parcel.block is None:
            return pickle.loads(parcel.body)
        lease = self.inbox[parcel.block].lease(self.reader)
        pieces = [lease[start:end] for start, end in parcel.spans]
        del lease
        return pickle.loads(parcel.body or pieces.pop(0), buffers=pieces)

    def close(self) -> None:
        self.conn.close()
        self.inbox = {}

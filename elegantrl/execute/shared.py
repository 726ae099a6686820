"""Messages between two processes: a few bytes through a pipe, everything big through shared memory.

If a value has big arrays, all of it is copied into a nameless block of shared memory, and only the number of the block
is sent through the pipe. The receiver gets tensors in the block. A block is written again after the last of them was
freed, so a receiver that keeps a value can block the sender. Blocks have no name in the file system: the kernel frees
them with the last process that maps them, however it ends. A message is read by one system call.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np

from .packing import pack, unpack

MAX_READERS = 512
HEADER_BYTES = 8 * MAX_READERS
MIN_BLOCK_BYTES = 1 << 16
PIPE_BYTES = 8192
"""Bodies up to this size and without arrays are sent through the pipe in one piece: a dying sender leaves no half."""
RECORD_BYTES = 256
"""A message up to this size is read by one call; shorter ones are padded."""

HEAD = struct.Struct("<BBiqqd")
"""The head of a message: kind, form and place of the body (block, start, size), seconds that an answer took to make."""
CALL, VALUE, ERROR, NEW_BLOCK = range(4)
"""Kinds of messages. A block is introduced once to each reader; its descriptor follows the message."""
NO_BLOCK = -1
BYTE = np.dtype(np.uint8)


class Parcel(NamedTuple):
    """The place of a value's body: in ``body``, or in a block that holds the arrays too."""

    body: bytes
    form: int
    block: int
    start: int
    size: int


Place = tuple[bytes, int, int, int, int]
"""A parcel as it is received: a plain tuple, since making a named tuple takes a reader two microseconds."""


# ---- blocks


class Block:
    """A piece of nameless shared memory: for each reader a count of its returned leases, then the data."""

    def __init__(self, number: int, fd: int, reader: int = 0):
        self.number, self.fd = number, fd
        memory = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        self.returned_bytes = memory[:HEADER_BYTES]
        self.returned = self.returned_bytes.cast("Q")  # written by readers, each in its own place
        self.data = memory[HEADER_BYTES:]
        self.size = len(self.data)
        self.returned_here = self.returned[reader : reader + 1]
        # Counts of the writer.
        self.lent_bytes = bytearray(HEADER_BYTES)
        self.lent = memoryview(self.lent_bytes).cast("Q")
        self.known_to: set[int] = set()
        self.holders = 0

    def is_free(self) -> bool:
        return self.holders == 0 and self.lent_bytes == self.returned_bytes

    def forget(self, reader: int) -> None:
        """A reader has ended and returns no more leases; another reader may get its place."""
        self.lent[reader] = self.returned[reader]
        self.known_to.discard(reader)

    def lease(self) -> Lease:
        lease = Lease(self.size, BYTE, self.data)
        lease.returned = self.returned_here
        return lease


class Lease(np.ndarray):
    """The data of a block for one reader; the block is returned when the last array in it is freed."""

    __slots__ = ("returned",)
    returned: memoryview

    def __del__(self) -> None:
        self.returned[0] += 1


class Outbox:
    """The blocks that this process writes; they are made when needed and used again."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def pack(self, value: Any, in_block: bool = False) -> Parcel:
        form, body, cargo = pack(value)
        if not cargo.size and len(body) <= PIPE_BYTES and not in_block:
            return Parcel(body, form, NO_BLOCK, 0, len(body))
        block = self.take(cargo.size + len(body))
        cargo.load_into(block.data)
        block.data[cargo.size : cargo.size + len(body)] = body
        return Parcel(b"", form, block.number, cargo.size, len(body))

    def take(self, size: int) -> Block:
        """A block that no process reads, the smallest that is large enough."""
        fitting = [block for block in self.blocks if len(block.data) >= size and block.is_free()]
        if fitting:
            return min(fitting, key=lambda block: len(block.data))
        # Powers of two: the sum of blocks that became too small never exceeds the largest block.
        capacity = max(MIN_BLOCK_BYTES, 1 << (size - 1).bit_length())
        fd = os.memfd_create(f"elegantrl-{len(self.blocks)}")  # only a label in /proc, no name that could be opened
        os.truncate(fd, HEADER_BYTES + capacity)
        self.blocks.append(Block(len(self.blocks), fd))
        return self.blocks[-1]

    def num_busy(self) -> int:
        return sum(not block.is_free() for block in self.blocks)

    def close(self) -> None:
        for block in self.blocks:
            os.close(block.fd)
        self.blocks = []


class LimitedOutbox(Outbox):
    """Waits while ``limit`` blocks are being read: this limits how far a role works ahead of its caller."""

    def __init__(self, limit: int, conn: Connection):
        super().__init__()
        self.limit = limit
        self.hang_up = select.poll()
        self.hang_up.register(conn.fileno(), select.POLLRDHUP)

    def take(self, size: int) -> Block:
        while self.num_busy() >= self.limit:
            if self.hang_up.poll(1):  # a millisecond, or less if the reader has ended
                raise EOFError
        return super().take(size)


# ---- the pipe


class Channel:
    """One end of a pipe: sends parcels of an outbox to reader number ``peer``, and reads as number ``reader``."""

    def __init__(self, conn: Connection, outbox: Outbox, peer: int, reader: int):
        self.conn, self.outbox, self.peer, self.reader = conn, outbox, peer, reader
        self.fd = conn.fileno()
        self.inbox: dict[int, Block] = {}

    def lend(self, block: int) -> None:
        """Count a block as lent, so that it is not written until the reader returns it."""
        if block != NO_BLOCK:
            self.outbox.blocks[block].lent[self.peer] += 1

    def send(self, kind: int, parcel: Parcel, seconds: float = 0.0, blocks: Iterable[int] = ()) -> None:
        """Send a parcel that refers to further ``blocks``; all of them were lent before."""
        for number in (parcel.block, *blocks):
            if number != NO_BLOCK and self.peer not in self.outbox.blocks[number].known_to:
                self.outbox.blocks[number].known_to.add(self.peer)
                self._write(HEAD.pack(NEW_BLOCK, 0, number, 0, 0, 0.0))
                wait_for_event(self.fd, select.POLLOUT)  # as _write does, if this end does not block
                send_handle(self.conn, self.outbox.blocks[number].fd, None)
        body, *place = parcel
        self._write(HEAD.pack(kind, *place, seconds) + body)

    def _write(self, message: bytes) -> None:
        message = message.ljust(RECORD_BYTES, b"\0")
        while message:
            try:
                message = message[os.write(self.fd, message) :]
            except BlockingIOError:
                wait_for_event(self.fd, select.POLLOUT)

    def recv(self) -> tuple[int, Place, float]:
        """Kind, value and seconds of the next message; EOFError or OSError if the other side has ended.

        Without a message, an end that does not block raises BlockingIOError; the rest of a begun message is awaited.
        """
        while True:
            message = os.read(self.fd, RECORD_BYTES)
            if len(message) < RECORD_BYTES:
                message = self._read_on(message, RECORD_BYTES)
            kind, form, block, start, size, seconds = HEAD.unpack_from(message)
            if block == NO_BLOCK:
                end = HEAD.size + size
                if end > RECORD_BYTES:
                    message = self._read_on(message, end)
                return kind, (message[HEAD.size : end], form, block, start, size), seconds
            if kind != NEW_BLOCK:
                return kind, (b"", form, block, start, size), seconds
            wait_for_event(self.fd, select.POLLIN)
            fd = recv_handle(self.conn)
            self.inbox[block] = Block(block, fd, self.reader)
            os.close(fd)  # the mapping stays

    def _read_on(self, message: bytes, size: int) -> bytes:
        """The whole message of ``size`` bytes that begins with ``message``."""
        while len(message) < size:
            wait_for_event(self.fd, select.POLLIN)
            part = os.read(self.fd, size - len(message))
            if not part:
                raise EOFError
            message += part
        return message

    def unpack(self, parcel: Place) -> Any:
        """The value of a message from ``recv``; its big tensors are in the sender's block."""
        body, form, number, start, size = parcel
        if number == NO_BLOCK:
            return unpack(form, body, None)
        block = self.inbox[number]
        return unpack(form, block.data[start : start + size], block.lease())

    def close(self) -> None:
        self.conn.close()
        self.inbox = {}


def wait_for_event(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()

"""The side of an actor: builds a role in a process of Ray and runs its calls; and values in the form that Ray carries.

A value is packed as for a pipe, with its big arrays in one block of bytes, which Ray keeps outside its own pickle. The
receiver on the same machine gets tensors in the object store's memory without a copy. Only one process receives an
argument or an answer, so it may write to them; what was put is read by many, and no role writes to it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from .child import BUILD, portable
from .packing import ALIGN_BYTES, pack, unpack
from .shared import ERROR, VALUE

EXIT = 10
"""A kind of answer beside those of a pipe: the role wants its process to end."""
Message = tuple[int, bytes, np.ndarray | None]
"""A value: form and body as in ``packing``, and the block with its arrays."""
Answer = tuple[int, float, int, Message]
"""The outcome of a call: kind, seconds that it took, memory of the process, and the value or the error."""


def to_message(value: Any) -> Message:
    form, body, cargo = pack(value)
    if not cargo.size:
        return form, body, None
    block = np.empty(cargo.size, np.uint8)
    cargo.load_into(block.data)
    return form, body, block


def from_message(message: Message) -> Any:
    form, body, block = message
    return unpack(form, body, None if block is None else writable(block))


class WritableView:
    """The memory of an array that is marked as read-only; holds the array, which holds the memory."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def writable(block: np.ndarray) -> np.ndarray:
    """The same bytes in memory that may be written and has the alignment of torch's own."""
    if block.ctypes.data % ALIGN_BYTES:  # a small message, which Ray carries outside its object store
        aligned = torch.empty(block.size, dtype=torch.uint8).numpy()
        aligned[:] = block
        return aligned
    return np.asarray(WritableView(block))


class Host:
    """The process of one role."""

    def __init__(self, folders: list[str]):
        """``folders`` are those from which the caller imports modules; the ones that exist here are searched too."""
        for number in (signal.SIGINT, signal.SIGHUP):  # these reach all processes of a terminal; the caller decides
            # A function instead of SIG_IGN: programs that an environment starts do not inherit it.
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
        torch.set_num_threads(1)
        sys.path.extend(folder for folder in folders if folder not in sys.path and Path(folder).is_dir())
        self.role: Any = None

    def where(self) -> tuple[int, str, str]:
        """The process, the address of its machine, and Ray's name of the machine."""
        return os.getpid(), ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()

    def call(self, message: Message, *sent: Message) -> Answer:
        """Run one call; ``sent`` are the values of its references."""
        started = time.monotonic()
        try:
            method, args, places = from_message(message)
            for place, value in zip(places, sent, strict=True):
                args[place] = from_message(value)
            value = self.run(method, args)
            seconds = time.monotonic() - started
            return VALUE, seconds, memory_bytes(), to_message(value)
        except Exception as error:
            seconds = time.monotonic() - started
            return ERROR, seconds, memory_bytes(), to_message(portable(error))
        except SystemExit as leaving:  # the caller ends this process: one that leaves by itself may not end
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            return EXIT, time.monotonic() - started, 0, to_message(code)

    def run(self, method: str, args: list[Any]) -> Any:
        if method == BUILD:
            self.role = pickle.loads(args[0])()
            return None
        return getattr(self.role, method)(*args)

    def close(self) -> None:
        """Let the role release what it holds outside its process."""
        if self.role is not None:
            self.role.close()


def memory_bytes() -> int:
    """Memory that this process holds; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

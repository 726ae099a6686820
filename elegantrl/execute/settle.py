"""Settings of a whole process: threads, memory allocator, denormal numbers."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

T = TypeVar("T")


def settle(num_threads: int) -> None:
    """Apply these settings for a role."""
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    one_numpy_thread()
    keep_freed_memory()


def settle_and(build: Callable[[], T], num_threads: int) -> T:
    """The result of ``build`` after ``settle``: for roles in other processes."""
    settle(num_threads)
    return build()


def one_numpy_thread() -> threadpool_limits:
    """Make NumPy multiply in the calling thread, because products are small; as a context manager, until its end."""
    return threadpool_limits(1, user_api="blas")


@contextlib.contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero in this thread; ``settle`` does so permanently.

    Adam's averages for the weights of an inactive unit become denormal. They change nothing, but take a processor many
    times as long as normal numbers: two thirds of SAC's Adam on HalfCheetah-v5.
    """
    was_set = bool(torch.tensor(1e-40) * 1 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_set)


def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors instead of returning it to the system: 10 to 20 % faster."""
    if sys.platform != "linux":
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 1 << 30)
    except (OSError, AttributeError):  # another libc: nothing to tune
        return

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
    """Make a process ready for a role."""
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    one_numpy_thread()
    keep_freed_memory()


def settle_and(build: Callable[[], T], num_threads: int) -> T:
    """What ``build`` makes, in a process that is ready for it: for roles elsewhere."""
    settle(num_threads)
    return build()


def one_numpy_thread() -> threadpool_limits:
    """Let NumPy multiply in the calling thread: products here are small. As a context it ends with that."""
    return threadpool_limits(1, user_api="blas")


@contextlib.contextmanager
def tiny_numbers_are_zero() -> Iterator[None]:
    """Round what is too small for a normal float to zero in this thread, as ``settle`` does for good.

    Adam's averages for the weights of a silent unit sink that low, change nothing, and cost a processor many times the
    time of a normal number: two thirds of SAC's Adam on HalfCheetah-v5.
    """
    was_so = bool(torch.tensor(1e-40) * 1 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_so)


def keep_freed_memory() -> None:
    """Let glibc keep freed tensors instead of returning their pages to the system at every free: +10 to 20 % speed."""
    if sys.platform != "linux":
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 1 << 30)
    except (OSError, AttributeError):  # another libc: nothing to tune
        return

"""What a run asks of its process: a device, signals that end in a commit, memory that stays."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from ..errors import ConfigError


def pick_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device={name!r} is no device; use cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"train.device={name!r} is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"train.device={name!r} needs a CUDA device and there is none; use --device cpu"
            if torch.cuda.device_count() == 0
            else f"train.device={name!r} is beyond the {torch.cuda.device_count()} CUDA devices here; use a lower one"
        )
    return device


def device_of_rank(device: torch.device, rank: int) -> torch.device:
    """Where one of several learners learns: all on the CPU, or each on a GPU of its own, from ``device`` on."""
    if device.type == "cpu" or rank == 0:
        return device
    return pick_device(f"{device.type}:{(device.index or 0) + rank}")


@contextlib.contextmanager
def stop_on_signals(request: Callable[[str], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or hang-up into a stop after a commit; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers; whoever runs this elsewhere keeps their own
        return
    names = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
    if hasattr(signal, "SIGHUP"):
        names[signal.SIGHUP] = "terminated"
    old = {number: signal.getsignal(number) for number in names}
    old = {number: handler for number, handler in old.items() if handler is not signal.SIG_IGN}  # nohup stays in force

    def handle(number: int, _: Any) -> None:
        request(names[signal.Signals(number)])
        for other, handler in old.items():
            signal.signal(other, handler if callable(handler) else signal.SIG_DFL)

    for number in old:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextlib.contextmanager
def resize_on_signals(request: Callable[[int], None]) -> Iterator[None]:
    """Let SIGTTIN ask for one worker more and SIGTTOU for one less, as servers of other kinds do."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGTTIN"):
        yield
        return
    changes = {signal.SIGTTIN: 1, signal.SIGTTOU: -1}
    old = {number: signal.getsignal(number) for number in changes}
    for number in changes:
        signal.signal(number, lambda number, _: request(changes[signal.Signals(number)]))
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


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

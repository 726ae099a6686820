"""Signals that end a run after a commit or change its number of workers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stop_on_signals(request: Callable[[str], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or hang-up into a stop after a commit; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers; a run in another thread leaves them as they are
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
    """SIGTTIN requests one worker more and SIGTTOU one less, as in web servers."""
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

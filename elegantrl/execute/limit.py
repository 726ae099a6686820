"""A time limit for code of the user that runs in this process: constructors of environments, and their first steps."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from ..errors import BuildTimedOut

REPEAT_SECONDS = 1.0
"""The signal is sent again in this interval, because user code may catch what the first one raises."""


class _Expired(BaseException):
    """Not an ``Exception``: a constructor that tries to connect until it succeeds catches those."""


@contextlib.contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Raise ``BuildTimedOut`` in the block if it takes longer than ``seconds``.

    A timer signal interrupts Python code and the blocking calls of Python's library. It does not interrupt native code
    that never returns, and threads other than the main one get no signals: both need a process of their own.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def expire(number: int, frame: FrameType | None) -> None:
        if running:
            raise _Expired(f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else "")

    started, old_handler = time.monotonic(), signal.signal(signal.SIGALRM, expire)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
    try:
        yield
    except _Expired as where:
        raise BuildTimedOut(
            f"{what} took longer than {seconds:g} s{where}; correct it, or raise --role-timeout if it needs longer"
        ) from None
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if old_handler is None else old_handler)
        if left:  # a timer of the caller goes on as if nothing had happened
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - started)), interval)

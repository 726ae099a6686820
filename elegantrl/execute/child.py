"""The main loop of a child process: build a role, run calls in order, end with the parent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from ..errors import RoleError, format_error
from .base import where_raised
from .shared import ERROR, VALUE, Channel, LimitedOutbox, Place

BUILD = "(build)"
"""The first message of a parent: its one value is a function that makes the role."""


def die_with_parent(alive: Connection) -> None:
    """Make the kernel end this process, and processes it started, when the parent's end of ``alive`` closes.

    The fork server forked this process, so the kernel does not report the death of the process that uses it; and a
    watching thread would need the interpreter lock, which a stuck environment may never release.
    """
    os.setpgid(0, 0)
    fd = alive.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(fd, select.POLLHUP)
    if gone.poll(0):  # the parent ended before the signal was set up
        os._exit(1)


def leave_signals_to_parent() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP, which reach all processes: the parent decides what is saved first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A function instead of SIG_IGN: programs that an environment starts do not inherit it.
        signal.signal(number, lambda *_: None)


def run_child(conn: Connection, alive: Connection, reader: int, answers_held: int) -> None:
    die_with_parent(alive)
    leave_signals_to_parent()
    torch.set_num_threads(1)
    channel = Channel(conn, LimitedOutbox(answers_held, conn), peer=0, reader=reader)
    role: Any = None
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closes the pipe to end the role
        calls = select.poll()
        calls.register(channel.fd, select.POLLIN)
        while True:
            # A process that blocks in a read is woken whenever the other side reads, which costs the other side time.
            calls.poll()
            _, call, _ = channel.recv()
            role = answer(channel, call, role)
    if role is not None:
        role.close()


def answer(channel: Channel, call: Place, role: Any) -> Any:
    """Run one call and send its value or error; returns the role, which the first call builds."""
    started = time.monotonic()
    try:
        method, args, refs = channel.unpack(call)
        for position, ref in refs:
            args[position] = channel.unpack(ref)
        if method == BUILD:
            role, value = args[0](), None
        else:
            value = getattr(role, method)(*args)
        seconds = time.monotonic() - started  # before packing, which may wait for the parent
        kind, parcel = VALUE, channel.outbox.pack(value)
    except EOFError:
        raise
    except Exception as error:
        seconds = time.monotonic() - started
        kind, parcel = ERROR, channel.outbox.pack(portable(error))
    args = value = None  # the caller's memory must be free again when the answer is sent
    channel.lend(parcel.block)
    channel.send(kind, parcel, seconds)
    return role


def portable(error: Exception) -> tuple[bytes, str, str]:
    """An error as (pickle, traceback, place); one that cannot be pickled becomes a ``RoleError`` with the same text."""
    text, where = "".join(traceback.format_exception(error)), where_raised(error)
    try:
        body = pickle.dumps(error)
        pickle.loads(body)  # a constructor with other arguments fails only here
    except Exception:
        body = pickle.dumps(RoleError(format_error(error)))
    return body, text, where

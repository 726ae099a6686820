"""A process that helps a learner on a second core: it does the tasks of lane 1 (``fast.sac_halves``) in shared memory.

It looks out for work without sleeping while updates follow each other, since to wake a core may take longer than a
task, and goes to sleep when nothing comes. Whether it is asked at all the learner decides by the clock.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

import torch

from ..errors import ConfigError
from ..execute.child import die_with_parent, leave_signals_to_parent
from ..execute.settle import settle
from .sac_halves import CONTROL_BYTES, TASKS, Side, Sizes

SPIN_SECONDS, NAP_SECONDS = 0.01, 0.02
"""How long a helper looks out for work before it sleeps, and how long it sleeps if nobody rings."""
PATIENCE_SECONDS = 1.0
"""After so long without an answer the helper is given up."""

POSTED, TASK, ASLEEP, READY, DONE = 0, 1, 2, 3, 64
"""Words of the control page; what says that a task is done lies in another line of the cache."""


class Helper:
    """A process that does the tasks of lane 1."""

    def __init__(self, sizes: Sizes, fd: int, control: memoryview):
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ConfigError('a script that starts processes needs `if __name__ == "__main__":` around the start')
        self.control = control
        self.posted = 0
        context = multiprocessing.get_context("forkserver")
        alive_theirs, alive = context.Pipe(duplex=False)
        bell_theirs, self.bell = context.Pipe(duplex=False)
        memory = Connection(os.dup(fd))
        args = (sizes, memory, alive_theirs, bell_theirs)
        self.process = context.Process(target=run_helper, args=args, daemon=True)
        self.process.start()
        for end in (memory, alive_theirs, bell_theirs):
            end.close()
        # The kernel ends the helper when this end closes, at the latest with this process.
        self.alive = alive

    def is_ready(self) -> bool:
        return bool(self.control[READY])

    def post(self, task: int) -> None:
        self.control[TASK] = task
        self.posted += 1
        self.control[POSTED] = self.posted
        if self.control[ASLEEP]:
            with contextlib.suppress(OSError):  # that it is gone is noticed where its work is waited for
                self.bell.send_bytes(b"!")

    def has_done(self) -> bool:
        """Wait for the task that was posted; False if there is no hope."""
        control, posted = self.control, self.posted
        end = time.monotonic() + PATIENCE_SECONDS
        while control[DONE] != posted:
            if time.monotonic() > end:
                return False
        return True

    def close(self) -> None:
        for end in (self.alive, self.bell):
            end.close()
        self.process.kill()
        self.process.join()


def run_helper(sizes: Sizes, memory: Connection, alive: Connection, bell: Connection) -> None:
    die_with_parent(alive)
    leave_signals_to_parent()
    settle(1)
    mapped = mmap.mmap(memory.fileno(), sizes.num_bytes())
    control = memoryview(mapped)[:CONTROL_BYTES].cast("q")
    side = Side(1, sizes, sizes.place(mapped))
    done = 0
    control[READY] = 1
    with torch.no_grad():
        while True:
            wait_for_post(control, done, bell)
            done += 1
            TASKS[control[TASK]](side)
            control[DONE] = done


def wait_for_post(control: memoryview, done: int, bell: Connection) -> None:
    """Look out for a while, then sleep until somebody rings."""
    end = time.monotonic() + SPIN_SECONDS
    while control[POSTED] == done:
        if time.monotonic() > end:
            control[ASLEEP] = 1
            if bell.poll(NAP_SECONDS):  # a ring that is missed costs no more than a nap
                bell.recv_bytes()
            control[ASLEEP] = 0

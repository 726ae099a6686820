"""A process on a second core that computes half 1 of SAC's updates (``sac_half``) in shared memory.

The helper spins between tasks, because waking a core may take longer than a task; without tasks it sleeps.
The two processes signal finished work by plain writes to memory, which x86 keeps in order.
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
from .sac_half import CONTROL_BYTES, TASKS, Half, Sizes

SPIN_SECONDS, SLEEP_SECONDS = 0.01, 0.02
"""How long the helper spins before it sleeps, and the maximum length of a sleep."""
TIMEOUT_SECONDS = 1.0
"""How long the learner waits for a task before it continues without the helper."""

POSTED, TASK, ASLEEP, READY, DONE = 0, 1, 2, 3, 64
"""Words of the control page: tasks posted so far, the latest one, two flags, and, in another cache line, tasks done."""


class CoreHelper:
    """The learner's end of the helper process."""

    def __init__(self, sizes: Sizes, fd: int, control: memoryview):
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ConfigError('a script that starts processes needs `if __name__ == "__main__":` around the start')
        self.control = control
        self.posted = 0
        context = multiprocessing.get_context("forkserver")
        alive_theirs, alive = context.Pipe(duplex=False)
        wake_theirs, self.wake = context.Pipe(duplex=False)
        memory = Connection(os.dup(fd))
        args = (sizes, memory, alive_theirs, wake_theirs)
        self.process = context.Process(target=run_helper, args=args, daemon=True)
        self.process.start()
        for end in (memory, alive_theirs, wake_theirs):
            end.close()
        # The kernel ends the helper when this end closes, at the latest with this process.
        self.alive = alive

    def is_ready(self) -> bool:
        return bool(self.control[READY])

    def post(self, task: int) -> None:
        """Start a task of half 1."""
        self.control[TASK] = task
        self.posted += 1
        self.control[POSTED] = self.posted
        if self.control[ASLEEP]:
            with contextlib.suppress(OSError):  # ``has_done`` detects a dead helper
                self.wake.send_bytes(b"!")

    def has_done(self) -> bool:
        """Wait for the posted task; False if the helper does not finish it in time."""
        control, posted = self.control, self.posted
        end = time.monotonic() + TIMEOUT_SECONDS
        while control[DONE] != posted:
            if time.monotonic() > end:
                return False
        return True

    def close(self) -> None:
        for end in (self.alive, self.wake):
            end.close()
        self.process.kill()
        self.process.join()


def run_helper(sizes: Sizes, memory: Connection, alive: Connection, wake: Connection) -> None:
    """The helper process: wait for a task, compute it, count it as done."""
    die_with_parent(alive)
    leave_signals_to_parent()
    settle(1)
    mapped = mmap.mmap(memory.fileno(), sizes.num_bytes())
    control = memoryview(mapped)[:CONTROL_BYTES].cast("q")
    half = Half(1, sizes, sizes.place(mapped))
    done = 0
    control[READY] = 1
    with torch.no_grad():
        while True:
            wait_for_post(control, done, wake)
            done += 1
            TASKS[control[TASK]](half)
            control[DONE] = done


def wait_for_post(control: memoryview, done: int, wake: Connection) -> None:
    """Spin for a while, then sleep until a task is posted."""
    end = time.monotonic() + SPIN_SECONDS
    while control[POSTED] == done:
        if time.monotonic() > end:
            control[ASLEEP] = 1
            if wake.poll(SLEEP_SECONDS):  # a missed wake-up costs at most one sleep
                wake.recv_bytes()
            control[ASLEEP] = 0

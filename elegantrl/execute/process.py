"""Roles in processes of this machine, one process per role.

A fork server, which has imported torch but never used a device, forks the children: they start in a fraction of a
second and may use CUDA. A child ends with this process, however this process ends. The death of the fork server counts
as the death of the roles that it forked, because their exit codes are lost with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import multiprocessing
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ..errors import BuildTimedOut, ConfigError, RoleDied, RoleTimedOut, format_error
from .base import ANSWERS_HELD, ONE_CPU, Executor, Future, Handle, Needs, Ref
from .child import BUILD, run_child
from .failures import NO_MAIN_GUARD, cannot_be_sent, format_exit, leave_if_importing_main, no_main_guard, revive
from .shared import CALL, ERROR, MAX_READERS, Block, Channel, Outbox, Parcel

CALLS_ON_WIRE = 4
"""The running call and some that are ready; many more could fill the pipe while both sides write."""

SWEEP_SECONDS = 1.0
"""How long a wait lasts before garbage is collected."""

CLOSE_SECONDS = 2.0
"""How long roles may take to close their environments before they are ended."""


class ProcessFuture(Future):
    def __init__(self, handle: ProcessHandle, method: str, timeout: float | None):
        self.handle, self.method, self.timeout = handle, method, timeout
        self.ended = False
        self._value: Any = None
        self._error: BaseException | None = None

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        self.ended, self._value, self._error = True, value, error

    def take(self) -> Any:
        value = super().take()
        self._value = None  # releases the memory of the role
        return value

    def done(self) -> bool:
        if not self.ended:
            self.handle.listen(self)
        return self.ended

    def result(self) -> Any:
        if not self.ended:
            self.handle.listen(self)
            if not self.ended:
                wait_for([self], None)
        if self._error is not None:
            raise self._error
        return self._value


class ProcessRef(Ref):
    """Holds a block of the outbox until the last reference to it is gone."""

    def __init__(self, parcel: Parcel, block: Block):
        self.parcel, self.block = parcel, block
        block.holders += 1

    def __del__(self) -> None:
        self.block.holders -= 1


class ProcessHandle(Handle):
    """The parent's side of one child."""

    def __init__(self, context: Any, outbox: Outbox, reader: int, answers_held: int):
        ours, theirs = context.Pipe(duplex=True)
        alive_theirs, self.alive = context.Pipe(duplex=False)
        self.process = context.Process(target=run_child, args=(theirs, alive_theirs, reader, answers_held))
        try:
            self.process.start()
        except (OSError, EOFError) as error:
            for end in (ours, theirs, alive_theirs, self.alive):
                end.close()
            raise RoleDied(f"the fork server ended while it started a process ({format_error(error)})") from error
        # The child must be the only holder of its ends.
        theirs.close()
        alive_theirs.close()
        os.set_blocking(ours.fileno(), False)  # one read both checks for an answer and gets it
        self.channel = Channel(ours, outbox, peer=reader, reader=0)
        self.gone = select.poll()
        self.gone.register(self.process.sentinel, select.POLLIN)
        self.waiting: deque[ProcessFuture] = deque()
        self.unsent: deque[tuple[Parcel, list[int]]] = deque()
        """Calls, and the further blocks that they refer to."""
        self.head_since = 0.0
        self.death: str | None = None
        """How this role ended."""

    # ---- calls

    def call(self, method: str, *args: Any, timeout: float | None = None) -> ProcessFuture:
        future = ProcessFuture(self, method, timeout)
        if self.death is not None:
            future.end(error=RoleDied(f"the role was asked for {method} after it {self.death}"))
            return future
        refs = [(i, tuple(value.parcel)) for i, value in enumerate(args) if isinstance(value, ProcessRef)]
        own = [None if isinstance(value, ProcessRef) else value for value in args]
        try:
            parcel = self.channel.outbox.pack((method, own, refs))
        except Exception as error:
            future.end(error=cannot_be_sent(error))
            return future
        blocks = [value.block.number for value in args if isinstance(value, ProcessRef)]
        for block in (parcel.block, *blocks):
            self.channel.lend(block)
        if not self.waiting:
            self.head_since = time.monotonic()
        self.waiting.append(future)
        self.unsent.append((parcel, blocks))
        self.send_ready()
        return future

    def send_ready(self) -> None:
        on_wire = len(self.waiting) - len(self.unsent)
        with contextlib.suppress(OSError):  # a dead child is detected when its answers are read
            for _ in range(min(len(self.unsent), CALLS_ON_WIRE - on_wire)):
                parcel, blocks = self.unsent.popleft()
                self.channel.send(CALL, parcel, blocks=blocks)

    # ---- answers

    def listen(self, future: ProcessFuture) -> None:
        """Receive answers of the child up to that of ``future``; detect its death and a missed deadline."""
        if self.death is not None:
            return
        dead = not self.take_answers(future)
        if future.ended:
            return
        if not dead and self.gone.poll(0):
            self.take_answers(self.waiting[-1])  # answers sent before the death still count
            dead = True
        if dead:
            self.release()
        elif self.seconds_left() == 0.0:
            self.end_for_timeout()

    def take_answers(self, last: ProcessFuture) -> bool:
        """Receive the answers that have arrived, up to that of ``last``; returns whether more can come."""
        try:
            while not last.ended:
                self.take_answer()
        except BlockingIOError:
            return True
        except (EOFError, OSError):
            return False
        return True

    def take_answer(self) -> None:
        kind, parcel, seconds = self.channel.recv()
        self.busy_seconds += seconds
        future = self.waiting.popleft()
        future.seconds = seconds
        if self.waiting:
            self.head_since = time.monotonic()
            self.send_ready()
        try:
            value = self.channel.unpack(parcel)
        except Exception as error:  # a class that only the child can import
            future.end(error=error)
            return
        if kind == ERROR:
            future.end(error=revive(*value))
        else:
            future.end(value)

    def seconds_left(self) -> float | None:
        """Seconds until the running call must have ended; None if it has no limit."""
        if not self.waiting or self.waiting[0].timeout is None:
            return None
        return max(0.0, self.head_since + self.waiting[0].timeout - time.monotonic())

    def memory_bytes(self) -> int:
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        except (OSError, ValueError):  # the child has just died
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    # ---- the end

    def end_for_timeout(self) -> None:
        late = self.waiting.popleft()
        late.end(
            error=RoleTimedOut(
                f"no answer to {late.method} from pid {self.process.pid} within {late.timeout:g} s, so it was ended"
                f" (--role-timeout gives it longer)"
            )
        )
        self.kill("was ended after a timeout")

    def kill(self, why: str) -> None:
        if self.death is None:
            self.process.kill()
            self.release(why)

    def release(self, why: str | None = None) -> None:
        """End the child, the processes that it started, and its calls."""
        pid = self.process.pid
        self.process.join(CLOSE_SECONDS)
        if self.process.exitcode is None:  # the child has closed its pipe and is still alive
            self.process.kill()
            self.process.join()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self.death = why or format_exit(self.process.exitcode)
        while self.waiting:
            future = self.waiting.popleft()
            future.end(error=self.death_error(pid, self.process.exitcode, future.method))
        self.unsent.clear()
        for block in self.channel.outbox.blocks:
            block.forget(self.channel.peer)
        self.channel.close()
        self.alive.close()
        self.process.close()

    def death_error(self, pid: int, exit_code: int, method: str) -> Exception:
        if exit_code == NO_MAIN_GUARD:
            return no_main_guard()
        hint = "; if no process sent it, memory ran out" if self.death == "died of SIGKILL" else ""
        return RoleDied(f"pid {pid} {self.death} before it answered {method}{hint}")


class ProcessExecutor(Executor):
    """A process per role; ``preload`` names modules that the fork server imports for all of them."""

    isolates = True

    def __init__(self, preload: Sequence[str] = ()):
        if not hasattr(os, "memfd_create"):
            raise ConfigError("processes need Linux, for shared memory without a name; use --executor inline")
        leave_if_importing_main()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["elegantrl.execute.child", *preload, "elegantrl.execute.server"])
        self.outbox = Outbox()
        self.handles: dict[int, ProcessHandle] = {}
        # At exit multiprocessing waits for its children; those of an executor that was not closed would never end.
        atexit.register(self.close)

    def spawn_all(
        self,
        builds: Sequence[Callable[[], Any]],
        timeout: float | None = None,
        needs: Needs = ONE_CPU,
        answers_held: int = ANSWERS_HELD,
    ) -> list[Handle]:
        new: list[ProcessHandle] = []
        try:
            new.extend(self.start_child(answers_held) for _ in builds)
            calls = [h.call(BUILD, build, timeout=timeout) for h, build in zip(new, builds, strict=True)]
            for call in calls:
                call.result()
        except BaseException as error:
            for handle in new:
                self.kill(handle)
            if isinstance(error, RoleTimedOut):
                raise BuildTimedOut(f"a constructor does not return: {error}") from None
            raise
        return list(new)

    def start_child(self, answers_held: int) -> ProcessHandle:
        # The number of a child that has ended is free again: it names the child's place in every block.
        free = (n for n in range(MAX_READERS) if n not in self.handles or self.handles[n].death is not None)
        number = next(free, None)
        if number is None:
            raise ConfigError(f"an executor runs up to {MAX_READERS} processes; use fewer workers with more groups")
        self.handles[number] = ProcessHandle(self.context, self.outbox, number, answers_held)
        return self.handles[number]

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        return wait_for(futures, timeout)

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, ProcessHandle)
        handle.kill("was ended")

    def put(self, value: Any) -> ProcessRef:
        try:
            parcel = self.outbox.pack(value, in_block=True)
        except Exception as error:
            raise cannot_be_sent(error) from error
        return ProcessRef(parcel, self.outbox.blocks[parcel.block])

    def close(self) -> None:
        """Let the roles release their resources, then end those that are still alive."""
        alive = [handle for handle in self.handles.values() if handle.death is None]
        for handle in alive:
            handle.channel.conn.close()
        end = time.monotonic() + CLOSE_SECONDS
        for handle in alive:
            connection.wait([handle.process.sentinel], max(0.0, end - time.monotonic()))
            handle.kill("was ended")
        self.handles = {}
        self.outbox.close()
        atexit.unregister(self.close)


def wait_for(futures: Sequence[Future], timeout: float | None) -> list[Future]:
    """``Executor.wait`` also for futures of other executors, which need no more than ``done``."""
    end = None if timeout is None else time.monotonic() + timeout
    sweep_at = time.monotonic() + SWEEP_SECONDS
    while True:
        done = [future for future in futures if future.done()]
        if done or not futures or (end is not None and time.monotonic() >= end):
            return done
        handles = list({id(f.handle): f.handle for f in futures if isinstance(f, ProcessFuture)}.values())
        limits = [sweep_at - time.monotonic()]
        if limits[0] <= 0.0:
            gc.collect()  # a reference cycle may hold memory that the role waits for
            limits, sweep_at = [math.inf], math.inf
        limits += [] if end is None else [end - time.monotonic()]
        limits += [left for handle in handles if (left := handle.seconds_left()) is not None]
        news = select.poll()
        for fd in (fd for handle in handles for fd in (handle.channel.fd, handle.process.sentinel)):
            news.register(fd, select.POLLIN)
        limit = min(limits)
        news.poll(1000 * max(0.0, limit) if limit < math.inf else None)

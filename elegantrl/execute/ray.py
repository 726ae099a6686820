"""Roles as actors of Ray, on this machine or on the nodes of a cluster.

Ray neither restarts an actor nor repeats a call: the runtime does both. Answers are return values, which belong to the
caller and outlive the actor once they have arrived; a value that was put is one object for all calls. A role for which
the cluster has no free processor shares those of others, so that a run goes on after the loss of a node; it may move
when a node is added.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BuildTimedOut, ConfigError, NodeLost, RoleDied, RoleTimedOut
from .base import ANSWERS_HELD, ONE_CPU, Executor, Future, Handle, Needs, Ref
from .child import BUILD
from .failures import cannot_be_sent, revive
from .ray_cluster import (
    Connection,
    PlacementGroup,
    beside_others,
    check_gpus,
    has_room,
    in_group,
    is_node_gone,
    one_line,
    ray,
    release,
    reserve,
)
from .ray_host import EXIT, Answer, Host, from_message, to_message
from .shared import ERROR

START_SECONDS = 600.0
"""How long the process of a role may take to start; a machine that starts many at once takes minutes."""
CLOSE_SECONDS = 2.0
"""How long roles may take to close their environments before they are ended."""
LOOK_SECONDS = 1.0
"""The longest wait without a look at deadlines and signals."""


class RayFuture(Future):
    def __init__(self, handle: RayHandle, method: str, timeout: float | None):
        self.handle, self.method, self.timeout = handle, method, timeout
        self.ref: Any = None
        self.ended = False
        self._value: Any = None
        self._error: BaseException | None = None

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        self.ended, self._value, self._error, self.ref = True, value, error, None

    def take(self) -> Any:
        value = super().take()
        self._value = None  # releases the memory of the object store
        return value

    def done(self) -> bool:
        if not self.ended:
            self.handle.listen(self)
        return self.ended

    def result(self) -> Any:
        if not self.ended:
            wait_for([self], None)
        if self._error is not None:
            raise self._error
        return self._value


class RayRef(Ref):
    """An object of Ray; it is freed with the last reference."""

    def __init__(self, ref: Any):
        self.ref = ref


class RayHandle(Handle):
    """The caller's side of one actor."""

    def __init__(self, needs: Needs, group: PlacementGroup, is_crowded: bool, options: dict[str, Any]):
        self.needs, self.group, self.is_crowded = needs, group, is_crowded
        """A role is crowded if it shares processors with others while it waits for room in ``group``."""
        actor = ray.remote(Host).options(max_restarts=0, max_task_retries=0, **options)
        self.actor = actor.remote([os.path.abspath(folder) for folder in sys.path])
        self.pid, self.machine, self.node = 0, "", ""
        self.waiting: deque[RayFuture] = deque()
        self.head_since = 0.0
        self.memory = 0
        self.death: str | None = None
        """How this role ended."""

    def start(self, seconds: float) -> None:
        """Wait until the process of the actor runs."""
        try:
            self.pid, self.machine, self.node = ray.get(self.actor.where.remote(), timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise RoleDied(f"Ray started no process for a role within {seconds:.0f} s; is the cluster full?") from None
        except ray.exceptions.RayError as error:
            if "No module named 'elegantrl" in str(error) or "failed to be imported" in str(error):
                raise ConfigError(
                    "a node of the Ray cluster cannot import elegantrl; install the same version on all nodes"
                ) from error
            raise RoleDied(f"the process of a role did not start ({one_line(error)})") from error

    # ---- calls

    def call(self, method: str, *args: Any, timeout: float | None = None) -> RayFuture:
        future = RayFuture(self, method, timeout)
        if self.death is not None:
            future.end(error=RoleDied(f"the role was asked for {method} after it {self.death}"))
            return future
        places = [i for i, value in enumerate(args) if isinstance(value, RayRef)]
        own = [None if isinstance(value, RayRef) else value for value in args]
        try:
            message = to_message((method, own, places))
        except Exception as error:
            future.end(error=cannot_be_sent(error))
            return future
        if not self.waiting:
            self.head_since = time.monotonic()
        self.waiting.append(future)
        future.ref = self.actor.call.remote(message, *[args[i].ref for i in places])
        return future

    def listen(self, future: RayFuture) -> None:
        """Receive the answers that are there, up to that of ``future``; detect a death and a missed deadline."""
        while self.waiting and not future.ended:
            ready, _ = ray.wait([self.waiting[0].ref], timeout=0)
            if ready:
                self.receive()
            elif self.seconds_left() == 0.0:
                self.end_for_timeout()
            else:
                return

    def receive(self) -> None:
        """Take the answer of the oldest call, which has arrived."""
        future = self.waiting[0]
        try:
            answer: Answer = ray.get(future.ref)
        except ray.exceptions.RayError as error:
            with_node = is_node_death(error) or is_node_gone(self.node)
            self.kill(describe_death(error, self.machine, with_node), with_node)
            return
        if answer[0] == EXIT:
            self.kill(f"exited with code {from_message(answer[-1])}")
            return
        self.waiting.popleft()
        if self.waiting:
            self.head_since = time.monotonic()
        kind, future.seconds, self.memory, message = answer
        self.busy_seconds += future.seconds
        try:
            value = from_message(message)
        except Exception as error:  # a class that only the role can import
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
        return self.memory

    def can_move(self) -> bool:
        return self.is_crowded and self.death is None and has_room(self.group)

    # ---- the end

    def end_for_timeout(self) -> None:
        late = self.waiting.popleft()
        late.end(
            error=RoleTimedOut(
                f"no answer to {late.method} from pid {self.pid} within {late.timeout:g} s, so it was ended"
                f" (--role-timeout gives it longer)"
            )
        )
        self.kill("was ended after a timeout")

    def kill(self, why: str, with_node: bool = False) -> None:
        """End the actor and its calls; a second call does nothing."""
        if self.death is not None:
            return
        self.death = why
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # the cluster itself may be gone
            ray.kill(self.actor)
            release(self.group)
        while self.waiting:
            future = self.waiting.popleft()
            text = f"pid {self.pid} {why} before it answered {future.method}"
            future.end(error=NodeLost(text, self.node) if with_node else RoleDied(text))


class RayExecutor(Executor):
    """An actor per role; ``address`` is that of a cluster, and without one a Ray is started on this machine."""

    isolates = True
    assigns_devices = True

    def __init__(self, preload: Sequence[str] = (), address: str | None = None):
        self.connection = Connection(address)
        self.handles: list[RayHandle] = []
        # At exit Ray's own folder must go too.
        atexit.register(self.close)

    def spawn_all(
        self,
        builds: Sequence[Callable[[], Any]],
        timeout: float | None = None,
        needs: Needs = ONE_CPU,
        answers_held: int = ANSWERS_HELD,
    ) -> list[Handle]:
        # By value if they are of the main script, which no other process imports here.
        try:
            packed = [ray.cloudpickle.dumps(build) for build in builds]
        except Exception as error:
            raise cannot_be_sent(error) from error
        self.handles = [handle for handle in self.handles if handle.death is None]
        new: list[RayHandle] = []
        try:
            new = self.start_actors(len(builds), needs, timeout)
            calls = [h.call(BUILD, build, timeout=timeout) for h, build in zip(new, packed, strict=True)]
            for call in calls:
                call.result()
        except BaseException as error:
            for handle in new:
                self.kill(handle)
            if isinstance(error, RoleTimedOut):
                raise BuildTimedOut(f"a constructor does not return: {error}") from None
            raise
        return list(new)

    def start_actors(self, count: int, needs: Needs, timeout: float | None) -> list[RayHandle]:
        if needs.gpus:
            check_gpus(needs, count, sum(handle.needs.gpus for handle in self.handles))
        groups = reserve(needs, count, timeout)
        end, roles = time.monotonic() + START_SECONDS, Counter(handle.node for handle in self.handles)
        new: list[RayHandle] = []
        try:
            for group in groups:
                crowded = not has_room(group)
                if crowded and needs.gpus:
                    raise BuildTimedOut(f"no {needs.gpus:g} GPUs of the Ray cluster became free for a role")
                options = beside_others(roles) if crowded else in_group(group, needs)
                new.append(RayHandle(needs, group, crowded, options))
            for handle in new:
                handle.start(max(0.0, end - time.monotonic()))
                handle.host = handle.machine if self.connection.folder is None else None
        except BaseException:
            for handle in new:
                handle.kill("was ended")
            for group in groups[len(new) :]:
                release(group)
            raise
        self.handles += new
        return new

    def num_cpus(self) -> int:
        return super().num_cpus() if self.connection.folder else int(ray.cluster_resources().get("CPU", 1))

    def num_gpus(self) -> float:
        return float(ray.cluster_resources().get("GPU", 0.0))

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        return wait_for(futures, timeout)

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, RayHandle)
        handle.kill("was ended")

    def put(self, value: Any) -> RayRef:
        try:
            message = to_message(value)
        except Exception as error:
            raise cannot_be_sent(error) from error
        return RayRef(ray.put(message))

    def close(self) -> None:
        """Let the roles release their resources, then end them, and Ray if it was started here."""
        alive = [handle for handle in self.handles if handle.death is None]
        self.handles = []
        if alive:
            closing = [handle.actor.close.remote() for handle in alive]
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for handle in alive:
            handle.kill("was ended")
        self.connection.close()
        atexit.unregister(self.close)


def wait_for(futures: Sequence[Future], timeout: float | None) -> list[Future]:
    """``Executor.wait`` also for futures of other executors, which need no more than ``done``."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        own = [future for future in futures if isinstance(future, RayFuture) and not future.ended]
        listen_to(own)
        done = [f for f in futures if (f.ended if isinstance(f, RayFuture) else f.done())]
        if done or not futures or (end is not None and time.monotonic() >= end):
            return done
        limits = [LOOK_SECONDS] if end is None else [LOOK_SECONDS, end - time.monotonic()]
        limits += [left for future in own if (left := future.handle.seconds_left()) is not None]
        ray.wait([future.ref for future in own], num_returns=1, timeout=max(0.0, min(limits)))


def listen_to(futures: Sequence[RayFuture]) -> None:
    """Receive the answers that have arrived; one question for all, because each question takes Ray some time."""
    if not futures:
        return
    ready = set(ray.wait([future.ref for future in futures], num_returns=len(futures), timeout=0)[0])
    for future in futures:
        if future.ref in ready or future.handle.seconds_left() == 0.0:
            future.handle.listen(future)


# ---- what Ray says about a death


def is_node_death(error: Exception) -> bool:
    return re.search(r"[Nn]ode (has )?died|its node|[Nn]ode.{0,200} died", str(error)) is not None


def describe_death(error: Exception, machine: str, with_node: bool) -> str:
    """A short description; Ray does not know the signal or the exit code."""
    text = str(error)
    if with_node:
        return f"was lost with its node {machine}"
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "low memory" in text:
        return "was ended by Ray because memory ran out"
    if isinstance(error, ray.exceptions.ObjectLostError):
        return "died with its answer"
    return "died"

"""Roles as objects in this process. This executor defines the semantics that the others reproduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ConfigError, RoleDied, RoleError, innermost_line
from .base import ANSWERS_HELD, ONE_CPU, Executor, Future, Handle, Needs, Ref
from .limit import time_limit


class InlineRef(Ref):
    def __init__(self, value: Any):
        self.value = value


class InlineFuture(Future):
    def __init__(self, call: Callable[[], Any]):
        self._value: Any = None
        self._error: Exception | None = None
        started = time.monotonic()
        try:
            self._value = call()
        except Exception as error:
            self._error = error
        except SystemExit as error:  # in a process of its own this would end the role, not the run
            self._error = RoleError(f"a role called sys.exit({error.code!r}) at {innermost_line(error)}")
        self.seconds = time.monotonic() - started

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class InlineHandle(Handle):
    def __init__(self, role: Any):
        self.role = role
        self.alive = True

    def call(self, method: str, *args: Any, timeout: float | None = None) -> InlineFuture:
        if timeout is not None:
            raise ConfigError("a role in this process cannot be stopped after a timeout; use --executor process")
        future = InlineFuture(lambda: self._run(method, args))
        self.busy_seconds += future.seconds
        return future

    def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        if not self.alive:
            raise RoleDied(f"{type(self.role).__name__} was ended before {method}")
        return getattr(self.role, method)(*(a.value if isinstance(a, InlineRef) else a for a in args))


class InlineExecutor(Executor):
    """Runs a call at once, in the caller's thread."""

    isolates = False

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self.handles: list[InlineHandle] = []

    def spawn_all(
        self,
        builds: Sequence[Callable[[], Any]],
        timeout: float | None = None,
        needs: Needs = ONE_CPU,
        answers_held: int = ANSWERS_HELD,
    ) -> list[Handle]:
        new: list[Handle] = []
        for build in builds:
            with time_limit(timeout, "a constructor"):
                handle = InlineHandle(InlineFuture(build).result())
            self.handles.append(handle)
            new.append(handle)
        return new

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        return [future for future in futures if future.done()]

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, InlineHandle)
        if handle.alive:
            handle.alive = False
            self.handles.remove(handle)
            handle.role.close()

    def put(self, value: Any) -> InlineRef:
        return InlineRef(value)

    def close(self) -> None:
        for handle in list(self.handles):
            self.kill(handle)

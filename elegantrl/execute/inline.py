"""Roles as objects in this process. This backend defines the semantics that the others reproduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ConfigError, RoleDied
from .base import Executor, Future, Handle, Ref


class InlineRef(Ref):
    def __init__(self, value: Any):
        self.value = value


class InlineFuture(Future):
    def __init__(self, call: Callable[[], Any]):
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = call()
        except Exception as error:
            self._error = error

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
        return InlineFuture(lambda: self._run(method, args))

    def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        if not self.alive:
            raise RoleDied(f"{type(self.role).__name__} was ended before {method}")
        started = time.monotonic()
        try:
            return getattr(self.role, method)(*(a.value if isinstance(a, InlineRef) else a for a in args))
        finally:
            self.has_worked(time.monotonic() - started)


class InlineExecutor(Executor):
    """Runs a call at once, in the caller's thread."""

    isolates = False

    def __init__(self) -> None:
        self.handles: list[InlineHandle] = []

    def spawn_all(self, builds: Sequence[Callable[[], Any]], timeout: float | None = None) -> list[Handle]:
        new = [InlineHandle(build()) for build in builds]
        self.handles += new
        return list(new)

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        return list(futures)

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, InlineHandle)
        if handle.alive:
            handle.alive = False
            handle.role.close()

    def put(self, value: Any) -> InlineRef:
        return InlineRef(value)

    def close(self) -> None:
        for handle in self.handles:
            self.kill(handle)

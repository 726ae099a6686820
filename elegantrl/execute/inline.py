"""Roles as objects in this process. This backend defines the semantics that the others reproduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .base import Executor, Future, Handle


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

    def call(self, method: str, *args: Any) -> InlineFuture:
        assert self.alive, f"call of {method} on a role that was ended"
        return InlineFuture(lambda: getattr(self.role, method)(*args))


class InlineExecutor(Executor):
    """Runs a call at once, in the caller's thread."""

    def __init__(self) -> None:
        self.handles: list[InlineHandle] = []

    def spawn(self, build: Callable[[], Any]) -> InlineHandle:
        handle = InlineHandle(build())
        self.handles.append(handle)
        return handle

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        return list(futures)

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, InlineHandle)
        if handle.alive:
            handle.alive = False
            handle.role.close()

    def close(self) -> None:
        for handle in self.handles:
            self.kill(handle)

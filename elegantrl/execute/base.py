"""The executor contract: spawn roles, call their methods, wait for outcomes. Knows nothing of reinforcement learning.

A future ends in exactly one of four ways: it holds a value, it re-raises what the role raised (with the traceback as
its cause if that happened elsewhere), or it raises ``RoleDied`` or ``RoleTimedOut``. Calls on one handle run in order.
What was ended delivers nothing any more. An executor never retries: whoever supervises the roles decides that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..errors import innermost_line


class Future(ABC):
    """The outcome of one call on a role."""

    @abstractmethod
    def done(self) -> bool: ...

    @abstractmethod
    def result(self) -> Any:
        """The value, as soon as there is one; raises what the call raised."""


class Ref(ABC):  # noqa: B024  what a backend keeps behind it is its own affair
    """A value that was handed over once, to be named in any number of calls; it is released when nobody holds it."""


class Handle(ABC):
    """A role that is alive somewhere."""

    busy_seconds: float = 0.0
    """How long the role has worked on calls that were answered."""
    longest_seconds: float = 0.0
    """How long it has worked on one of them at most."""

    def memory_bytes(self) -> int:
        """What the process of the role holds in memory; 0 if it has none of its own."""
        return 0

    def has_worked(self, seconds: float) -> None:
        self.busy_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)

    @abstractmethod
    def call(self, method: str, *args: Any, timeout: float | None = None) -> Future:
        """Have a method of the role called; an argument that is a ``Ref`` arrives as its value.

        A role that takes more than ``timeout`` seconds, counted from the end of the call before, is ended.
        """


class Executor(ABC):
    """Places roles and moves calls to them."""

    isolates: ClassVar[bool]
    """Whether a role can die or hang without its caller; where it cannot, a timeout is refused."""

    @abstractmethod
    def spawn_all(self, builds: Sequence[Callable[[], Any]], timeout: float | None = None) -> list[Handle]:
        """Bring roles to life at the same time; the first error of a constructor is raised here."""

    def spawn(self, build: Callable[[], Any], timeout: float | None = None) -> Handle:
        (handle,) = self.spawn_all([build], timeout)
        return handle

    @abstractmethod
    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        """The futures that have ended, as soon as there is one or the time is up."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End a role at once; calling it twice is harmless."""

    @abstractmethod
    def put(self, value: Any) -> Ref:
        """Hand over a value that many calls will carry: it is written once and read by all."""

    @abstractmethod
    def close(self) -> None:
        """End all roles and release everything."""


class RemoteTraceback(Exception):
    """The traceback of an error from another process, as text; the ``__cause__`` of that error."""

    def __init__(self, text: str, where: str):
        super().__init__(f"\n{text}")
        self.where = where


def where_raised(error: BaseException) -> str:
    """``file:line`` of the innermost frame, in whichever process that was."""
    if isinstance(error.__cause__, RemoteTraceback):
        return error.__cause__.where
    return innermost_line(error)

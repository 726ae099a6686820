"""The executor contract: spawn roles, call their methods, wait for outcomes. Knows nothing of reinforcement learning.

A future ends in exactly one of two ways here: it holds a value, or it re-raises what the role raised. Calls on one
handle run in order. An executor never retries: whoever supervises the roles decides that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class Future(ABC):
    """The outcome of one call on a role."""

    @abstractmethod
    def done(self) -> bool: ...

    @abstractmethod
    def result(self) -> Any:
        """The value; raises what the call raised."""


class Handle(ABC):
    """A role that is alive somewhere."""

    @abstractmethod
    def call(self, method: str, *args: Any) -> Future: ...


class Executor(ABC):
    """Places roles and moves calls to them."""

    @abstractmethod
    def spawn(self, build: Callable[[], Any]) -> Handle:
        """Bring a role to life; errors of its constructor are raised here."""

    @abstractmethod
    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        """The futures that have ended, as soon as there is one or the time is up."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End a role; calling it twice is harmless."""

    @abstractmethod
    def close(self) -> None:
        """End all roles and release everything."""

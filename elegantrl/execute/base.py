"""The executor contract: spawn roles, call their methods, wait for results; independent of reinforcement learning.

A future ends in exactly one of four ways: it holds a value, it re-raises the error of the role (with the traceback as
its cause if the role is in another process), or it raises ``RoleDied`` or ``RoleTimedOut``. Calls on one handle run in
order. A role that was ended returns nothing more. An executor never retries: the supervisor decides that.
"""

from __future__ import annotations

import copy
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, did_you_mean, innermost_line

EXECUTORS = {
    "inline": "elegantrl.execute.inline:InlineExecutor",
    "process": "elegantrl.execute.process:ProcessExecutor",
    "ray": "elegantrl.execute.ray:RayExecutor",
}
"""Executors by name, imported at first use; any other is named by its import path ``module:Class``."""

ANSWERS_HELD = 4
"""Large answers of a role that a caller may hold before the role waits."""


class Needs(NamedTuple):
    """The resources of a machine that a role needs."""

    cpus: float = 1.0
    gpus: float = 0.0


ONE_CPU = Needs()


class Future(ABC):
    """The outcome of one call on a role."""

    seconds: float = 0.0
    """How long the role worked on the call; known when the call has ended."""

    @abstractmethod
    def done(self) -> bool: ...

    @abstractmethod
    def result(self) -> Any:
        """Wait for the value and return it; raises the error of the call.

        The value may be in memory of the role: while it is held, the role cannot use that memory again.
        """

    def take(self) -> Any:
        """A copy of the value, which no later call of the role changes."""
        return own_copy(self.result())


class Ref(ABC):  # noqa: B024  its contents differ between backends
    """A value that was sent once and can be an argument of many calls; dropping the last reference releases it."""


class Handle(ABC):
    """A role that runs in some process."""

    busy_seconds: float = 0.0
    """How long the role has worked on calls that have ended."""
    host: str | None = None
    """The address of the role's machine for roles on other machines; None if all roles are on this machine."""

    def memory_bytes(self) -> int:
        """Memory that the process of the role holds; 0 if the role has no process of its own."""
        return 0

    def can_move(self) -> bool:
        """Whether the role shares processors with others and a new one in its place would have its own."""
        return False

    @abstractmethod
    def call(self, method: str, *args: Any, timeout: float | None = None) -> Future:
        """Call a method of the role; an argument that is a ``Ref`` arrives as its value.

        A role that takes more than ``timeout`` seconds, counted from the end of the previous call, is ended.
        """


class Executor(ABC):
    """Starts roles and sends calls to them.

    ``preload`` names modules that roles import; an executor may import them once for all processes. An executor that
    connects to other machines takes their ``address`` as a second argument.
    """

    isolates: ClassVar[bool]
    """Whether a role can die or hang without its caller; otherwise a timeout is refused."""
    assigns_devices: ClassVar[bool] = False
    """Whether a role sees only the GPUs that it was given by its ``Needs``, on a machine that may not be this one."""

    @abstractmethod
    def __init__(self, preload: Sequence[str] = ()): ...

    @abstractmethod
    def spawn_all(
        self,
        builds: Sequence[Callable[[], Any]],
        timeout: float | None = None,
        needs: Needs = ONE_CPU,
        answers_held: int = ANSWERS_HELD,
    ) -> list[Handle]:
        """Start roles at the same time; the first error of a constructor is raised here.

        A constructor that takes more than ``timeout`` seconds raises ``BuildTimedOut``, also in the caller's process.
        A role whose answers lie in its own memory waits while its last ``answers_held`` large ones are still in use.
        """

    def spawn(self, build: Callable[[], Any], timeout: float | None = None) -> Handle:
        (handle,) = self.spawn_all([build], timeout)
        return handle

    def num_cpus(self) -> int:
        """The processors of all machines on which roles can run."""
        return os.cpu_count() or 1

    def num_gpus(self) -> float:
        """The GPUs of all machines on which roles can run."""
        return torch.cuda.device_count()

    @abstractmethod
    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        """Wait until a future has ended or the time is up; return the futures that have ended."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End a role at once; a second call does nothing."""

    @abstractmethod
    def put(self, value: Any) -> Ref:
        """Send a value that many calls will use: it is written once and read by all roles."""

    @abstractmethod
    def close(self) -> None:
        """End all roles and release everything."""


def make_executor(name: str, preload: Sequence[str] = (), address: str | None = None) -> Executor:
    """The executor of this name or import path."""
    path = EXECUTORS.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        raise ConfigError(f"there is no executor {name!r}; {did_you_mean(name, EXECUTORS)}, or name it as module:Class")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"executor {name!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Executor)):
        raise ConfigError(f"executor {name!r} is not a subclass of elegantrl.execute.base.Executor")
    return kind(preload) if address is None else kind(preload, address)  # type: ignore[call-arg]


def own_copy(value: Any) -> Any:
    """A copy that shares no memory with ``value``."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()}
    if type(value) is list:
        return [own_copy(item) for item in value]
    if isinstance(value, tuple):
        items = [own_copy(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value if isinstance(value, str | int | float | bytes | None) else copy.deepcopy(value)


class RemoteTraceback(Exception):
    """The traceback of an error from another process, as text; the ``__cause__`` of that error."""

    def __init__(self, text: str, where: str):
        super().__init__(f"\n{text}")
        self.where = where


def where_raised(error: BaseException) -> str:
    """``file:line`` of the innermost frame, in this process or another."""
    if isinstance(error.__cause__, RemoteTraceback):
        return error.__cause__.where
    return innermost_line(error)

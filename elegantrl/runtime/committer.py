"""Writes commits in a thread of its own, so that training stops only for the copy of its state.

At most one commit is being written. A failed write is reported and counted; the third failure in a row ends the run. A
learner state with a NaN or an infinity is refused: the previous commit stays the newest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..errors import Diverged, StorageError
from ..store.commits import Store
from ..types import State
from .restarts import FaultCounts

MAX_FAILED_WRITES = 3
"""Number of failed writes in a row that ends the run."""


class Committer:
    """The only writer of a run's commits."""

    def __init__(
        self,
        store: Store,
        counts: FaultCounts,
        notify: Callable[[str], None],
        on_written: Callable[[str], None] = lambda commit_id: None,
    ):
        """``on_written`` is called with the id of a commit that is complete, in the thread that trains."""
        self.store, self.counts, self.notify, self.on_written = store, counts, notify, on_written
        self._written = ""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._failed_in_a_row = 0

    def submit(self, step: int, parts: Mapping[str, State], info: Mapping[str, Any]) -> None:
        """Write ``parts``, which the caller must not change afterwards; waits for the previous commit."""
        self.wait()

        def write() -> None:
            try:
                check_finite(step, parts)
                self._written = self.store.commit(step, parts, info)
            except BaseException as error:  # raised again in the thread that trains
                self._error = error

        self._thread = threading.Thread(target=write, name="elegantrl-commit", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Report the outcome of a write that has ended."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self, must_succeed: bool = False) -> None:
        """Wait until nothing is being written. A failed write gives a warning; three in a row end the run."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread, error = None, self._error
        self._error = None
        if error is None:
            self._failed_in_a_row = 0
            self.on_written(self._written)
            return
        if not isinstance(error, StorageError):
            raise error
        self._failed_in_a_row += 1
        self.counts.failed_commits += 1
        if must_succeed or self._failed_in_a_row >= MAX_FAILED_WRITES:
            raise error
        self.notify(f"{error}; training goes on with the commit before")

    def close(self) -> None:
        """Wait for a write in progress and ignore its outcome."""
        if self._thread is not None:
            self._thread.join()


def check_finite(step: int, parts: Mapping[str, State]) -> None:
    """Refuse learner states with a NaN or an infinity: a run that continued from them could not learn."""
    for part in (part for part in parts if part.startswith("learner")):
        for name, tensor in tensors_of(parts[part], part):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise Diverged(f"{name} has a NaN or an infinity at step {step}; nothing was committed")


def tensors_of(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a nested state, each with its path."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from tensors_of(item, f"{path}.{name}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from tensors_of(item, f"{path}.{i}")

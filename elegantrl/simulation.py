"""A simulated executor for populations: the real controller, log and decisions; simulated time, training and failures.

Calls take virtual seconds, and die, hang, raise or diverge with given probabilities, all drawn from one seed, so that a
thousand members train for days within seconds, and a failure of the controller can be repeated.
"""

from __future__ import annotations

import heapq
import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import CheckpointError, RoleDied, RoleTimedOut
from .execute.base import ANSWERS_HELD, ONE_CPU, Executor, Future, Handle, Needs, Ref
from .population.member import Outcome, Task
from .population.space import stream
from .store.storage import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """How simulated calls behave."""

    seed: int = 0
    seconds: float = 60.0
    """Mean duration of a period."""
    spread: float = 0.5
    """Durations are uniform within this fraction of the mean."""
    dies: float = 0.0
    hangs: float = 0.0
    raises: float = 0.0
    """Probabilities of an attempt."""
    diverges: float = 0.0
    """Probability of a period, whatever the number of attempts."""
    best_lr: float = 1e-3
    """The learning rate with which members learn fastest."""

    def duration(self, chance: float) -> float:
        return self.seconds * (1.0 + self.spread * (2.0 * chance - 1.0))

    def score(self, task: Task) -> float:
        """Longer training and a learning rate near the best give a higher score; the same task gives the same."""
        distance = abs(math.log(task.hypers["lr"] / self.best_lr))
        return math.log1p(task.steps) - distance + 0.1 * chance(f"score {task.key} {task.hypers['lr']}")


def chance(key: str) -> float:
    """A number between 0 and 1 that depends on the key alone; a checksum is quick, and good enough here."""
    return zlib.crc32(key.encode()) / 2**32


class MemoryStorage(Storage):
    """Keys in a dict; folders are names without contents."""

    def __init__(self) -> None:
        self.url = "memory"
        self.data: dict[str, bytearray] = {}
        self.runs: set[str] = set()

    def read(self, key: str) -> bytes:
        if key not in self.data:
            raise CheckpointError(f"there is no {key}")
        return bytes(self.data[key])

    def write(self, key: str, data: bytes) -> None:
        self.data[key] = bytearray(data)

    def append(self, key: str, data: bytes) -> None:
        self.data.setdefault(key, bytearray()).extend(data)

    def read_all(self, key: str) -> bytes:
        return bytes(self.data.get(key, b""))

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self.runs if key.startswith(f"{prefix}/"))

    def delete(self, key: str) -> None:
        self.runs.discard(key)

    def upload(self, folder: Path, key: str) -> None:
        self.runs.add(key)

    def download(self, key: str, folder: Path) -> None:
        if key not in self.runs:
            raise CheckpointError(f"there is no {key}")


class SimFuture(Future):
    def __init__(self, handle: SimHandle, call: tuple[str, tuple[Any, ...]], ends_at: float):
        self.handle, self.call, self.ends_at = handle, call, ends_at
        self.ended = False
        self.value: Any = None
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.ended

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def take(self) -> Any:
        return self.result()


class SimHandle(Handle):
    def __init__(self, executor: SimExecutor):
        self.executor, self.alive = executor, True
        self.future: SimFuture | None = None

    def call(self, method: str, *args: Any, timeout: float | None = None) -> SimFuture:
        assert self.alive and (self.future is None or self.future.ended), "a role does one call at a time"
        self.future = self.executor.begin(self, (method, args), timeout)
        return self.future


class SimRef(Ref):
    pass


class SimExecutor(Executor):
    """Virtual processes. By the ``virtual`` clock the caller takes no time, and everything can be repeated; by the
    ``wall`` clock seconds are real ones; by the ``processor`` clock the caller takes its processor time, which does not
    depend on other programs, and what is charged for its waits by ``pass_seconds``."""

    isolates = True

    def __init__(
        self,
        preload: Sequence[str] = (),
        world: World | None = None,
        storage: Storage | None = None,
        clock: Literal["virtual", "wall", "processor"] = "virtual",
    ) -> None:
        self.world, self.storage, self.clock = world or World(), storage or MemoryStorage(), clock
        self.now = 0.0
        self.num_calls = 0
        self.num_running = self.max_seen = 0
        self.busy = 0.0
        """Seconds that all roles have worked."""
        self.scores: dict[str, float] = {}
        """The quality of every stored run."""
        self._random = stream(self.world.seed, "calls")
        self._read = {"virtual": float, "wall": time.monotonic, "processor": time.process_time}[clock]
        self._started = self._read()
        self._heap: list[tuple[float, int, SimFuture]] = []

    def spawn_all(
        self,
        builds: Sequence[Callable[[], Any]],
        timeout: float | None = None,
        needs: Needs = ONE_CPU,
        answers_held: int = ANSWERS_HELD,
    ) -> list[Handle]:
        return [SimHandle(self) for _ in builds]

    def look(self) -> None:
        """Read the clock."""
        if self.clock != "virtual":
            self.now = self._read() - self._started

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass in which the caller waits for something else than calls."""
        self._started -= seconds

    def begin(self, handle: SimHandle, call: tuple[str, tuple[Any, ...]], timeout: float | None) -> SimFuture:
        """Schedule the end of a call."""
        number = self.num_calls
        self.num_calls += 1
        self.num_running += 1
        self.max_seen = max(self.max_seen, self.num_running)
        self.look()
        seconds = self.world.duration(self._random.random()) * (0.1 if call[0] == "evaluate" else 1.0)
        future = SimFuture(handle, call, self.now + seconds)
        future.seconds = seconds
        self._decide(future, self._random.random(), timeout)
        self.busy += future.ends_at - self.now
        heapq.heappush(self._heap, (future.ends_at, number, future))
        return future

    def _decide(self, future: SimFuture, fate: float, timeout: float | None) -> None:
        """How a call ends."""
        world = self.world
        if fate < world.dies:
            future.error = RoleDied("a simulated death")
        elif fate < world.dies + world.hangs:
            assert timeout is not None, "a call without a time limit would hang for ever"
            future.error, future.ends_at = RoleTimedOut("a simulated hang"), self.now + timeout
        elif fate < world.dies + world.hangs + world.raises:
            future.error = ValueError("a simulated error")

    def _end(self, future: SimFuture) -> None:
        self.num_running -= 1
        future.ended = True
        if not future.handle.alive:
            future.error = RoleDied("the role was ended")
        if future.error is not None:
            return
        method, args = future.call
        try:
            future.value = self._train(args[0]) if method == "train" else self._evaluate(*args)
        except Exception as error:
            future.error = error

    def _train(self, task: Task) -> Outcome:
        for key in task.parents:
            self.storage.download(key, Path())
        if self.world.diverges and chance(f"diverges {self.world.seed} {task.key}") < self.world.diverges:
            return Outcome(None, 0, None)
        self.storage.upload(Path(), task.key)
        self.scores[task.key] = score = self.world.score(task)
        return Outcome(task.key, task.steps, None if task.eval_seed is None else score)

    def _evaluate(self, key: str, seed: int) -> Outcome:
        self.storage.download(key, Path())
        return Outcome(key, 0, self.scores[key] + 0.1 * (seed / 2**63))

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> list[Future]:
        """All calls that end at the earliest time, or that have ended by now."""
        if not self._heap:
            return []
        self.look()
        left = max(0.0, self._heap[0][0] - self.now)
        if self.clock == "wall":
            time.sleep(left)
            self.look()
        else:
            self._started -= left
            self.now += left
        ended: list[Future] = []
        while self._heap and self._heap[0][0] <= self.now:
            future = heapq.heappop(self._heap)[2]
            self._end(future)
            ended.append(future)
        return ended

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, SimHandle)
        handle.alive = False

    def put(self, value: Any) -> SimRef:
        return SimRef()

    def close(self) -> None:
        self._heap.clear()

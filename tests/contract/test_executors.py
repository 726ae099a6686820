"""What every executor promises. A backend joins by adding itself to ``BACKENDS``."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elegantrl.errors import BuildTimedOut, ConfigError, NonFinite, RoleDied, RoleError, RoleTimedOut
from elegantrl.execute.base import ANSWERS_HELD, Executor, RemoteTraceback, make_executor, where_raised
from elegantrl.execute.inline import InlineExecutor
from elegantrl.execute.process import ProcessExecutor
from elegantrl.runtime.build import PRELOAD
from elegantrl.types import Episodes, Fault, Fragment, Rollout, Weights

BACKENDS: dict[str, Callable[[], Executor]] = {
    "inline": InlineExecutor, "process": partial(ProcessExecutor, PRELOAD), "ray": partial(make_executor, "ray")
}  # fmt: skip
# A process of Ray takes seconds to start; test_ray.py shows the essentials in a few.
PARAMS = [pytest.param(name, marks=[pytest.mark.slow] if name == "ray" else []) for name in BACKENDS]
ISOLATING = PARAMS[1:]
SECONDS = 120.0
"""The most that anything may take on a busy machine; nothing waits for it to pass."""


class OddError(Exception):
    """Cannot be rebuilt from its arguments, so it cannot travel as it is."""

    def __init__(self, number: int, word: str):
        super().__init__(f"{word} {number}")


class Role:
    """Does whatever a test asks for."""

    def __init__(self, marker: Path | None = None):
        self.marker = marker
        self.seen: list[Any] = []
        self.kept: Any = None

    def see(self, value: Any) -> list[Any]:
        self.seen.append(value)
        return list(self.seen)

    def echo(self, value: Any) -> Any:
        return value

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def ones(self, size: int, value: float) -> torch.Tensor:
        return torch.full((size,), value)

    def keep(self, value: Any) -> None:
        self.kept = value

    def give(self) -> Any:
        return self.kept

    def fail(self, error: Exception) -> None:
        raise error

    def fail_oddly(self) -> None:
        raise OddError(7, "lucky")

    def pid(self) -> int:
        return os.getpid()

    def start_program(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def threads(self) -> int:
        return torch.get_num_threads()

    def unpicklable(self) -> Any:
        return lambda: None

    def die(self, how: str) -> None:
        {
            "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "SIGSEGV": lambda: ctypes.string_at(0),
            "SIGABRT": os.abort,
            "exit 0": lambda: sys.exit(0),
            "_exit 3": lambda: os._exit(3),
        }[how]()

    def hang(self) -> None:
        threading.Event().wait()

    def hang_with_the_interpreter(self) -> None:
        ctypes.PyDLL(None).pause()  # in C, without letting any thread of Python run

    def close(self) -> None:
        if self.marker is not None:
            self.marker.write_text("closed")


def refuse() -> Role:
    raise ConfigError("this role refuses")


@pytest.fixture(params=PARAMS)
def backend(request: pytest.FixtureRequest) -> Callable[[], Executor]:
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return BACKENDS[request.param]


@pytest.fixture
def executor(backend: Callable[[], Executor]) -> Iterator[Executor]:
    with contextlib.closing(backend()) as one:
        yield one


@pytest.fixture
def isolating(executor: Executor) -> Executor:
    return executor


def isolating_only(test: Callable[..., None]) -> Callable[..., None]:
    """For executors whose roles have processes of their own."""
    return pytest.mark.parametrize("backend", ISOLATING, indirect=True)(test)


@pytest.fixture
def processes() -> Iterator[ProcessExecutor]:
    with contextlib.closing(ProcessExecutor(PRELOAD)) as one:
        yield one


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def has_ended(executor: Executor, pid: int) -> None:
    """A process has ended; a child of this one has done so already."""
    if not isinstance(executor, ProcessExecutor):
        wait_until(lambda: not is_running(pid))
    assert not is_running(pid)


# ---- outcomes


def test_a_value(executor: Executor) -> None:
    future = executor.spawn(Role).call("add", 2, 3)
    assert future.result() == 5 and future.done() and future.result() == 5


def test_calls_on_one_role_run_in_order(executor: Executor) -> None:
    role = executor.spawn(Role)
    futures = [role.call("see", i) for i in range(20)]
    assert futures[-1].result() == list(range(20))
    assert [len(future.result()) for future in futures] == list(range(1, 21))


def test_roles_do_not_share_state(executor: Executor) -> None:
    a, b = executor.spawn_all([Role, Role])
    a.call("see", 1).result()
    assert b.call("see", 2).result() == [2]


def test_wait_returns_what_has_ended(executor: Executor) -> None:
    role = executor.spawn(Role)
    futures = [role.call("echo", i) for i in range(5)]
    pending = list(futures)
    while pending:
        ended = executor.wait(pending, timeout=SECONDS)
        assert ended and all(future.done() for future in ended)
        pending = [future for future in pending if future not in ended]
    assert [future.result() for future in futures] == list(range(5))
    assert executor.wait([]) == []


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyError("lost"), NonFinite("nan"), ConfigError("bad")])
def test_an_exception_keeps_its_type_and_its_place(executor: Executor, error: Exception) -> None:
    role = executor.spawn(Role)
    future = role.call("fail", error)
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            future.result()
        assert caught.value.args == error.args
    file, _, line = where_raised(caught.value).rpartition(":")
    assert file == __file__ and "raise error" in Path(file).read_text().splitlines()[int(line) - 1]
    if executor.isolates:
        assert isinstance(caught.value.__cause__, RemoteTraceback) and "in fail" in str(caught.value.__cause__)
    assert role.call("echo", 1).result() == 1  # the role lives on


def test_an_exception_that_cannot_travel_keeps_its_words(executor: Executor) -> None:
    with pytest.raises((OddError, RoleError), match="lucky 7"):
        executor.spawn(Role).call("fail_oddly").result()


def test_an_unknown_method(executor: Executor) -> None:
    with pytest.raises(AttributeError, match="'Role' object has no attribute 'dance'"):
        executor.spawn(Role).call("dance").result()


def test_errors_of_a_constructor_are_raised_by_spawn(executor: Executor) -> None:
    with pytest.raises(ConfigError, match="this role refuses"):
        executor.spawn_all([Role, refuse, Role])
    assert multiprocessing.active_children() == []


# ---- the end of a role


def test_kill_is_idempotent_and_final(executor: Executor, tmp_path: Path) -> None:
    role, other = executor.spawn_all([Role, Role])
    before = role.call("echo", 1)
    before.result()
    executor.kill(role)
    executor.kill(role)
    assert before.result() == 1
    for _ in range(2):
        with pytest.raises(RoleDied):
            role.call("echo", 2).result()
    assert other.call("echo", 3).result() == 3


@isolating_only
def test_nothing_comes_late_from_a_role_that_was_ended(isolating: Executor) -> None:
    role = isolating.spawn(Role)
    pid = role.call("pid").result()
    futures = [role.call("echo", 1), role.call("hang"), role.call("echo", 2)]
    isolating.kill(role)
    has_ended(isolating, pid)
    for future in futures:
        assert future.done()
        with pytest.raises(RoleDied, match=rf"pid {pid} was ended before it answered"):
            future.result()


@isolating_only
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", "died of SIGKILL"),
        ("SIGSEGV", "died of SIGSEGV"),
        ("SIGABRT", "died of SIGABRT"),
        ("exit 0", "exited with code 0"),
        ("_exit 3", "exited with code 3"),
    ],
)
def test_death_is_told_in_words(isolating: Executor, how: str, words: str) -> None:
    if not isinstance(isolating, ProcessExecutor) and how != "exit 0":
        words = "died"  # only a parent learns the signal or the code
    role, other = isolating.spawn_all([Role, Role])
    pid = role.call("pid").result()
    first = role.call("echo", 1)
    if not isinstance(isolating, ProcessExecutor):
        first.result()  # Ray sends an answer some time after it was given, and loses it if the process ends before
    futures = [role.call("die", how), role.call("echo", 2)]
    assert first.result() == 1
    for future, method in zip(futures, ("die", "echo"), strict=True):
        with pytest.raises(RoleDied, match=f"pid {pid} {words} before it answered {method}"):
            future.result()
    with pytest.raises(RoleDied, match=words):
        role.call("echo", 3).result()
    assert other.call("echo", 4).result() == 4
    assert isolating.spawn(Role).call("echo", 5).result() == 5


@isolating_only
def test_death_in_a_constructor(isolating: Executor) -> None:
    words = "exited with code 9" if isinstance(isolating, ProcessExecutor) else "died"
    with pytest.raises(RoleDied, match=words):
        isolating.spawn(partial(os._exit, 9))


def hang() -> Role:
    return threading.Event().wait()  # type: ignore[return-value]


def connect_for_ever() -> Role:
    """As a constructor does that waits for its simulator: no error ends it."""
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)
            raise OSError("connection refused")


@pytest.mark.parametrize("build", [hang, connect_for_ever])
def test_a_constructor_that_does_not_return_is_given_up(
    backend: Callable[[], Executor], build: Callable[[], Role]
) -> None:
    """R14: also in this process, where nothing is left of the limit afterwards."""
    executor = backend()
    handler = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(BuildTimedOut, match=r"a constructor .*0\.2 s.*--role-timeout") as caught:
            executor.spawn_all([build], timeout=0.2)
        assert caught.value.exit_code == 3
        assert executor.spawn_all([Role], timeout=SECONDS)[0].call("echo", 1).result() == 1
    finally:
        executor.close()
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_caller_keeps_its_timer() -> None:
    calls: list[int] = []
    before, handler = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, lambda number, _: calls.append(number))
        InlineExecutor().spawn_all([Role], timeout=SECONDS)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        signal.setitimer(signal.ITIMER_REAL, SECONDS, 5.0)
        InlineExecutor().spawn_all([Role], timeout=SECONDS)
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 0.0 < left <= SECONDS and interval == 5.0
        signal.raise_signal(signal.SIGALRM)
        assert calls == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)  # the limit of this test


@isolating_only
@pytest.mark.parametrize("method", ["hang", "hang_with_the_interpreter"])
def test_a_deadline(isolating: Executor, method: str) -> None:
    role, other = isolating.spawn_all([Role, Role])
    pid = role.call("pid").result()
    late, queued, fine = role.call(method, timeout=0.2), role.call("echo", 1), other.call("echo", 2, timeout=SECONDS)
    with pytest.raises(RoleTimedOut, match=rf"no answer to {method} from pid {pid} within 0\.2 s"):
        late.result()
    with pytest.raises(RoleDied, match="after a timeout"):
        queued.result()
    assert fine.result() == 2
    has_ended(isolating, pid)


@isolating_only
def test_an_answer_that_was_there_in_time_counts_however_late_it_is_read(isolating: Executor) -> None:
    role = isolating.spawn(Role)
    first, second = role.call("echo", 1), role.call("echo", 2, timeout=0.2)
    first.result()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # busy with something else for longer than the timeout
        pass
    with contextlib.suppress(RoleTimedOut):  # on a machine that is slow beyond measure the child did not get to it
        assert second.result() == 2


@isolating_only
def test_a_wait_can_end_without_any_outcome(isolating: Executor) -> None:
    role = isolating.spawn(Role)
    future = role.call("hang")
    assert isolating.wait([future], timeout=0.05) == [] and not future.done()


def test_a_role_in_this_process_cannot_be_timed() -> None:
    with pytest.raises(ConfigError, match="--executor process"):
        InlineExecutor().spawn(Role).call("echo", 1, timeout=1.0)


# ---- data


def zoo() -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    big = torch.randn(300, 70, generator=g)
    return {
        "float": big,
        "strided": big.T[::2],
        "bool": big > 0,
        "int": torch.arange(70_000),
        "bfloat16": big.bfloat16(),
        "small": torch.tensor([1.5, -0.0, float("nan")]),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "odd strides": [torch.ones(5).as_strided((size,), (0,), 2) for size in (0, 1, 3)],
        "parameter": nn.Parameter(big.clone()),
        "nested": [{"numpy": np.arange(10_000.0)}, (np.float32(2.5), None, "text", 2**80)],
        "column by column": np.asfortranarray(np.arange(3000.0).reshape(50, 60)),
        "not numbers": np.arange(3000).astype("datetime64[s]"),
        "other byte order": np.arange(3000, dtype=">i4"),
        "long text": "x" * 100_000,
        "again": big,
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        a, b = a.detach(), b.detach()
        same = a.dtype == b.dtype and a.shape == b.shape and a.device == b.device
        return same and bool(torch.all((a == b) | (a.isnan() & b.isnan())))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(map(equal, a, b))
    return bool(a == b)


def test_data_of_every_kind_comes_back_equal(executor: Executor) -> None:
    role = executor.spawn(Role)
    for _ in range(3):
        assert equal(role.call("echo", zoo()).result(), zoo())
    value = role.call("echo", executor.put(zoo())).result()
    assert equal(value, zoo())
    value["float"].add_(1)  # what was received can be written to


def fragment(
    steps: int, dtype: torch.dtype = torch.float32, lanes: int = 2, faults: tuple[Fault, ...] = ()
) -> Fragment:
    g = torch.Generator().manual_seed(steps)
    numbers = torch.randn(5, steps, lanes, generator=g)
    obs = torch.randn(lanes, steps, 3, generator=g).to(dtype).transpose(0, 1)  # not contiguous
    action = torch.randint(0, 4, (steps, lanes), generator=g)
    rollout = Rollout(obs, action, numbers[0], numbers[1] > 0, numbers[2] > 0, obs.flip(0), numbers[3])
    ended = Episodes(numbers[4].flatten().double().numpy(), np.arange(steps * lanes))
    return Fragment(1, steps, 3, rollout, ended, faults, steps_lost=len(faults))


def test_fragments_and_weights_come_back_equal(executor: Executor) -> None:
    role = executor.spawn(Role)
    faults = (Fault(1, "raised ValueError: \u00e9\ud800", "env.py:3", 7), Fault(0, ""))
    lists = [
        [fragment(steps) for steps in (1, 0, 9)],  # all of it fits into the pipe
        [fragment(1), fragment(700), fragment(0)],
        [fragment(0)],
        [fragment(700, faults=faults)],
        [fragment(5, lanes=0)],
        [fragment(700, torch.bfloat16)],  # a type that NumPy does not know
        [fragment(700), "and something else"],
        [],
    ]
    for fragments in lists:
        assert equal(role.call("echo", fragments).result(), fragments)
    for size in (1, 100, 100_000):
        weights = Weights(size, torch.randn(size))
        assert equal(role.call("echo", executor.put(weights)).result(), weights)


def test_what_looks_like_a_number_stays_what_it_is(executor: Executor) -> None:
    role = executor.spawn(Role)
    own = {"number": np.float64(2.5), "integer": np.int64(7), "bytes": bytearray(b"x"), "member": signal.SIGTERM}
    plain = [True, 1, 1.0, float("inf"), None, "text\ud800", b"bytes", 2**80, (), [[], (1, (2, [3]))]]
    for value in (*own.values(), *plain, plain, (1, Fault(0, "what")), list(own.values())):
        back = role.call("echo", value).result()
        assert equal(back, value) and type(back) is type(value)
        if isinstance(value, list | tuple):
            assert [type(x) for x in back] == [type(x) for x in value]


def test_messages_of_every_length(executor: Executor) -> None:
    role = executor.spawn(Role)
    for length in (*range(150, 300), 1000, 8000, 8192, 8300, 70_000):
        assert role.call("add", "x" * length, "y").result() == "x" * length + "y"


def test_inference_tensors_travel(executor: Executor) -> None:
    with torch.inference_mode():
        x = torch.ones(1000)
    assert torch.equal(executor.spawn(Role).call("echo", x).result(), torch.ones(1000))


@isolating_only
def test_a_call_carries_what_its_arguments_were(isolating: Executor) -> None:
    role = isolating.spawn(Role)
    x = torch.zeros(100_000)
    futures = []
    for i in range(6):
        futures.append(role.call("add", x, i))
        x += 100
    results = [future.result() for future in futures[:ANSWERS_HELD]]
    assert [float(result[-1]) for result in results] == [0, 101, 202, 303]


def test_what_is_held_does_not_change(executor: Executor) -> None:
    """A block of shared memory must not be written while anybody looks at it, in part or as a whole."""
    role = executor.spawn(Role)
    whole = role.call("ones", 100_000, 1.0).result()
    part = role.call("ones", 100_000, 2.0).result()[70_000:]
    for i in range(20):
        assert float(role.call("ones", 100_000, float(i)).result()[5]) == i
    assert bool((whole == 1).all()) and bool((part == 2).all())


def test_garbage_does_not_hold_a_role_back(executor: Executor) -> None:
    """Answers that only cycles hold would keep their memory until the next collection, which may never come."""
    role = executor.spawn(Role)
    gc.disable()
    try:
        for i in range(2 * ANSWERS_HELD):
            answer = role.call("ones", 100_000, float(i)).result()
            assert float(answer[5]) == i
            cycle: list[Any] = [answer]
            cycle.append(cycle)
            del answer, cycle
    finally:
        gc.enable()


def test_a_ref_reaches_every_role(executor: Executor) -> None:
    roles = executor.spawn_all([Role] * 3)
    for version in range(10):
        ref = executor.put(torch.full((50_000,), float(version)))
        futures = [role.call("add", ref, ref) for role in roles]
        assert [float(future.result()[-1]) for future in futures] == [2 * version] * 3


def test_a_role_may_keep_what_a_ref_brought(executor: Executor) -> None:
    role = executor.spawn(Role)
    role.call("keep", executor.put(torch.full((50_000,), 7.0))).result()
    for i in range(10):
        role.call("echo", executor.put(torch.full((50_000,), float(i)))).result()
    assert bool((role.call("give").result() == 7).all())


def test_a_ref_outlives_a_role(executor: Executor) -> None:
    ref = executor.put(torch.full((50_000,), 7.0))
    for _ in range(3):
        role = executor.spawn(Role)
        assert float(role.call("echo", ref).result()[-1]) == 7.0
        executor.kill(role)


# ---- processes: shared memory


def test_blocks_are_used_again(processes: ProcessExecutor) -> None:
    role = processes.spawn(Role)
    x = torch.randn(100_000)
    for _ in range(50):
        assert torch.equal(role.call("echo", x).result(), x)
        assert torch.equal(role.call("echo", processes.put(x)).result(), x)
    assert len(processes.outbox.blocks) <= 2 and processes.outbox.num_busy() == 0
    assert len(role.channel.inbox) == 1  # type: ignore[attr-defined]


def test_weights_are_double_buffered(processes: ProcessExecutor) -> None:
    roles = processes.spawn_all([Role] * 2)
    ref = processes.put(torch.zeros(50_000))
    for version in range(20):
        futures = [role.call("echo", ref) for role in roles]
        ref = processes.put(torch.full((50_000,), version + 1.0))  # written while the one before is on its way
        assert [float(future.result()[0]) for future in futures] == [version] * 2
    assert len(processes.outbox.blocks) <= 3


def test_whoever_keeps_all_answers_holds_the_role_back(processes: ProcessExecutor) -> None:
    role = processes.spawn(Role)
    held = [role.call("ones", 100_000, float(i)).result() for i in range(ANSWERS_HELD)]
    one_more = role.call("ones", 100_000, 99.0)
    assert processes.wait([one_more], timeout=0.1) == []
    del held[1]
    assert float(one_more.result()[0]) == 99.0
    assert [float(x[0]) for x in held] == [0, 2, 3]


def test_a_dead_reader_gives_its_blocks_back(processes: ProcessExecutor) -> None:
    for _ in range(5):
        role = processes.spawn(Role)
        role.call("keep", torch.ones(100_000)).result()
        call = role.call("hang")
        more = role.call("keep", torch.ones(100_000))
        processes.kill(role)
        assert call.done() and more.done()
        assert processes.outbox.num_busy() == 0
    assert len(processes.outbox.blocks) <= 2


def test_what_cannot_be_pickled_is_one_sentence(processes: ProcessExecutor) -> None:
    with pytest.raises(ConfigError, match=r"cannot be pickled .*lambda.*; name a class or a function") as caught:
        processes.spawn(lambda: Role())
    assert "\n" not in str(caught.value)
    role = processes.spawn(Role)
    with pytest.raises(ConfigError, match="cannot be pickled"):
        role.call("add", torch.ones(100_000), lambda: None).result()
    assert processes.outbox.num_busy() == 0
    with pytest.raises(ConfigError, match="cannot be pickled"):
        processes.put(lambda: None)
    with pytest.raises(Exception, match="pickle"):
        role.call("unpicklable").result()
    assert role.call("echo", 1).result() == 1


# ---- processes: life and death


def test_close_leaves_nothing_behind(tmp_path: Path) -> None:
    names = set(os.listdir("/dev/shm"))
    executor = ProcessExecutor()
    roles = executor.spawn_all([partial(Role, tmp_path / str(i)) for i in range(3)])
    pids = [role.call("pid").result() for role in roles]
    program = roles[0].call("start_program").result()
    roles[1].call("echo", torch.ones(100_000)).result()
    assert set(os.listdir("/dev/shm")) == names
    stuck = roles[2].call("hang")
    executor.close()
    executor.close()
    with pytest.raises(RoleDied):
        stuck.result()
    assert not any(map(is_running, pids)) and multiprocessing.active_children() == []
    wait_until(lambda: not is_running(program))
    assert set(os.listdir("/dev/shm")) == names
    assert [(tmp_path / str(i)).exists() for i in range(3)] == [True, True, False]  # the stuck one could not


def test_descriptors_do_not_pile_up(processes: ProcessExecutor) -> None:
    def cycle() -> int:
        role = processes.spawn(Role)
        role.call("echo", torch.ones(100_000)).result()
        processes.kill(role)
        return len(os.listdir("/proc/self/fd"))

    first = cycle()
    assert [cycle() for _ in range(3)] == [first] * 3


def test_a_child_leaves_signals_to_its_parent(processes: ProcessExecutor) -> None:
    role = processes.spawn(Role)
    pid = role.call("pid").result()
    assert os.getpgid(pid) == pid != os.getpgrp()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
        assert role.call("echo", 1).result() == 1


def test_one_thread_and_nobody_elses_start_method(processes: ProcessExecutor) -> None:
    assert processes.spawn(Role).call("threads").result() == 1
    assert multiprocessing.get_start_method() == multiprocessing.get_all_start_methods()[0]  # the default


PARENT = """
import sys
from test_executors import ProcessExecutor, Role

if __name__ == "__main__":
    executor = ProcessExecutor()
    idle, stuck, busy = executor.spawn_all([Role] * 3)
    pids = [role.call("pid").result() for role in (idle, stuck, busy)] + [idle.call("start_program").result()]
    stuck.call("hang_with_the_interpreter")
    busy.call("hang")
    print(*pids, flush=True)
    if sys.argv[1] == "wait":
        sys.stdin.read()
"""

UNGUARDED = """
from test_executors import ProcessExecutor, Role

executor = ProcessExecutor()
executor.spawn(Role)
"""


def start_parent(tmp_path: Path, text: str, *words: str) -> subprocess.Popen[str]:
    (tmp_path / "parent.py").write_text(text)
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_die_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    parent = start_parent(tmp_path, PARENT, "wait")
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 4 and all(map(is_running, pids))
    parent.send_signal(number)
    parent.communicate(timeout=SECONDS)
    wait_until(lambda: not any(map(is_running, pids)))


def test_an_executor_that_nobody_closed_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    parent = start_parent(tmp_path, PARENT, "end")
    out, err = parent.communicate(timeout=SECONDS)
    assert (parent.returncode, err) == (0, "")
    assert len(out.split()) == 4 and not any(is_running(int(word)) for word in out.split()[:3])


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    parent = start_parent(tmp_path, UNGUARDED)
    _, err = parent.communicate(timeout=SECONDS)
    assert parent.returncode == 1
    # N6: one sentence at once, from the process that was started, and none from its children.
    assert err.count('a script that starts processes needs `if __name__ == "__main__":` around the start') == 1
    assert err.count("Traceback") == 1

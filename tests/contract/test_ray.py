"""The essentials of the Ray executor in few processes; ``test_executors.py`` has all promises, as slow tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from test_executors import Role, equal, is_running, wait_until, zoo

import elegantrl
from elegantrl.errors import ConfigError, RoleDied, RoleTimedOut
from elegantrl.execute.base import Executor, Handle, Needs, RemoteTraceback, make_executor
from elegantrl.execute.packing import rebuild
from elegantrl.execute.ray_host import from_message, to_message, writable


@pytest.fixture(scope="module")
def executor(local_ray: None) -> Iterator[Executor]:
    made = make_executor("ray")
    yield made
    made.close()


@pytest.fixture(scope="module")
def role(executor: Executor) -> Handle:
    """A role that no test ends."""
    return executor.spawn(Role)


def test_values_errors_and_order(executor: Executor, role: Handle) -> None:
    futures = [role.call("see", i) for i in range(5)]
    assert futures[-1].result() == list(range(5)) and all(future.done() for future in futures)
    with pytest.raises(ValueError, match="wrong") as caught:
        role.call("fail", ValueError("wrong")).result()
    assert isinstance(caught.value.__cause__, RemoteTraceback) and "in fail" in str(caught.value.__cause__)
    assert executor.wait([role.call("echo", 1)], timeout=60.0) and role.busy_seconds > 0.0
    assert role.memory_bytes() > 10**7
    with pytest.raises(ConfigError, match="this role refuses"):
        role.call("fail", ConfigError("this role refuses")).result()


def test_data_of_every_kind(executor: Executor, role: Handle) -> None:
    value = role.call("echo", zoo()).result()
    assert equal(value, zoo())
    value["float"].add_(1)  # what was received can be written to
    value["nested"][0]["numpy"][0] = 7.0
    ref = executor.put(torch.full((100_000,), 7.0))
    assert float(role.call("add", ref, ref).result()[-1]) == 14.0
    role.call("keep", ref).result()
    del ref
    assert bool((role.call("give").result() == 7).all())


def test_big_answers_are_read_where_they_are(role: Handle) -> None:
    future = role.call("ones", 10**6, 3.0)
    x = future.result()
    assert is_in_shared_memory(x.data_ptr()) and x.data_ptr() % 64 == 0
    own = future.take()
    assert not is_in_shared_memory(own.data_ptr()) and torch.equal(x, own)


def is_in_shared_memory(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return "/dev/shm" in line or "plasma" in line
    return False


def test_a_role_that_ends(executor: Executor, role: Handle) -> None:
    """In any of four ways: it hangs, it is killed, it exits, it is ended; the others live on."""
    stuck, killed, leaving, ended = executor.spawn_all([Role] * 4)
    pids = [handle.call("pid").result() for handle in (stuck, killed, leaving, ended)]
    late, queued = stuck.call("hang_with_the_interpreter", timeout=0.2), stuck.call("echo", 1)
    with pytest.raises(RoleTimedOut, match=rf"no answer to hang_with_the_interpreter from pid {pids[0]} within 0\.2 s"):
        late.result()
    with pytest.raises(RoleDied, match="after a timeout"):
        queued.result()
    with pytest.raises(RoleDied, match=f"pid {pids[1]} died before it answered die"):
        killed.call("die", "SIGKILL").result()
    with pytest.raises(RoleDied, match=f"pid {pids[2]} exited with code 0 before it answered die"):
        leaving.call("die", "exit 0").result()
    pending = ended.call("hang")
    executor.kill(ended)
    with pytest.raises(RoleDied, match=f"pid {pids[3]} was ended before it answered hang"):
        pending.result()
    wait_until(lambda: not any(map(is_running, pids)))
    assert role.call("echo", 5).result() == 5


def test_more_gpus_than_there_are(executor: Executor) -> None:
    with pytest.raises(ConfigError, match=r"2 roles with 0\.6 GPUs each do not fit into the 0 of 0 GPUs"):
        executor.spawn_all([Role, Role], needs=Needs(gpus=0.6))


def test_a_population_with_more_gpus_than_there_are(local_ray: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"population\.gpus=0\.5 for each of 1 at a time is more than the 0 GPUs"):
        elegantrl.evolve(
            "TensorCartPole", run_dir=tmp_path / "p", agents=("ppo",), executor="ray", gpus=0.5, verbose=False,
            settings={"train": {"device": "cuda"}},
        )  # fmt: skip


def test_messages_without_ray() -> None:
    block = np.arange(640, dtype=np.uint8)
    block.flags.writeable = False
    view = writable(block)
    view[0] = 9
    assert np.array_equal(view[1:], block[1:]) and view.ctypes.data % 64 == 0
    assert equal(from_message(to_message(zoo())), zoo())
    assert to_message([1, "text"])[-1] is None
    if not torch.cuda.is_available():
        x = rebuild(np.arange(4.0), 0, np.dtype(np.float64), (4,), "cuda:0")
        assert isinstance(x, torch.Tensor) and x.is_cpu  # the driver of a cluster may have no GPU


def test_a_missing_extra() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from elegantrl.execute.base import make_executor\n"
        "try:\n    make_executor('ray')\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert run.stdout.strip() == "ConfigError --executor ray needs Ray: pip install 'elegantrl[ray]'"

"""The connection to a Ray cluster, or a Ray of this program's own; and room for roles on the nodes of a cluster."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ConfigError
from .base import Needs


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables that processes started in this block inherit; those that are set already stay."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in values.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


try:
    # Ray prints a paragraph for each process that dies, whatever its log level is; the run reports deaths itself.
    with environment(RAY_DEDUP_LOGS_SKIP_REGEX="."):
        import ray as ray
        from ray.util import placement_group, placement_group_table, remove_placement_group
        from ray.util.placement_group import PlacementGroup as PlacementGroup
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ConfigError("--executor ray needs Ray: pip install 'elegantrl[ray]'") from error

CONNECT_SECONDS = 10.0
"""How long the head of a cluster may take to answer."""
LOOK_SECONDS = 2.0
"""How long a node may take to answer after a role of it has died."""
PLACE_SECONDS = 5.0
"""How long roles wait for free processors before they share those of others."""
LOCAL_CPUS = 4096
"""Processors that a Ray on one machine pretends to have: there the operating system shares the real ones."""
LOCAL_SYSTEM = {
    "prestart_worker_first_driver": False,  # no process in advance for each of these processors
    "process_group_cleanup_enabled": True,  # what a role has started ends with it
    "worker_niceness": 0,  # the default makes every call wait for all other programs
}
LONGEST_FOLDER = 40
"""Characters; the sockets in Ray's folder have names of up to 107."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}


class Connection:
    """This process as a driver of Ray; ``close`` ends what was started here.

    A program that is connected to Ray already keeps its connection.
    """

    def __init__(self, address: str | None = None):
        self.folder: str | None = None
        self.is_mine = not ray.is_initialized()
        address = address or os.environ.get("RAY_ADDRESS")
        if not self.is_mine:
            here = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", here):
                raise ConfigError(f"execute.address={address!r}, but this program is connected to the Ray at {here}")
        elif address in (None, "local"):
            self.folder = start_local()
        else:
            join(address)

    def close(self) -> None:
        if self.is_mine:
            self.is_mine = False
            ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


# ---- a Ray of this program's own


def start_local() -> str:
    """Start a Ray on this machine that ends with this process; returns its folder."""
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="elegantrl-ray-", dir=parent if len(parent) < LONGEST_FOLDER - 22 else "/tmp")
    # A closed terminal must not end Ray before the run has made its commit.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    # Ray's ports can be reached over the network. With a token only this user's processes can use them.
    try:
        with environment(RAY_AUTH_TOKEN=token()):
            ray.init(
                address="local",
                num_cpus=LOCAL_CPUS,
                _temp_dir=folder,
                _system_config=LOCAL_SYSTEM,
                **QUIET,
            )
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"Ray does not start on this machine ({one_line(error)}); use --executor process") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return folder


@functools.cache
def token() -> str:
    """The secret of this program; one only, because Ray reads it once in a process."""
    return secrets.token_hex(32)


# ---- a cluster


def join(address: str) -> None:
    """Connect to a cluster; raises ``ConfigError`` if none answers."""
    if "://" in address:
        raise ConfigError(
            f"execute.address={address!r} is not HOST:PORT; run on a node of the cluster, or submit the run as a job"
        )
    if address != "auto":
        knock(address)
    # The library waits for a minute for a port that is open and belongs to another program.
    waits = {"RAY_gcs_rpc_server_connect_timeout_s": f"{CONNECT_SECONDS:.0f}"}
    said = bytearray()
    try:
        with environment(**waits), stderr_into(said):
            ray.init(address=address, **{name: value for name, value in QUIET.items() if name != "include_dashboard"})
    except Exception as error:
        ray.shutdown()
        hint = "start one with `ray start --head`, or leave --address out"
        if "uthentication" in str(error) or b"AuthToken" in said:  # some errors name only the address
            hint = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token of the cluster"
        raise ConfigError(f"no Ray cluster can be used at {address} ({one_line(error)}); {hint}") from error


@contextlib.contextmanager
def stderr_into(said: bytearray) -> Iterator[None]:
    """Collect what is written to stderr, also by libraries in C++, instead of a line for each attempt to connect."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            said += file.read()


def knock(address: str) -> None:
    """Raise ``ConfigError`` unless something accepts a connection at ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ConfigError(f"execute.address={address!r} is neither HOST:PORT nor auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({one_line(error)}); start one with `ray start --head`, or leave"
            f" --address out"
        ) from None


def one_line(error: BaseException) -> str:
    """The first sentence of an error."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".")


def is_node_gone(node: str) -> bool:
    """Whether the process that manages a node has ended; the death of its roles may be known before that."""
    try:
        found = [each for each in ray.nodes() if each["NodeID"] == node]
        if not found or not found[0]["Alive"]:
            return True
        socket.create_connection((found[0]["NodeManagerAddress"], found[0]["NodeManagerPort"]), LOOK_SECONDS).close()
    except (OSError, ray.exceptions.RayError):
        return True
    return False


# ---- room for roles


def check_gpus(needs: Needs, count: int, in_use: float) -> None:
    """Refuse roles for which the cluster has too few GPUs: they would wait for ever."""
    there = ray.cluster_resources().get("GPU", 0.0)
    if needs.gpus * count > there - in_use + 1e-6:
        raise ConfigError(
            f"{count} role{'s' if count > 1 else ''} with {needs.gpus:g} GPUs each do not fit into the"
            f" {max(0.0, there - in_use):g} of {there:g} GPUs of the Ray cluster that this run may still use; use"
            f" --device cpu, fewer learners, or more nodes"
        )


def reserve(needs: Needs, count: int, seconds: float | None) -> list[PlacementGroup]:
    """Ask for room for ``count`` roles, and wait until there is enough or the time is up."""
    bundle = {"CPU": needs.cpus, "GPU": needs.gpus}
    groups = [placement_group([{kind: n for kind, n in bundle.items() if n}]) for _ in range(count)]
    end = time.monotonic() + (PLACE_SECONDS if not needs.gpus or seconds is None else seconds)
    for group in groups:
        group.wait(max(0.0, end - time.monotonic()))
    return groups


def has_room(group: PlacementGroup) -> bool:
    return bool(placement_group_table(group)["state"] == "CREATED")


def release(group: PlacementGroup) -> None:
    remove_placement_group(group)


def in_group(group: PlacementGroup, needs: Needs) -> dict[str, Any]:
    """Options of an actor that runs where ``group`` has reserved room."""
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
    return {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": strategy}


def beside_others(roles: Counter[str]) -> dict[str, Any]:
    """Options of an actor that shares processors, on the node with the fewest roles for each; ``roles`` counts the
    roles of each node, this one included from now on."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in nodes}
    usable: Sequence[str] = [name for name, n in cpus.items() if n] or list(cpus)
    name = min(usable, key=lambda name: ((roles[name] + 1) / max(cpus[name], 1.0), name))
    roles[name] += 1
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=name, soft=True)}

"""Learners that average their gradients: the connection, and statistics over all ranks.

Ranks of one machine connect through a file and communicate over the loopback interface: a file needs no free port and
cannot be reached over a network. The file has a name only while ranks connect: the process that starts them puts it in
a private folder and removes that folder afterwards, so nothing is left however a run ends. Ranks of several machines
meet at a port of rank 0; what they send is neither encrypted nor authenticated, so the network must be trusted. The
process group is an object and not torch's default group: a process has only one default group, and the user's script
may need it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..agents.averaging import OneRank
from ..errors import PeersLost

TIMEOUT_SECONDS = 30.0
"""How long a rank waits for the others, while connecting or during a step, before it reports them lost."""
LOOPBACK = "127.0.0.1"


class Ranks(OneRank):
    """One of ``size`` learners; every rank must call the same methods in the same order."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.group: Any = None  # a process group, once the ranks are connected
        self.store: Any = None  # where ranks of several machines meet; only rank 0 has it

    def average(self, x: Tensor) -> Tensor:
        return self._reduce(x, dist.ReduceOp.SUM).div_(self.size)

    def minimum(self, x: Tensor) -> Tensor:
        return self._reduce(x.amin(), dist.ReduceOp.MIN)

    def mean(self, x: Tensor) -> Tensor:
        return self.average(x.mean())

    def variance(self, x: Tensor) -> Tensor:
        # Around the mean of all ranks: parts are equal in size, so it is the mean of their means.
        return self.average((x - self.mean(x)).square().mean())

    def std(self, x: Tensor) -> Tensor:
        return self.variance(x).sqrt()

    def _reduce(self, x: Tensor, op: Any) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        try:
            self.group.allreduce([x], options).wait()
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise PeersLost(f"learner {self.rank} of {self.size} lost its connection to the others: {text}") from error
        return x


def open_store(host: str, size: int) -> Any:
    """The place where ``size`` ranks meet, at a free port of this machine."""
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    kind = dist.TCPStore  # type: ignore[attr-defined]
    return kind(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)


def connect(address: str, rank: int, size: int, device: torch.device, host: str = LOOPBACK, store: Any = None) -> Any:
    """The process group of ``size`` ranks that get the same ``address``; returns when all are connected.

    ``address`` is the path of a file that all ranks can open, or ``tcp://HOST:PORT`` of rank 0, which has opened
    ``store`` there. ``host`` is the address of this rank's machine.
    """
    try:
        return _connect(store or find_store(address, size), rank, size, device, host)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise PeersLost(
            f"learner {rank} of {size} did not reach the others within {TIMEOUT_SECONDS:g} s: {text}"
        ) from error


def find_store(address: str, size: int) -> Any:
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    if address.startswith("tcp://"):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        return dist.TCPStore(host, int(port), size, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    store = dist.FileStore(address, size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    return store


def _connect(store: Any, rank: int, size: int, device: torch.device, host: str) -> Any:
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    if device.type == "cuda":
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    # The default is the interface that the machine's name resolves to, which may be a network.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank, size, options)

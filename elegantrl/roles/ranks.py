"""Where learners of one machine meet: a file of their own, and connections that stay on the loopback.

A file needs no free port and cannot be reached over a network. It has a name only while the ranks meet: whoever starts
them puts it in a private folder and removes that once all have met, so nothing is left whichever way a run ends. The
group is an object and not torch's default one, which a process has only once and which a script that trains may need
for itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import PeersLost

PATIENCE_SECONDS = 30.0
"""How long a rank waits for the others, to meet or in the middle of a step, before it gives them up."""


def meet(path: str, rank: int, size: int, device: torch.device) -> Any:
    """The group of ``size`` ranks that are given the same ``path``, as soon as all are there."""
    try:
        return _meet(path, rank, size, device)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise PeersLost(
            f"learner {rank} of {size} waited {PATIENCE_SECONDS:g} s in vain for the others: {text}"
        ) from error


def _meet(path: str, rank: int, size: int, device: torch.device) -> Any:
    patience = timedelta(seconds=PATIENCE_SECONDS)
    store = dist.FileStore(path, size)  # type: ignore[attr-defined]
    store.set_timeout(patience)
    if device.type == "cuda":
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        return dist.ProcessGroupNCCL(store, rank, size, options)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = patience
    # The default would be the interface that the machine's name leads to.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, size, options)

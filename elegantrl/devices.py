"""Devices by name."""

from __future__ import annotations

import torch

from .errors import ConfigError


def pick_device(name: str, is_elsewhere: bool = False) -> torch.device:
    """The device of this name; it must exist unless it ``is_elsewhere``, on a machine that this process cannot see."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device={name!r} is no device; use cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"train.device={name!r} is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and not is_elsewhere and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"train.device={name!r} needs a CUDA device and there is none; use --device cpu"
            if torch.cuda.device_count() == 0
            else f"train.device={name!r} is beyond the {torch.cuda.device_count()} CUDA devices here; use a lower one"
        )
    return device


def device_of_rank(device: torch.device, rank: int) -> torch.device:
    """Where one of several learners learns: all on the CPU, or each on a GPU of its own, from ``device`` on."""
    if device.type == "cpu" or rank == 0:
        return device
    return pick_device(f"{device.type}:{(device.index or 0) + rank}")

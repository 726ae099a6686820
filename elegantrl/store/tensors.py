"""Files of tensors: safetensors, which cannot contain code, and a plain state dict for other programs."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import CheckpointError
from .files import open_regular, parse_json, unreadable, write_atomic

HEADER_LIMIT = 1 << 20


def save_weights(path: str | Path, state_dict: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file, atomically, with ``metadata`` and a hash of everything else in its header."""
    tensors = _plain(state_dict)
    data = safetensors.torch.save(tensors, dict(metadata))
    header = _read_header(io.BytesIO(data), Path(path).name)
    digest = _digest(header, memoryview(data)[_body_start(data) :])
    write_atomic(path, safetensors.torch.save(tensors, {**metadata, "sha256": digest}))


Shapes = dict[str, tuple[int, ...]]


def load_weights(
    path: str | Path, check: Callable[[Shapes, dict[str, str]], None] = lambda shapes, metadata: None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file that ``save_weights`` wrote.

    ``check`` gets the shapes and the metadata before memory for the tensors is allocated, and may refuse them. The hash
    detects damage and edits by mistake; it is no signature, so a file is only as trustworthy as its source.
    """
    path = Path(path)
    try:
        with open_regular(path, follow_links=True) as file:
            header = _read_header(file, path.name)
            metadata: dict[str, str] = header["__metadata__"]
            digest = metadata.pop("sha256", None)
            check({name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}, metadata)
            file.seek(0)
            data = file.read()
    except OSError as error:
        raise CheckpointError(unreadable(error)) from error
    tensors = parse_tensors(data, path.name)
    if digest != _digest(header, memoryview(data)[_body_start(data) :]):
        raise CheckpointError(f"{path} is damaged or was changed: its sha256 does not match")
    return tensors, metadata


def _read_header(file: io.BufferedIOBase, name: str) -> dict[str, Any]:
    """The header of a safetensors file, after checking that the file has the form and size that the header gives."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if length > HEADER_LIMIT:
        raise CheckpointError(f"{name} is not a valid safetensors file: its header has {length} bytes")
    try:
        header = parse_json(file.read(length), "its header")
        entries = [entry for key, entry in header.items() if key != "__metadata__"]
        end = max((entry["data_offsets"][1] for entry in entries), default=0)
        shapes = [size for entry in entries for size in entry["shape"]]
        metadata = header.setdefault("__metadata__", {})
        sound = all(type(value) is int and value >= 0 for value in (end, *shapes)) and all(
            isinstance(value, str) for value in (*metadata, *metadata.values())
        )
    except (CheckpointError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{name} is not a valid safetensors file: {error}") from None
    size = file.seek(0, os.SEEK_END)
    if len(start) < 8 or not sound or size != 8 + length + end:
        raise CheckpointError(f"{name} is not a valid safetensors file: it has {size} bytes, not those of its header")
    return dict(header)


def _body_start(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def save_actor_pth(path: str | Path, state_dict: Mapping[str, Tensor]) -> None:
    """Write a plain state dict for other programs: ``torch.load(path, weights_only=True)`` reads it."""
    buffer = io.BytesIO()
    # A clone: torch.save would write the whole storage behind a view.
    torch.save(OrderedDict((name, tensor.detach().cpu().clone()) for name, tensor in state_dict.items()), buffer)
    write_atomic(path, buffer.getvalue())


def parse_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except Exception as error:  # hostile bytes: after any error of the parser the file is unusable
        raise CheckpointError(f"{name} is not a valid safetensors file: {error}") from error
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file and wait until it is on disk."""
    try:
        safetensors.torch.save_file(_plain(tensors), path)
    except SafetensorError as error:  # safetensors reports a full disk only as text
        code = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(code, os.strerror(code)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dense CPU tensors that own their memory, as file formats need them; copied only if necessary."""
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        if address in storages:  # tied weights, views of one flat buffer
            tensor = tensor.clone()
        storages.add(address)
        plain[name] = tensor
    return plain


def _digest(header: Mapping[str, Any], body: memoryview) -> str:
    """sha256 of names, shapes, metadata and bytes; in the order of names, since safetensors writes any order."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode("ascii"))
    digest.update(body)
    return digest.hexdigest()

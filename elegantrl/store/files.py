"""Files that cannot carry code: tensors as safetensors, everything else as JSON, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import CheckpointError, StorageError
from ..types import State

JSON_LIMIT = 16 << 20  # a hostile file of this size still parses into less than half a gigabyte
DEPTH_LIMIT = 64


# ---- A state is tensors plus a JSON skeleton


def split_state(state: State) -> tuple[dict[str, Tensor], Any]:
    """The tensors of ``state`` by JSON pointer ("/policy/net.0.weight"), and the rest as plain JSON.

    In the skeleton ``{"$tensor": pointer}`` stands for a tensor, ``{"$float": "nan"}`` and ``{"$int": "0x..."}`` for
    numbers JSON cannot hold; a key that starts with "$" gets one more.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, "", tensors)


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if path.count("/") > DEPTH_LIMIT:
        raise TypeError(f"state{path[:80]}... is nested deeper than {DEPTH_LIMIT} levels")
    match value:
        case Tensor():
            tensors[path] = value
            return {"$tensor": path}
        case dict():
            if bad := [key for key in value if not isinstance(key, str)]:
                raise TypeError(f"state{path} has the key {bad[0]!r}; keys are strings")
            return {_escape(key): _encode(item, f"{path}/{_pointer(key)}", tensors) for key, item in value.items()}
        case list():
            return [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        case float() if not math.isfinite(value):
            return {"$float": repr(float(value))}
        case int() if value.bit_length() > 4096:  # Python refuses to parse decimals of more than 4300 digits
            return {"$int": hex(value)}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"state{path} is a {type(value).__name__}; only tensors, JSON values, lists and dicts are stored")


def _escape(key: str) -> str:
    return "$" + key if key.startswith("$") else key


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def merge_state(tensors: Mapping[str, Tensor], skeleton: Any) -> State:
    """The inverse of ``split_state``; every tensor must be used exactly once."""
    unused = dict(tensors)
    state = _decode(skeleton, unused, 0)
    if not isinstance(state, dict):
        raise CheckpointError(f"a state is a dict, found a {type(state).__name__}")
    if unused:
        raise CheckpointError(f"{len(unused)} tensors have no place in the state, the first is {min(unused)!r}")
    return state


def _decode(value: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise CheckpointError(f"a state is nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, list):
        return [_decode(item, tensors, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("$tensor", str(name))] if name in tensors:
            return tensors.pop(name)
        case [("$float", "nan" | "inf" | "-inf" as text)]:
            return float(text)
        case [("$int", str(text))] if re.fullmatch("-?0x[0-9a-f]+", text):
            return int(text, 16)
    if bad := [key for key in value if key.startswith("$") and not key.startswith("$$")]:
        raise CheckpointError(f"a state has the malformed or repeated entry {bad[0]}: {value[bad[0]]!r:.80}")
    return {key[1:] if key.startswith("$") else key: _decode(item, tensors, depth + 1) for key, item in value.items()}


# ---- Files


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash at any moment it holds the old bytes or the new ones."""
    path = Path(path)
    tmp = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        write_file(tmp, data)
        os.replace(tmp, path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(f"writing {path.name}", error, path.parent, len(data)) from error
    finally:
        tmp.unlink(missing_ok=True)


def save_weights(path: str | Path, state_dict: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file, atomically, with ``metadata`` and a hash of the tensors in its header."""
    tensors = _plain(state_dict)
    _, body = _header_and_body(safetensors.torch.save(tensors))
    digest = hashlib.sha256(body).hexdigest()
    write_atomic(path, safetensors.torch.save(tensors, {**metadata, "sha256": digest}))


def load_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(unreadable(error)) from error
    tensors = parse_tensors(data, path.name)
    header, body = _header_and_body(data)
    metadata: dict[str, str] = json.loads(header).get("__metadata__") or {}
    # Files of other programs have no hash; ours are checked.
    if metadata.pop("sha256", None) not in (None, hashlib.sha256(body).hexdigest()):
        raise CheckpointError(f"{path} is damaged: its sha256 does not match")
    return tensors, metadata


def save_actor_pth(path: str | Path, state_dict: Mapping[str, Tensor]) -> None:
    """Write a plain state dict for other programs: ``torch.load(path, weights_only=True)`` reads it."""
    buffer = io.BytesIO()
    # A clone: torch.save would write the whole storage behind a view.
    torch.save(OrderedDict((name, tensor.detach().cpu().clone()) for name, tensor in state_dict.items()), buffer)
    write_atomic(path, buffer.getvalue())


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dense CPU tensors that own their memory, as file formats want them; copies only where needed."""
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


def _header_and_body(data: bytes) -> tuple[bytes, memoryview]:
    """The two halves of a safetensors file; a length of 8 bytes precedes the header."""
    start = 8 + int.from_bytes(data[:8], "little")
    return data[8:start], memoryview(data)[start:]


def parse_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except Exception as error:  # hostile bytes: whatever the parser trips over, the file is unusable
        raise CheckpointError(f"{name} is not a valid safetensors file: {error}") from error
    return tensors


def write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        safetensors.torch.save_file(_plain(tensors), path)
    except SafetensorError as error:  # it reports a full disk as text
        code = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(code, os.strerror(code)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; Windows has no such call."""
    if os.name == "posix":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def storage_error(what: str, error: OSError, folder: Path, needed: int) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        reason += f" (need {needed / 1e6:.1f} MB, free {free / 1e6:.1f} MB)"
    return StorageError(f"{what} failed in {folder}: {reason}")


def dump_json(value: Any, limit: int, name: str, indent: int | None = None) -> bytes:
    data = json.dumps(value, allow_nan=False, indent=indent).encode("ascii")
    if len(data) > limit:
        raise CheckpointError(f"{name} has {len(data)} bytes, the limit is {limit}; keep long lists in tensors")
    return data


def parse_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data.decode("ascii"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not valid JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def unreadable(error: OSError) -> str:
    return f"{Path(error.filename or 'a file').name} cannot be read: {error.strerror}"

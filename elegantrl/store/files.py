"""Reading and writing single files: atomic, regular files only, never more bytes than expected."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, StorageError

JSON_LIMIT = 16 << 20  # a hostile file of this size takes less than half a gigabyte when parsed
TEMPORARY = ".tmp-elegantrl-"
"""Prefix of a file that is being written; a writer removes such files of a writer that died."""


# ---- reading


def open_regular(path: Path, follow_links: bool = False) -> io.BufferedReader:
    """Open a regular file; no device or pipe, which could block for ever, and no link unless ``follow_links``.

    The kind is checked on the open file, so that the file cannot be exchanged between check and opening.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow_links else _NO_LINKS))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CheckpointError(f"{path.name} is not a regular file")
    return os.fdopen(fd, "rb")


_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag; creating links there needs a privilege


def read_regular(path: Path, limit: int, follow_links: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; anything else is a ``CheckpointError``."""
    try:
        with open_regular(path, follow_links) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise CheckpointError(f"{path.name} has {size} bytes, the limit is {limit}")
            data = file.read(limit + 1)  # a file may grow, and files of the kernel report a size of 0
    except OSError as error:
        raise CheckpointError(unreadable(error)) from error
    if len(data) > limit:
        raise CheckpointError(f"{path.name} has more than {limit} bytes")
    return data


def unreadable(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"{Path(error.filename or 'a file').name} is not a regular file"
    return f"{Path(error.filename or 'a file').name} cannot be read: {error.strerror}"


# ---- writing


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash at any time it holds the old bytes or the new ones."""
    path = Path(path)
    tmp = path.with_name(TEMPORARY + uuid.uuid4().hex)
    try:
        write_file(tmp, data)
        os.replace(tmp, path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(f"writing {path.name}", error, path.parent, len(data)) from error
    finally:
        tmp.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and wait until it is on disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
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


# ---- JSON


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

"""Where a population keeps its files: one small interface, and the local or shared folder that implements it.

Keys are relative paths with ``/``: ``log``, ``runs/m003-0002``. A key holds bytes, appended bytes, or a whole folder.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO

from ..errors import CheckpointError, ConfigError
from ..failpoints import failpoint
from .files import storage_error, sync_folder, unreadable, write_atomic
from .lock import FolderLock

OBJECT_STORAGE = "elegantrl.store.object_store:ObjectStorage"
"""The storage behind an address with a scheme, such as ``s3://bucket/population``; imported at first use."""
HIDDEN = ".tmp-"
"""Prefix of a folder that is being written or removed."""


class Storage(ABC):
    """Durable files under keys; all writes are atomic. A write that is refused raises ``StorageError``."""

    url: str
    """The path or address with which ``open_storage`` opens the same storage in another process."""

    def lock(self) -> None:  # noqa: B027  an object store has no locks
        """Become the only controller that writes here, where the storage can tell."""

    def close(self) -> None:  # noqa: B027
        """Release the lock and open files."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """The bytes of a key; ``CheckpointError`` if there is none."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Replace the bytes of a key: after a crash it holds the old bytes or the new ones."""

    @abstractmethod
    def append(self, key: str, data: bytes) -> None:
        """Add bytes; they are durable on return. A crash may leave a part of the last ones, which the reader cuts."""

    @abstractmethod
    def read_all(self, key: str) -> bytes:
        """Everything appended under a key, in order; empty if there is nothing."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """The keys directly below ``prefix``, sorted; empty if there are none."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a key, or a whole folder; nothing happens if it does not exist."""

    @abstractmethod
    def upload(self, folder: Path, key: str) -> None:
        """Store a folder: under its key it is complete or absent, and it replaces an earlier one."""

    @abstractmethod
    def download(self, key: str, folder: Path) -> None:
        """Copy a stored folder to ``folder``, which must not exist; ``CheckpointError`` if there is none."""


def open_storage(url: str | Path) -> Storage:
    """The storage at a path or an address."""
    text = str(url)
    if not re.match(r"[A-Za-z][\w+.-]+://", text):
        return LocalStorage(Path(text))
    module, _, name = OBJECT_STORAGE.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"{text} needs a package that is not installed ({error}); pip install 'elegantrl[cloud]', or use a folder"
        ) from None
    storage: Storage = kind(text)
    return storage


def everywhere(url: str) -> str:
    """The path or address for processes with another working folder."""
    return url if "://" in url else os.path.abspath(url)


class LocalStorage(Storage):
    """A folder of this machine, or one that several machines share."""

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root)
        self._lock = FolderLock(root)
        self._appended: dict[str, IO[bytes]] = {}

    def lock(self) -> None:
        """Take the folder's lock, and remove what a controller that died left incomplete."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            for path in (*self.root.glob(f"{HIDDEN}*"), *self.root.glob(f"*/{HIDDEN}*")):
                if re.fullmatch(re.escape(HIDDEN) + "[0-9a-f]{32}", path.name) and path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            raise storage_error("locking", error, self.root, 0) from error

    def close(self) -> None:
        for file in self._appended.values():
            with contextlib.suppress(OSError):
                file.close()
        self._appended = {}
        self._lock.release()

    def read(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{self.root}: {unreadable(error)}") from error

    def write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._make_parent(path)
        write_atomic(path, data)

    def append(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            failpoint("storage.append")
            if key not in self._appended:
                self._make_parent(path)
                self._appended[key] = path.open("ab", buffering=0)
                sync_folder(path.parent)
            file = self._appended[key]
            written = file.write(data)
            if written != len(data):
                raise OSError(28, os.strerror(28))
            os.fsync(file.fileno())
        except OSError as error:
            raise storage_error(f"appending to {key}", error, self.root, len(data)) from error

    def read_all(self, key: str) -> bytes:
        return self.read(key) if self._path(key).exists() else b""

    def list(self, prefix: str) -> list[str]:
        folder = self._path(prefix)
        if not folder.is_dir():
            return []
        return sorted(f"{prefix}/{name}" for name in os.listdir(folder) if not name.startswith("."))

    def delete(self, key: str) -> None:
        path = self._path(key)
        trash = self._hidden(path)
        try:
            os.rename(path, trash)  # first: a folder that is partly removed must not look complete
            if trash.is_dir():
                shutil.rmtree(trash, ignore_errors=True)
            else:
                trash.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise storage_error(f"deleting {key}", error, self.root, 0) from error

    def upload(self, folder: Path, key: str) -> None:
        path = self._path(key)
        self._make_parent(path)
        new = self._hidden(path)
        try:
            failpoint("storage.upload")
            _copy_folder(folder, new)
            if path.exists():
                self.delete(key)
            os.rename(new, path)
            sync_folder(path.parent)
        except OSError as error:
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            raise storage_error(f"storing {key}", error, self.root, size) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def download(self, key: str, folder: Path) -> None:
        path = self._path(key)
        if not path.is_dir():
            raise CheckpointError(f"{self.root} holds no {key}; was it removed?")
        try:
            shutil.copytree(path, folder)
        except (OSError, shutil.Error) as error:
            raise CheckpointError(f"{key} of {self.root} cannot be read: {error}") from error

    def _path(self, key: str) -> Path:
        if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", key, re.ASCII):
            raise ValueError(f"{key!r} is no key: names of letters, digits, '_', '-' and '.', joined by '/'")
        return self.root / key

    def _hidden(self, path: Path) -> Path:
        return path.with_name(HIDDEN + uuid.uuid4().hex)

    def _make_parent(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(f"making {path.parent.name}", error, self.root, 0) from error


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder and wait until every file of it is on disk."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.name == ".lock" or path.name.startswith(HIDDEN):
            continue
        copy = target / path.name
        if path.is_dir():
            _copy_folder(path, copy)
            continue
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(target)

"""Storage in an object store: any address that ``fsspec`` knows, such as ``s3://bucket/population``.

An object store has neither folders nor renames; one object appears as a whole. Under a key there is one of these:

    key                          written bytes
    key/.records/000000000017    appended bytes, one object per append, each after the line with its writer's id
    key/.folder.json             a folder: names, sizes and hashes of its files, and where they are; written last
    key/.data-<id>/...           files of a folder; without an entry in .folder.json they do not exist for a reader
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import fsspec

from ..errors import CheckpointError, ConfigError, StorageError, format_error
from ..failpoints import failpoint
from .files import dump_json, parse_json, storage_error
from .storage import HIDDEN, Storage

RECORDS = ".records"
MANIFEST = ".folder.json"
DATA = ".data-"
MANIFEST_LIMIT = 16 << 20
Paths: TypeAlias = list[str]  # inside the class, list is a method
LIMITS: dict[str, dict[str, Any]] = {
    # s3fs asks five times by itself; an address that swallows packets is given up after half a minute.
    "s3": {"config_kwargs": {"connect_timeout": 5, "read_timeout": 60, "retries": {"total_max_attempts": 1}}},
}
"""Time limits for each kind of store; others have those of their package."""


class ObjectStorage(Storage):
    """Keys below one address of an object store; credentials and endpoint come from the environment, as for its tools.

    There are no locks. An appended object is created only if its number is free, so a second controller that appends
    to the same key is noticed at its first append.
    """

    def __init__(self, url: str) -> None:
        if "@" in url.split("://", 1)[1].split("/", 1)[0]:
            raise ConfigError("the storage address holds a password; remove it and set it in the environment instead")
        self.url = url.rstrip("/")
        self.files, self.root = _open_store(self.url)
        self._writer = uuid.uuid4().hex.encode()
        self._next: dict[str, int] = {}
        """By key, the number of the next record."""
        with self._explained("opening"):
            self._check_bucket()

    def read(self, key: str) -> bytes:
        data = self._get(self._path(key), f"reading {key}")
        if data is None:
            raise CheckpointError(f"{self.url} holds no {key}; was it removed?")
        return data

    def write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._explained(f"writing {key}"):
            self.files.pipe_file(path, data)

    def append(self, key: str, data: bytes) -> None:
        if key not in self._next:
            self._next[key] = len(self._records(key))
        path = f"{self._path(key)}/{RECORDS}/{self._next[key]:012d}"
        with self._explained(f"appending to {key}"):
            failpoint("storage.append")
            try:
                self.files.pipe_file(path, self._writer + b"\n" + data, mode="create")
            except Exception:
                # The object may be ours: it is there if only the answer to an earlier attempt was lost.
                found = self._get(path, f"appending to {key}")
                if found is None:
                    raise
                if not found.startswith(self._writer):
                    raise StorageError(
                        f"another controller appends to {key} of {self.url}; stop one of the two and resume"
                    ) from None
        self._next[key] += 1

    def read_all(self, key: str) -> bytes:
        paths = self._records(key)
        with self._explained(f"reading {key}"):
            found = self.files.cat(paths) if paths else {}
        return b"".join(found[path].partition(b"\n")[2] for path in paths)

    def list(self, prefix: str) -> list[str]:
        root = self._path(prefix)
        below = (path.removeprefix(f"{root}/").split("/") for path in self._find(root, f"listing {prefix}"))
        names = {parts[0] for parts in below if not any(part.startswith(DATA) for part in parts)}
        return sorted(f"{prefix}/{name}" for name in names if not name.startswith("."))

    def delete(self, key: str) -> None:
        path = self._path(key)
        below = self._find(path, f"deleting {key}")
        with self._explained(f"deleting {key}"):
            # What makes folders visible goes first: a folder that is partly removed must not look complete.
            for first in sorted((p for p in below if p.endswith(f"/{MANIFEST}")), key=len):
                self.files.rm_file(first)
            rest = [p for p in below if not p.endswith(f"/{MANIFEST}")]
            rest += [path] if self.files.isfile(path) else []
            if rest:
                self.files.rm(rest)
        self._next.pop(key, None)

    def upload(self, folder: Path, key: str) -> None:
        path, data = self._path(key), DATA + uuid.uuid4().hex
        before = self._folder(key)
        entries = {}
        try:
            failpoint("storage.upload")
            for file in _files(folder):
                name = file.relative_to(folder).as_posix()
                entries[name] = {"size": file.stat().st_size, "sha256": _digest(file)}
                with self._explained(f"storing {key}"):
                    self.files.put_file(str(file), f"{path}/{data}/{name}")
            manifest = dump_json({"data": data, "files": entries}, MANIFEST_LIMIT, f"the list of files of {folder}")
            with self._explained(f"storing {key}"):
                failpoint("storage.manifest")
                self.files.pipe_file(f"{path}/{MANIFEST}", manifest)
        except BaseException:
            with contextlib.suppress(Exception):  # nothing refers to these files
                self.files.rm(f"{path}/{data}", recursive=True)
            raise
        if before is not None:
            with contextlib.suppress(Exception):
                self.files.rm(f"{path}/{before['data']}", recursive=True)

    def download(self, key: str, folder: Path) -> None:
        manifest = self._folder(key)
        if manifest is None:
            raise CheckpointError(f"{self.url} holds no {key}; was it removed?")
        if folder.exists():
            raise StorageError(f"{folder} exists already; {key} of {self.url} is downloaded into a new folder only")
        new = folder.with_name(HIDDEN + uuid.uuid4().hex)
        try:
            new.mkdir(parents=True)
            for name, entry in manifest["files"].items():
                file = new / name
                file.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(f"{self._path(key)}/{manifest['data']}/{name}", file, entry, f"{key}/{name}")
            os.rename(new, folder)
        except StorageError:
            raise
        except OSError as error:
            size = sum(entry["size"] for entry in manifest["files"].values())
            raise storage_error(f"downloading {key}", error, folder, size) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _check_bucket(self) -> None:
        """Ask the store once, so that a wrong address is noticed before anything is trained."""
        try:
            self.files.ls(self.root, detail=False)
        except FileNotFoundError:  # a new storage has no objects yet
            if not self.files.exists(self.root.split("/", 1)[0] or "/"):
                raise

    def _fetch(self, path: str, file: Path, entry: dict[str, Any], what: str) -> None:
        """Download one file and compare it with its entry."""
        try:
            with self._explained(f"reading {what}"):
                self.files.get_file(path, str(file))
        except _Missing:
            raise CheckpointError(f"{what} is listed and missing in {self.url}") from None
        if file.stat().st_size != entry["size"]:
            raise CheckpointError(
                f"{what} of {self.url} has {file.stat().st_size} bytes instead of {entry['size']}; it is damaged"
            )
        if _digest(file) != entry["sha256"]:
            raise CheckpointError(f"{what} of {self.url} has another sha256 than its entry; it is damaged")

    def _folder(self, key: str) -> dict[str, Any] | None:
        """The list of files of an uploaded folder; None if there is no such folder."""
        data = self._get(f"{self._path(key)}/{MANIFEST}", f"reading {key}")
        if data is None:
            return None
        match parse_json(data[: MANIFEST_LIMIT + 1], f"{key}/{MANIFEST}"):
            case {"data": str(place), "files": dict(files)} if re.fullmatch(re.escape(DATA) + "[0-9a-f]{32}", place):
                for name, entry in files.items():
                    _check_entry(name, entry, f"{key}/{MANIFEST} of {self.url}")
                return {"data": place, "files": files}
        raise CheckpointError(f"{key}/{MANIFEST} of {self.url} is malformed")

    def _records(self, key: str) -> Paths:
        """The paths of all appended objects, in order."""
        root = f"{self._path(key)}/{RECORDS}"
        paths = self._find(root, f"reading {key}")
        for number, path in enumerate(paths):
            if path != f"{root}/{number:012d}":
                raise CheckpointError(f"record {number} of {key} is missing in {self.url}; restore it from a backup")
        return paths

    def _find(self, root: str, doing: str) -> Paths:
        """The paths of all objects below ``root``, sorted."""
        try:
            with self._explained(doing):
                return sorted(path for path in self.files.find(root) if path.startswith(f"{root}/"))
        except _Missing:
            return []

    def _get(self, path: str, doing: str) -> bytes | None:
        try:
            with self._explained(doing):
                data: bytes = self.files.cat_file(path)
                return data
        except _Missing:
            return None

    def _path(self, key: str) -> str:
        if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", key, re.ASCII):
            raise ValueError(f"{key!r} is no key: names of letters, digits, '_', '-' and '.', joined by '/'")
        return f"{self.root}/{key}"

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Turns every error of the store's package into one sentence."""
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError:
            raise _Missing(
                f"{doing} failed: there is no bucket for {self.url}; create it or correct the address"
            ) from None
        except Exception as error:  # each package has exceptions of its own
            reason = f"{doing} failed in {self.url}: {format_error(error):.300}"
            if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
                raise StorageError(
                    f"{reason}; check the credentials in the environment and the bucket's rights"
                ) from None
            raise StorageError(
                f"{reason}; check the address, the network and the endpoint in the environment"
            ) from None


class _Missing(StorageError):
    """An object or its bucket is not there."""


def _open_store(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    scheme = url.split("://", 1)[0]
    try:
        # Other processes write too, so neither listings nor connections of an earlier storage are used again.
        options = {"use_listings_cache": False, "skip_instance_cache": True, **LIMITS.get(scheme, {})}
        files, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"the storage {url} needs a package that is not installed ({reason}); for s3:// it is in"
            f" pip install 'elegantrl[cloud]'"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"the storage {url} cannot be opened ({format_error(error)}); write for example s3://bucket/population"
        ) from None
    return files, root.rstrip("/")


def _files(folder: Path) -> list[Path]:
    """The files of a run folder but those of a process: its lock, and what was being written."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.name != ".lock" and HIDDEN not in str(path.relative_to(folder))]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_entry(name: str, entry: Any, where: str) -> None:
    """Refuse names that lead out of the folder, and entries without size and hash."""
    if not name or name.startswith("/") or "\\" in name or {"", ".", ".."} & set(name.split("/")):
        raise CheckpointError(f"{where} names the file {name!r:.80}")
    if not isinstance(entry, dict) or [type(entry.get(key)) for key in ("size", "sha256")] != [int, str]:
        raise CheckpointError(f"{where} is malformed at {name!r:.80}")

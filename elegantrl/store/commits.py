"""The run folder on disk: atomic commits, one writer, and no file that can carry code.

    run_dir/.lock                      pid@host of the writer; the kernel frees it when that process dies
    run_dir/commits/c-000000081920/    one commit: manifest.json, and per part <part>.safetensors and <part>.json
    run_dir/commits/.tmp-<uuid>/       a commit being written or removed; readers never look at it

A commit exists once its folder has its final name: everything in it, the manifest last, is on disk before the rename.
A reader trusts only what the manifest names, with the size and the sha256 it names.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
import socket
import stat
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from ..errors import CheckpointError, ConfigError, StorageError, did_you_mean
from ..failpoints import failpoint
from ..types import State
from .files import (
    JSON_LIMIT,
    dump_json,
    merge_state,
    parse_json,
    parse_tensors,
    split_state,
    storage_error,
    sync_folder,
    unreadable,
    write_file,
    write_tensors,
)

try:
    import fcntl
except ImportError:  # Windows: a run folder is then not protected against a second writer
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20

log = logging.getLogger(__name__)


def _digest(manifest: Mapping[str, Any]) -> str:
    """The sha256 that a manifest holds of its other entries."""
    entries = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode("ascii")).hexdigest()


def _open_regular(path: Path) -> io.BufferedReader:
    """Open a file that is neither a link nor a device."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CheckpointError(f"{path.name} is not a regular file")
    return path.open("rb")


def _open_listed(path: Path, size: int) -> io.BufferedReader:
    """Open a file of a commit whose size is ``size`` and whose kind may be that large."""
    if path.suffix == ".json" and size > JSON_LIMIT:
        raise CheckpointError(f"{path.name} has {size} bytes, the limit is {JSON_LIMIT}")
    file = _open_regular(path)
    actual = os.fstat(file.fileno()).st_size
    if actual != size:
        file.close()
        raise CheckpointError(f"{path.name} has {actual} bytes instead of {size}")
    return file


def _read_manifest(folder: Path) -> dict[str, Any]:
    with _open_regular(folder / MANIFEST) as file:
        data = file.read(MANIFEST_LIMIT + 1)
    if len(data) > MANIFEST_LIMIT:
        raise CheckpointError(f"{MANIFEST} has more than {MANIFEST_LIMIT} bytes")
    manifest = parse_json(data, MANIFEST)
    match manifest:
        case {"format": int(version)} if version > FORMAT:
            raise CheckpointError(f"format {version} is newer than {FORMAT}, the newest that this version reads")
        case {"format": 1, "step": int(step), "parent": _, "files": dict(files), "info": dict(info), "sha256": str()}:
            if manifest["sha256"] != _digest(manifest):
                raise CheckpointError(f"{MANIFEST} sha256 mismatch")
            if folder.name != f"c-{step:012d}":
                raise CheckpointError(f"{MANIFEST} is of step {step}")
        case _:
            raise CheckpointError(f"{MANIFEST} is malformed")
    for name, entry in files.items():
        # A plain name: no folder, no "..", nothing hidden.
        if not re.fullmatch(r"\w[\w.-]*\.(json|safetensors)", name, re.ASCII) or name == MANIFEST:
            raise CheckpointError(f"{MANIFEST} names the file {name!r:.80}")
        if not isinstance(entry, dict) or [type(entry.get(key)) for key in ("size", "sha256")] != [int, str]:
            raise CheckpointError(f"{MANIFEST} is malformed at {name}")
    return {**manifest, "info": merge_state({}, info)}


@dataclass(frozen=True)
class Commit:
    """One verified commit; its parts are read on demand."""

    id: str
    step: int
    manifest: dict[str, Any]
    path: Path

    @property
    def parts(self) -> list[str]:
        return sorted(name.removesuffix(".json") for name in self.manifest["files"] if name.endswith(".json"))

    def load(self, part: str) -> State:
        """The state that was committed under ``part``."""
        if part not in self.parts:
            raise CheckpointError(f"{self.id} has no part {part!r}; {did_you_mean(part, self.parts)}")
        try:
            skeleton = parse_json(self._read(f"{part}.json"), f"{part}.json")
            tensors = parse_tensors(self._read(f"{part}.safetensors"), f"{part}.safetensors")
            return merge_state(tensors, skeleton)
        except CheckpointError as error:
            raise CheckpointError(f"{self.id}: {error}") from error
        except OSError as error:
            raise CheckpointError(f"{self.id}: {unreadable(error)}") from error

    def _read(self, name: str) -> bytes:
        """The bytes of a file, hashed before anybody parses them."""
        entry = self.manifest["files"].get(name)
        if entry is None:
            raise CheckpointError(f"{name} is not in {MANIFEST}")
        with _open_listed(self.path / name, entry["size"]) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CheckpointError(f"{name} sha256 mismatch")
        return data


def _encode_part(part: str, state: State) -> tuple[dict[str, Tensor], bytes]:
    if not re.fullmatch(r"\w[\w.-]*", part, re.ASCII) or part == "manifest":
        raise ValueError(f"{part!r} cannot name a part: letters, digits, '_', '-' and '.' only, and not 'manifest'")
    tensors, skeleton = split_state(state)
    return tensors, dump_json(skeleton, JSON_LIMIT, f"{part}.json")


def _encode_info(info: Mapping[str, Any]) -> Any:
    tensors, plain = split_state(dict(info))
    if tensors:
        raise TypeError(f"info{min(tensors)} is a tensor; tensors belong into a part")
    return plain


def _write_commit(
    folder: Path, encoded: Mapping[str, tuple[dict[str, Tensor], bytes]], manifest: dict[str, Any]
) -> None:
    """Write every part, then the manifest that vouches for them; all of it is on disk on return."""
    files: dict[str, dict[str, Any]] = {}
    for part, (tensors, text) in encoded.items():
        write_tensors(folder / f"{part}.safetensors", tensors)
        write_file(folder / f"{part}.json", text)
        for path in (folder / f"{part}.safetensors", folder / f"{part}.json"):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[path.name] = {"size": path.stat().st_size, "sha256": digest}
        failpoint("commit.after_file")
    manifest = {**manifest, "files": files}
    failpoint("commit.before_manifest")
    write_file(
        folder / MANIFEST, dump_json({**manifest, "sha256": _digest(manifest)}, MANIFEST_LIMIT, MANIFEST, indent=1)
    )
    sync_folder(folder)


class Store:
    """The commits of one run folder. Many may read; ``lock`` makes sure that one writes."""

    def __init__(self, run_dir: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} would leave no commit to resume from; the least is 1")
        self.run_dir = Path(run_dir)
        self.skipped: list[str] = []
        """Why ``latest_valid`` passed over newer commits, one sentence each."""
        self._folder = self.run_dir / "commits"
        self._keep = keep
        self._lock: IO[str] | None = None
        self._newest: str | None = None  # the newest valid commit, known after the first scan
        self._damaged: set[str] = set()
        self._scanned = False

    # ---- one writer

    def lock(self) -> None:
        """Become the only writer of the folder, and remove what a writer that died left half done."""
        if self._lock is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
            self._remove_leftovers()
        except OSError as error:
            raise storage_error("locking", error, self.run_dir, 0) from error

    def _acquire(self) -> IO[str]:
        file = (self.run_dir / ".lock").open("a+", encoding="utf-8")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read(200)
                file.close()
                raise ConfigError(
                    f"run folder {self.run_dir} is in use by pid {owner}; stop it or choose another folder"
                ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}@{socket.gethostname()}")
        file.flush()
        return file

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _remove_leftovers(self) -> None:
        for path in [*self.run_dir.glob(".tmp-*"), *self._folder.glob(".tmp-*")]:
            log.warning("removing incomplete %s, left by a writer that died", path)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    # ---- reading

    def ids(self) -> list[str]:
        """Names of all commits, oldest first, valid or not."""
        if not self._folder.is_dir():
            return []
        return sorted(name for name in os.listdir(self._folder) if re.fullmatch("c-[0-9]{12}", name))

    def open(self, commit_id: str) -> Commit:
        """The commit of this name, with every size and hash verified."""
        path = self._folder / commit_id
        try:
            if commit_id not in self.ids() or not stat.S_ISDIR(path.lstat().st_mode):
                raise CheckpointError(f"{commit_id} is not a commit of {self.run_dir}")
            manifest = _read_manifest(path)
            if extra := sorted(set(os.listdir(path)) - set(manifest["files"]) - {MANIFEST}):
                raise CheckpointError(f"{extra[0]} is not in {MANIFEST}")
            for name, entry in manifest["files"].items():
                with _open_listed(path / name, entry["size"]) as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                        raise CheckpointError(f"{name} sha256 mismatch")
        except OSError as error:
            raise CheckpointError(unreadable(error)) from error
        return Commit(commit_id, manifest["step"], manifest, path)

    def latest_valid(self, check: Callable[[Commit], None] = lambda commit: None) -> Commit | None:
        """The newest commit that is whole and that ``check`` does not refuse; None if there is no commit at all."""
        self.skipped = []
        self._scanned = True
        ids = self.ids()
        for commit_id in reversed(ids):
            try:
                commit = self.open(commit_id)
                check(commit)
            except CheckpointError as error:
                self._damaged.add(commit_id)
                self.skipped.append(f"{commit_id}: {error}")
                log.warning("skipping commit %s", self.skipped[-1])
            else:
                self._newest = commit_id
                return commit
        if ids:
            raise CheckpointError(f"no commit of {self.run_dir} is usable ({'; '.join(self.skipped)})")
        return None

    # ---- writing

    def commit(self, step: int, parts: Mapping[str, State], info: Mapping[str, Any]) -> str:
        """Write ``parts`` as the commit of ``step`` and return its id once it would survive a power cut.

        A commit of this step that is already there and valid is returned as it is. ``info`` is what a reader wants to
        know before it loads: config hash, exactness, versions.
        """
        self.lock()
        if not self._scanned:
            self.latest_valid()
        assert 0 <= step < 10**12, f"step {step} does not fit a commit name"
        commit_id = f"c-{step:012d}"
        if self._is_valid(commit_id):
            return commit_id
        if self._newest is not None and self._newest > commit_id:
            raise ConfigError(
                f"run folder {self.run_dir} already has {self._newest}, newer than {commit_id};"
                " resume from it or choose another folder"
            )
        encoded = {part: _encode_part(part, state) for part, state in parts.items()}
        manifest = {"format": FORMAT, "step": step, "parent": self._newest, "info": _encode_info(info)}
        needed = sum(
            len(text) + sum(tensor.nbytes for tensor in tensors.values()) for tensors, text in encoded.values()
        )
        tmp = self._new_tmp()
        try:
            tmp.mkdir()
            failpoint("commit.begin")
            _write_commit(tmp, encoded, manifest)
            failpoint("commit.before_rename")
            if commit_id in self.ids():
                log.warning("replacing commit %s, which is damaged", commit_id)
                self._remove(commit_id)
            os.rename(tmp, self._folder / commit_id)
            sync_folder(self._folder)
            failpoint("commit.after_rename")
        except OSError as error:
            raise storage_error(f"commit {commit_id}", error, self._folder, needed) from error
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
        if not self._is_valid(commit_id):
            raise StorageError(f"commit {commit_id} reads back damaged in {self._folder}; check the disk")
        self._damaged.discard(commit_id)
        self._newest = commit_id
        self._prune()
        return commit_id

    def _is_valid(self, commit_id: str) -> bool:
        try:
            return self.open(commit_id).id == commit_id
        except CheckpointError:
            return False

    def _new_tmp(self) -> Path:
        return self._folder / f".tmp-{uuid.uuid4().hex}"

    def _prune(self) -> None:
        """Remove all but the last ``keep`` commits; damaged ones do not count and stay for inspection."""
        usable = [commit_id for commit_id in self.ids() if commit_id not in self._damaged]
        for commit_id in usable[: -self._keep]:
            try:
                self._remove(commit_id)
            except OSError as error:  # the new commit is safe; an old one too many does no harm
                log.warning("cannot remove old commit %s: %s", commit_id, error.strerror)

    def _remove(self, commit_id: str) -> None:
        """Take the name away first: a folder that is half removed must not look like a commit."""
        trash = self._new_tmp()
        os.rename(self._folder / commit_id, trash)
        try:
            failpoint("commit.prune")
        finally:
            shutil.rmtree(trash, ignore_errors=True)

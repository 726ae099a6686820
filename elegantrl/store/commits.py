"""The run folder on disk: atomic commits, one writer, and no file that can carry code.

    run_dir/.lock                      pid@host of the writer; the kernel frees it when that process dies
    run_dir/commits/c-000000081920/    one commit: manifest.json, and per part <part>.safetensors and <part>.json
    run_dir/commits/.tmp-<uuid>/       a commit being written or removed; readers ignore it

A commit exists once its folder has its final name: everything in it, the manifest last, is on disk before the rename.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, ConfigError, StorageError
from ..failpoints import failpoint
from ..types import State
from .files import JSON_LIMIT, TEMPORARY, dump_json, storage_error, sync_folder, write_file
from .lock import FolderLock
from .manifest import FORMAT, MANIFEST, MANIFEST_LIMIT, Commit, manifest_digest, open_commit
from .state import split_state
from .tensors import write_tensors

log = logging.getLogger(__name__)


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
    """Write every part, then the manifest with their hashes; all of it is on disk on return."""
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
    manifest["sha256"] = manifest_digest(manifest)
    write_file(folder / MANIFEST, dump_json(manifest, MANIFEST_LIMIT, MANIFEST, indent=1))
    sync_folder(folder)


class Store:
    """The commits of one run folder, for many readers and one writer, which holds the lock."""

    def __init__(self, run_dir: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} would leave no commit to resume from; the minimum is 1")
        self.run_dir = Path(run_dir)
        self.skipped: list[str] = []
        """Why ``latest_valid`` skipped newer commits, one sentence each."""
        self._folder = self.run_dir / "commits"
        self._keep = keep
        self._lock = FolderLock(self.run_dir)
        self._newest: str | None = None  # the newest valid commit, known after the first scan
        self._damaged: set[str] = set()
        self._scanned = False

    # ---- one writer

    def lock(self) -> None:
        """Become the only writer of the folder, and remove incomplete files of a writer that died."""
        if self._lock.is_held:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._remove_leftovers()
        except OSError as error:
            raise storage_error("locking", error, self.run_dir, 0) from error

    def close(self) -> None:
        """Release the lock, so that another process can write."""
        self._lock.release()

    def _verify_lock(self) -> None:
        """Refuse to write at the same time as another run, which can happen after ``.lock`` was removed."""
        try:
            was_missing = self._lock.verify()
        except OSError as error:
            raise storage_error("locking", error, self.run_dir, 0) from error
        if was_missing:
            log.warning("%s was removed while this run held it; it was made again", self._lock.path)
            newest = max(self.ids(), default=None)
            if newest is not None and newest not in (self._newest, *self._damaged):
                raise ConfigError(f"another run wrote {newest} to {self.run_dir}; this run ends without another commit")

    def _remove_leftovers(self) -> None:
        """Remove temporary files with the exact names of this package; all other files are the user's."""
        uuid_hex = "[0-9a-f]{32}"
        for folder, prefix in ((self._folder, ".tmp-"), (self.run_dir, TEMPORARY)):
            for path in folder.iterdir():
                if re.fullmatch(re.escape(prefix) + uuid_hex, path.name) and not path.is_symlink():
                    log.warning("removing incomplete %s, left by a writer that died", path)
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)

    # ---- reading

    def ids(self) -> list[str]:
        """Names of all commits, oldest first, valid or not."""
        if not self._folder.is_dir():
            return []
        return sorted(name for name in os.listdir(self._folder) if re.fullmatch("c-[0-9]{12}", name))

    def commit_folder(self, commit_id: str) -> Path:
        """The folder of a commit."""
        return self._folder / commit_id

    def open(self, commit_id: str) -> Commit:
        """The commit of this name, with every size and hash verified."""
        if commit_id not in self.ids():
            raise CheckpointError(f"{commit_id} is not a commit of {self.run_dir}")
        return open_commit(self._folder / commit_id)

    def latest_valid(self, check: Callable[[Commit], None] = lambda commit: None) -> Commit | None:
        """The newest complete commit that ``check`` does not refuse; None if there is no commit at all."""
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
        """Write ``parts`` as the commit of ``step``; return its id when it would survive a power failure.

        If a valid commit of this step exists, it is returned unchanged. ``info`` is for readers before they load the
        parts: config hash, exactness, versions.
        """
        self.lock()
        if not self._scanned:
            self.latest_valid()
        self._verify_lock()
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
            self._verify_lock()
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
            except OSError as error:  # the new commit is safe; an extra old one does no harm
                log.warning("cannot remove old commit %s: %s", commit_id, error.strerror)

    def _remove(self, commit_id: str) -> None:
        """Rename first: a folder that is partly removed must not look like a commit."""
        trash = self._new_tmp()
        os.rename(self._folder / commit_id, trash)
        try:
            failpoint("commit.prune")
        finally:
            shutil.rmtree(trash, ignore_errors=True)

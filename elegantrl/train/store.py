"""The run folder on disk: atomic commits, one writer, and no file that can carry code.

    run_dir/.lock                      pid@host of the writer; the kernel frees it when that process dies
    run_dir/commits/c-000000081920/    one commit: manifest.json, and per part <part>.safetensors and <part>.json
    run_dir/commits/.tmp-<uuid>/       a commit being written or removed; readers never look at it

A commit exists once its folder has its final name: everything in it, the manifest last, is on disk before the rename.
A reader trusts only what the manifest names, with the size and the sha256 it names.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import socket
import stat
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import CheckpointError, ConfigError, StorageError, did_you_mean
from ..failpoints import failpoint
from ..types import State

try:
    import fcntl
except ImportError:  # Windows: a run folder is then not protected against a second writer
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20
JSON_LIMIT = 16 << 20  # a hostile file of this size still parses into less than half a gigabyte
DEPTH_LIMIT = 64

log = logging.getLogger(__name__)


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
        _write(tmp, data)
        os.replace(tmp, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _storage_error(f"writing {path.name}", error, path.parent, len(data)) from error
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
        raise CheckpointError(_unreadable(error)) from error
    tensors = _parse_tensors(data, path.name)
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


def _parse_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except Exception as error:  # hostile bytes: whatever the parser trips over, the file is unusable
        raise CheckpointError(f"{name} is not a valid safetensors file: {error}") from error
    return tensors


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        safetensors.torch.save_file(_plain(tensors), path)
    except SafetensorError as error:  # it reports a full disk as text
        code = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(code, os.strerror(code)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable; Windows has no such call."""
    if os.name == "posix":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _storage_error(what: str, error: OSError, folder: Path, needed: int) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        reason += f" (need {needed / 1e6:.1f} MB, free {free / 1e6:.1f} MB)"
    return StorageError(f"{what} failed in {folder}: {reason}")


def _dump_json(value: Any, limit: int, name: str, indent: int | None = None) -> bytes:
    data = json.dumps(value, allow_nan=False, indent=indent).encode("ascii")
    if len(data) > limit:
        raise CheckpointError(f"{name} has {len(data)} bytes, the limit is {limit}; keep long lists in tensors")
    return data


def _parse_json(data: bytes, name: str) -> Any:
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


# ---- Commits


def _digest(manifest: Mapping[str, Any]) -> str:
    """The sha256 that a manifest holds of its other entries."""
    entries = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode("ascii")).hexdigest()


def _open_regular(path: Path) -> io.BufferedReader:
    """Open a file that is neither a link nor a device."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CheckpointError(f"{path.name} is not a regular file")
    return path.open("rb")


def _unreadable(error: OSError) -> str:
    return f"{Path(error.filename or 'a file').name} cannot be read: {error.strerror}"


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
    manifest = _parse_json(data, MANIFEST)
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
            skeleton = _parse_json(self._read(f"{part}.json"), f"{part}.json")
            tensors = _parse_tensors(self._read(f"{part}.safetensors"), f"{part}.safetensors")
            return merge_state(tensors, skeleton)
        except CheckpointError as error:
            raise CheckpointError(f"{self.id}: {error}") from error
        except OSError as error:
            raise CheckpointError(f"{self.id}: {_unreadable(error)}") from error

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
    return tensors, _dump_json(skeleton, JSON_LIMIT, f"{part}.json")


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
        _write_tensors(folder / f"{part}.safetensors", tensors)
        _write(folder / f"{part}.json", text)
        for path in (folder / f"{part}.safetensors", folder / f"{part}.json"):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[path.name] = {"size": path.stat().st_size, "sha256": digest}
        failpoint("commit.after_file")
    manifest = {**manifest, "files": files}
    failpoint("commit.before_manifest")
    _write(folder / MANIFEST, _dump_json({**manifest, "sha256": _digest(manifest)}, MANIFEST_LIMIT, MANIFEST, indent=1))
    _sync_folder(folder)


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
            raise _storage_error("locking", error, self.run_dir, 0) from error

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
            raise CheckpointError(_unreadable(error)) from error
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
            _sync_folder(self._folder)
            failpoint("commit.after_rename")
        except OSError as error:
            raise _storage_error(f"commit {commit_id}", error, self._folder, needed) from error
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

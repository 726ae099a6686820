"""Reading one commit: a reader uses only files that the manifest lists, with the size and the sha256 given there."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, did_you_mean
from ..types import State
from .files import JSON_LIMIT, open_regular, parse_json, read_regular, unreadable
from .state import merge_state
from .tensors import parse_tensors

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """The sha256 of a manifest's other entries, which the manifest holds."""
    entries = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode("ascii")).hexdigest()


def _open_listed(path: Path, size: int) -> io.BufferedReader:
    """Open a file of a commit and check that it has ``size`` bytes, which its kind must allow."""
    if path.suffix == ".json" and size > JSON_LIMIT:
        raise CheckpointError(f"{path.name} has {size} bytes, the limit is {JSON_LIMIT}")
    file = open_regular(path)
    actual = os.fstat(file.fileno()).st_size
    if actual != size:
        file.close()
        raise CheckpointError(f"{path.name} has {actual} bytes instead of {size}")
    return file


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = parse_json(read_regular(folder / MANIFEST, MANIFEST_LIMIT, follow_links=False), MANIFEST)
    match manifest:
        case {"format": int(version)} if version > FORMAT:
            raise CheckpointError(f"format {version} is newer than {FORMAT}, the newest that this version reads")
        case {"format": 1, "step": int(step), "parent": _, "files": dict(files), "info": dict(info), "sha256": str()}:
            if manifest["sha256"] != manifest_digest(manifest):
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
        """The bytes of a file, hashed before they are parsed."""
        entry = self.manifest["files"].get(name)
        if entry is None:
            raise CheckpointError(f"{name} is not in {MANIFEST}")
        with _open_listed(self.path / name, entry["size"]) as file:
            data = file.read(entry["size"] + 1)  # the file may grow meanwhile
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CheckpointError(f"{name} sha256 mismatch")
        return data


def open_commit(path: Path) -> Commit:
    """The commit in this folder, with every size and hash verified."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise CheckpointError(f"{path.name} is not a folder")
        manifest = _read_manifest(path)
        if extra := sorted(set(os.listdir(path)) - set(manifest["files"]) - {MANIFEST}):
            raise CheckpointError(f"{extra[0]:.80} is not in {MANIFEST}")
        for name, entry in manifest["files"].items():
            with _open_listed(path / name, entry["size"]) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    raise CheckpointError(f"{name} sha256 mismatch")
    except OSError as error:
        raise CheckpointError(unreadable(error)) from error
    return Commit(path.name, manifest["step"], manifest, path)

"""Files made to harm whoever loads them: refused by type, without running code and without eating the memory."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from elegantrl import errors
from elegantrl.errors import CheckpointError
from elegantrl.store.commits import Store
from elegantrl.store.tensors import load_weights

PACKAGE = Path(errors.__file__).parent
GOOD = save({"/x": torch.zeros(2)})
GOOD_JSON = b'{"x": {"$tensor": "/x"}}'


def forge(run_dir: Path, files: dict[str, bytes], changes: dict[str, Any] | None = None) -> Store:
    """A folder with one honest commit of step 1 and one of step 2 in which every hash is right."""
    store = Store(run_dir)
    store.commit(1, {"params": {"x": torch.ones(2)}}, {})
    store.close()
    folder = run_dir / "commits/c-000000000002"
    folder.mkdir()
    listed = {}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        listed[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"format": 1, "step": 2, "parent": None, "files": listed, "info": {}, **(changes or {})}
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))
    return Store(run_dir)


def safetensors_file(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE_TENSORS = {
    "empty": b"",
    "zeros": bytes(64),
    "header_of_1e12_elements": safetensors_file({"/x": entry([10**12], 0, 4 * 10**12)}, bytes(8)),
    "shape_overflow": safetensors_file({"/x": entry([2**62, 2**62], 0, 8)}, bytes(8)),
    "negative_shape": safetensors_file({"/x": entry([-1], 0, 4)}, bytes(4)),
    "header_longer_than_file": safetensors_file({}, length=10**15),
    "header_of_2e64": safetensors_file({}, length=2**64 - 1),
    "overlapping_offsets": safetensors_file({"/x": entry([2], 0, 8), "/y": entry([2], 4, 12)}, bytes(12)),
    "hole_between_tensors": safetensors_file({"/x": entry([1], 0, 4), "/y": entry([1], 8, 12)}, bytes(12)),
    "bytes_after_the_end": safetensors_file({"/x": entry([1], 0, 4)}, bytes(40)),
    "reversed_offsets": safetensors_file({"/x": entry([1], 4, 0)}, bytes(4)),
    "unknown_dtype": safetensors_file({"/x": entry([1], 0, 4, "PICKLE")}, bytes(4)),
    "duplicate_names": safetensors_file(
        b'{"/x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"/x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        bytes(8),
    ),
    "deep_header": safetensors_file(b'{"/x":' * 10_000 + b"1" + b"}" * 10_000),
    "other_tensor": save({"/y": torch.zeros(1)}),
    "one_tensor_too_many": save({"/x": torch.zeros(1), "/y": torch.zeros(1)}),
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_hostile_safetensors(tmp_path: Path, name: str) -> None:
    store = forge(tmp_path, {"params.safetensors": HOSTILE_TENSORS[name], "params.json": GOOD_JSON})
    commit = store.latest_valid()
    assert commit is not None and commit.step == 2, "the hashes are right, so only the parser can object"
    with pytest.raises(CheckpointError, match="c-000000000002"):
        commit.load("params")
    if name not in ("other_tensor", "one_tensor_too_many"):  # sound files that do not fit their skeleton
        path = tmp_path / "weights.safetensors"
        path.write_bytes(HOSTILE_TENSORS[name])
        with pytest.raises(CheckpointError, match=r"weights\.safetensors is not a valid safetensors file"):
            load_weights(path)


def bombs(marker: Path) -> dict[str, bytes]:
    buffer = io.BytesIO()
    torch.save({"x": Bomb(marker)}, buffer)
    legacy = io.BytesIO()
    torch.save({"x": Bomb(marker)}, legacy, _use_new_zipfile_serialization=False)
    return {"pickle": pickle.dumps(Bomb(marker)), "torch_zip": buffer.getvalue(), "torch_legacy": legacy.getvalue()}


@pytest.mark.parametrize("kind", ["pickle", "torch_zip", "torch_legacy"])
@pytest.mark.parametrize("name", ["params.safetensors", "params.json"])
def test_a_pickle_bomb_does_not_go_off(tmp_path: Path, kind: str, name: str) -> None:
    # Guards against: Z1, files that are read by unpickling.
    marker = tmp_path / "marker"
    bomb = bombs(marker)[kind]
    files = {"params.safetensors": GOOD, "params.json": GOOD_JSON, name: bomb}
    commit = forge(tmp_path / "run", files).latest_valid()
    assert commit is not None
    with pytest.raises(CheckpointError, match=f"c-000000000002: {name} is not"):
        commit.load("params")
    (tmp_path / "best.safetensors").write_bytes(bomb)
    with pytest.raises(CheckpointError):
        load_weights(tmp_path / "best.safetensors")
    assert not marker.exists()
    pickle.loads(bombs(marker)["pickle"])  # the bomb is real
    assert marker.exists()


@pytest.mark.parametrize("name", ["../../secret.json", "/etc/passwd", "..", "a/b.json", "params.pkl", "manifest.json"])
def test_a_manifest_names_only_plain_files_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").write_bytes(GOOD_JSON)
    listed = {name: {"size": len(GOOD_JSON), "sha256": hashlib.sha256(GOOD_JSON).hexdigest()}}
    store = forge(tmp_path / "run", {}, {"files": listed})
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    assert store.skipped == [f"c-000000000002: manifest.json names the file {name!r}"]


@pytest.mark.parametrize("name", ["params.json", "params.safetensors", "manifest.json"])
def test_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    store = forge(tmp_path / "run", {"params.safetensors": GOOD, "params.json": GOOD_JSON})
    path = tmp_path / "run/commits/c-000000000002" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    assert store.skipped == [f"c-000000000002: {name} is not a regular file"]


def test_a_linked_commit_is_not_followed(tmp_path: Path) -> None:
    store = forge(tmp_path / "run", {})
    (tmp_path / "run/commits/c-000000000002").rename(tmp_path / "elsewhere")
    (tmp_path / "run/commits/c-000000000002").symlink_to(tmp_path / "elsewhere")
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1


def test_a_pipe_does_not_block_the_reader(tmp_path: Path) -> None:
    store = forge(tmp_path, {"params.safetensors": GOOD, "params.json": GOOD_JSON})
    (tmp_path / "commits/c-000000000002/params.json").unlink()
    os.mkfifo(tmp_path / "commits/c-000000000002/params.json")
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1


@pytest.mark.parametrize("name", ["params.json", "manifest.json"])
def test_a_huge_json_file_is_not_read(tmp_path: Path, name: str) -> None:
    size = 200 << 20
    listed = {"params.json": {"size": size, "sha256": "0" * 64}}
    store = forge(tmp_path, {}, {"files": listed})
    with (tmp_path / "commits/c-000000000002" / name).open("r+b" if name == "manifest.json" else "wb") as file:
        file.truncate(size)  # sparse: costs no disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    assert name in store.skipped[0] and ("the limit is" in store.skipped[0] or "more than" in store.skipped[0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # kilobytes


@pytest.mark.parametrize(
    "text",
    [
        b'{"x": {"$tensor": "/x"}, "y": 1, "y": 2}',
        b'{"x": {"$tensor": "/x"}, "y": NaN}',
        b'{"x": {"$tensor": "/x"}, "y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": {"$tensor": "/x"}, "y": ' + b"9" * 5000 + b"}",
        b'{"x": {"$tensor": "/x"}, "y": "\xff"}',
        b'{"x": {"$tensor": "/x"}, "y": {"$object": "os.system"}}',
        b"",
    ],
    ids=["duplicate", "nan", "deep", "digits", "bytes", "tag", "empty"],
)
def test_hostile_json(tmp_path: Path, text: bytes) -> None:
    commit = forge(tmp_path, {"params.safetensors": GOOD, "params.json": text}).latest_valid()
    assert commit is not None and commit.step == 2
    with pytest.raises(CheckpointError, match="c-000000000002: "):
        commit.load("params")


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": {"params.json": 7}},
        {"files": {"params.json": {"size": "0", "sha256": "x"}}},
        {"step": "2"},
        {"info": {"a": {"$tensor": "/x"}}},
        {"format": 0},
    ],
    ids=str,
)
def test_a_manifest_of_the_wrong_shape(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = forge(tmp_path, {}, changes)
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    assert len(store.skipped) == 1


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mutated_bytes_never_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    original = bytearray(safetensors_file({"/x": entry([2], 0, 8), "/y": entry([0], 8, 8)}, bytes(8)))
    for _ in range(data.draw(st.integers(1, 4))):
        original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(original[: data.draw(st.integers(0, len(original)))])
    try:
        tensors, _ = load_weights(path)
    except CheckpointError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


# ---- no file of the package can run what it reads

FORBIDDEN = {
    ("pickle", "load"),
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("torch", "load"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("pandas", "read_pickle"),
    ("joblib", "load"),
    ("marshal", "loads"),
}


def unsafe_calls(source: str) -> list[str]:
    """Calls that can execute data, with their line."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    functions: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            functions |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(f"{name}:{node.lineno}")
            case ast.Call(func=ast.Name(id=name)) if functions.get(name) in FORBIDDEN:
                found.append(f"{name}:{node.lineno}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if (
                modules.get(module, module),
                name,
            ) in FORBIDDEN:
                found.append(f"{module}.{name}:{node.lineno}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                found.append(f"allow_pickle:{node.value.lineno}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "import pickle as p\np.load(f)",
        "from pickle import loads as read\nread(b'')",
        "import torch\ntorch.load('x', weights_only=True)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import yaml\nyaml.load(f, yaml.Loader)",
        "eval('1')",
        "exec('1')",
    ],
)
def test_the_search_for_unsafe_calls_finds_them(source: str) -> None:
    assert len(unsafe_calls(source)) == 1


PIPES = {"execute/packing.py", "execute/child.py", "execute/failures.py"}
"""Where messages between a process and its own children are unpickled; they come from inherited pipes alone."""

RAY = "execute/ray_host.py"
"""Where messages of Ray are unpickled: Ray itself unpickles what its cluster sends, which must therefore be trusted."""


def test_nothing_in_the_package_can_execute_a_file() -> None:
    # Guards against: Z1, files that are read by unpickling.
    # Guards against: Z2, file contents that are evaluated.
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) >= 5
    found = {str(path.relative_to(PACKAGE)): unsafe_calls(path.read_text()) for path in paths}
    unsafe = {path: {call.partition(":")[0] for call in calls} for path, calls in found.items() if calls}
    expected = {path: {"pickle.loads"} for path in (*PIPES, RAY)}
    assert unsafe == {**expected, "execute/packing.py": {"pickle.Unpickler", "marshal.loads"}}


@pytest.mark.parametrize("name", sorted(PIPES))
def test_what_unpickles_opens_neither_files_nor_sockets(name: str) -> None:
    text = (PACKAGE / name).read_text()
    for word in ("open(", "read_bytes", "socket", "Listener", "Client(", "managers", "shared_memory", "SharedMemory"):
        assert word not in text, word
